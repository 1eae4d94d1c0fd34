"""The connection to a server: opened on first use, reopened after a fork, unusable after close.

gRPC 1.74 and 1.85 survive a fork only if no open channel is one of grpc.aio, and
``GRPC_ENABLE_FORK_SUPPORT=1`` was in the environment when gRPC was loaded. Otherwise a call in the
child hangs past its deadline or crashes the process; here it raises ``RuntimeError`` instead.
"""

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from traceback import walk_tb
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from idalloc._core.attempts import Attempt
from idalloc._core.errors import ClientClosed
from idalloc._core.fork import process_marker
from idalloc._core.locks import Lock
from idalloc._transport.config import ChannelConfig
from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceStub
from idalloc.v1.node_pb2_grpc import NodeServiceStub
from idalloc.v1.sequences_pb2_grpc import SequenceServiceStub

# The most connections of a client. Unary calls use the first one, and so does a stream while no
# other stream runs.
MAX_CONNECTIONS = 4

# How long a probe waits for an answer, in seconds. It does not wait for a connection: gRPC core
# repeats such a call without limit or pause if each connection begins with GOAWAY.
PROBE_LIFETIME = 60.0

OPTIONS: list[tuple[str, str | int]] = [
    ("grpc.service_config_disable_resolution", 1),  # a DNS record must not set timeouts
    # Do not share connections between clients: each server process accepts its own connections.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC's default waits up to two minutes before it reconnects; streams give up earlier.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A call without a deadline, such as a stream, must also detect that the server vanished.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.primary_user_agent", f"idalloc-python/{version('idalloc')}"),
]

# Whether gRPC handles forks of this process. It reads the variable once, when it is loaded.
_FORK_SUPPORT = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in ("1", "true", "yes")

_leaked: list[object] = []


class IdHolder(Protocol):
    """An object that holds ids in memory."""

    def _discard(self) -> None:
        """Discard the ids, and those that arrive later: the client is closed."""

    def _clear_after_fork(self) -> None:
        """Discard the ids in a fork's child, where a lock of another thread is never released."""


class Stubs(NamedTuple):
    """An open channel of grpc or grpc.aio, and the RPCs of all services by name."""

    channel: Any
    rpcs: dict[str, Any]

    def rpc(self, request: Message) -> Any:
        """Return the RPC of a request.

        The lint of the protos keeps the names of requests those of their RPCs. A probe's is Empty.
        """
        return self.rpcs[type(request).__name__.removesuffix("Request")]


def open_stubs(
    target: str, config: ChannelConfig, own: Sequence[tuple[str, str | int]] = (), *, is_asyncio: bool
) -> Stubs:
    """Open a channel to the services, and for probes; ``own`` are options of this channel alone."""
    channel = config.open(grpc.aio if is_asyncio else grpc, target, [*OPTIONS, *own])
    services = (IdAllocatorServiceStub(channel), NodeServiceStub(channel), SequenceServiceStub(channel))
    rpcs = {name: rpc for service in services for name, rpc in vars(service).items()}
    probe = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=Empty.SerializeToString)
    return Stubs(channel, rpcs | {"Empty": probe})


T = TypeVar("T")


