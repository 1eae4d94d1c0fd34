"""The connection to a server: opened on first use, again after a fork, refused after close.

gRPC survives a fork only under conditions (tried with 1.74 and 1.85): no open channel is one of asyncio's, and
``GRPC_ENABLE_FORK_SUPPORT=1`` was in the environment when gRPC was loaded. Else a call in the child hangs beyond its
own deadline, or ends the process by a signal; here it raises ``RuntimeError`` instead.
"""

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Generic, Protocol, TypeVar

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # not in the stubs

from idalloc._core.fork import this_process
from idalloc._transport.access import ChannelConfig

# The most connections of a client. Its calls, and its streams one at a time, have the first one.
MAX_CONNECTIONS = 4

# Read when this is loaded: importlib suppresses what a signal's handler raises, and finds nothing then.
_SERVICE_CONFIG = json.loads(files("idalloc.v1").joinpath("service_config.json").read_text())
# gRPC's retry policy waits as long as the trailer grpc-retry-pushback-ms says, for days too. A unary call ends at its
# timeout, but a stream may have none: `Resumption` does all retries of streams.
_STREAMS = [{"service": "idalloc.v1.IdAllocatorService", "method": name} for name in ("StreamRanges", "StreamDocIds")]
_SERVICE_CONFIG["methodConfig"].append({"name": _STREAMS})
_USER_AGENT = f"idalloc-python/{version('idalloc')}"

_left_behind: list[object] = []


def channel_options(access: ChannelConfig) -> list[tuple[str, str | int]]:
    """Settings of a channel; unary calls have the retry policy beside the protos, streams have none."""
    return [
        ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
        ("grpc.service_config_disable_resolution", 1),  # a DNS record must not replace it
        # A connection of its own for each client: a server of several processes gives a connection to one of them.
        ("grpc.use_local_subchannel_pool", 1),
        # By itself gRPC waits up to two minutes before it looks for a server that was away; streams give up before.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # A server that vanished without a word is noticed also by a call without a deadline, such as a stream.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.primary_user_agent", _USER_AGENT),
        *access.options,
    ]


class Holder(Protocol):
    """Something that holds ids."""

    def drop(self) -> None:
        """Drops them."""

    def forget(self) -> None:
        """Drops them in the child of a fork, where other threads are gone, and no one gives back what they locked."""


Stubs = TypeVar("Stubs")
T = TypeVar("T")


