"""A store with a witness: how fresh processes notice a restore, and its cost (P1, P3, P6)."""

import asyncio
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.counter_allocator import RECHECK_SECONDS
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.errors import StartRefused, StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Ordering, Reset, name_of_period
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.store import WitnessedStore
from tests.support.fake_store import FakeClock, MemoryStore, lost_reply, lost_request, unreachable
from tests.support.fake_witness import MemoryWitness
from tests.support.waiting import settle, until

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)


class Node:
    """A process with a witness, or without one."""

    def __init__(self, store: MemoryStore, witness: MemoryWitness | None) -> None:
        self.store: Store = store
        if witness is not None:
            self.store = cast(Store, WitnessedStore(store, witness))
        self.allocator = Allocator(self.store, store.clock, CONFIG)
        self.service = SequenceService(self.store, store.clock, self.allocator)

    async def take(self, count: int = 1, name: str = "s") -> list[int]:
        taken = await self.allocator.issue(name, count)
        return list(range(taken.first_id, taken.last_id + taken.step, taken.step))

    async def advance(self, past: int, name: str = "s", period: str = "") -> None:
        await self.service.advance(name, past, period, "", self.service.change_key("", b""))

    async def create(self, name: str = "s", **given: Any) -> None:
        await self.service.create(name, given, self.service.change_key("", b""))

    async def claim(self, prefix: int = 7) -> int:
        starts = StartTimestamps(self.store, FakeClock(), prefix=prefix, holder="n", max_clock_skew=60.0)
        return (await starts.start()).timestamp

    @property
    def burned(self) -> dict[BurnCause, int]:
        return dict(self.allocator.burned.by_cause)


@pytest.fixture
def witness() -> MemoryWitness:
    return MemoryWitness()


async def issue_past_a_copy(store: MemoryStore, witness: MemoryWitness | None, name: str = "s") -> set[int]:
    """Issue ids, copy the store, issue more, and restore the copy; return all ids."""
    node = Node(store, witness)
    ids = set(await node.take(5, name))
    copy = store.back_up()
    ids |= set(await node.take(20, name))
    node.allocator.abandon()
    store.restore(copy)
    return ids


async def test_without_a_witness_a_fresh_process_repeats_ids(store: MemoryStore) -> None:
    """The limit of P3: a restored store that only fresh processes see."""
    ids = await issue_past_a_copy(store, None)
    assert ids & set(await Node(store, None).take(20))


async def test_a_fresh_process_refuses_a_restored_store(store: MemoryStore, witness: MemoryWitness) -> None:
    """P3: a fresh process issues no ids of a restored sequence until an advance, and none twice."""
    ids = await issue_past_a_copy(store, witness)
    node = Node(store, witness)
    with pytest.raises(StoreWentBackwards, match="in the witness"):
        await node.take(20)
    await node.take(1, "other")
    await node.advance(0)  # the witness knows how far
    assert not ids & set(await node.take(20))
    assert node.allocator.burned.by_cause.total() == 0


async def test_a_fresh_process_creates_no_lost_sequence(store: MemoryStore, witness: MemoryWitness) -> None:
    """P3: a first use creates no sequence that the copy lacks; created and advanced, it goes on."""
    copy = store.back_up()
    ids = set(await Node(store, witness).take(5))
    store.restore(copy)
    node = Node(store, witness)
    with pytest.raises(StoreWentBackwards, match="found no such row"):
        await node.take()
    assert not store.rows
    await node.create()
    with pytest.raises(StoreWentBackwards):
        await node.take()
    await node.advance(0)
    assert not ids & set(await node.take(5))


async def test_a_lost_mark_ends_the_refusals(store: MemoryStore, witness: MemoryWitness, clock: FakeClock) -> None:
    """After ``idalloc witness forget`` a name is free again, and the refusal was logged once."""
    copy = store.back_up()
    await Node(store, witness).take(5)
    store.restore(copy)
    node = Node(store, witness)
    with capture_logs() as logs:
        for _ in range(3):
            clock.advance(RECHECK_SECONDS)
            with pytest.raises(StoreWentBackwards):
                await node.take()
    assert [line["event"] for line in logs] == ["store_went_backwards"]
    witness.marks.clear()
    clock.advance(RECHECK_SECONDS)
    assert await node.take() == [1]


