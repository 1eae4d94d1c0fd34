"""Many calls over one stream, in the client for threads."""

import threading
import time
import uuid
from collections.abc import Iterator
from copy import copy
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from idalloc._core import calls
from idalloc._core.calls import Call
from idalloc._core.errors import ClientClosed, IdallocError, ServerUnreachable
from idalloc._core.fork import process_marker
from idalloc._core.locks import Lock
from idalloc._core.pipeline import MAX_IN_FLIGHT, Pending, Pipeline
from idalloc._core.resumption import Retries
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._core.types import Range
from idalloc._sync.base import BaseClient
from idalloc._transport.channel import Connection, Stubs, leak, least_busy
from idalloc.v1 import id_allocator_pb2 as pb

T = TypeVar("T")
_Outbox = SimpleQueue["Pending[Any] | None"]


class AllocateStream:
    """Calls over one stream, which cost the server and the client less than unary calls.

    Threads may share it: their requests are in flight together, and the answers come in the order
    of the requests. The stream opens with the first request, on the connection with the fewest
    streams. If it breaks or its server shuts down, the requests without an answer are sent again
    over a new one.

    Use it as a context manager, or call ``close``. After that, or after the client is closed, its
    methods raise ``ClientClosed``.

    In the child of a fork it opens a stream of the child's own. A fork that bypasses Python (uWSGI)
    while the stream is open may leave a child that hangs: close it before. A signal handler may
    raise at any moment but in ``close``: ids may be lost, but no id is returned twice, and the next
    call works.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._is_closed = False
        self._reset()
        client._connection.register(self)

    def _reset(self) -> None:
        self._process = process_marker()
        self._lock = Lock()  # of the next four
        self._waiting: dict[Pending[Any], None] = {}  # the requests without an answer
        self._outbox: _Outbox = SimpleQueue()  # the requests for the open stream
        self._thread: threading.Thread | None = None  # opens streams and reads their answers
        self._channel: tuple[Connection, Stubs] | None = None  # of the open stream
        self._call: Any = None

    def allocate_range(
        self,
        sequence: str,
        n: int = 1,
        *,
        request_id: str | uuid.UUID | None = None,
        idempotent: bool = False,
        texts: bool = False,
    ) -> Range:
        """As ``Client.allocate_range``."""
        return self._ask(calls.allocate_range(sequence, n, request_id=request_id, idempotent=idempotent, texts=texts))

    def doc_ids(self, n: int = 1, *, offset: int = 0, increment: int = 0) -> list[str]:
        """As ``Client.doc_ids``."""
        return self._ask(calls.doc_ids(n, offset, increment))

    def close(self) -> None:
        """End the stream. Calls that wait for an answer raise ``ClientClosed``."""
        if not next(self._process):  # another thread of the parent may hold the lock
            self._clear_after_fork()
        with self._lock:
            self._is_closed = True
        self._fail(ClientClosed("the stream is closed"))
        if self._call is not None and not self._is_abandoned():
            self._call.cancel()

    _discard = close

    def _clear_after_fork(self) -> None:
        """Forget the parent's stream, in the child of a fork."""
        leak(self._call)
        self._reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _ask(self, call: Call[T]) -> T:
        """Send a request until it has its reply, a lasting error, or no time left."""
        client = self._client
        client._connection.stubs()  # raises if the client is closed, or gRPC is unusable after a fork
        pending = Pending(call, client.timeout)
        while True:
            outcome = self._exchange(pending)
            if not isinstance(outcome, IdallocError):
                return client._receive(call, outcome, pending.asked)
            time.sleep(pending.retry_delay(outcome))

    def _exchange(self, pending: Pending[Any]) -> Any:
        """Send a request, and return its reply or error.

        Raises:
            Exception: The lasting error of the stream.
        """
        # Not a future: its lock would stay locked if a signal handler raised in it, and the thread
        # that reads answers would wait for it.
        pending.waiter = SimpleQueue()
        pending.is_answered = False
        try:
            with self._lock:
                if self._is_closed:
                    raise ClientClosed("the stream is closed")
                self._waiting[pending] = None
                self._outbox.put(pending)
                if self._is_abandoned():
                    self._thread = self._channel = None
                if self._thread is None:
                    threading.Thread(target=self._run, name="idalloc-stream", daemon=True).start()
            outcome, is_lasting = pending.waiter.get(timeout=pending.time_left())
        except Empty:
            raise pending.deadline_error(self._client.target, self._client.timeout) from None
        finally:
            self._waiting.pop(pending, None)
        if is_lasting:
            raise outcome
        return outcome

    def _is_abandoned(self) -> bool:
        """Return whether a signal handler raised in another call on the stream's channel."""
        channel = self._channel  # another thread may reset it
        return channel is not None and not channel[0].is_open(channel[1])

    def _run(self) -> None:
        """Open streams while requests wait; a lasting error is raised to all of them."""
        this = threading.current_thread()
        with self._lock:
            # Set here, since a signal handler may raise while a thread is started.
            if self._thread is not None:
                return
            self._thread = this
        retries = Retries()
        try:
            while True:
                try:
                    self._read_answers(retries)
                except IdallocError as failed:
                    if not self._reopens(failed):
                        return
                    time.sleep(retries.delay(failed))
                    if not self._reopens(failed):  # all callers have left meanwhile
                        return
        except Exception as error:
            with self._lock:
                if self._thread is this:
                    self._thread = None
                    self._fail(error)

    def _reopens(self, failed: IdallocError) -> bool:
        """Record a failed attempt, and return whether this thread opens another stream."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return False
            self._channel = None
            for pending in list(self._waiting):
                pending.record_failure(failed)
            if not self._waiting or self._is_closed:
                self._thread = None
            return self._thread is not None

    def _fail(self, error: Exception) -> None:
        for pending in list(self._waiting):
            pending.waiter.put((copy(error), True))

    def _read_answers(self, retries: Retries) -> None:
        """Open a stream, send the requests without an answer, and read answers until it breaks."""
        client = self._client
        pipeline = Pipeline()
        outbox: _Outbox = SimpleQueue()
        slots = threading.Semaphore(MAX_IN_FLIGHT)
        client._find_servers()
        with least_busy(client._connections) as connection:
            stubs = connection.stubs()
            with self._lock:
                for pending in list(self._waiting):  # callers leave without the lock
                    if not pending.is_answered:
                        outbox.put(pending)
                self._outbox = outbox
                self._channel = (connection, stubs)
            rpc = stubs.rpcs["AllocateStream"]
            self._call = call = rpc(self._messages(pipeline, outbox, slots), metadata=client._metadata())
            if self._is_closed:
                call.cancel()
            try:
                with translate_rpc_errors(client.target):
                    for answer in call:
                        pending, outcome = pipeline.answered(answer)
                        slots.release()
                        retries.progressed()
                        pending.is_answered = True
                        pending.waiter.put((outcome, False))
                raise ServerUnreachable(f"no answer from {client.target}: the stream ended")
            except IdallocError as error:
                client._failed(connection, error)
                raise
            finally:
                outbox.put(None)
                slots.release()
                call.cancel()

    def _messages(
        self, pipeline: Pipeline, outbox: _Outbox, slots: threading.Semaphore
    ) -> Iterator[pb.AllocateStreamRequest]:
        # gRPC runs it in a thread of its own, which no signal handler interrupts.
        while (pending := outbox.get()) is not None:
            slots.acquire()
            if pending in self._waiting:
                yield pipeline.send(pending, self._client._now())
            else:  # its caller has left
                slots.release()