class Connection(Generic[Stubs]):
    """A channel's stubs.

    Args:
        open_stubs: Opens a channel.
        of_asyncio: Whether it is a channel of ``grpc.aio``.

    Attributes:
        streams: The streams that run on it; see ``least_busy``.
    """

    def __init__(self, open_stubs: Callable[[], Stubs], *, of_asyncio: bool) -> None:
        self.streams: set[object] = set()
        self._open_stubs = open_stubs
        self._of_asyncio = of_asyncio
        self._stubs: Stubs | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._pending: set[object] = set()
        _connections.add(self)

    def get(self) -> Stubs:
        """Returns the stubs of the open channel; they are others after a fork.

        Raises:
            RuntimeError: The client was closed, or gRPC cannot be used after this fork.
        """
        _notice_fork()
        if _refusal:
            raise RuntimeError(_refusal)
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._stubs is None:
                self._stubs = self._open_stubs()
            return self._stubs

    @contextmanager
    def inside_grpc(self, stubs: Stubs, call: object = None) -> Iterator[None]:
        """Runs code of gRPC for a call: what starts it, waits for it, or cancels it.

        A signal's handler may raise amid that code, after which a lock of the channel may stay locked for ever, or the
        channel's thread be missing. After any exception but gRPC's own, the next call opens another channel. The old
        channel and the call are never closed: to close them takes those locks.

        Args:
            stubs: The channel's.
            call: The call, once it has begun.
        """
        try:
            yield
        except (grpc.RpcError, grpc.FutureCancelledError, GeneratorExit):
            raise
        except BaseException:
            leave_behind((stubs, call))
            if self._stubs is stubs:
                self._stubs = None
            raise

    def keep(self, future: "grpc.Future[Any]") -> None:
        """Keeps a call until it has ended. To be called ``inside_grpc``.

        gRPC takes a lock of a call to collect it, in whatever code drops the last reference. An exception of a signal's
        handler there would leave the lock taken, and the channel's thread would wait for it when the answer comes.
        """
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    def responses(self, stubs: Stubs, call: Iterable[T]) -> Iterator[T]:
        """Returns the responses of a stream of gRPC for threads, received ``inside_grpc``."""
        with self.inside_grpc(stubs, call):
            yield from call

    def add(self, holder: Holder) -> None:
        """Has a holder of ids forget them when the client is closed, and in the child of a fork."""
        self._holders.add(holder)

    def close(self) -> Stubs | None:
        """Refuses further use, drops all ids, and returns the stubs, if a channel is open, for it to be closed."""
        _notice_fork()
        with self._lock:
            self._closed = True
            stubs, self._stubs = self._stubs, None
        for holder in list(self._holders):
            holder.drop()
        return stubs

    def refusal(self) -> str:
        """Says in the child of a fork why gRPC cannot be used there; empty if it can."""
        if self._stubs is None:
            return ""
        if self._of_asyncio:
            return _REFUSAL_OF_ASYNCIO
        return "" if _fork_support() else _REFUSAL

    def start_afresh(self) -> None:
        """Starts afresh in the child of a fork."""
        self._lock = threading.Lock()
        self.streams = set()
        leave_behind(self._pending)
        self._pending = set()
        for holder in list(self._holders):
            holder.forget()
        if self._stubs is not None:
            leave_behind(self._stubs)
            self._stubs = None


@contextmanager
def least_busy(connections: Sequence[Connection[Stubs]]) -> Iterator[Connection[Stubs]]:
    """Chooses the connection of a stream, which runs as long as the block: the first of those with fewest streams.

    So streams that run at the same time have several connections, and with them several processes of a server.
    """
    connection = min(connections, key=lambda each: len(each.streams))
    stream = object()
    try:
        connection.streams.add(stream)
        yield connection
    finally:
        connection.streams.discard(stream)


_REFUSAL = (
    "this process was forked while a client was connected, which gRPC does not survive: "
    "set GRPC_ENABLE_FORK_SUPPORT=1 before Python starts, or fork before the client's first call"
)
_REFUSAL_OF_ASYNCIO = (
    "this process was forked while a client of asyncio was connected, which gRPC does not survive: "
    "fork before the client's first call, or close it before the fork"
)
_process = this_process()
_refusal = ""
_fork_lock = threading.Lock()
_connections: weakref.WeakSet[Connection[Any]] = weakref.WeakSet()


def leave_behind(thing: object) -> None:
    """Keeps a channel or a call of the parent's for ever.

    To collect it is to close it, which waits for locks that threads of the parent may have held.
    """
    _left_behind.append(thing)


def _fork_support() -> bool:
    """Whether gRPC takes care of its channels when this process forks."""
    with suppress(AttributeError):  # not a published function; without it, the variable that it goes by
        return bool(cygrpc.is_fork_support_enabled())
    return os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in ("1", "t", "true", "y", "yes")


def _notice_fork() -> None:
    """Does in a forked process what has to be done there, also where the fork bypassed Python.

    An exception from a signal's handler may interrupt it: then the next call does all of it again.
    """
    global _process, _refusal
    if next(_process):
        return
    with _fork_lock:  # after a fork that bypassed Python, several threads may be here first
        if next(_process):
            return
        process, connections = this_process(), list(_connections)
        for connection in connections:
            _refusal = connection.refusal() or _refusal
        for connection in connections:
            connection.start_afresh()
        _process = process


def _notice_fork_in_child() -> None:
    global _fork_lock
    _fork_lock = threading.Lock()
    _notice_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notice_fork_in_child)
