"""Ids that rise over all nodes: a call after a reply gets larger ids; callers share writes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.errors import SequenceExhausted, StoreUnavailable
from idalloc_server.domain.sequences.sequence import Kind, Ordering, Sequence
from tests.support.examples import examples
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply
from tests.support.sequence_allocators import ids, make
from tests.support.waiting import settle

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)
RISING = Sequence(ordering=Ordering.RISING)


@pytest.fixture
def allocator(store: MemoryStore, clock: FakeClock) -> Allocator:
    make(store, "s", RISING)
    return Allocator(store, clock, CONFIG)


@examples(150)
@given(
    kind=st.sampled_from([(Kind.COUNTER, 1), (Kind.COUNTER, -3), (Kind.TIMESTAMP_MS, 1)]),
    plan=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(1, 5),
            st.integers(0, 4),
            st.booleans(),
            st.sampled_from(["", "", "", "slow", "late", "lost", "back", "on", "stop"]),
        ),
        max_size=40,
    ),
)
async def test_a_call_after_a_reply_gets_larger_ids(
    kind: tuple[Kind, int], plan: list[tuple[int, int, int, bool, str]]
) -> None:
    """A call that starts after a reply on any node gets larger ids, under random faults."""
    clock = FakeClock()
    store = MemoryStore(clock)
    sequence = Sequence(
        kind=kind[0],
        step=kind[1],
        start=0,
        min_value=-(10**15),
        max_value=10**15,
        # Must not make the node hold ids.
        min_lease_size=50,
        ordering=Ordering.RISING,
    )
    make(store, "s", sequence)
    nodes = [Allocator(store, clock, CONFIG) for _ in range(2)]
    answered = -(10**16)
    everything: set[int] = set()

    async def call(node: Allocator, count: int) -> None:
        nonlocal answered
        least = answered
        try:
            taken = ids(node.issue_now("s", count) or await node.issue("s", count))
        except StoreUnavailable:
            return
        values = [value * (1 if sequence.step > 0 else -1) for value in taken]
        assert min(values) > least
        assert everything.isdisjoint(values)
        everything.update(values)
        answered = max(answered, *values)

    async with asyncio.TaskGroup() as calls:
        for node, count, turns, cancelled, fault in plan:
            for method in ("grant", "grant_timestamps"):
                if fault == "slow":
                    store.next(method, Fault(delay=0.001))
                elif fault == "late":
                    store.next(method, Fault(applied=2))
                elif fault == "lost":
                    store.next(method, lost_reply())
            if fault in ("back", "on"):
                clock.advance(-0.005 if fault == "back" else 0.003)
            elif fault == "stop":
                await nodes[node].drop_lease("s")
            task = calls.create_task(call(nodes[node], count))
            for _ in range(turns):
                await asyncio.sleep(0)
            if cancelled:
                task.cancel()


async def test_concurrent_callers_share_one_write(allocator: Allocator, store: MemoryStore) -> None:
    """Callers that arrive during a write share the next one; one write is in flight at a time."""
    await allocator.issue("s", 1)
    gate = store.hold("grant")
    first = asyncio.create_task(allocator.issue("s", 1))
    await settle()
    rest = [asyncio.create_task(allocator.issue("s", 2)) for _ in range(500)]
    await settle()
    assert len(store.calls_of("grant")) == 2
    gate.set()
    assert ids(await first, *await asyncio.gather(*rest)) == list(range(2, 1_003))
    assert [call.arguments[1] for call in store.calls_of("grant")] == [1, 1, 1_000]


async def test_a_caller_that_arrives_during_a_write_waits(allocator: Allocator, store: MemoryStore) -> None:
    """A caller that arrives during a write gets no ids of that write, not even unused ones."""
    await allocator.issue("s", 1)
    store.next("grant", Fault(after=(gate := asyncio.Event())))
    gone, stays = (asyncio.create_task(allocator.issue("s", 10)) for _ in range(2))
    await settle()
    gone.cancel()
    other = await Allocator(store, FakeClock(), CONFIG).issue("s", 1)  # the ids of the write in flight are lower
    late = asyncio.create_task(allocator.issue("s", 1))
    await settle()
    gate.set()
    assert (await late).first_id > other.last_id
    assert (await stays).last_id < other.first_id
    assert allocator.burned.by_cause == {BurnCause.NOT_RETURNED: 10}


async def test_ids_of_cancelled_callers_are_given_back(allocator: Allocator, store: MemoryStore) -> None:
    """P2: the ids of a cancelled caller at the end of a grant are given back."""
    await allocator.issue("s", 1)
    gate = store.hold("grant")
    calls = [asyncio.create_task(allocator.issue("s", 10)) for _ in range(3)]
    await settle()
    calls[1].cancel()
    gate.set()
    taken = [answer for answer in await asyncio.gather(*calls, return_exceptions=True) if isinstance(answer, IdRange)]
    assert ids(*taken) == list(range(2, 22))
    assert ids(await allocator.issue("s", 1)) == [22]
    assert not allocator.burned.by_cause


async def test_no_ids_are_held_in_memory(allocator: Allocator, store: MemoryStore) -> None:
    """A rising sequence holds no ids in memory."""
    for n in range(30):
        assert allocator.issue_now("s", 1) is None
        assert (await allocator.issue("s", 1)).last_id == n + 1 == store.rows["s"].last_value
    assert allocator.lease_count == 0


async def test_a_sequence_that_becomes_rising_drops_old_leases(store: MemoryStore) -> None:
    """P5: after the ordering changes to RISING, no ids of earlier leases are issued."""
    clock = FakeClock()
    node, other = (Allocator(store, clock, CONFIG) for _ in range(2))
    for _ in range(5):
        await node.issue("s", 10)
    store.rows["s"].sequence = RISING
    store.rows["s"].generation += 1
    await node.drop_lease("s")
    higher = await other.issue("s", 1)
    assert (await node.issue("s", 1)).first_id > higher.last_id
    assert node.burned.by_cause[BurnCause.GENERATION] > 0


async def test_at_the_bound_every_id_is_issued(store: MemoryStore, clock: FakeClock) -> None:
    """The nodes together issue every id of a rising sequence up to the bound."""
    make(store, "end", Sequence(max_value=10, ordering=Ordering.RISING))
    nodes = [Allocator(store, clock, CONFIG) for _ in range(2)]
    with pytest.raises(SequenceExhausted) as refused:
        await nodes[0].issue("end", 11)
    assert refused.value.metadata["remaining"] == "10"
    assert ids(await nodes[1].issue("end", 7), await nodes[0].issue("end", 3)) == list(range(1, 11))