async def test_a_restored_period_is_refused_and_repaired(store: MemoryStore, witness: MemoryWitness) -> None:
    """P3: a fresh process refuses a period's restored counter; an advance repairs all periods."""
    await Node(store, witness).create(reset=Reset.DAILY, format="{year}{month}{day}-{value}")
    ids = await issue_past_a_copy(store, witness)
    node = Node(store, witness)
    with pytest.raises(StoreWentBackwards, match=r"of 20\d\d-"):
        await node.take(20)
    await node.advance(0)
    assert not ids & set(await node.take(20))


async def test_another_sequence_of_the_name_is_refused(store: MemoryStore, witness: MemoryWitness) -> None:
    """P3, P9: a sequence of another direction, in place of one that is lost, issues nothing."""
    copy = store.back_up()
    await Node(store, witness).take(5)
    store.restore(copy)
    node = Node(store, witness)
    await node.create(start=100, step=-1, min_value=1, max_value=100)
    for _ in range(2):
        with pytest.raises(StoreWentBackwards, match="counts down"):
            await node.take(98)
        await node.advance(100)
    assert node.burned == {BurnCause.WENT_BACKWARDS: 98}
    assert witness.marks["s"].value == 5


async def test_a_lost_advance_is_noticed(store: MemoryStore, witness: MemoryWitness) -> None:
    """P5: an advance that a copy lacks keeps fresh processes from the ids before it."""
    node = Node(store, witness)
    await node.take(5)
    copy = store.back_up()
    await node.advance(1_000)
    store.restore(copy)
    with pytest.raises(StoreWentBackwards, match="value 1000"):
        await Node(store, witness).take()


async def test_a_bound_below_the_mark_is_kept(store: MemoryStore, witness: MemoryWitness) -> None:
    """P5: an update that sets a bound before the mark does not move the counter past the bound."""
    await issue_past_a_copy(store, witness)
    node = Node(store, witness)
    await node.service.update("s", {"max_value": 10}, "", node.service.change_key("", b""))
    assert store.rows["s"].last_value == 5
    with pytest.raises(StoreWentBackwards):
        await node.take()


@pytest.mark.parametrize("fault", [unreachable(), lost_request(), lost_reply()])
async def test_ids_without_a_confirmed_mark_are_burned(store: MemoryStore, witness: MemoryWitness, fault: Any) -> None:
    """P1, P9: if the witness confirms no grant, none of its ids is issued, and all are counted."""
    node = Node(store, witness)
    await node.take(5)
    witness.next("replace", fault)
    with pytest.raises(StoreUnavailable, match="witness: "):
        await node.take(7)
    assert node.burned == {BurnCause.UNKNOWN_OUTCOME: store.rows["s"].counter("s") - 5}
    assert (await node.take(3))[0] > 12


async def test_a_witness_that_is_away_is_a_store_that_is_away(store: MemoryStore, witness: MemoryWitness) -> None:
    """A lease serves on; a refill fails without a grant, and no id is burned."""
    node = Node(store, witness)
    for _ in range(3):
        await node.take(5)
    held, grants = node.allocator.held_ids, len(store.calls_of("grant"))
    assert held
    witness.down = True
    assert node.allocator.issue_now("s", held)
    with pytest.raises(StoreUnavailable, match="witness: "):
        await node.take(1)
    assert len(store.calls_of("grant")) == grants
    assert not node.burned
    assert not cast(WitnessedStore, node.store).chain.is_up
    witness.down = False
    await node.take(1)
    assert cast(WitnessedStore, node.store).chain.is_up


async def test_a_lease_serves_without_the_witness(store: MemoryStore, witness: MemoryWitness) -> None:
    """The hot path: ids from memory need no call of the witness."""
    node = Node(store, witness)
    for _ in range(3):
        await node.take(5)
    calls = len(witness.calls)
    assert node.allocator.issue_now("s", 1)
    assert len(witness.calls) == calls


