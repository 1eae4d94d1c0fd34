"""gRPC's server: the services that it serves, and the address that it binds."""

import os
from collections.abc import Awaitable, Generator
from functools import partial
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from idalloc_server.listen.held_address import cannot_bind
from idalloc_server.listen.tls import Certificates
from idalloc_server.rpc.calls import Service, decoder
from idalloc_server.settings.address import unix_path

# A Unix socket is accessible to the server's user and group.
SOCKET_UMASK = 0o117


_METHOD_HANDLERS: dict[tuple[bool, bool], Any] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class CoroutineFunction(partial[Awaitable[Any]]):
    """A coroutine function that grpcio recognizes at less cost.

    At each call grpcio checks whether a handler is awaitable, and only then whether it is a
    coroutine function. The second check takes 3 µs, so this class passes the first one.
    """

    def __await__(self) -> Generator[Any, Any, Any]:
        """Make grpcio call the handler; nothing awaits the handler itself."""
        raise TypeError("call the handler, and await the result")


def add_service(server: grpc.aio.Server, service: Service, *, registered: bool) -> None:
    """Serve a service on a server.

    Args:
        server: The server, before its start.
        service: The service.
        registered: See ``GrpcTransport.needs_registered_methods``.
    """
    handlers = {}
    for method in service.descriptor.methods:
        make = _METHOD_HANDLERS[method.client_streaming, method.server_streaming]
        is_serialized = method.name in service.serialized
        serialize = None if is_serialized else GetMessageClass(method.output_type).SerializeToString
        handler = service.handlers[method.name]
        if not registered and not method.server_streaming:  # native makes the second check alone
            handler = CoroutineFunction(handler)
        handlers[method.name] = make(handler, decoder(method), serialize)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.name, handlers),))
    if registered:
        server.add_registered_method_handlers(service.name, handlers)


def bind(server: grpc.aio.Server, listen: str, certificates: Certificates | None) -> str:
    """Bind an address, and return it with the port in use; the server answers once started.

    Args:
        server: The server, before its start.
        listen: HOST:PORT or unix:/PATH.
        certificates: The TLS files; None without TLS.

    Raises:
        StartRefused: The address cannot be bound.
    """
    before = os.umask(SOCKET_UMASK)
    try:
        if certificates:
            port = server.add_secure_port(listen, certificates.credentials())
        else:
            port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise cannot_bind(listen, error) from None
    finally:
        os.umask(before)
    return listen if unix_path(listen) else f"{listen.rpartition(':')[0]}:{port}"
