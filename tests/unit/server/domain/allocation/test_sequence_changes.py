"""Changes while nodes hold leases: delete, re-create, advance; and lease sizes (P3, P5)."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import SequenceDeleted, SequenceExhausted, StoreOutcomeUnknown, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import MAX_ID, MIN_ID, Ordering, Sequence
from idalloc_server.domain.store.records import RowChange
from tests.support.examples import examples
from tests.support.fake_store import FakeClock, MemoryStore, lost_reply
from tests.support.sequence_allocators import ids, make
from tests.support.waiting import settle

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)


@pytest.fixture
def allocator(store: MemoryStore, clock: FakeClock) -> Allocator:
    return Allocator(store, clock, CONFIG)


async def warm(allocator: Allocator, name: str = "s") -> None:
    for _ in range(5):
        await allocator.issue(name, 100)


async def revise(store: MemoryStore, *, deleted: bool = False, at_least: int = 0, name: str = "s") -> None:
    row = store.rows[name]
    await store.revise(name, row.revision, RowChange(row.sequence, at_least, "me", 0.0, deleted=deleted))


class TestTombstone:
    async def test_a_deletion_ends_the_lease_at_the_next_renewal(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P5: the next renewal after a deletion ends the lease; the first use creates nothing."""
        await warm(allocator)
        await revise(store, deleted=True)
        assert allocator.issue_now("s", 1) is not None  # the deletion is effective later
        clock.advance(CONFIG.lease_ttl / 2)
        allocator.issue_now("s", 1)
        await settle()
        assert allocator.issue_now("s", 1) is None
        assert allocator.burned.by_cause[BurnCause.GENERATION] > 0
        for _ in range(2):
            with pytest.raises(SequenceDeleted):
                await allocator.issue("s", 1)
        assert len(store.calls_of("create")) == 1

    async def test_a_recreated_sequence_continues_after_its_last_id(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        """P5: a sequence that is created again continues after its last id."""
        await warm(allocator)
        await revise(store, deleted=True)
        await allocator.drop_lease("s")
        with pytest.raises(SequenceDeleted):
            await allocator.issue("s", 1)
        counter = store.rows["s"].last_value
        await revise(store)
        taken = await allocator.issue("s", 1)
        assert (taken.first_id, taken.generation) == ((counter or 0) + 1, store.rows["s"].generation)
        assert allocator.generation_seen("s") == taken.generation


class TestRecovery:
    async def test_an_advanced_sequence_resumes(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P3: a sequence behind its mark resumes after an advance, read at most once a second."""
        await warm(allocator)
        seen = store.rows["s"].last_value or 0
        store.rows["s"].last_value = 3
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("s", 1_000_000)
        grants = len(store.calls_of("grant"))
        store.rows["s"].last_value = seen + 20_000  # past the mark, but in the old generation
        clock.advance(1.0)
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("s", 1)
        await revise(store, at_least=50_000)
        for _ in range(5):  # read once a second, and not written
            with pytest.raises(StoreWentBackwards):
                await allocator.issue("s", 1)
        assert (len(store.calls_of("get")), len(store.calls_of("grant"))) == (1, grants)
        clock.advance(1.0)
        assert ids(await allocator.issue("s", 1)) == [50_001]

    async def test_an_advance_below_the_mark_is_not_enough(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P3: an advance to a value behind the mark does not resume the sequence."""
        await warm(allocator)
        store.rows["s"].last_value = 3
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("s", 1_000_000)
        store.rows["s"].last_value = 3
        await revise(store, at_least=100)
        clock.advance(1.0)
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("s", 1)
        del store.rows["s"]
        clock.advance(1.0)
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("s", 1)

    async def test_forget_retries_the_store(self, allocator: Allocator, store: MemoryStore) -> None:
        """P3: forget retries the store, which must have reached the mark."""
        await warm(allocator)
        row = store.rows["s"]
        right, row.last_value = row.last_value, 3
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("s", 1_000_000)
        row.last_value = 3
        await allocator.drop_lease("s")
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("s", 1)
        row.last_value = right
        await allocator.drop_lease("s")
        assert (await allocator.issue("s", 1)).first_id == (right or 0) + 1


class TestForget:
    async def test_forget_drops_the_lease(self, allocator: Allocator, store: MemoryStore) -> None:
        """P5: after forget no ids of the earlier lease are issued."""
        await warm(allocator)
        await revise(store, at_least=1_000_000)
        await allocator.drop_lease("s")
        assert allocator.issue_now("s", 1) is None
        taken = await allocator.issue("s", 1)
        assert (taken.first_id, taken.generation) == (1_000_001, store.rows["s"].generation)

    async def test_forget_drops_the_ids_of_a_refill_in_progress(self, allocator: Allocator, store: MemoryStore) -> None:
        """P5: forget waits for a refill in progress and drops its ids."""
        await warm(allocator)
        gate = store.hold("grant")
        gone = asyncio.create_task(allocator.issue("s", 1_000_000))
        await settle()
        forgetting = asyncio.create_task(allocator.drop_lease("s"))
        await settle()
        gone.cancel()
        assert not forgetting.done()
        gate.set()
        await forgetting
        assert allocator.issue_now("s", 1) is None

    async def test_forget_returns_under_constant_load(self, allocator: Allocator) -> None:
        """P5: forget returns while callers arrive all the time."""
        await warm(allocator)

        async def callers() -> None:
            while True:
                await allocator.issue("s", 100_000)

        tasks = [asyncio.create_task(callers()) for _ in range(3)]
        async with asyncio.timeout(20):
            for _ in range(5):
                for _ in range(20):
                    await asyncio.sleep(0)
                await allocator.drop_lease("s")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def test_forget_of_an_unused_name_does_nothing(self, allocator: Allocator) -> None:
        """P5: forget of a name without a lease does nothing."""
        await allocator.drop_lease("s")
        assert allocator.generation_seen("s") == 0


async def test_lease_proof_comes_from_memory_until_it_expires(
    allocator: Allocator, store: MemoryStore, clock: FakeClock
) -> None:
    """P4: proof returns a lease proof from memory until the lease expires."""
    row = make(store, "s", Sequence(start=5, ordering=Ordering.RISING, labels={"team": "a"}))
    until = clock.boot() + CONFIG.lease_ttl
    for _ in range(3):
        proof = await allocator.proof("s")
        assert (proof.id_count, proof.generation, proof.sequence, proof.expires_at) == (0, 1, row.sequence, until)
    assert len(store.calls_of("grant")) == 1
    assert row.last_value == 4
    await revise(store)
    clock.advance(CONFIG.lease_ttl)
    assert (await allocator.proof("s")).generation == 2


class TestLeaseSizes:
    async def test_min_lease_size(self, allocator: Allocator, store: MemoryStore) -> None:
        """A refill requests at least min_lease_size ids."""
        make(store, "s", Sequence(min_lease_size=5_000))
        await allocator.issue("s", 3)
        await allocator.issue("s", 3)
        assert [call.arguments[1] for call in store.calls_of("grant")] == [3, 5_000]
        assert allocator.issue_now("s", 4_997) is not None

    async def test_max_lease_size(self, allocator: Allocator, store: MemoryStore) -> None:
        """A refill prefetches at most max_lease_size ids."""
        make(store, "s", Sequence(max_lease_size=10))
        for _ in range(300):
            allocator.issue_now("s", 7) or await allocator.issue("s", 7)
        assert max(int(str(call.arguments[1])) for call in store.calls_of("grant")) == 17

    async def test_min_lease_size_keeps_the_share_of_the_remaining_ids(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        """min_lease_size does not raise the limit of a hundredth of the remaining ids."""
        make(store, "s", Sequence(min_lease_size=500, max_value=5_000))
        for _ in range(100):
            allocator.issue_now("s", 1) or await allocator.issue("s", 1)
        assert (store.rows["s"].last_value or 0) <= 105


@examples(150)
@given(
    end=st.sampled_from([2**53 - 1, MAX_ID, 100, -(2**53) + 1, MIN_ID]),
    step=st.sampled_from([1, 2, 7, 1000]),
    total=st.integers(1, 4_000),
    slack=st.integers(0, 999),
    lease=st.tuples(st.integers(0, 700), st.integers(0, 700)),
    ordering=st.sampled_from(Ordering),
    plan=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 900), st.booleans()), max_size=30),
)
async def test_two_nodes_issue_every_id_up_to_the_bound(
    end: int,
    step: int,
    total: int,
    slack: int,
    lease: tuple[int, int],
    ordering: Ordering,
    plan: list[tuple[int, int, bool]],
) -> None:
    """P1: two nodes issue or count every id up to the bound exactly once, for any settings."""
    step, slack = (step if end > 0 else -step), min(slack, step - 1)
    last = end - slack if end > 0 else end + slack
    start = last - step * (total - 1)
    sequence = Sequence(
        start=start,
        step=step,
        min_value=min(start, end),
        max_value=max(start, end),
        min_lease_size=lease[0],
        max_lease_size=lease[1],
        ordering=ordering,
    )
    clock = FakeClock()
    store = MemoryStore(clock)
    make(store, "s", sequence)
    nodes = [Allocator(store, clock, CONFIG) for _ in range(2)]
    issued: list[int] = []
    lost = 0
    for node, count, fault in plan:
        if fault:
            for _ in range(5):  # a tail may be in flight
                await asyncio.sleep(0)
            before = store.rows["s"].last_value or 0
            store.next("grant", lost_reply())
            try:
                issued += ids(nodes[node].issue_now("s", count) or await nodes[node].issue("s", count))
            except StoreOutcomeUnknown:
                lost += abs((store.rows["s"].last_value or 0) - before) // abs(step)
            store._faults.clear()
            continue
        try:
            issued += ids(nodes[node].issue_now("s", count) or await nodes[node].issue("s", count))
        except SequenceExhausted:
            continue
    for allocator in nodes:
        while True:
            try:
                issued += ids(allocator.issue_now("s", 1) or await allocator.issue("s", 1))
            except SequenceExhausted:
                break
    everything = [start + step * n for n in range(total)]
    assert len(set(issued)) == len(issued)
    assert set(issued) <= set(everything)
    burned = sum(node.burned.by_cause[BurnCause.LEFTOVER] for node in nodes)
    assert len(issued) + burned + lost == total
    if not lost and not burned:
        assert sorted(issued) == sorted(everything)
