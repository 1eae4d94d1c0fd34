"""Unused tails and high-water marks of several nodes, through renewals and stops (P1, P2, P9)."""

import asyncio

import pytest

from idalloc_server.domain.allocation import allocator as allocator_module
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import SequenceExhausted, SequenceInvalid, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.fake_store import FakeClock, Fault, MemoryStore
from tests.support.sequence_allocators import close_idle, make, own_counter
from tests.support.waiting import settle

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)


class Node(Allocator):
    """An allocator that records the issued ids."""

    def __init__(self, store: MemoryStore, clock: FakeClock) -> None:
        super().__init__(store, clock, CONFIG)
        self.issued: list[int] = []

    async def take(self, count: int, name: str = "s") -> None:
        taken = await self.issue(name, count)
        self.issued += range(taken.first_id, taken.last_id + 1)

    async def warm_up(self, name: str = "s") -> int:
        """Issue ids until the lease has more than 5; return their number."""
        left = 0
        while left <= 5:
            await self.take(1, name)
            left = own_counter(self, name).state.held_ids
        return left

    @property
    def burned_ids(self) -> int:
        return self.burned.by_cause.total()


@pytest.fixture
def node(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


@pytest.fixture
def other(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


async def renew(node: Node, clock: FakeClock) -> None:
    clock.advance(CONFIG.lease_ttl / 2)
    await node.take(1)
    await settle()


async def test_a_renewal_does_not_revive_a_burned_tail(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock
) -> None:
    """P2: after another node's grant, a renewal makes no tail returnable."""
    held = await node.warm_up()
    await other.take(50)
    await renew(node, clock)  # it returns the row's newest version
    last_value = store.rows["s"].last_value
    await node.return_leases()
    assert store.rows["s"].last_value == last_value
    assert node.burned.by_cause == {BurnCause.NOT_RETURNED: held - 1}
    await other.take(1)
    fresh = Node(store, clock)
    await fresh.take(100)
    assert len({*node.issued, *other.issued, *fresh.issued}) == sum(map(len, (node.issued, other.issued, fresh.issued)))


async def test_a_tail_is_given_back_after_a_renewal(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """P2: a renewal without grants of other nodes keeps the tail returnable."""
    await node.warm_up()
    await renew(node, clock)
    await node.return_leases()
    assert store.rows["s"].last_value == node.issued[-1]
    assert not node.burned.by_cause


async def test_a_tail_that_another_node_has_seen_is_burned(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock
) -> None:
    """P2: a tail before a counter value that another node has read is not given back."""
    await other.warm_up()
    held = await node.warm_up()
    await renew(other, clock)  # reads the counter after the tail; it must not find a lower value later
    await node.take(1)
    await settle()  # renewed as well
    await close_idle(node)
    assert node.burned.by_cause == {BurnCause.NOT_RETURNED: held - 1}
    await other.take(100)
    await node.take(1)
    assert len({*node.issued, *other.issued}) == len(node.issued) + len(other.issued)


async def test_nodes_that_take_turns_repeat_no_id(node: Node, other: Node, store: MemoryStore) -> None:
    """P1, P2: a node that gave its tail back holds nothing of it when its turn comes again."""
    for _ in range(3):
        for serving in (node, other):
            await serving.warm_up()
            await serving.check_idle_sequences()
            await serving.check_idle_sequences()
            assert store.rows["s"].last_value == serving.issued[-1]
    everything = sorted(node.issued + other.issued)
    assert everything == list(range(1, len(everything) + 1))


async def test_a_tail_is_given_back_as_far_as_no_other_node_saw(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock
) -> None:
    """P3: a returned tail never moves the counter below what another node has read."""
    await other.warm_up()
    await node.warm_up()
    seen = store.rows["s"].last_value
    assert seen
    await renew(other, clock)
    assert store.rows["s"].last_value == seen
    before = len(store.calls_of("grant"))
    while len(store.calls_of("grant")) == before:  # until a refill adds to the lease
        await node.take(1)
        await settle()
    await node.return_leases()
    assert seen <= (store.rows["s"].last_value or 0)
    await other.take(100)  # does not raise StoreWentBackwards
    assert len({*node.issued, *other.issued}) == len(node.issued) + len(other.issued)


async def test_at_the_bound_ids_before_another_nodes_stay_usable(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock
) -> None:
    """P1: at the bound the node issues the ids it holds before those of another node."""
    held = await node.warm_up()
    row = store.rows["s"]
    assert row.last_value
    row.sequence = Sequence(max_value=row.last_value + 4)
    await other.take(4)
    with pytest.raises(SequenceExhausted) as refused:
        await node.take(held + 1)
    assert refused.value.metadata["remaining"] == str(held)
    with pytest.raises(SequenceExhausted):
        await Node(store, clock).take(1)
    await node.take(held)
    everything = node.issued + other.issued
    assert sorted(everything) == list(range(1, row.sequence.max_value + 1))


async def test_a_late_close_does_not_lower_a_newer_mark(
    node: Node, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: closing an idle allocator does not move back the mark of its successor."""
    monkeypatch.setattr(allocator_module, "CLOSE_CONCURRENCY", 1)
    await node.warm_up("first")
    await node.warm_up()
    await node.check_idle_sequences()
    gate = store.hold("give_back")
    drop = asyncio.create_task(node.check_idle_sequences())
    await settle()
    await node.take(500)  # by a new allocator, while the old one waits for "first"
    gate.set()
    await drop
    store.rows["s"].last_value = node.issued[-1] - 1
    with pytest.raises(StoreWentBackwards):
        await node.take(500_000)


async def test_a_lower_value_in_a_newer_generation_is_backwards(node: Node, store: MemoryStore) -> None:
    """P3: a lower value is behind the mark, also in a newer generation."""
    await node.take(1_000)
    store.rows["s"].last_value = 500
    store.rows["s"].generation += 1
    with pytest.raises(StoreWentBackwards):
        await node.take(10)


async def test_a_corrupt_row_does_not_stop_other_closes(node: Node, store: MemoryStore) -> None:
    """A corrupt row prevents no other idle sequence from giving its tail back."""
    for name in ("a", "b", "c"):
        await node.warm_up(name)
    store.next("give_back", Fault(applied=0, error=SequenceInvalid("a", "its last_value is NULL")))
    await node.check_idle_sequences()
    await node.check_idle_sequences()
    assert not node._sequence_allocators
    assert len(store.calls_of("give_back")) == 3


async def test_an_expired_lease_at_the_bound_is_refilled(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """At the bound a lease that expired during the write is refilled, and the call is served."""
    make(store, "s", Sequence(max_value=20))
    gate = store.hold("grant")
    late = asyncio.create_task(node.take(13))
    second = asyncio.create_task(node.take(13))
    await settle()
    clock.advance(CONFIG.lease_ttl)
    gate.set()
    outcome = await asyncio.gather(late, second, return_exceptions=True)
    assert [str(each) for each in outcome] == [
        "None",
        "sequence 's' has 7 ids left; 13 were requested: request at most 7 at once, or extend its bounds",
    ]
    assert not node.burned.by_cause


class TestCounting:
    """P9: ids that an interrupted stop could not give back."""

    async def test_tails_of_an_interrupted_stop_are_counted(self, node: Node, store: MemoryStore) -> None:
        """P9: tails that an interrupted stop could not give back are counted."""
        held = [await node.warm_up(f"s{n}") for n in range(3)]
        for _ in held:
            store.hold("give_back")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await node.return_leases()
        assert node.burned_ids == sum(held)

    async def test_tails_queued_behind_a_stalled_one_are_counted(
        self, node: Node, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P9: tails whose return had not started when the stop ended are counted."""
        monkeypatch.setattr(allocator_module, "CLOSE_CONCURRENCY", 1)
        held = [await node.warm_up(f"s{n}") for n in range(3)]
        store.hold("give_back")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await node.return_leases()
        assert node.burned_ids == sum(held)

    async def test_a_refill_that_a_stop_interrupted_is_counted(self, node: Node, store: MemoryStore) -> None:
        """P9: the ids of a refill that a stop interrupts are counted."""
        held = await node.warm_up()
        store.next("grant", Fault(after=asyncio.Event()))
        before = store.rows["s"].last_value
        gone = asyncio.create_task(node.take(1_000))
        await settle()
        gone.cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await node.return_leases()
        moved = (store.rows["s"].last_value or 0) - (before or 0)
        assert moved >= 1_000
        assert node.burned_ids == moved + held
