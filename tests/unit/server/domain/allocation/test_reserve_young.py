"""P10 from the first seconds of a sequence, of a node and of a period."""

import random

import pytest

from idalloc_server.domain.allocation.reserve import REMAINING_IDS
from idalloc_server.domain.sequences.sequence import Ordering, Reset, Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import make
from tests.support.steady_nodes import CONFIG, SteadyNodes

# The sizes of consecutive calls, in ids.
SIZES = {"1": [1], "10": [10], "1 to 100": [random.Random(3).randint(1, 100) for _ in range(97)]}
RESERVE = CONFIG.outage_reserve
DAILY = Sequence(reset=Reset.DAILY, format="{year}{month}{day}-{value}")
DAY = 86_400.0


async def test_a_node_that_takes_over_has_a_reserve_at_once(store: MemoryStore, clock: FakeClock) -> None:
    """P10: a node that had no calls takes over the callers of another one."""
    nodes = SteadyNodes(store, clock, 1, SIZES["10"], rate=10)
    await nodes.run(30)
    successor = SteadyNodes(store, clock, 1, SIZES["10"], rate=10)
    await successor.run(0.1)
    store.down = True
    assert await successor.run_without_store(RESERVE) == 0


async def test_a_restarted_node_holds_two_of_the_largest_calls(store: MemoryStore, clock: FakeClock) -> None:
    """P10: the row has the largest call too, so a node that starts serves two without the store."""
    nodes = SteadyNodes(store, clock, 1, [1], rate=1)
    await nodes.run(1)
    await nodes.allocators[0].issue("s", 10_000)
    await nodes.run(300)
    nodes.restart(0)
    await nodes.run(2)
    store.down = True
    for _ in range(2):
        assert nodes.allocators[0].issue_now("s", 10_000)


async def test_the_row_counts_the_call_that_waits(store: MemoryStore, clock: FakeClock) -> None:
    """P10: the demand in the row has the ids of the call that its write serves."""
    [allocator] = SteadyNodes(store, clock, 1, [1], rate=1).allocators
    await allocator.issue("s", 1)
    clock.advance(2)
    await allocator.issue("s", 99)
    assert (demand := store.rows["s"].demand)
    assert demand.rate == 50


async def test_an_old_demand_costs_nothing(store: MemoryStore, clock: FakeClock) -> None:
    """The demand of a peak that is longer ago than ``lease_ttl`` reserves no ids."""
    nodes = SteadyNodes(store, clock, 1, SIZES["10"], rate=10)
    await nodes.run(30)
    nodes.restart(0)
    clock.advance(CONFIG.lease_ttl + 1)
    await nodes.run(0.1)
    assert nodes.held_ids == 0


async def test_restarts_with_few_calls_do_not_keep_a_demand(store: MemoryStore, clock: FakeClock) -> None:
    """A node writes what it measured, not what it read: a crash loop keeps no peak's demand."""
    nodes = SteadyNodes(store, clock, 1, SIZES["10"], rate=10)
    await nodes.run(30)
    for _ in range(4):
        clock.advance(CONFIG.lease_ttl / 3)
        nodes.restart(0)
        await nodes.run(0.1)
    assert nodes.held_ids == 0


async def test_a_rolling_restart_burns_the_reserves_of_all(store: MemoryStore, clock: FakeClock) -> None:
    """Ten killed nodes burn what each held: at most four times ``outage_reserve`` of its use."""
    nodes = SteadyNodes(store, clock, 10, SIZES["10"], rate=2)
    await nodes.run(30)
    for node in range(10):
        nodes.restart(node)
        await nodes.run(1)
    await nodes.run(30)
    (row,) = store.rows.values()
    assert row.last_value is not None
    burned = row.last_value - nodes.issued_ids - nodes.held_ids
    assert 0 < burned <= 4 * RESERVE * 10 * 2 * 10


async def test_the_row_keeps_a_larger_demand(store: MemoryStore, clock: FakeClock) -> None:
    """P10: the demand of a quiet node replaces that of a busy one only after it grew old."""
    busy = SteadyNodes(store, clock, 1, [1], rate=20)
    quiet = SteadyNodes(store, clock, 1, [1], rate=2)
    await busy.run(7)
    demands = []
    for _ in range(90):
        await busy.run(2)
        clock.advance(-2)  # both run at the same time
        await quiet.run(2)
        demands.append(store.rows["s"].demand)
    assert all(demand and demand.rate >= 20 * 2 / 3 for demand in demands)
    await quiet.run(CONFIG.lease_ttl)
    assert (demand := store.rows["s"].demand)
    assert demand.rate < 5


