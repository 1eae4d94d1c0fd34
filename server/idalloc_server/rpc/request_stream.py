"""One call of AllocateStream: its requests, and their answers in the order of the requests."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import AdmitStreamed, IdleStreamLeft, MessageStream
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import InvalidRequest, QuotaExceeded, Refusal, StoreUnavailable, Unauthenticated
from idalloc_server.rpc.items import DocIdItem, DocIdSource, Item, RangeItem, RangeSource
from idalloc_server.rpc.status import Status

# The most requests of a stream that are not answered, and their most bytes; more ends the stream.
MAX_REQUESTS = 1_000
MAX_BYTES = 1 << 20
# The most ids of such requests, as a multiple of the most ids of one; a request for more fails, and
# may be sent again after RETRY_SECONDS.
MAX_IDS_FACTOR = 10
RETRY_SECONDS = 0.1
# The longest timeout of a request, in seconds: protobuf's longest duration.
MAX_TIMEOUT = 315_576_000_000


@dataclass(slots=True, eq=False)
class _Queued:
    """An item in the queue."""

    request: pb.AllocateStreamRequest
    item: Item
    id_count: int  # the ids that the request asks for
    task: asyncio.Task[None] | None  # issues its ids


@dataclass(eq=False)
class RequestStream:
    """Answers the requests of one stream.

    Each request takes its ids when it is read. If no earlier one waits for the store, its answer is
    written before the next request is read: a client that does not read its answers gets no further
    ids. Otherwise answers wait in a queue while further requests are read, up to the limits, so
    that these wait for the store together.
    """

    messages: MessageStream
    admit: AdmitStreamed | None  # authorizes and charges each request
    ranges: RangeSource
    doc_ids: DocIdSource
    _: KW_ONLY
    record_failure: Callable[[Exception], Status]  # records the error of a request, and returns its status
    _queue: deque[_Queued] = field(default_factory=deque, init=False)
    _unanswered: int = field(default=0, init=False)  # requests that were read
    _queued_ids: int = field(default=0, init=False)
    _queued_bytes: int = field(default=0, init=False)
    _reader: asyncio.Task[Any] | None = field(default=None, init=False)  # while it reads requests
    _writer: asyncio.Task[None] | None = field(default=None, init=False)  # while it writes the queue

    async def serve(self) -> None:
        """Answer all requests.

        If the call is cancelled, ids that were taken and not written are burned.

        Raises:
            IdleStreamLeft: It was cancelled while no request waited.
            Refusal: The error that ends the stream. The requests before it were answered, unless
                the caller is no longer authenticated.
        """
        self._reader = asyncio.current_task()
        try:
            try:
                async with aclosing(aiter(self.messages)) as requests:
                    async for request in requests:
                        await self._serve_one(request)
            except Unauthenticated:
                raise
            except Refusal:
                await self._wait_for_writer()
                raise
            except asyncio.CancelledError:
                if not self._unanswered:
                    raise IdleStreamLeft from None
                if self._writer is not None and self._writer.done():
                    self._writer.result()  # raises why a write failed
                raise
            await self._wait_for_writer()
        finally:
            await self._discard_queue()

    async def _serve_one(self, request: pb.AllocateStreamRequest) -> None:
        """Write the answer to a request, or put it into the queue if others wait before it."""
        share = self.messages.share
        read_at = asyncio.get_running_loop().time()
        await share.shares.unanswered.take(share.caller)
        self._unanswered += 1
        item: Item
        if request.HasField(RangeItem.kind):
            item = RangeItem(request.allocate_range, self.ranges)
        else:
            item = DocIdItem(request.generate_doc_id, self.doc_ids)
        await self._admit(request, item)
        is_first = self._writer is None
        if is_first:
            await share.begin_turn()  # before the ids are issued: their lease may end while it waits
        is_issued = item.error is not None
        if not is_issued:
            try:
                is_issued = item.issue_now()
            except Exception as error:
                item.error = error
                is_issued = True
        if is_first and is_issued:
            reader = self._reader
            self._reader = None
            await self._write(request, item)
            self._reader = reader
        if is_first:
            share.end_turn()
        elif is_issued:
            self._put(request, item, None)
        if not is_issued:
            begun = asyncio.Event()
            self._put(request, item, asyncio.create_task(self._issue(request, item, read_at, begun)))
            await begun.wait()  # so that ids are in the order of requests

    async def _admit(self, request: pb.AllocateStreamRequest, item: Item) -> None:
        """Authorize and charge a request. Its item has the error if it is refused."""
        id_count = item.request.id_count
        max_ids = self.ranges.max_ids
        most = MAX_IDS_FACTOR * max_ids
        has_timeout = request.HasField("timeout")
        seconds = request.timeout.seconds + request.timeout.nanos / 1e9 if has_timeout else math.inf
        try:
            item.refund = self.admit and await self.admit(item.sequence, id_count, seconds)
            queued = self._queued_ids
            if queued and id_count <= max_ids and queued + id_count > most:
                raise QuotaExceeded("stream", "ids_without_answer", most, RETRY_SECONDS)
            if has_timeout:
                _seconds_of(request)
            if not request.HasField(item.kind):  # it has neither
                raise InvalidRequest("request", "must have allocate_range or generate_doc_id")
        except Unauthenticated:
            raise
        except Exception as error:
            item.error = error

    def _put(self, request: pb.AllocateStreamRequest, item: Item, task: asyncio.Task[None] | None) -> None:
        """Put an item into the queue.

        Raises:
            InvalidRequest: The queue is beyond its limits; the answer will be written.
        """
        # A request that failed may ask for any number.
        id_count = 0 if item.error else min(max(item.request.id_count, 1), self.ranges.max_ids)
        self._queue.append(_Queued(request, item, id_count, task))
        self._queued_ids += id_count
        self._queued_bytes += request.ByteSize()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_queue())
        if len(self._queue) > MAX_REQUESTS or self._queued_bytes > MAX_BYTES:
            most = f"{MAX_REQUESTS} of them, or {MAX_BYTES} bytes"
            raise InvalidRequest(
                "requests", f"at most {most} may be without an answer; read answers before you send more"
            )

    async def _issue(self, request: pb.AllocateStreamRequest, item: Item, read_at: float, begun: asyncio.Event) -> None:
        """Issue the ids of an item, or keep its error. Set ``begun`` once it waits for them."""
        share = self.messages.share
        timeout = _seconds_of(request) if request.HasField("timeout") else None
        try:
            async with asyncio.timeout_at(None if timeout is None else read_at + timeout):
                await share.shares.store_waits.take(share.caller)
                try:
                    begun.set()
                    await item.issue()
                finally:
                    share.shares.store_waits.give_back(share.caller)
        except TimeoutError:
            item.error = StoreUnavailable(
                f"the store did not answer within the request's timeout of {timeout:g} s; try again"
            )
        except Exception as error:
            item.error = error
        finally:
            begun.set()

    async def _write_queue(self) -> None:
        """Write answers until the queue is empty; a failed write ends the stream."""
        queue = self._queue
        try:
            while queue:
                queued = queue[0]
                if queued.task is not None:
                    await queued.task
                await self.messages.share.begin_turn()
                queue.popleft()  # from here on `_write` burns the ids
                self._queued_ids -= queued.id_count
                self._queued_bytes -= queued.request.ByteSize()
                await self._write(queued.request, queued.item)
                self.messages.share.end_turn()
        except BaseException:
            if self._reader is not None:
                self._reader.cancel()
            raise
        self._writer = None

    async def _write(self, request: pb.AllocateStreamRequest, item: Item) -> None:
        """Write the ids of a request, or its error; a failed write burns them."""
        response = pb.AllocateStreamResponse()
        response.number = request.number
        item.answer(response, getattr(response, item.kind), self.record_failure)
        try:
            await self.messages.write(response)
        except BaseException:
            if not response.HasField("error"):
                item.burn(BurnCause.CANCELLED)
            raise
        self._unanswered -= 1
        self.messages.share.shares.unanswered.give_back(self.messages.share.caller)

    async def _wait_for_writer(self) -> None:
        self._reader = None
        if self._writer is not None:
            await self._writer

    async def _discard_queue(self) -> None:
        """End the tasks, and burn the ids of answers that were not written."""
        self._reader = None
        tasks = [queued.task for queued in self._queue if queued.task is not None]
        if self._writer is not None:
            tasks.append(self._writer)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for queued in self._queue:
                queued.item.burn(BurnCause.CANCELLED)
            share = self.messages.share
            share.end_turn()
            for _ in range(self._unanswered):
                share.shares.unanswered.give_back(share.caller)


def _seconds_of(request: pb.AllocateStreamRequest) -> float:
    """Return the timeout of a request in seconds."""
    seconds = request.timeout.seconds
    nanos = request.timeout.nanos
    if not (0 <= seconds <= MAX_TIMEOUT and 0 <= nanos < 1_000_000_000):
        raise InvalidRequest("timeout", f"must be a duration of 0 to {MAX_TIMEOUT} seconds")
    return float(seconds + nanos / 1e9)