class Connection:
    """A channel of grpc or grpc.aio, its stubs, and what is known of its server."""

    def __init__(self, open_stubs: Callable[[], Stubs], *, is_asyncio: bool) -> None:
        self.streams: set[object] = set()  # those that run on it; see `least_busy`
        self.is_suspect = False  # see docs/explanation/client-calls.md
        self.probe: Attempt[Connection] | None = None  # the last one
        self._open_stubs = open_stubs
        self._is_asyncio = is_asyncio
        self._stubs: Stubs | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of a channel of grpc.aio
        self._closed = False
        self._lock = Lock()
        self._holders: weakref.WeakSet[IdHolder] = weakref.WeakSet()
        self._pending: set[object] = set()
        _connections.add(self)

    def stubs(self) -> Stubs:
        """Return the stubs of the open channel; after a fork, those of a new channel.

        Raises:
            ClientClosed: The client is closed.
            RuntimeError: gRPC cannot be used after this fork, or the channel is one of ``grpc.aio``
                and was opened in another event loop.
        """
        _handle_fork()
        if _fork_error:
            raise RuntimeError(_fork_error)
        with self._lock:
            self.raise_if_closed()
            loop = asyncio.get_running_loop() if self._is_asyncio else None
            if self._stubs is None:
                self._loop = loop
                self._stubs = self._open_stubs()
            elif self._loop is not loop:
                raise RuntimeError(_LOOP_ERROR)
            return self._stubs

    @contextmanager
    def abandon_if_interrupted(self, stubs: Stubs, call: object = None) -> Iterator[None]:
        """Run gRPC's code for a call, and abandon the channel if a signal handler raises in it.

        After such an exception a lock of the channel may stay locked, or its thread may be missing.
        So after any exception that is not gRPC's own, the next call opens a new channel. The old
        channel and ``call``, if it has begun, are never closed, because that takes the same locks.

        Raises:
            ClientClosed: ``close`` has ended the call.
        """
        try:
            yield
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if not isinstance(error, grpc.Call) or error.code() is grpc.StatusCode.CANCELLED:
                self.raise_if_closed()
            raise
        except GeneratorExit:
            raise
        except BaseException as error:
            # Also what gRPC's interrupted code uses: a thread that collects this garbage would wait
            # for the lock of a call. A context manager that was interrupted as it began or ended is
            # closed instead: one of gRPC's has a lock that all channels use.
            names = [{**frame.f_locals} for frame, _ in walk_tb(error.__traceback__)]
            leak((stubs, call, names))
            for each in names:
                if isinstance(generator := getattr(each.get("self"), "gen", None), GeneratorType):
                    generator.close()
            if self._stubs is stubs:
                self._stubs = None
            if isinstance(error, ValueError):  # gRPC's, if the channel was closed before the call
                self.raise_if_closed()
            raise

    def raise_if_closed(self) -> None:
        """Raise ``ClientClosed`` if the client is closed: gRPC has cancelled the calls."""
        if self._closed:
            raise ClientClosed("the client is closed")

    def is_open(self, stubs: Stubs) -> bool:
        """Return whether these are the stubs of the open channel."""
        return self._stubs is stubs

    def keep_until_done(self, future: "grpc.Future[Any]") -> None:
        """Keep a reference to a call until it is done; for use in ``abandon_if_interrupted``.

        gRPC locks a call when it is garbage-collected, in the code that drops the last reference.
        If a signal handler raised there, the lock would stay locked, and the channel's thread would
        wait for it when the answer arrives.
        """
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    def responses(self, stubs: Stubs, call: Iterable[T]) -> Iterator[T]:
        """Yield the responses of a synchronous stream within ``abandon_if_interrupted``."""
        with self.abandon_if_interrupted(stubs, call):
            yield from call

    def register(self, holder: IdHolder) -> None:
        """Register an object whose ids are discarded at the client's close, and after a fork."""
        self._holders.add(holder)

    def close(self) -> Stubs | None:
        """Reject further calls, discard all ids, and return the stubs, for the caller to close."""
        _handle_fork()
        with self._lock:
            self._closed = True
        stubs = self.drop_channel()
        for holder in list(self._holders):
            holder._discard()
        return stubs

    def fork_error(self) -> str:
        """Return why gRPC cannot be used in the child of a fork; empty if it can."""
        if self._stubs is None:
            return ""
        if self._is_asyncio:
            return _ASYNCIO_FORK_ERROR
        return "" if _FORK_SUPPORT else _FORK_ERROR

    def is_probed(self) -> bool:
        """Return whether a probe is under way on the open channel."""
        probe = self.probe
        if probe is None or probe.has_ended or not self.is_open(probe.stubs):
            return False
        return time.monotonic() < probe.sent_at + PROBE_LIFETIME

    def drop_channel(self) -> Stubs | None:
        """Let the next call open another channel; return the stubs of this one, for open calls."""
        with self._lock:
            stubs = self._stubs
            self._stubs = None
        return stubs

    def reset_after_fork(self) -> None:
        """Drop the parent's channel, locks and ids in the child of a fork."""
        self._lock = Lock()
        self.streams = set()
        self.is_suspect = False
        leak(self._pending)
        self._pending = set()
        for holder in list(self._holders):
            holder._clear_after_fork()
        if self._stubs is not None:
            leak(self._stubs)
            self._stubs = None


@contextmanager
def least_busy(connections: Sequence[Connection]) -> Iterator[Connection]:
    """Yield a usable connection with the fewest streams, and count the block as a stream.

    So concurrent streams use several connections, and with them several processes of a server.
    """
    connection = min(connections, key=lambda each: (each.is_suspect, len(each.streams)))
    stream = object()
    try:
        connection.streams.add(stream)
        yield connection
    finally:
        connection.streams.discard(stream)


_FORK_ERROR = (
    "this process was forked while a client was connected, which gRPC does not survive: "
    "set GRPC_ENABLE_FORK_SUPPORT=1 before Python starts, or fork before the client's first call"
)
_ASYNCIO_FORK_ERROR = (
    "this process was forked while an asyncio client was connected, which gRPC does not survive: "
    "fork before the client's first call, or close it before the fork"
)
_LOOP_ERROR = (
    "this client is connected in another event loop, such as that of an earlier asyncio.run: "
    "create a client in each event loop"
)
_process = process_marker()
_fork_error = ""
_fork_lock = Lock()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def leak(thing: object) -> None:
    """Keep a channel or a call open until the process ends.

    Closing it takes locks that may never be released.
    """
    _leaked.append(thing)


def _handle_fork() -> None:
    """Reset all connections in the child of a fork, including a fork that bypassed Python.

    If a signal handler raises in it, the next call does all of it again.
    """
    global _process, _fork_error
    if next(_process):
        return
    with _fork_lock:  # after a fork that bypassed Python, several threads may get here at once
        if next(_process):
            return
        process = process_marker()
        connections = list(_connections)
        for connection in connections:
            _fork_error = connection.fork_error() or _fork_error
        for connection in connections:
            connection.reset_after_fork()
        _process = process


def _after_fork_in_child() -> None:
    global _fork_lock
    _fork_lock = Lock()
    _handle_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
