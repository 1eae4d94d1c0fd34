"""The gRPC transport pygrpc-native, and all that differs from grpcio in it."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, ParamSpec, TypeVar

import grpc

from idalloc_server.auth.call_types import invocation_metadata
from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.grpcio import GrpcTransport

# The most replies of streams that wait for slow clients at a time.
MAX_BLOCKED_WRITES = 10_000
# How many idle threads stay for such replies.
KEPT_THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


def _metadata(context: Any) -> Iterable[tuple[str, Any]]:
    # The public method creates named tuples, which costs more than the rest of the authentication.
    call = getattr(context, "_call", None)
    return invocation_metadata(context) if call is None else call.metadata


def _make_server(*, options: list[tuple[str, int]]) -> grpc.aio.Server:
    """Return a server, and replace the default executor of the running event loop."""
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

    _last = ("", -math.inf)  # the text and the time of the last record

    def filter(self, record: logging.LogRecord) -> bool:
        """See ``logging.Filter``."""
        text = record.getMessage()
        last, logged_at = self._last
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
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
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
            self._jobs.put((future, partial(fn, *args, **kwargs)))
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
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del job, future, call  # An idle thread must not keep the reply alive.
            with self._lock:
                if self._free >= self._kept:
                    self._started.discard(current_thread())
                    return
                self._free += 1


NATIVE = GrpcTransport(
    name="native",
    make=_make_server,
    metadata_of=_metadata,
    can_push_back=False,
    can_send_goaway=False,
    can_limit_connections=False,
    needs_registered_methods=True,  # it passes calls of other methods to a grpcio server behind it
    has_one_address=True,
    unsupported=("tls_cert", "max_connection_age"),
    exposure="native unpacks requests of any size before it authenticates a caller",
)
