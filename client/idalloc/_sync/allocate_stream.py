"""Many calls over one stream, in the client for threads."""

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from idalloc._core import calls
from idalloc._core.calls import Call
from idalloc._core.errors import IdallocError, ServerUnreachable
from idalloc._core.fork import process_marker
from idalloc._core.pipeline import MAX_IN_FLIGHT, Pending, Pipeline, broken
from idalloc._core.resumption import Retries
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._core.types import Range
from idalloc._sync.base import BaseClient
from idalloc._transport.channel import leak, least_busy
from idalloc.v1 import id_allocator_pb2 as pb

T = TypeVar("T")
_Outbox = SimpleQueue["Pending[Any] | None"]


class AllocateStream:
    """Calls over one stream, which cost the server and the client less than unary calls.

    Threads may share it: their requests are in flight together, and the answers come in the order
    of the requests. The stream opens with the first request, on the connection with the fewest
    streams. If it breaks or its server shuts down, the requests without an answer are sent again
    over a new one, as gRPC repeats unary calls.

    Use it as a context manager, or call ``close``.

    Args:
        client: The client.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._reset()
        client._connection.register(self)

    def _reset(self) -> None:
        self._retries = Retries()
        self._process = process_marker()
        self._lock = threading.Lock()  # of the next three
        self._waiting: dict[Pending[Any], None] = {}  # the requests without an answer
        self._outbox: _Outbox = SimpleQueue()  # the requests for the open stream
        self._thread: threading.Thread | None = None  # opens streams and reads their answers
        self._slots = threading.Semaphore(MAX_IN_FLIGHT)
        self._call: Any = None
        self._is_closed = False

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
        """End the stream. Calls that wait for an answer raise ``RuntimeError``."""
        self._is_closed = True
        self._fail(RuntimeError("the stream is closed"))
        if self._call is not None and next(self._process):
            self._call.cancel()

    clear = close

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
        if not self._slots.acquire(timeout=client.timeout):
            raise pending.late(client.target, client.timeout)
        try:
            while True:
                outcome = self._exchange(pending)
                if not isinstance(outcome, IdallocError):
                    return client._receive(call, outcome, pending.asked)
                time.sleep(pending.retry_delay(outcome))
        except TimeoutError:
            raise pending.late(client.target, client.timeout) from None
        finally:
            self._slots.release()

    def _exchange(self, pending: Pending[Any]) -> Any:
        """Send a request, and return its reply or error."""
        pending.waiter = Future()
        try:
            with self._lock:
                if self._is_closed:
                    raise RuntimeError("the stream is closed")
                self._waiting[pending] = None
                self._outbox.put(pending)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="idalloc-stream", daemon=True)
                    self._thread.start()
            return pending.waiter.result(pending.time_left())
        finally:
            self._waiting.pop(pending, None)

    def _run(self) -> None:
        """Open streams while requests wait; a lasting error is raised to all of them."""
        error: Exception = RuntimeError("the stream is closed")
        try:
            while True:
                try:
                    self._read_answers()
                except IdallocError as failed:
                    with self._lock:
                        if not self._waiting or self._is_closed:
                            self._thread = None
                            return
                    time.sleep(self._retries.delay(failed))
        except Exception as failed:
            error = failed
        with self._lock:
            self._thread = None
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        for pending in list(self._waiting):
            with suppress(Exception):  # it was answered meanwhile
                pending.waiter.set_exception(copy(error))

    def _read_answers(self) -> None:
        """Open a stream, send the requests without an answer, and read answers until it breaks."""
        client, pipeline = self._client, Pipeline()
        outbox: _Outbox = SimpleQueue()
        with self._lock:
            for pending in list(self._waiting):  # callers leave without the lock
                outbox.put(pending)
            self._outbox = outbox
        with least_busy(client._connections) as connection:
            rpc = connection.stubs().rpcs["AllocateStream"]
            self._call = call = rpc(self._messages(pipeline, outbox), metadata=client._metadata())
            try:
                with translate_rpc_errors(client.target):
                    for answer in call:
                        pending, outcome = pipeline.answered(answer)
                        self._retries.progressed()
                        with suppress(Exception):  # its caller has left
                            pending.waiter.set_result(outcome)
                raise ServerUnreachable(f"no answer from {client.target}: the stream ended")
            except IdallocError as error:
                raise broken(error, client.target) from error.__cause__
            finally:
                outbox.put(None)
                call.cancel()

    def _messages(self, pipeline: Pipeline, outbox: _Outbox) -> Iterator[pb.AllocateStreamRequest]:
        # gRPC runs it in a thread of its own, which no signal handler interrupts.
        while (pending := outbox.get()) is not None:
            yield pipeline.send(pending, self._client._now())
