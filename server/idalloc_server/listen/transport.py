"""The gRPC transports: grpcio, or pygrpc-native behind the same interface."""

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import ip_address
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, ParamSpec, TypeVar

import grpc

from idalloc_server.auth.call_types import MetadataReader, invocation_metadata
from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.connections import HANDSHAKE_SECONDS
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
MAX_METADATA_BYTES, LARGEST_METADATA_BYTES = 8 * 1024, 16 * 1024
# The shortest interval of a client's keepalive pings; gRPC tolerates two early ones, then closes
# the connection. The shortest that gRPC for Go allows is 10 s, and a timer may be early. The SDK
# sends one in 30 s during calls. Native has no limit.
MIN_PING_SECONDS = 9
# How long calls may continue on a connection that reached its maximum age.
MAX_CONNECTION_GRACE_SECONDS = 60
# The most replies of native's streams that wait for slow clients at a time.
MAX_BLOCKED_WRITES = 10_000
# How many idle threads stay for such replies.
KEPT_THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


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
    if settings.transport == "native":
        _check_one_address(settings.listen)
        for name, value in (("tls_cert", uses_tls(settings)), ("max_connection_age", settings.max_connection_age)):
            if value:
                raise StartRefused(name, "is not supported by native: remove it, or use --transport grpcio")
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
        if settings.transport == "native":  # It does not support tls_cert.
            if name == "listen":
                problem += ", and native unpacks requests of any size before it authenticates a caller"
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
        transport: ``grpcio`` or ``native``.
        reuse_port: Whether other processes may bind the same port.
        max_connection_age: The longest life of a connection, in seconds; 0 for no limit.
        max_connections: The most connections; 0 for no limit. Native has none.

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
    if transport == "native":
        return _make_native(options)
    if max_connections:
        options.append(("grpc.max_allowed_incoming_connections", max_connections))
    return grpc.aio.server(options=options)


def uses_tls(settings: Settings) -> bool:
    """Return whether the gRPC port speaks TLS; with ``trust_proxy`` the proxy does."""
    return bool(settings.tls_cert) and not settings.trust_proxy


def can_push_back(transport: str) -> bool:
    """Return whether the transport sends trailers named ``grpc-…``, as retry pushback needs."""
    return transport != "native"


def needs_registered_methods(transport: str) -> bool:
    """Return whether the transport must know all methods before the start.

    Native passes calls of other methods to a grpcio server behind it. grpcio also serves other
    methods, and at less cost: at each call it waits anew for a call of each registered method.
    """
    return transport == "native"


def can_send_goaway(transport: str) -> bool:
    """Return whether a stop sends HTTP/2's GOAWAY at once and lets running calls continue."""
    return transport != "native"


def metadata_reader(transport: str) -> MetadataReader:
    """Return the function that reads the metadata of a call."""
    return _native_metadata if transport == "native" else invocation_metadata


def _native_metadata(context: Any) -> Iterable[tuple[str, Any]]:
    # Native's public method creates named tuples, which costs more than the rest of the
    # authentication.
    call = getattr(context, "_call", None)
    return invocation_metadata(context) if call is None else call.metadata


def _make_native(options: list[tuple[str, int]]) -> grpc.aio.Server:
    try:
        from pygrpc_native.aio import server
    except ImportError:
        raise StartRefused("transport", "native is not installed: pip install 'idalloc[native]'") from None
    # Native waits for a slow client in a thread of the loop's executor. A few stalled clients would
    # block all threads of the default executor, and with them name lookups and stop().
    asyncio.get_running_loop().set_default_executor(BlockedWrites(MAX_BLOCKED_WRITES, KEPT_THREADS))
    # At the limit of open files native tries again every 50 ms, and logs each time.
    logging.getLogger("pygrpc_native.server").addFilter(OnceASecond())
    return server(options=options)


class OnceASecond(logging.Filter):
    """Drops a record whose text its logger has logged within the last second."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ("", -math.inf)

    def filter(self, record: logging.LogRecord) -> bool:
        """See ``logging.Filter``."""
        text, (last, logged_at) = record.getMessage(), self._last
        if text == last and record.created - logged_at < 1:
            return False
        self._last = (text, record.created)
        return True


class BlockedWrites(ThreadPoolExecutor):
    """A thread pool that keeps ``kept`` idle threads at most; ``ThreadPoolExecutor`` keeps all.

    An event loop requires that base class.
    """

    def __init__(self, max_threads: int, kept: int) -> None:
        super().__init__(max_threads)
        self._max_threads = max_threads
        self._kept = kept
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = Lock()
        self._started: set[Thread] = set()
        # Idle threads minus queued jobs.
        self._free = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See ``Executor``."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.put(lambda: _run(future, fn, *args, **kwargs))
            self._free -= 1
            if self._free < 0 and len(self._started) < self._max_threads:
                thread = Thread(target=self._work, name="native-write", daemon=True)
                thread.start()
                self._started.add(thread)
                self._free += 1
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See ``Executor``; submitted jobs still run."""
        with self._lock:
            self._closed = True
            threads = list(self._started)
            for _ in threads:
                self._jobs.put(None)
        for thread in threads if wait else []:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # An idle thread must not keep the reply alive.
            with self._lock:
                if self._free >= self._kept:
                    self._started.discard(current_thread())
                    return
                self._free += 1


def _run(future: Future[T], fn: Callable[..., T], *args: Any, **kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)


def is_reachable(listen: str) -> bool:
    """Return whether other machines can connect. The bind reports a host that has no address."""
    # An IPv6 address may end with % and an interface.
    return not all(ip_address(address.partition("%")[0]).is_loopback for address in _addresses(listen))


def _check_one_address(listen: str) -> None:
    addresses = _addresses(listen)
    if len(addresses) > 1:
        host = listen.rpartition(":")[0]
        raise StartRefused(
            "listen",
            f"native serves on one address, and {host} has {len(addresses)}: use one of {', '.join(addresses)}, "
            "or --transport grpcio",
        )


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
