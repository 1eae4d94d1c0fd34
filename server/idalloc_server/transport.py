"""What speaks HTTP/2 for the server: grpcio, or pygrpc-native behind the same interface."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc

from idalloc_server.config import Settings
from idalloc_server.domain.errors import StartRefused

# The most replies of native's streams that wait at a time for a client that is slow to read.
MAX_BLOCKED_WRITES = 10_000


def check(settings: Settings) -> None:
    """Sees that the chosen transport can do what the settings ask for.

    Raises:
        StartRefused: It cannot; the message says what can.
    """
    if settings.transport == "native":
        _check_one_address(settings.listen)


def make_server(transport: str, *, reuse_port: bool) -> grpc.aio.Server:
    """Makes a server that has no port yet. It serves on the running event loop, which it may prepare for that.

    Args:
        transport: ``grpcio`` or ``native``.
        reuse_port: Whether other servers may share its port. Without that a second one is refused a taken port.

    Raises:
        StartRefused: The package of the transport is not installed.
    """
    options = [("grpc.so_reuseport", int(reuse_port))]
    if transport == "native":
        return _make_native(options)
    return grpc.aio.server(options=options)


def can_push_back(transport: str) -> bool:
    """Tells whether it sends trailers whose names begin with ``grpc-``: gRPC's own retry policy heeds one of them."""
    return transport != "native"


def _make_native(options: list[tuple[str, int]]) -> grpc.aio.Server:
    try:
        from pygrpc_native.aio import server
    except ImportError:
        raise StartRefused("transport", "native needs a package of its own: pip install 'idalloc[native]'") from None
    # It waits for a slow reader in a thread of the loop's executor. Of the usual few threads a handful of clients that
    # stand still would take all, for ever: nothing could look up a name then, and not even its stop() would end.
    threads = ThreadPoolExecutor(MAX_BLOCKED_WRITES, thread_name_prefix="native-write")
    asyncio.get_running_loop().set_default_executor(threads)
    return server(options=options)


def _check_one_address(listen: str) -> None:
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return  # Who takes the port says it better.
    addresses = sorted({str(address[0]) for *_, address in found})
    if len(addresses) > 1:
        raise StartRefused(
            "listen",
            f"native serves on one address, and {host} has {len(addresses)}: take one of {', '.join(addresses)}, "
            "or --transport grpcio",
        )
