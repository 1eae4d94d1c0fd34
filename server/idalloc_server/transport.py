"""What speaks HTTP/2 for the server: grpcio, or pygrpc-native behind the same interface."""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, ParamSpec, TypeVar

import grpc

from idalloc_server.config import Settings
from idalloc_server.domain.errors import StartRefused

# The most calls that one connection has under way; a client keeps further ones to itself until one has ended. A call
# costs some kB from its arrival on, and of those that wait to be begun grpcio refuses some at random, whoever's they
# are, where they are more than a thousand. No fewer: HTTP/2 advises against less than a hundred.
MAX_STREAMS_PER_CONNECTION = 100
# The most replies of native's streams that wait at a time for a client that is slow to read.
MAX_BLOCKED_WRITES = 10_000
# How long a thread that such a reply waited in is kept for another one.
IDLE_THREAD_SECONDS = 2.0

P = ParamSpec("P")
T = TypeVar("T")


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
    options = [
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
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


def _make_native(options: list[tuple[str, int]]) -> grpc.aio.Server:
    try:
        from pygrpc_native.aio import server
    except ImportError:
        raise StartRefused("transport", "native needs a package of its own: pip install 'idalloc[native]'") from None
    # It waits for a slow reader in a thread of the loop's executor. Of the usual few threads a handful of clients that
    # stand still would take all, for ever: nothing could look up a name then, and not even its stop() would end.
    asyncio.get_running_loop().set_default_executor(BlockedWrites(MAX_BLOCKED_WRITES, IDLE_THREAD_SECONDS))
    return server(options=options)


class BlockedWrites(ThreadPoolExecutor):
    """Threads that end when they had nothing to do for a while; those of its base, which a loop asks for, never do.

    Args:
        most: The most threads.
        patience: How long an idle one is kept, in seconds.
    """

    def __init__(self, most: int, patience: float) -> None:
        super().__init__(most)
        self._most = most
        self._patience = patience
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
        while True:
            with suppress(Empty):
                job = self._jobs.get(timeout=self._patience)
                if job is None:
                    return
                job()
                del job  # or its reply would be kept for as long as this one waits
                with self._guard:
                    self._free += 1
                continue
            with self._guard:
                if self._free > 0:  # else a job was put just now, which counts on this one
                    self._free -= 1
                    self._started.discard(current_thread())
                    return


def _run(future: Future[T], fn: Callable[..., T], *args: Any, **kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)


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
