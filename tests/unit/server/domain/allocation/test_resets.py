"""Sequences with a reset: each period starts over, in the sequence's time zone, on all nodes."""

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import SequenceDeleted, SequenceExhausted, StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from idalloc_server.domain.store.records import RowChange
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import ids, make
from tests.support.waiting import settle

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)
VIENNA = ZoneInfo("Europe/Vienna")
DAILY = Sequence(reset=Reset.DAILY, time_zone="Europe/Vienna")


def set_to(clock: FakeClock, *moment: int) -> None:
    clock.wall_seconds = datetime(*moment, tzinfo=VIENNA).timestamp()  # type: ignore[arg-type, misc]


@pytest.fixture
def nodes(store: MemoryStore, clock: FakeClock) -> list[Allocator]:
    make(store, "s", DAILY)
    set_to(clock, 2026, 12, 31, 23, 58)
    return [Allocator(store, clock, CONFIG) for _ in range(2)]


async def issue(node: Allocator, count: int, name: str = "s") -> tuple[str, list[int]]:
    taken = node.issue_now(name, count) or await node.issue(name, count)
    return taken.period, ids(taken)


async def revise(store: MemoryStore, *, deleted: bool = False) -> None:
    row = store.rows["s"]
    await store.revise("s", row.revision, RowChange(row.sequence, 0, "me", 0.0, deleted=deleted))


async def test_it_starts_over_at_midnight_in_its_time_zone(nodes: list[Allocator], clock: FakeClock) -> None:
    """A daily sequence starts over at midnight in its time zone, on every node."""
    assert await issue(nodes[0], 3) == ("2026-12-31", [1, 2, 3])
    assert await issue(nodes[1], 2) == ("2026-12-31", [4, 5])
    clock.advance(119.0)
    assert await issue(nodes[0], 1) == ("2026-12-31", [6])
    clock.advance(1.0)
    assert await issue(nodes[0], 1) == ("2027-01-01", [1])
    assert (await issue(nodes[1], 1))[0] == "2027-01-01"
    clock.wall_seconds -= 1.0  # the lease of the day before is still valid
    assert (await issue(nodes[0], 1))[0] == "2026-12-31"


async def test_ids_keep_the_period_of_their_lease(nodes: list[Allocator], store: MemoryStore, clock: FakeClock) -> None:
    """P1: ids whose refill lasts past midnight have the period of the counter that granted them."""
    await nodes[0].proof("s")
    gate = store.hold("grant")
    call = asyncio.create_task(issue(nodes[0], 3))
    await settle()
    clock.advance(120.0)  # past midnight, while the grant waits
    gate.set()
    assert await call == ("2026-12-31", [1, 2, 3])
    assert await issue(nodes[0], 3) == ("2027-01-01", [1, 2, 3])


@pytest.mark.parametrize(
    ("reset", "periods"), [(Reset.YEARLY, ["2026", "2027"]), (Reset.MONTHLY, ["2026-12", "2027-01"])]
)
async def test_yearly_and_monthly_resets(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock, reset: Reset, periods: list[str]
) -> None:
    """Yearly and monthly sequences start over, also descending ones."""
    make(store, "y", Sequence(reset=reset, time_zone="Europe/Vienna", start=10, step=-1, max_value=10))
    assert await issue(nodes[0], 2, "y") == (periods[0], [10, 9])
    clock.advance(120.0)
    assert await issue(nodes[0], 2, "y") == (periods[1], [10, 9])
    with pytest.raises(SequenceExhausted, match="sequence 'y' has 8 ids left"):
        await nodes[1].issue("y", 9)


async def test_two_nodes_never_issue_an_id_of_a_period_twice(nodes: list[Allocator], clock: FakeClock) -> None:
    """P1: two nodes issue no id of a period twice, across midnight."""
    issued = []
    for n in range(600):
        period, values = await issue(nodes[n % 2], 1 + n % 5)
        issued += [(period, value) for value in values]
        clock.advance(1.0)
    assert len(issued) == len(set(issued))
    assert {period for period, _ in issued} == {"2026-12-31", "2027-01-01"}


