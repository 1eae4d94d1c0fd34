"""The gRPC port of a process: its server on its address, and its certificates."""

import os
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from idalloc_server.listen import open_files, transport
from idalloc_server.listen.reservation import ReservedAddress, cannot_bind
from idalloc_server.listen.tls import Certificates
from idalloc_server.rpc.calls import UNDECODABLE, Service
from idalloc_server.settings.address import unix_path
from idalloc_server.settings.model import Settings

# What a server raises when it writes a stream whose client has left: grpcio may raise it before it
# cancels the call.
LEFT_ERRORS = (grpc.aio.InternalError,)
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
        registered: See ``transport.needs_registered_methods``.
    """
    handlers = {}
    for method in service.descriptor.methods:
        make = _METHOD_HANDLERS[method.client_streaming, method.server_streaming]
        is_serialized = method.name in service.serialized
        serialize = None if is_serialized else GetMessageClass(method.output_type).SerializeToString
        handler = service.handlers[method.name]
        if not registered and not method.server_streaming:  # native makes the second check alone
            handler = CoroutineFunction(handler)
        handlers[method.name] = make(handler, _decoder(method), serialize)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.name, handlers),))
    if registered:
        server.add_registered_method_handlers(service.name, handlers)


def _decoder(method: MethodDescriptor) -> Callable[[bytes], Any]:
    parse = GetMessageClass(method.input_type).FromString

    def decode(content: bytes) -> Any:
        try:
            return parse(content)
        except DecodeError:
            return UNDECODABLE

    return decode


class RpcPort:
    """The gRPC port of a process, bound at once unless it is shared.

    Args:
        shares_port: Whether this process is one of several workers, which bind the same port.

    Raises:
        StartRefused: A file or the address cannot be used.
    """

    def __init__(self, settings: Settings, *, shares_port: bool) -> None:
        self.certificates = None  # the TLS files; None without TLS
        if transport.uses_tls(settings):
            self.certificates = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self._credentials = self.certificates.credentials() if self.certificates else None
        self.server = transport.make_server(
            settings.transport,
            reuse_port=shares_port,
            max_connection_age=settings.max_connection_age,
            max_connections=open_files.most_grpc_connections(settings),
        )
        self._registered = transport.needs_registered_methods(settings.transport)
        self.address = settings.listen  # with the port in use once bound
        self._reserved = None if shares_port else ReservedAddress(settings.listen)
        # Bind before the store is opened: a port in use costs no store call. A worker binds later,
        # since connections to its port would wait for it while other workers could answer. Its
        # supervisor has reserved the port.
        if not shares_port:
            self.bind()

    def bind(self) -> None:
        """Bind the address, and put the port in use into it; the server answers once started."""
        listen, server = self.address, self.server
        before = os.umask(SOCKET_UMASK)
        try:
            if self._credentials:
                port = server.add_secure_port(listen, self._credentials)
            else:
                port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise cannot_bind(listen, error) from None
        finally:
            os.umask(before)
        if not unix_path(listen):
            self.address = f"{listen.rpartition(':')[0]}:{port}"

    def add(self, *services: Service) -> None:
        """Serve services."""
        for service in services:
            add_service(self.server, service, registered=self._registered)

    def release_address(self) -> None:
        """Release the address for other processes; a worker's is released by its supervisor."""
        if self._reserved:
            self._reserved.close()
