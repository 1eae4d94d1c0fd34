"""``RangeBatch``: batches and single calls of one allocator, in any mix."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.errors import Refusal
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.rpc.batches import RangeBatch
from idalloc_server.rpc.items import RangeSource
from idalloc_server.rpc.status import Status, from_refusal
from tests.support.fake_store import FakeClock, Fault, MemoryStore
from tests.support.sequence_allocators import CONFIG, make
from tests.support.virtual_time import VirtualTimeLoop

NAMES = st.sampled_from("abc")
# How a batch ends: by itself, at its deadline, or by a cancellation after some turns of the event
# loop.
ENDS = st.sampled_from(["reply", "deadline", "cancel"])
Ids = list[tuple[str, int]]


def status_of(error: Exception) -> Status:
    assert isinstance(error, Refusal)
    return from_refusal(error)


class Callers:
    """Calls of one allocator, and the ids that they got."""

    def __init__(self, delays: list[float]) -> None:
        clock = FakeClock()
        self.store = MemoryStore(clock)
        self.store.next("grant", *(Fault(delay=delay) for delay in delays))
        self.allocator = Allocator(self.store, clock, CONFIG)
        start_timestamps = StartTimestamps(self.store, clock, prefix=0, holder="here:1", max_clock_skew=60.0)
        self.source = RangeSource(
            self.allocator,
            IdempotentAllocator(self.allocator, self.store, clock, node="here:1", window=60.0),
            doc_ids=DocIdGenerator(start_timestamps, StartTimestamp(0, 1)),
            clock=clock,
            max_ids=100,
            node_id=1,
        )
        self.issued: Ids = []

    async def call_one(self, name: str, count: int) -> None:
        taken = self.allocator.issue_now(name, count) or await self.allocator.issue(name, count)
        self._receive(name, taken)

    async def call_many(self, requests: list[tuple[str, int]], end: str, turns: int) -> None:
        """Make a batch, and check that it has a result for each request."""
        batch = RangeBatch(self.source, lambda sequence, ids: None)
        for name, count in requests:
            batch.add(pb.AllocateRangeRequest(sequence=name, id_count=count))
        waiting = asyncio.ensure_future(batch.wait(0.1 if end == "deadline" else None))
        if end == "cancel":
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
        [outcome] = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            return
        reply = batch.reply(status_of)
        assert len(reply.results) == len(requests)
        for (name, _), result in zip(requests, reply.results, strict=True):
            if result.HasField("response"):
                self._receive(name, result.response.range)
            else:
                assert end == "deadline"

    def _receive(self, name: str, taken: IdRange | pb.IdRange) -> None:
        self.issued += [(name, taken.first_id + n * taken.step) for n in range(taken.id_count)]


BATCHES = st.tuples(st.lists(st.tuples(NAMES, st.integers(1, 30)), min_size=1, max_size=8), ENDS, st.integers(0, 12))


@given(
    batches=st.lists(BATCHES, min_size=1, max_size=6),
    single=st.lists(st.tuples(NAMES, st.integers(1, 30)), max_size=6),
    delays=st.lists(st.sampled_from([0.0, 0.02, 0.3]), max_size=6),
)
def test_no_id_is_issued_twice(
    batches: list[tuple[Ids, str, int]], single: list[tuple[str, int]], delays: list[float]
) -> None:
    """P1: batches and single calls issue no id twice, also if cancelled or at their deadline."""
    callers = Callers(delays)

    async def run() -> None:
        calls = [callers.call_many(*each) for each in batches] + [callers.call_one(*each) for each in single]
        await asyncio.gather(*calls)
        await callers.allocator.return_leases()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())
    assert len(set(callers.issued)) == len(callers.issued)
    # P9: each id that the store granted was issued, is burned, or was given back.
    granted = sum((row.last_value or 0) for row in callers.store.rows.values())
    assert granted == len(callers.issued) + callers.allocator.burned.by_cause.total()


async def test_requests_from_the_lease_need_no_wait() -> None:
    """Requests that the lease serves start no task, and the call does not wait."""
    callers = Callers([])
    make(callers.store, "a", Sequence(min_lease_size=100))
    for _ in range(2):  # a first grant is just what was requested
        await callers.call_one("a", 1)
    batch = RangeBatch(callers.source, lambda sequence, ids: None)
    tasks = asyncio.all_tasks()
    for _ in range(10):
        batch.add(pb.AllocateRangeRequest(sequence="a", id_count=1))
    with pytest.raises(StopIteration):
        batch.wait(None).send(None)
    assert asyncio.all_tasks() == tasks
    reply = batch.reply(status_of)
    assert [each.response.range.first_id for each in reply.results] == list(range(3, 13))