async def test_ids_come_from_memory_and_both_rows_are_renewed(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """P4: ids are served from memory while the leases of sequence and period are renewed."""
    set_to(clock, 2026, 6, 1, 12)
    for _ in range(6):
        await issue(nodes[0], 100)
    for _ in range(6):
        clock.advance(CONFIG.lease_ttl / 2)
        taken = nodes[0].issue_now("s", 1)
        assert taken is not None
        assert clock.boot() < taken.expires_at <= clock.boot() + CONFIG.lease_ttl / 2
        await settle()
    assert store.rows["s"].lease_ms == store.rows[name_of_period("s", "2026-06-01")].lease_ms == 180_000
    assert store.rows["s"].last_value == 0
    assert not nodes[0].burned.by_cause


@pytest.mark.parametrize("in_memory", [False, True])
async def test_ids_of_a_period_expire_with_their_proof(
    nodes: list[Allocator], clock: FakeClock, in_memory: bool
) -> None:
    """P5: ids expire with the sequence's lease, although their period's lease was granted later."""
    proof = await nodes[0].proof("s")
    for _ in range(5 if in_memory else 0):
        clock.advance(CONFIG.lease_ttl / 20)
        await issue(nodes[0], 100)
    clock.advance(CONFIG.lease_ttl / 20)
    taken = nodes[0].issue_now("s", 1)
    assert (taken is not None) == in_memory
    taken = taken or await nodes[0].issue("s", 1)
    assert taken.expires_at == proof.expires_at


async def test_a_new_generation_ends_the_leases_of_periods(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """P5: a new generation of the sequence ends the leases of its periods."""
    for _ in range(6):
        await issue(nodes[0], 100)
    await revise(store)
    await issue(nodes[1], 1)  # opens the period's counter in the new generation
    until = (await nodes[0].proof("s")).expires_at
    taken = nodes[0].issue_now("s", 1)
    assert taken is not None
    assert taken.expires_at <= until
    clock.advance(CONFIG.lease_ttl / 2)
    nodes[0].issue_now("s", 1)
    await settle()
    fresh = await nodes[0].issue("s", 1)
    assert fresh.generation == 2
    assert fresh.first_id > taken.last_id
    assert nodes[0].burned.by_cause[BurnCause.GENERATION] > 0


async def test_a_new_generation_applies_to_an_unopened_period(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """P5: a new generation ends the lease of a period whose counter is still in the old one."""
    for _ in range(6):
        await issue(nodes[0], 100)
    await revise(store)
    clock.advance(CONFIG.lease_ttl / 2)
    await nodes[0].proof("s")  # renews the lease of the sequence only
    await settle()
    assert nodes[0].issue_now("s", 1) is None
    assert (await nodes[0].issue("s", 1)).generation == 2


async def test_ids_that_a_change_overtook_are_not_issued(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """P5, P9: ids of a period that were granted before a change that the node saw are burned."""
    await issue(nodes[0], 1)
    gate = store.hold("grant")
    call = asyncio.create_task(nodes[0].issue("s", 500))
    await settle()
    await revise(store)
    clock.advance(CONFIG.lease_ttl / 2)
    await nodes[0].proof("s")  # renews the lease of the sequence only
    await settle()
    assert (await nodes[0].proof("s")).generation == 2
    gate.set()
    assert (await call).generation == 2
    assert nodes[0].burned.by_cause[BurnCause.GENERATION] >= 500


async def test_without_a_lease_proof_nothing_is_issued(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """P4: when the sequence's lease has expired, no ids of a period are issued."""
    for _ in range(6):
        await issue(nodes[0], 100)
    store.down = True
    clock.advance(CONFIG.lease_ttl)
    assert nodes[0].issue_now("s", 1) is None
    with pytest.raises(StoreUnavailable):
        await nodes[0].issue("s", 1)


async def test_a_period_ahead_of_its_sequence_issues_nothing(nodes: list[Allocator], store: MemoryStore) -> None:
    """P5: a counter in a newer generation waits for its sequence, and burns little meanwhile."""
    await issue(nodes[0], 1)
    await store.open_period(name_of_period("s", "2026-12-31"), DAILY, 1_000, 2)
    row = store.rows[name_of_period("s", "2026-12-31")]
    counters = []
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await nodes[0].issue("s", 5_000)
        counters.append(row.last_value)
    assert len(set(counters)) == 1  # only the first call took ids
    await revise(store)
    taken = await nodes[0].issue("s", 1)
    assert (taken.generation, taken.first_id > 1_000) == (2, True)


async def test_a_recreated_sequence_continues_its_periods(nodes: list[Allocator], store: MemoryStore) -> None:
    """P5: a sequence that is created again continues after the last id of the period."""
    for _ in range(6):
        await issue(nodes[0], 10)
    await revise(store, deleted=True)
    await nodes[0].drop_lease("s")
    assert nodes[0].issue_now("s", 1) is None
    with pytest.raises(SequenceDeleted):
        await nodes[0].issue("s", 1)
    await revise(store)
    assert (await issue(nodes[0], 1))[1] > [60]


async def test_a_missing_period_counter_is_detected(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """P3: a period whose counter is missing issues nothing until it is advanced."""
    await issue(nodes[0], 100)
    counter = name_of_period("s", "2026-12-31")
    del store.rows[counter]
    with pytest.raises(StoreWentBackwards, match=r"for sequence 's'.*of 2026-12-31"):
        await nodes[0].issue("s", 500)
    assert counter not in store.rows
    await store.open_period(counter, DAILY, 1_000, 2)
    await revise(store)
    await nodes[0].drop_lease("s")
    assert (await issue(nodes[0], 1))[1] == [1_001]


async def test_allocators_of_ended_periods_are_closed(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """P2: allocators of ended periods are closed and give their tails back."""
    for _ in range(6):
        await issue(nodes[0], 10)
    clock.advance(120.0)
    for _ in range(3):
        await issue(nodes[0], 1)
        await nodes[0].check_idle_sequences()
    assert store.rows[name_of_period("s", "2026-12-31")].last_value == 60  # the tail was given back
    assert nodes[0].generation_seen(name_of_period("s", "2027-01-01")) == 1
    for _ in range(4):
        await nodes[0].check_idle_sequences()
    assert not nodes[0]._sequence_allocators
    assert await issue(nodes[0], 1) == ("2027-01-01", [4])
    clock.advance(86_400.0)
    assert await issue(nodes[0], 1) == ("2027-01-02", [1])
    assert nodes[0].generation_seen(name_of_period("s", "2026-12-31")) == 0


async def test_a_stop_gives_all_tails_back(nodes: list[Allocator], store: MemoryStore) -> None:
    """P2: a stop gives the tails of all periods back."""
    for _ in range(6):
        await issue(nodes[0], 10)
    await nodes[0].return_leases()
    assert store.rows[name_of_period("s", "2026-12-31")].last_value == 60
    assert not nodes[0].burned.by_cause


async def test_an_interrupted_advance_is_completed_by_a_node(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """P5: an advance that stopped between its two writes is completed after store_timeout."""
    issued = [(await issue(nodes[0], 3))[1], (await issue(nodes[1], 3))[1]]
    await store.open_period(name_of_period("s", "2026-12-31"), DAILY, 50, 2)
    for node in nodes:
        await node.drop_lease("s")
    with pytest.raises(StoreUnavailable, match="being changed"):
        await issue(nodes[0], 1)
    assert store.rows["s"].generation == 1
    clock.advance(CONFIG.store_timeout)
    with pytest.raises(StoreUnavailable, match="being changed"):
        await issue(nodes[0], 1)
    later = [(await issue(node, 2))[1] for node in nodes]
    assert store.rows["s"].generation > 2
    assert store.rows["s"].generation % 2
    assert len({*later[0], *later[1]}) == 4
    assert min(later[0] + later[1]) > 50 > max(issued[0] + issued[1])


async def test_a_day_that_repeats_during_its_close_is_closed_again(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """A day that the clock repeats while it is closed is closed again, and no lease remains."""

    async def use(count: int) -> set[str]:
        days = set()
        for _ in range(count):
            days.add((await issue(nodes[0], 1))[0])
            clock.boot_seconds += 0.1
        return days

    await use(30)
    clock.advance(120.0)  # past midnight
    assert await use(30) == {"2027-01-01"}
    await nodes[0].check_idle_sequences()
    gate = store.hold("give_back")
    await use(1)
    closing = asyncio.create_task(nodes[0].check_idle_sequences())
    await settle()
    clock.wall_seconds -= 120.0
    assert await use(30) == {"2026-12-31"}
    gate.set()
    await closing
    for _ in range(3):
        await nodes[0].check_idle_sequences()
    assert nodes[0].lease_count == 0