async def test_refills_share_the_calls_of_the_witness(store: MemoryStore, witness: MemoryWitness) -> None:
    """All refills that wait share one read before, and one replacement after."""
    node = Node(store, witness)
    names = [f"s{number}" for number in range(200)]
    await asyncio.gather(*(node.take(1, name) for name in names))
    witness.calls.clear()
    await asyncio.gather(*(node.take(1, name) for name in names))
    assert len(store.calls_of("grant")) >= 2 * len(names)
    assert len(witness.calls_of("read")) <= 4
    assert len(witness.calls_of("replace")) <= 4


async def test_a_grant_that_another_mark_overtook_fills_its_gap(store: MemoryStore, witness: MemoryWitness) -> None:
    """P1: if two nodes' marks arrive in the other order, both grants are confirmed, none burned."""
    one, other = Node(store, witness), Node(store, witness)
    await one.take(1)
    gate = witness.hold("replace")
    late = asyncio.create_task(one.take(5))
    await until(lambda: len(witness.calls_of("replace")) == 2)
    later = await other.take(5)
    gate.set()
    ids = await late
    assert not set(ids) & set(later)
    assert not one.burned
    assert witness.marks["s"].gaps == ""


async def test_a_grant_of_an_older_generation_fills_no_gap(store: MemoryStore, witness: MemoryWitness) -> None:
    """P1, P9: a grant that an advance overtook is burned and repeated, and no call fails."""
    one, other = Node(store, witness), Node(store, witness)
    await one.take(1)
    gate = witness.hold("replace")
    late = asyncio.create_task(one.take(5))
    await until(lambda: len(witness.calls_of("replace")) == 2)
    await other.advance(1_000)
    gate.set()
    assert (await late)[0] > 1_000
    assert one.burned.keys() == {BurnCause.UNKNOWN_OUTCOME}


async def test_many_nodes_that_write_at_once_burn_nothing(store: MemoryStore, witness: MemoryWitness) -> None:
    """P1, P9: 30 nodes use a rising sequence first, at once: each gets its ids, none is burned."""
    nodes = [Node(store, witness) for _ in range(30)]
    await nodes[0].create(ordering=Ordering.RISING)
    ids = await asyncio.gather(*(node.take(3) for node in nodes for _ in range(2)))
    assert len({each for taken in ids for each in taken}) == 180
    assert not any(node.burned for node in nodes)


async def test_a_reset_keeps_the_mark_of_an_earlier_sequence(store: MemoryStore, witness: MemoryWitness) -> None:
    """P1: a sequence with a reset, in place of one without, does not hide how far that one was."""
    lost = store.back_up()
    ids = await issue_past_a_copy(store, witness)
    right = store.back_up()
    store.restore(lost)
    await Node(store, witness).create(reset=Reset.YEARLY, format="{year}-{value}")
    store.restore(right)
    node = Node(store, witness)
    with pytest.raises(StoreWentBackwards):
        await node.take(20)
    await node.advance(0)
    assert not ids & set(await node.take(20))


async def test_a_returned_tail_is_no_restore(store: MemoryStore, witness: MemoryWitness) -> None:
    """P3: no false alarm if a tail is given back between another node's mark and its grant."""
    one, other = Node(store, witness), Node(store, witness)
    await one.take(5)
    await other.allocator.proof("s")
    while not one.allocator.held_ids:
        await one.take(5)
    gate, before = store.hold("grant"), len(store.calls_of("grant"))
    taken = asyncio.create_task(other.take(5))
    await until(lambda: len(store.calls_of("grant")) > before)  # it has read the mark
    await one.allocator.return_leases()
    gate.set()
    assert await taken
    assert not one.burned


async def test_a_tail_that_the_witness_has_passed_is_burned(store: MemoryStore, witness: MemoryWitness) -> None:
    """P2: a tail is given back only if the mark is still this node's, and was lowered first."""
    node = Node(store, witness)
    for _ in range(3):
        await node.take(5)
    await settle()
    held = node.allocator.held_ids
    mark = witness.marks["s"]
    witness.marks["s"] = mark._replace(value=mark.value + 1, token="another")
    before = store.rows["s"].last_value
    await node.allocator.return_leases()
    assert not store.calls_of("give_back")
    assert store.rows["s"].last_value == before
    assert node.burned == {BurnCause.NOT_RETURNED: held}


