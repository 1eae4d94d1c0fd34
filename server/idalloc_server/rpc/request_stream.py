"""One call of AllocateStream: its requests, and their answers in the order of the requests."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import AdmitStreamed, IdleStreamLeft, MessageStream, Refund
from idalloc_server.domain.errors import (
    InvalidRequest,
    QuotaExceeded,
    Refusal,
    RequestIdBurned,
    RequestIdReused,
    StoreUnavailable,
    Unauthenticated,
)

# The most requests of a stream that are not answered, and their most bytes; more ends the stream.
MAX_REQUESTS = 1_000
MAX_BYTES = 1 << 20
# The most ids of such requests, as a multiple of the most ids of one; a request for more fails, and
# may be sent again after RETRY_SECONDS.
MAX_IDS_FACTOR = 10
RETRY_SECONDS = 0.1
# The longest timeout of a request, in seconds: protobuf's longest duration.
MAX_TIMEOUT = 315_576_000_000


class IdSource(Protocol):
    """Takes ids for requests, and writes them into responses."""

    max_ids: int  # the largest number of ids of a request

    def take_now(self, request: pb.AllocateStreamRequest) -> Any:
        """Take the ids of a request; None if it must wait for the store."""

    def take(self, request: pb.AllocateStreamRequest) -> Awaitable[Any]:
        """Take the ids of a request, waiting for the store."""

    def fill(self, response: pb.AllocateStreamResponse, request: pb.AllocateStreamRequest, taken: Any) -> None:
        """Fill a response with ids that were taken.

        Raises:
            LeaseExpired: The lease of the ids has expired meanwhile; they are burned, unless a
                repeated request id may still get them.
        """

    def fill_error(self, response: pb.AllocateStreamResponse, error: Exception) -> None:
        """Record the error of a request, and fill its response with the status."""

    def burn(self, request: pb.AllocateStreamRequest, taken: Any) -> None:
        """Burn ids that were taken and could not be written."""


class _Answer(NamedTuple):
    """The answer to a request, in the queue."""

    request: pb.AllocateStreamRequest
    refund: Refund | None  # refunds the ids of the request
    id_count: int  # the ids that the request asks for
    outcome: Any  # the ids, an error, or the task that returns either


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
    source: IdSource
    _queue: deque[_Answer] = field(default_factory=deque, init=False)
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
        refund, outcome = await self._admit(request)
        is_first = self._writer is None
        if is_first:
            await share.begin_turn()  # before the ids are taken: their lease may end while it waits
        outcome = outcome or self._take(request)
        if is_first and outcome is not None:
            reader = self._reader
            self._reader = None
            await self._write(request, refund, outcome)
            self._reader = reader
        if is_first:
            share.end_turn()
        elif outcome is not None:
            self._put(request, refund, outcome)
        if outcome is None:
            begun = asyncio.Event()
            self._put(request, refund, asyncio.create_task(self._wait_for_ids(request, read_at, begun)))
            await begun.wait()  # so that ids are in the order of requests

    async def _admit(self, request: pb.AllocateStreamRequest) -> tuple[Refund | None, Exception | None]:
        """Authorize and charge a request; return how to refund it, and its error if refused."""
        refund: Refund | None = None
        is_range = request.HasField("allocate_range")
        wanted: Any = request.allocate_range if is_range else request.generate_doc_id
        has_timeout = request.HasField("timeout")
        seconds = request.timeout.seconds + request.timeout.nanos / 1e9 if has_timeout else math.inf
        try:
            refund = self.admit and await self.admit(wanted.sequence if is_range else None, wanted.id_count, seconds)
            most = MAX_IDS_FACTOR * self.source.max_ids
            queued = self._queued_ids
            if queued and wanted.id_count <= self.source.max_ids and queued + wanted.id_count > most:
                raise QuotaExceeded("stream", "ids_without_answer", most, RETRY_SECONDS)
            if has_timeout:
                _seconds_of(request)
        except Unauthenticated:
            raise
        except Exception as error:
            return refund, error
        return refund, None

    def _take(self, request: pb.AllocateStreamRequest) -> Any:
        """Return the ids of a request, or its error; None if it must wait."""
        try:
            return self.source.take_now(request)
        except Exception as error:
            return error

    def _put(self, request: pb.AllocateStreamRequest, refund: Refund | None, outcome: Any) -> None:
        """Put an answer into the queue.

        Raises:
            InvalidRequest: The queue is beyond its limits; the answer will be written.
        """
        id_count = 0  # A request that failed may ask for any number.
        if not isinstance(outcome, Exception):
            wanted = request.allocate_range if request.HasField("allocate_range") else request.generate_doc_id
            id_count = min(max(wanted.id_count, 1), self.source.max_ids)
        self._queue.append(_Answer(request, refund, id_count, outcome))
        self._queued_ids += id_count
        self._queued_bytes += request.ByteSize()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_queue())
        if len(self._queue) > MAX_REQUESTS or self._queued_bytes > MAX_BYTES:
            most = f"{MAX_REQUESTS} of them, or {MAX_BYTES} bytes"
            raise InvalidRequest(
                "requests", f"at most {most} may be without an answer; read answers before you send more"
            )

    async def _wait_for_ids(self, request: pb.AllocateStreamRequest, read_at: float, begun: asyncio.Event) -> Any:
        """Return the ids of a request, or its error. Set ``begun`` once it waits for them."""
        share = self.messages.share
        timeout = _seconds_of(request) if request.HasField("timeout") else None
        try:
            async with asyncio.timeout_at(None if timeout is None else read_at + timeout):
                await share.shares.store_waits.take(share.caller)
                try:
                    begun.set()
                    return self._take(request) or await self.source.take(request)
                finally:
                    share.shares.store_waits.give_back(share.caller)
        except TimeoutError:
            return StoreUnavailable(
                f"the store did not answer within the request's timeout of {timeout:g} s; try again"
            )
        except Exception as error:
            return error
        finally:
            begun.set()

    async def _write_queue(self) -> None:
        """Write answers until the queue is empty; a failed write ends the stream."""
        queue = self._queue
        try:
            while queue:
                request, refund, id_count, outcome = queue[0]
                if isinstance(outcome, asyncio.Task):
                    outcome = await outcome
                await self.messages.share.begin_turn()
                queue.popleft()  # from here on `_write` burns the ids
                self._queued_ids -= id_count
                self._queued_bytes -= request.ByteSize()
                await self._write(request, refund, outcome)
                self.messages.share.end_turn()
        except BaseException:
            if self._reader is not None:
                self._reader.cancel()
            raise
        self._writer = None

    async def _write(self, request: pb.AllocateStreamRequest, refund: Refund | None, outcome: Any) -> None:
        """Write the ids of a request, or its error; a failed write burns them."""
        response = pb.AllocateStreamResponse()
        response.number = request.number
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self.source.fill(response, request, outcome)
        except Exception as error:
            # As a unary call: of these two, the call may have burned as many ids.
            if refund and isinstance(error, Refusal) and not isinstance(error, RequestIdReused | RequestIdBurned):
                refund()
            self.source.fill_error(response, error)
        try:
            await self.messages.write(response)
        except BaseException:
            if not response.HasField("error"):
                self.source.burn(request, outcome)
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
        tasks = [each.outcome for each in self._queue if isinstance(each.outcome, asyncio.Task)]
        if self._writer is not None:
            tasks.append(self._writer)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for request, _, _, outcome in self._queue:
                if isinstance(outcome, asyncio.Task):
                    outcome = outcome.result() if outcome.done() and not outcome.cancelled() else None
                if outcome is not None and not isinstance(outcome, Exception):
                    self.source.burn(request, outcome)
            share = self.messages.share
            share.end_turn()
            for _ in range(self._unanswered):
                share.shares.unanswered.give_back(share.caller)


def _seconds_of(request: pb.AllocateStreamRequest) -> float:
    """Return the timeout of a request in seconds."""
    seconds, nanos = request.timeout.seconds, request.timeout.nanos
    if not (0 <= seconds <= MAX_TIMEOUT and 0 <= nanos < 1_000_000_000):
        raise InvalidRequest("timeout", f"must be a duration of 0 to {MAX_TIMEOUT} seconds")
    return float(seconds + nanos / 1e9)
