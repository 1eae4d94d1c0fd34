"""One call of AllocateStream: its requests, and their answers in the order of the requests."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import AdmitRequest, MessageStream, Refund
from idalloc_server.domain.allocation.burned import BurnCause, BurnedIds
from idalloc_server.domain.errors import (
    InvalidRequest,
    Refusal,
    RequestIdBurned,
    RequestIdReused,
    StoreUnavailable,
    Unauthenticated,
)

# The most requests of a stream that are not answered, and the most ids that they ask for, as a
# multiple of the most ids of one request.
MAX_REQUESTS = 1_000
MAX_IDS_FACTOR = 10
# The texts in queued answers from which on no further requests are read: about 7 MB of document
# ids.
MAX_TEXTS = 100_000
# The longest timeout of a request, in seconds: protobuf's longest duration.
MAX_TIMEOUT = 315_576_000_000


class _Answer(NamedTuple):
    """The answer to a request, in the queue."""

    request: pb.AllocateStreamRequest
    response: pb.AllocateStreamResponse
    id_count: int  # the ids that the request asks for
    texts: int  # how many of them as texts
    filling: asyncio.Task[None] | None  # fills the response; None if it is filled


@dataclass(eq=False)
class RequestStream:
    """Answers the requests of one stream.

    Each request takes its ids when it is read. If no earlier one waits for the store, its answer is
    written before the next request is read: a client that does not read its answers gets no further
    ids. Otherwise answers wait in a queue while further requests are read, so that these wait for
    the store together. Requests behind ``MAX_TEXTS`` texts are not read.
    """

    messages: MessageStream
    admit: AdmitRequest  # authorizes and charges each request
    # Fills a response from memory; returns False if the request must wait for the store.
    answer_at_once: Callable[[pb.AllocateStreamRequest, pb.AllocateStreamResponse], bool]
    # Fills a response, waiting for the store if necessary.
    answer_later: Callable[[pb.AllocateStreamRequest, pb.AllocateStreamResponse], Awaitable[None]]
    # Records the error of a request, and fills its response with the status.
    fill_error: Callable[[pb.AllocateStreamResponse, Exception], None]
    max_ids: int  # the largest number of ids of a request
    burned: BurnedIds  # counts the ids of answers that could not be written
    _queue: deque[_Answer] = field(default_factory=deque, init=False)
    _queued_ids: int = field(default=0, init=False)
    _queued_texts: int = field(default=0, init=False)
    _reading: asyncio.Task[Any] | None = field(default=None, init=False)

    async def serve(self) -> None:
        """Answer all requests.

        If the call is cancelled, ids that were taken and not written are burned.

        Raises:
            Refusal: The error that ends the stream. The requests before it were answered, unless
                the caller is no longer authenticated.
        """
        try:
            try:
                while (request := await self._next()) is not None:
                    await self._answer(request)
            except Unauthenticated:
                raise
            except Refusal:
                await self._write_queue()
                raise
            await self._write_queue()
        finally:
            await self._discard_queue()

    async def _next(self) -> Any:
        """Return the next request, None at the end; meanwhile write the answers that are ready."""
        while self._queue:
            first = self._queue[0]
            if first.filling is None or first.filling.done():
                await self._write_first()
                continue
            if self._reading is None and self._queued_texts < MAX_TEXTS:
                self._reading = asyncio.create_task(self.messages.read())
            if self._reading is None:
                await asyncio.wait((first.filling,))
                continue
            await asyncio.wait((self._reading, first.filling), return_when=asyncio.FIRST_COMPLETED)
            if self._reading.done():
                break
        if self._reading is None:
            return await self.messages.read()
        request = await self._reading
        self._reading = None
        return request

    async def _answer(self, request: Any) -> None:
        """Answer a request at once, or put its answer into the queue."""
        response = pb.AllocateStreamResponse(number=request.number)
        is_range = request.HasField("allocate_range")
        wanted = request.allocate_range if is_range else request.generate_doc_id
        refund, timeout = None, None
        try:
            refund = self.admit(wanted.sequence if is_range else None, wanted.id_count)
            timeout = _timeout_of(request)
            is_filled = self.answer_at_once(request, response)
        except Unauthenticated:
            raise
        except Exception as error:
            self._fail(response, error, refund)
            is_filled = True
        if is_filled and not self._queue:
            try:
                await self.messages.write(response)
            except BaseException:
                self._burn(request, response)
                raise
            return
        filling = None if is_filled else asyncio.create_task(self._fill(request, response, refund, timeout))
        id_count = min(max(wanted.id_count, 1), self.max_ids)  # also of an invalid request
        has_texts = wanted.view == pb.RANGE_VIEW_TEXTS if is_range else wanted.view != pb.DOC_ID_VIEW_COMPACT
        self._put(_Answer(request, response, id_count, id_count if has_texts else 0, filling))

    def _put(self, answer: _Answer) -> None:
        self._queue.append(answer)
        self._queued_ids += answer.id_count
        self._queued_texts += answer.texts
        if len(self._queue) > MAX_REQUESTS:
            raise InvalidRequest("number", f"must be of one of at most {MAX_REQUESTS} requests without an answer")
        if self._queued_ids > (most := MAX_IDS_FACTOR * self.max_ids):
            raise InvalidRequest("id_count", f"must be at most {most} in all requests without an answer")

    async def _fill(
        self,
        request: pb.AllocateStreamRequest,
        response: pb.AllocateStreamResponse,
        refund: Refund | None,
        timeout: float | None,
    ) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self.answer_later(request, response)
        except TimeoutError:
            late = StoreUnavailable(
                f"the store did not answer within the request's timeout of {timeout:g} s; try again"
            )
            self._fail(response, late, refund)
        except Exception as error:
            self._fail(response, error, refund)

    def _fail(self, response: pb.AllocateStreamResponse, error: Exception, refund: Refund | None) -> None:
        """Fill a response with an error; refund the ids as a unary call does."""
        if refund and isinstance(error, Refusal) and not isinstance(error, RequestIdReused | RequestIdBurned):
            refund()
        self.fill_error(response, error)

    async def _write_queue(self) -> None:
        while self._queue:
            if (filling := self._queue[0].filling) is not None:
                await filling
            await self._write_first()

    async def _write_first(self) -> None:
        await self.messages.write(self._queue[0].response)
        written = self._queue.popleft()
        self._queued_ids -= written.id_count
        self._queued_texts -= written.texts

    async def _discard_queue(self) -> None:
        """End the tasks, and burn the ids of answers that were not written."""
        tasks = [each.filling for each in self._queue if each.filling is not None]
        if self._reading is not None:
            tasks.append(self._reading)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._queue:
            self._burn(each.request, each.response)

    def _burn(self, request: pb.AllocateStreamRequest, response: pb.AllocateStreamResponse) -> None:
        # A repeated request id returns its ids again.
        if response.HasField("allocate_range") and not request.allocate_range.request_id:
            issued = response.allocate_range
            self.burned.add(request.allocate_range.sequence, issued.period, BurnCause.CANCELLED, issued.range.id_count)


def _timeout_of(request: pb.AllocateStreamRequest) -> float | None:
    """Return the timeout of a request in seconds; None if it has none."""
    if not request.HasField("timeout"):
        return None
    seconds, nanos = request.timeout.seconds, request.timeout.nanos
    if not (0 <= seconds <= MAX_TIMEOUT and 0 <= nanos < 1_000_000_000):
        raise InvalidRequest("timeout", f"must be a duration of 0 to {MAX_TIMEOUT} seconds")
    return float(seconds + nanos / 1e9)
