"""What speaks HTTP/2 for the server: grpcio, or pygrpc-native behind the same interface."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import ip_address
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, ParamSpec, TypeVar

import grpc

from idalloc_server.config import Settings
from idalloc_server.domain.errors import StartRefused
from idalloc_server.grpc_types import MetadataReader, invocation_metadata
from idalloc_server.listen_address import unix_path

# The most calls that one connection has under way; its client keeps further ones to itself until one has ended. Calls
# wait in one line, whichever connection they came on: so many calls of one connection can be ahead of another's. A call
# costs 5 kB and more from its arrival on. Native has the least that RFC 9113 advises. grpcio refuses some calls
# (UNAVAILABLE) of a client that has as many to send, so a thousand callers on one connection fit with room to spare.
MAX_STREAMS_PER_CONNECTION = {"grpcio": 1_250, "native": 100}
# The most calls that wait to be begun. grpcio's own limit is 1,000: of more it refuses some, whoever's they are.
MAX_WAITING_CALLS = 100_000
# The largest request: names, labels and a format take some kB; what is larger is refused before it is read.
MAX_REQUEST_BYTES = 256 * 1024
# The most metadata of a call, of which some is refused at random from the first size on, and all from the second one
# on: a token of ours has 51 characters, a mesh adds a few headers.
MAX_METADATA_BYTES, LARGEST_METADATA_BYTES = 8 * 1024, 16 * 1024
# A client may ask this often whether the connection lives; after two questions too early it is hung up on. Ours asks
# once a minute, while it has calls. Native answers all.
MIN_PING_SECONDS = 20
# How long the calls of a connection may go on when it has become too old.
MAX_CONNECTION_GRACE_SECONDS = 60
# The most replies of native's streams that wait at a time for a client that is slow to read.
MAX_BLOCKED_WRITES = 10_000
# How many of the threads that they waited in are kept for later ones.
KEPT_THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


def check(settings: Settings, *, asks: bool = False) -> None:
    """Sees that the chosen transport can do what the settings ask for, and that no stranger gets ids by oversight.

    Args:
        settings: All settings.
        asks: Whether the server asks who calls.

    Raises:
        StartRefused: It cannot; the message says what can.
    """
    if settings.transport == "native":
        _check_one_address(settings.listen)
        for name in ("tls_cert", "max_connection_age"):
            if getattr(settings, name):
                raise StartRefused(name, "native cannot do that: leave it out, or choose --transport grpcio")
    if not settings.insecure and _can_be_reached(settings.listen):
        # A certificate of the right authority says who calls, too.
        missing = [] if asks or settings.tls_client_ca else ["access"]
        if not settings.tls_cert:
            missing.append("tls_cert")
        if missing:
            why = "nobody is asked who they are" if "access" in missing else "tokens and ids are not encrypted"
            steps = [
                f"set {' and '.join(missing)}",
                "listen on 127.0.0.1 or on unix:/PATH",
                "say insecure = true (--insecure true)",
            ]
            if settings.transport == "native":  # which would refuse tls_cert
                why += ", and native unpacks requests of any size before it authenticates a caller"
                steps = [*steps[1:], f"choose --transport grpcio and {steps[0]}"]
            raise StartRefused(
                "listen", f"others can reach {settings.listen}, and {why}: {', '.join(steps[:-1])}, or {steps[-1]}"
            )


def make_server(transport: str, *, reuse_port: bool, max_connection_age: float = 0.0) -> grpc.aio.Server:
    """Makes a server that has no port yet. It serves on the running event loop, which it may prepare for that.

    Args:
        transport: ``grpcio`` or ``native``.
        reuse_port: Whether other servers may share its port. Without that a second one is refused a taken port.
        max_connection_age: When a connection is ended, in seconds; 0 for never.

    Raises:
        StartRefused: The package of the transport is not installed.
    """
    options = [
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION[transport]),
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
    return grpc.aio.server(options=options)


def can_push_back(transport: str) -> bool:
    """Tells whether it sends trailers whose names begin with ``grpc-``: gRPC's own retry policy heeds one of them."""
    return transport != "native"


def can_turn_away(transport: str) -> bool:
    """Tells whether a stop sends connections elsewhere at once (HTTP/2's GOAWAY), while their running calls go on."""
    return transport != "native"


def metadata_reader(transport: str) -> MetadataReader:
    """Returns what reads the metadata of a call."""
    return _native_metadata if transport == "native" else invocation_metadata


def _native_metadata(context: Any) -> Iterable[tuple[str, Any]]:
    # Its own method makes named tuples of them first, which costs a call more than the rest of the authentication.
    call = getattr(context, "_call", None)
    return invocation_metadata(context) if call is None else call.metadata


def _make_native(options: list[tuple[str, int]]) -> grpc.aio.Server:
    try:
        from pygrpc_native.aio import server
    except ImportError:
        raise StartRefused("transport", "native needs a package of its own: pip install 'idalloc[native]'") from None
    # It waits for a slow reader in a thread of the loop's executor. Of the usual few threads a handful of clients that
    # stand still would take all, for ever: nothing could look up a name then, and not even its stop() would end.
    asyncio.get_running_loop().set_default_executor(BlockedWrites(MAX_BLOCKED_WRITES, KEPT_THREADS))
    return server(options=options)


class BlockedWrites(ThreadPoolExecutor):
    """Threads of which most end with their work; those of its base, which an event loop asks for, never do.

    Args:
        most: The most threads.
        kept: The most that stay when they have nothing to do.
    """

    def __init__(self, most: int, kept: int) -> None:
        super().__init__(most)
        self._most = most
        self._kept = kept
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._guard = Lock()
        self._started: set[Thread] = set()
        # How many threads are idle, less the jobs that none has taken up yet.
        self._free = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See ``Executor``."""
        future: Future[T] = Future()
        with self._guard:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.put(lambda: _run(future, fn, *args, **kwargs))
            self._free -= 1
            if self._free < 0 and len(self._started) < self._most:
                thread = Thread(target=self._work, name="native-write", daemon=True)
                thread.start()
                self._started.add(thread)
                self._free += 1
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See ``Executor``; what was submitted is done all the same."""
        with self._guard:
            self._closed = True
            threads = list(self._started)
            for _ in threads:
                self._jobs.put(None)
        for thread in threads if wait else []:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # or its reply would be kept for as long as this thread waits
            with self._guard:
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


def _can_be_reached(listen: str) -> bool:
    """Tells whether others than this machine can connect. A name that leads nowhere is told by who takes the port."""
    if unix_path(listen):
        return False
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return False
    # An address of IPv6 may name its interface behind a %.
    return not all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _check_one_address(listen: str) -> None:
    if unix_path(listen):
        return
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