async def test_a_warm_node_follows_a_takeover(store: MemoryStore, clock: FakeClock) -> None:
    """P10: 5 s after a node took over the callers of others, it has a reserve for them as well."""
    nodes = SteadyNodes(store, clock, 1, SIZES["10"], rate=5)
    await nodes.run(60)
    nodes.rate = 15
    await nodes.run(6)
    store.down = True
    assert await nodes.run_without_store(RESERVE) == 0


@pytest.mark.parametrize("factor", [2, 4, 8])
async def test_a_small_demand_in_the_row_does_no_harm(store: MemoryStore, clock: FakeClock, factor: int) -> None:
    """P10: a node that starts with a larger rate than the row's has its reserve after 5 s."""
    nodes = SteadyNodes(store, clock, 1, [1], rate=10)
    await nodes.run(30)
    nodes.restart(0)
    nodes.rate *= factor
    await nodes.run(5)
    store.down = True
    assert await nodes.run_without_store(RESERVE) == 0


async def test_the_first_call_of_a_period_is_served_from_memory(store: MemoryStore, clock: FakeClock) -> None:
    """P10: the next period's counter is opened in time, also if the store is away at its start."""
    make(store, "s", DAILY)
    clock.wall_seconds += DAY - clock.wall_seconds % DAY - 4 * RESERVE
    nodes = SteadyNodes(store, clock, 3, [1, 3], rate=5)
    await nodes.run(2.5 * RESERVE)
    assert await nodes.run(0.5 * RESERVE) == 0
    await nodes.run(0.9 * RESERVE)
    store.down = True
    assert await nodes.run_without_store(RESERVE) == 0
    assert clock.wall_seconds % DAY == pytest.approx(0.9 * RESERVE, abs=1)
    store.down = False
    await nodes.run(60)
    nodes.check()


async def test_a_failed_opening_of_a_period_is_repeated(store: MemoryStore, clock: FakeClock) -> None:
    """P10: a store that is away when the next period is opened delays the opening only."""
    make(store, "s", DAILY)
    clock.wall_seconds += DAY - clock.wall_seconds % DAY - 4 * RESERVE
    nodes = SteadyNodes(store, clock, 1, [1], rate=2)
    await nodes.run(0.9 * RESERVE)
    store.down = True
    assert await nodes.run_without_store(RESERVE) == 0
    store.down = False
    await nodes.run(2.1 * RESERVE - 1)
    assert await nodes.run(2) == 0
    nodes.check()


async def test_an_unused_period_is_closed_with_its_sequence(store: MemoryStore, clock: FakeClock) -> None:
    """P9: ids of a period that was opened and not used are given back when the sequence is idle."""
    make(store, "s", DAILY)
    clock.wall_seconds += DAY - clock.wall_seconds % DAY - 4 * RESERVE
    nodes = SteadyNodes(store, clock, 1, [1], rate=2)
    await nodes.run(3.5 * RESERVE)
    (allocator,) = nodes.allocators
    await allocator.check_idle_sequences()
    opened = len(store.rows)
    assert opened == 3
    await nodes.run(1)
    await allocator.check_idle_sequences()  # the sequence is in use, and so is its next period
    assert nodes.held_ids >= 4 * RESERVE * 2  # of two periods
    for _ in range(4):
        await allocator.check_idle_sequences()
    assert nodes.held_ids == 0
    tomorrow = store.rows[max(store.rows)]
    assert tomorrow.last_value == 0


async def test_a_rising_sequence_opens_no_period_early(store: MemoryStore, clock: FakeClock) -> None:
    """Sequences without a reserve hold no ids of the next period."""
    make(store, "s", Sequence(reset=Reset.DAILY, ordering=Ordering.RISING))
    clock.wall_seconds += DAY - clock.wall_seconds % DAY - 4 * RESERVE
    nodes = SteadyNodes(store, clock, 1, [1], rate=2)
    await nodes.run(3.5 * RESERVE)
    assert len(store.rows) == 2


async def test_a_reserve_near_the_bound_is_limited(store: MemoryStore, clock: FakeClock) -> None:
    """A reserve of more than a hundredth of the ids left is limited, and the state says so."""
    make(store, "s", Sequence(max_value=100_000))
    nodes = SteadyNodes(store, clock, 1, [10], rate=10)
    await nodes.run(30)
    assert nodes.held_ids <= 1_000
    (counter,) = nodes.allocators[0]._sequence_allocators["s"].counters
    assert counter.state.reserve_limit == REMAINING_IDS
