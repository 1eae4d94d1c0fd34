"""The gRPC transports, their limits, and the checks of the addresses that they serve."""

import socket
from ipaddress import ip_address

import grpc

from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.connections import HANDSHAKE_SECONDS
from idalloc_server.listen.grpcio import GRPCIO
from idalloc_server.listen.native import NATIVE
from idalloc_server.settings.address import unix_path
from idalloc_server.settings.model import Settings

# The most concurrent calls of a connection (HTTP/2's MAX_CONCURRENT_STREAMS): the minimum that RFC
# 9113 recommends. A client queues further ones. All calls wait in one queue of the server, and each
# takes 5 kB or more from its arrival.
MAX_STREAMS_PER_CONNECTION = 100
# The most further calls of a connection that have ended for the client and not yet in grpcio, such
# as those that the client has reset. Beyond this grpcio refuses calls as UNAVAILABLE; a lower limit
# would refuse calls of an honest busy client, too.
MAX_ENDED_STREAMS = 100
# The most calls that wait for a handler. Past grpcio's default, 1,000, it rejects calls of any
# client.
MAX_WAITING_CALLS = 100_000
# The largest request. Names, labels and a format take a few kB; a larger request is rejected before
# it is read.
MAX_REQUEST_BYTES = 256 * 1024
# The most metadata of a call. grpcio rejects some calls above the first limit, at random, and all
# above the second one. A token has 51 characters; a service mesh adds a few headers.
MAX_METADATA_BYTES = 8 * 1024
LARGEST_METADATA_BYTES = 16 * 1024
# The shortest interval of a client's keepalive pings; gRPC tolerates two early ones, then closes
# the connection. The shortest that gRPC for Go allows is 10 s, and a timer may be early. The SDK
# sends one in 30 s during calls. Native has no limit.
MIN_PING_SECONDS = 9
# How long calls may continue on a connection that reached its maximum age.
MAX_CONNECTION_GRACE_SECONDS = 60

TRANSPORTS = {each.name: each for each in (GRPCIO, NATIVE)}


def check_settings(settings: Settings, *, requires_authentication: bool = False) -> None:
    """Check that the transport supports the settings, and that other machines must authenticate.

    Args:
        settings: All settings.
        requires_authentication: Whether callers must authenticate.

    Raises:
        StartRefused: A check failed; the message has the next step.
    """
    if settings.trust_proxy and not unix_path(settings.listen):
        raise StartRefused(
            "trust_proxy",
            f"any machine that reaches {settings.listen} could name an address: listen on unix:/PATH, or remove it",
        )
    if settings.trust_proxy and settings.tls_client_ca:
        raise StartRefused("tls_client_ca", "with trust_proxy the proxy checks client certificates: remove it")
    transport = TRANSPORTS[settings.transport]
    if transport.has_one_address and len(addresses := _addresses(settings.listen)) > 1:
        raise StartRefused(
            "listen",
            f"{transport.name} serves on one address, and {settings.listen.rpartition(':')[0]} has {len(addresses)}: "
            f"use one of {', '.join(addresses)}, or --transport grpcio",
        )
    for name in transport.unsupported:
        if getattr(settings, name) and (name != "tls_cert" or uses_tls(settings)):
            raise StartRefused(name, f"is not supported by {transport.name}: remove it, or use --transport grpcio")
    for name in ("listen", "http_listen"):
        check_reachable(settings, name, requires_authentication=requires_authentication)


def check_reachable(settings: Settings, name: str, *, requires_authentication: bool) -> None:
    """Check that other machines reach an address only with authentication and TLS.

    Args:
        settings: All settings.
        name: The setting of the address.
        requires_authentication: Whether callers must authenticate.

    Raises:
        StartRefused: Other machines reach it without; the message has the next step.
    """
    listen = getattr(settings, name)
    if settings.insecure or not listen or not is_reachable(listen):
        return
    missing = [] if requires_authentication or settings.tls_client_ca else ["access_file"]
    if not settings.tls_cert:
        missing.append("tls_cert")
    if missing:
        problem = "callers are not authenticated" if "access_file" in missing else "tokens and ids are not encrypted"
        steps = [
            f"set {' and '.join(missing)}",
            "listen on 127.0.0.1 or on unix:/PATH" if name == "listen" else "listen on 127.0.0.1",
            "set insecure = true (--insecure true)",
        ]
        transport = TRANSPORTS[settings.transport]
        if name == "listen" and transport.exposure:
            problem += f", and {transport.exposure}"
        if "tls_cert" in transport.unsupported:
            steps = [*steps[1:], f"use --transport grpcio and {steps[0]}"]
        raise StartRefused(
            name, f"other machines can reach {listen}, and {problem}: {', '.join(steps[:-1])}, or {steps[-1]}"
        )


def make_server(
    transport: str, *, reuse_port: bool, max_connection_age: float = 0.0, max_connections: int = 0
) -> grpc.aio.Server:
    """Return a server without a port, on the running event loop.

    Native replaces the loop's default executor.

    Args:
        transport: A name in ``TRANSPORTS``.
        reuse_port: Whether other processes may bind the same port.
        max_connection_age: The longest life of a connection, in seconds; 0 for no limit.
        max_connections: The most connections; 0 for no limit.

    Raises:
        StartRefused: The package of the transport is not installed.
    """
    options = [
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
        ("grpc.http2.max_deallocating_streams", MAX_ENDED_STREAMS),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
        ("grpc.server.max_pending_requests", MAX_WAITING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_WAITING_CALLS),
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", LARGEST_METADATA_BYTES),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_SECONDS * 1000),
    ]
    if max_connection_age:
        options += [
            ("grpc.max_connection_age_ms", int(max_connection_age * 1000)),
            ("grpc.max_connection_age_grace_ms", MAX_CONNECTION_GRACE_SECONDS * 1000),
        ]
    made = TRANSPORTS[transport]
    if max_connections and made.can_limit_connections:
        options.append(("grpc.max_allowed_incoming_connections", max_connections))
    return made.make(options=options)


def uses_tls(settings: Settings) -> bool:
    """Return whether the gRPC port speaks TLS; with ``trust_proxy`` the proxy does."""
    return bool(settings.tls_cert) and not settings.trust_proxy


def is_reachable(listen: str) -> bool:
    """Return whether other machines can connect. The bind reports a host that has no address."""
    # An IPv6 address may end with % and an interface.
    return not all(ip_address(address.partition("%")[0]).is_loopback for address in _addresses(listen))


def _addresses(listen: str) -> list[str]:
    """Return the IP addresses of a host; none for a Unix socket, or a host that has none."""
    if unix_path(listen):
        return []
    host = listen.rpartition(":")[0]
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(address[0]) for *_, address in found})