async def test_start_timestamps_continue_past_the_witness(store: MemoryStore, witness: MemoryWitness) -> None:
    """P6: a restored store repeats no start timestamp."""
    copy = store.back_up()
    first = await Node(store, witness).claim()
    store.restore(copy)
    assert await Node(store, witness).claim() > first
    store.restore(copy)
    assert await Node(store, None).claim() == first


async def test_racing_claims_are_distinct(store: MemoryStore, witness: MemoryWitness) -> None:
    """P6: processes that claim at once get different start timestamps."""
    claims = await asyncio.gather(*(Node(store, witness).claim() for _ in range(5)))
    assert len(set(claims)) == 5


async def test_an_older_witness_raises_no_alarm(store: MemoryStore, witness: MemoryWitness) -> None:
    """A witness that lost its marks, or the last of them, detects less; it refuses nothing."""
    node = Node(store, witness)
    await node.take(5)
    older = dict(witness.marks)
    await node.take(20)
    witness.marks = older
    assert await Node(store, witness).take(20)
    witness.marks.clear()
    assert await Node(store, witness).take(20)


class TestIdentity:
    """One witness belongs to one store."""

    async def test_a_witness_is_bound_to_its_first_store(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """Another store with the witness is refused, and the first one starts again."""
        for _ in range(2):
            await Node(store, witness).store.open()
        other = MemoryStore()
        await Node(other, MemoryWitness()).store.open()
        with pytest.raises(StartRefused, match=r"witness: it belongs to the store \w+, and"):
            await Node(other, witness).store.open()

    async def test_racing_first_starts_agree(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """Nodes that start at once with a new witness agree on the name of the store."""
        await asyncio.gather(*(Node(store, witness).store.open() for _ in range(5)))
        assert witness.marks[IDENTITY].token == store.rows[IDENTITY].sequence.description

    async def test_an_empty_witness_warns_once(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """An empty witness beside a store with sequences is a warning, never the end of a start."""
        await Node(store, None).take()
        with capture_logs() as logs:
            await Node(store, witness).store.open()
            await Node(store, witness).store.open()
        assert [line["event"] for line in logs] == ["witness_is_empty"]

    async def test_a_store_that_lost_its_name_gets_it_again(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """An empty store gets the name of its witness, which stays bound."""
        copy = store.back_up()
        await Node(store, witness).store.open()
        store.restore(copy)
        await Node(store, witness).store.open()
        assert store.rows[IDENTITY].sequence.description == witness.marks[IDENTITY].token

    async def test_the_name_is_no_sequence(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """The row with the name is in no list."""
        await Node(store, witness).store.open()
        assert not await store.list("", "", 10, with_deleted=True, with_periods=False)


async def test_marks_have_what_was_issued(store: MemoryStore, witness: MemoryWitness) -> None:
    """A mark is the counter of the last confirmed grant, of each period for itself."""
    node = Node(store, witness)
    await node.create("days", reset=Reset.DAILY, format="{year}{month}{day}-{value}")
    await node.take(3, "days")
    await node.take(3)
    day = name_of_period("days", "2023-11-14")
    assert {name: mark.value for name, mark in witness.marks.items()} == {"days": 0, day: 3, "s": 3}
    assert isinstance(witness.marks["s"], Mark)


async def test_a_change_that_a_restore_took_back_is_not_answered(store: MemoryStore, witness: MemoryWitness) -> None:
    """P5: an advance that was lost before its mark moved, while ids were issued, is an error."""
    node, fresh = Node(store, witness), Node(store, witness)
    await node.create()
    copy, gate = store.back_up(), witness.hold("replace")
    advance = asyncio.create_task(node.advance(1_000))
    await until(lambda: store.rows["s"].last_value == 1_000)
    await settle()
    store.restore(copy)
    ids = await fresh.take(5)
    gate.set()
    with pytest.raises(StoreUnavailable, match="lost the change"):
        await advance
    await node.advance(1_000)
    assert ids == [1, 2, 3, 4, 5]
    assert (await node.take())[0] > 1_000
