"""Many calls over one stream, in the client for asyncio."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from copy import copy
from types import TracebackType
from typing import Any, Self, TypeVar

from idalloc._core import calls
from idalloc._core.calls import Call
from idalloc._core.errors import ClientClosed, IdallocError, ServerUnreachable
from idalloc._core.fork import process_marker
from idalloc._core.pipeline import MAX_IN_FLIGHT, STREAM_BROKE, Pending, Pipeline
from idalloc._core.resumption import Retries
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._core.types import Range
from idalloc._transport.channel import leak, least_busy
from idalloc.aio._base import BaseClient, is_task_cancelled
from idalloc.v1 import id_allocator_pb2 as pb

T = TypeVar("T")


@contextmanager
def _broken_streams(target: str) -> Iterator[None]:
    """Raise ``ServerUnreachable`` if a stream ends without a status."""
    try:
        yield
    except asyncio.CancelledError as error:
        if is_task_cancelled():
            raise
        # gRPC cancels a call if its task that writes the requests fails. The next stream shows why.
        raise ServerUnreachable(f"no answer from {target}: {STREAM_BROKE}") from error


class AllocateStream:
    """As ``idalloc.AllocateStream``; the tasks of one event loop may share it.

    Args:
        client: The client.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._waiting: dict[Pending[Any], None] = {}  # the requests without an answer
        self._outbox: asyncio.Queue[Pending[Any] | None] = asyncio.Queue()  # the requests for the open stream
        self._task: asyncio.Task[None] | None = None  # opens streams and reads their answers
        self._connection = client._connection  # of the open stream
        self._is_closed = False

    async def allocate_range(
        self,
        sequence: str,
        n: int = 1,
        *,
        request_id: str | uuid.UUID | None = None,
        idempotent: bool = False,
        texts: bool = False,
    ) -> Range:
        """As ``idalloc.Client.allocate_range``."""
        return await self._ask(
            calls.allocate_range(sequence, n, request_id=request_id, idempotent=idempotent, texts=texts)
        )

    async def doc_ids(self, n: int = 1, *, offset: int = 0, increment: int = 0) -> list[str]:
        """As ``idalloc.Client.doc_ids``."""
        return await self._ask(calls.doc_ids(n, offset, increment))

    async def close(self) -> None:
        """End the stream. Calls that wait for an answer fail."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, call: Call[T]) -> T:
        """Send a request until it has its reply, a lasting error, or no time left."""
        self._client._connection.stubs()  # raises if the client is closed or of another event loop
        timeout = self._client.timeout
        pending = Pending(call, timeout)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if self._is_closed:
                        raise ClientClosed("the stream is closed")
                    outcome = await self._exchange(pending)
                    if not isinstance(outcome, IdallocError):
                        return self._client._receive(call, outcome, pending.asked)
                    await asyncio.sleep(pending.retry_delay(outcome))
        except TimeoutError:
            raise pending.deadline_error(self._client.target, timeout) from None

    async def _exchange(self, pending: Pending[Any]) -> Any:
        """Send a request, and return its reply or error."""
        pending.waiter = asyncio.get_running_loop().create_future()
        self._waiting[pending] = None
        try:
            self._outbox.put_nowait(pending)
            if self._task is None or self._task.done():
                self._task = self._client._start_task(self._run())
                self._task.add_done_callback(self._end)
            return await pending.waiter
        finally:
            del self._waiting[pending]

    async def _run(self) -> None:
        """Open streams while requests wait; a lasting error is raised to all of them."""
        retries = Retries()
        try:
            while self._waiting:
                try:
                    await self._read_answers(retries)
                except IdallocError as failed:
                    for pending in self._waiting:
                        pending.record_failure(failed)
                    if self._waiting:
                        await asyncio.sleep(retries.delay(failed))
        except Exception as error:
            self._fail(error)

    def _end(self, task: asyncio.Task[None]) -> None:
        # Not in `_run`, which may be cancelled, or end by a signal handler's exception, at once.
        if task is not self._task:
            return
        error = ClientClosed("the stream is closed") if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        for pending in self._waiting:
            if not pending.waiter.done():
                pending.waiter.set_exception(copy(error))

    async def _read_answers(self, retries: Retries) -> None:
        """Open a stream, send the requests without an answer, and read answers until it breaks."""
        client = self._client
        pipeline = Pipeline()
        outbox: asyncio.Queue[Pending[Any] | None] = asyncio.Queue()
        slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._outbox = outbox
        for pending in self._waiting:
            outbox.put_nowait(pending)
        await client._find_servers()
        with least_busy(client._connections) as connection:
            self._connection = connection
            process = process_marker()
            rpc = connection.stubs().rpcs["AllocateStream"]
            call = rpc(self._messages(pipeline, outbox, slots), metadata=client._metadata())
            try:
                with _broken_streams(client.target), translate_rpc_errors(client.target):
                    async for answer in call:
                        pending, outcome = pipeline.answered(answer)
                        slots.release()
                        retries.progressed()
                        if not pending.waiter.done():
                            pending.waiter.set_result(outcome)
                raise ServerUnreachable(f"no answer from {client.target}: the stream ended")
            except IdallocError as error:
                client._failed(connection, error)
                raise
            finally:
                # Ends `_messages`: gRPC would wait for it.
                outbox.put_nowait(None)
                slots.release()
                if next(process):
                    call.cancel()
                else:
                    leak(call)

    async def _messages(
        self, pipeline: Pipeline, outbox: "asyncio.Queue[Pending[Any] | None]", slots: asyncio.Semaphore
    ) -> AsyncIterator[pb.AllocateStreamRequest]:
        # gRPC runs it in a task of its own: a caller that is cancelled cancels no write.
        while (pending := await outbox.get()) is not None:
            await slots.acquire()
            if pending not in self._waiting:  # its caller has left
                slots.release()
                continue
            yield pipeline.send(pending, self._client._now())
