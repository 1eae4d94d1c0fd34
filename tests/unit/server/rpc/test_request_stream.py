"""``RequestStream``: what a stream holds until an answer is written, and how it ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import cast

import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import IdleStreamLeft
from idalloc_server.auth.turns import MAX_STORE_WAITS, MAX_TURNS, MAX_UNANSWERED, Shares, StreamShare
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.rpc import request_stream
from idalloc_server.rpc.items import DocIdSource
from tests.rpc.test_allocate_stream import REQUEST_ID, range_of, shown
from tests.support.fake_store import FakeClock, unreachable
from tests.support.sequence_allocators import make
from tests.support.waiting import settle
from tests.unit.server.rpc.test_batches import Callers, status_of


class Stream(Callers):
    """A ``MessageStream`` that answers ``requests`` until it is cancelled."""

    def __init__(self) -> None:
        super().__init__([])
        self.share = StreamShare(Shares(), lambda: "caller")
        self.check: Callable[[], None] | None = None
        self.requests: asyncio.Queue[pb.AllocateStreamRequest] = asyncio.Queue()
        self.answers: list[pb.AllocateStreamResponse] = []
        self.refunded: list[int] = []
        self.client_reads = asyncio.Event()  # while it is not set, writes wait
        self.client_reads.set()
        self.breaks_at = -1  # the number of the answer that cannot be written
        self.ended: BaseException | None = None
        self.task = asyncio.create_task(self._serve())

    async def __aiter__(self) -> AsyncGenerator[pb.AllocateStreamRequest, None]:
        while True:
            yield await self.requests.get()

    async def pause(self, seconds: float) -> None:
        raise AssertionError("no quota is exceeded")

    async def write(self, message: pb.AllocateStreamResponse) -> None:
        if message.number == self.breaks_at:
            raise ConnectionResetError
        await self.client_reads.wait()
        self.answers.append(message)

    async def send(self, *requests: pb.AllocateStreamRequest) -> None:
        for each in requests:
            self.requests.put_nowait(each)
        await settle()

    async def ask(self, *requests: pb.AllocateStreamRequest) -> list[object]:
        """Send requests, and return the answers of all that were sent."""
        await self.send(*requests)
        answers = [shown(each) for each in self.answers]
        self.answers.clear()
        return answers

    async def fill_lease(self, name: str) -> None:
        make(self.store, name, Sequence(min_lease_size=1_000))
        for _ in range(2):  # a first grant is just what was requested
            await self.call_one(name, 1)

    async def _admit(self, sequence: str | None, ids: int, seconds: float) -> Callable[[], None]:
        return partial(self.refunded.append, ids)

    async def _serve(self) -> None:
        doc_ids = DocIdSource(self.source.doc_ids, self.source.max_ids)
        stream = request_stream.RequestStream(self, self._admit, self.source, doc_ids, record_failure=status_of)
        try:
            await stream.serve()
        except BaseException as error:
            self.ended = error


@pytest.fixture
async def stream() -> AsyncIterator[Stream]:
    """A stream that has given back, at its end, all that it shares with others."""
    stream = Stream()
    await settle()
    yield stream
    stream.task.cancel()
    await stream.task
    shares = stream.share.shares
    free = shares.turns.free, shares.store_waits.free, shares.unanswered.free
    assert free == (MAX_TURNS, MAX_STORE_WAITS, MAX_UNANSWERED)


async def test_an_answer_returns_what_its_request_held(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream serves any number of requests: bytes and places count until the answer or error."""
    await stream.fill_lease("warm")
    requests = [range_of("cold"), range_of(""), range_of("warm")]
    monkeypatch.setattr(request_stream, "MAX_BYTES", sum(each.ByteSize() for each in requests))
    shares = stream.share.shares
    for turn in range(5):
        stream.store.next("grant", fault := unreachable())
        fault.before = asyncio.Event()
        assert await stream.ask(*requests) == []
        fault.before.set()
        assert await stream.ask() == ["STORE_UNAVAILABLE", "INVALID_REQUEST", (3 + turn, 3 + turn)]
        assert (shares.store_waits.free, shares.unanswered.free) == (MAX_STORE_WAITS, MAX_UNANSWERED)


async def test_failed_requests_hold_no_ids(stream: Stream) -> None:
    """Requests that failed leave all of the stream's ids to those behind them."""
    gate = stream.store.hold("grant")
    failing = range_of("orders", 100, view=9)
    await stream.send(range_of("orders"), *[failing] * 10, range_of("orders", 100))
    gate.set()
    assert await stream.ask() == [(1, 1), *["INVALID_REQUEST"] * 10, (2, 101)]


async def test_the_answer_shows_who_created_a_sequence(stream: Stream) -> None:
    """``created`` is true in the first answer of a sequence that did not exist, and in no other."""
    await stream.send(range_of("orders"), range_of("orders"), range_of("lines"))
    assert [each.allocate_range.created for each in stream.answers] == [True, False, True]


async def test_ids_are_burned_once(stream: Stream) -> None:
    """P9: ids whose lease expired before an answer that cannot be written are counted once."""
    await stream.fill_lease("warm")
    gate = stream.store.hold("grant")
    stream.breaks_at = 1
    await stream.send(range_of("slow"), range_of("warm", 5, number=1))
    cast(FakeClock, stream.store.clock).advance(200)
    gate.set()
    await settle()
    assert isinstance(stream.ended, ConnectionResetError)
    assert stream.allocator.burned.by_sequence["warm"] == {BurnCause.EXPIRED: 5}


async def test_ids_that_a_request_id_burned_are_not_refunded(stream: Stream) -> None:
    """A request id that is reused, or burned by a change, is charged: it may have taken ids."""
    service = SequenceService(stream.store, stream.source.clock, stream.allocator)
    assert await stream.ask(range_of("orders", 1, request_id=REQUEST_ID)) == [(1, 1)]
    assert await stream.ask(range_of("orders", 2, request_id=REQUEST_ID)) == ["REQUEST_ID_REUSED"]
    await service.advance("orders", 60, "", "", service.change_key("", b""))
    assert await stream.ask(range_of("orders", 1, request_id=REQUEST_ID)) == ["REQUEST_ID_BURNED"]
    assert stream.refunded == []
    assert await stream.ask(range_of("orders", 101)) == ["INVALID_REQUEST"]
    assert stream.refunded == [101]


@pytest.mark.parametrize("is_idle", [False, True])
async def test_a_cancelled_write_is_no_idle_stream(stream: Stream, is_idle: bool) -> None:
    """P9: a call that ends in a write burns the ids of that answer, and counts as a failure."""
    await stream.fill_lease("warm")
    if not is_idle:
        stream.client_reads.clear()
    await stream.send(range_of("warm", 5))
    stream.task.cancel()
    await stream.task
    assert isinstance(stream.ended, asyncio.CancelledError)
    assert isinstance(stream.ended, IdleStreamLeft) == is_idle
    assert stream.allocator.burned.by_cause == ({} if is_idle else {BurnCause.CANCELLED: 5})
