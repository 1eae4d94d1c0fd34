"""What a lane holds ahead of its callers: enough for a store that is away for a while, and not more (P10)."""

import asyncio
from dataclasses import replace

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.sequences.model import Sequence
from tests.support.fake_store import FakeClock, MemoryStore, unreachable
from tests.support.sequence_allocators import ids, make

TERMS = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)


class Load:
    """Callers of one sequence at a steady rate, on the fake clock."""

    def __init__(self, store: MemoryStore, clock: FakeClock, allocation_config: AllocationConfig = TERMS) -> None:
        self.allocator = Allocator(store, clock, allocation_config)
        self.store = store
        self.clock = clock
        self.issued: list[int] = []
        self._latency = 0.0
        self._gates: list[asyncio.Event] = []
        self._asked: float | None = None
        self._answered = 0

    async def run(self, seconds: float, rate: int, count: int = 1) -> int:
        """Makes ``rate`` calls a second; returns how many of them had to wait for the store."""
        waited = 0
        for _ in range(int(seconds * rate)):
            taken = self.allocator.take("s", count)
            if taken is None:
                waited += 1
                call = asyncio.create_task(self.allocator.allocate("s", count))
                while not call.done():
                    await self._pass(0.01)
                taken = call.result()
            self.issued += ids(taken)
            await self._pass(1 / rate)
        return waited

    def slow_down(self, latency: float, calls: int) -> None:
        """Has the store take so many seconds for each of the next grants."""
        self._latency = latency
        self._gates += [self.store.hold("grant") for _ in range(calls)]

    async def _pass(self, seconds: float) -> None:
        await asyncio.sleep(0)
        if self._gates and self._asked is None and len(self.store.calls_of("grant")) > self._answered:
            self._asked = self.clock.boot()
        self.clock.advance(seconds)
        if self._asked is not None and self.clock.boot() >= self._asked + self._latency:
            self._gates.pop(0).set()
            self._asked = None
            self._answered = len(self.store.calls_of("grant"))
        await asyncio.sleep(0)

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def held(self) -> int:
        """How many ids the node has that it did not issue."""
        last_value = self.store.rows["s"].last_value
        assert last_value is not None
        return last_value - self.issued[-1]


@pytest.fixture
def load(store: MemoryStore, clock: FakeClock) -> Load:
    return Load(store, clock)


async def test_nobody_waits_at_a_steady_rate(load: Load, store: MemoryStore) -> None:
    assert await load.run(60, rate=50) < 10
    writes = len(store.calls)
    assert await load.run(300, rate=50) == 0
    assert len(store.calls) - writes <= 30  # one write for many seconds
    assert load.issued == sorted(set(load.issued))


async def test_what_is_held_lasts_an_outage_at_the_rate_seen(load: Load) -> None:
    await load.run(200, rate=20, count=3)
    held = []
    for _ in range(60):
        await load.run(1, rate=20, count=3)
        held.append(load.held)
    assert min(held) >= TERMS.outage_reserve * 20 * 3
    assert max(held) <= 2 * TERMS.outage_reserve * 20 * 3


@pytest.mark.parametrize("away", [32.0, 65.0, 90.0])
async def test_a_store_that_hangs_is_not_noticed_by_callers(load: Load, store: MemoryStore, away: float) -> None:
    load = Load(store, load.clock, replace(TERMS, store_timeout=100.0))
    await load.run(200, rate=20)
    gate = store.hold("grant")
    assert await load.run(away, rate=20) == 0
    gate.set()
    assert await load.run(200, rate=20) == 0
    assert load.issued == sorted(set(load.issued))


async def test_a_store_that_cannot_be_reached_is_asked_once_a_second_and_not_noticed(
    load: Load, store: MemoryStore
) -> None:
    await load.run(200, rate=20)
    calls = len(store.calls)
    for _ in range(60):
        store.next("grant", unreachable())
    assert await load.run(58, rate=20) == 0
    assert 1 <= len(store.calls) - calls <= 60


async def test_a_rate_that_grows_is_followed_before_what_is_held_ends(load: Load) -> None:
    await load.run(200, rate=5)
    assert await load.run(30, rate=200) == 0
    await load.run(60, rate=200)
    assert load.held >= TERMS.outage_reserve * 200 * 0.8


async def test_the_reserve_shrinks_when_the_rate_falls(load: Load) -> None:
    await load.run(200, rate=50)
    assert load.held >= TERMS.outage_reserve * 50 * 0.8
    await load.run(2500, rate=2)
    assert load.held <= 2 * TERMS.outage_reserve * 2


async def test_nothing_is_held_ahead_that_was_not_seen_to_be_used(load: Load) -> None:
    for _ in range(20):  # a burst tells a huge rate
        await load.run(1, rate=1, count=1)
        load.clock.advance(-0.999)
    await load.settle()
    assert load.held <= 2 * 20


async def test_the_burn_budget_bounds_the_reserve(store: MemoryStore, clock: FakeClock) -> None:
    load = Load(store, clock, replace(TERMS, max_reserved_ids=500))
    await load.run(200, rate=50)
    assert load.held <= 500
    assert await load.run(60, rate=50) == 0


async def test_no_more_than_a_thousandth_of_what_is_left_is_held(load: Load, store: MemoryStore) -> None:
    make(store, "s", Sequence(max_value=500_000))
    await load.run(100, rate=50)
    assert load.held <= 500


async def test_no_more_than_the_largest_lease_of_the_sequence_is_held(load: Load, store: MemoryStore) -> None:
    make(store, "s", Sequence(max_lease_size=100))
    await load.run(100, rate=50)
    assert load.held <= 100
    assert await load.run(60, rate=50) == 0


@pytest.mark.parametrize("outage_reserve", [0.0, 60.0])
async def test_nobody_waits_at_a_steady_rate_for_a_slow_store(
    store: MemoryStore, clock: FakeClock, outage_reserve: float
) -> None:
    load = Load(store, clock, replace(TERMS, outage_reserve=outage_reserve))
    make(store, "s", Sequence())
    load.slow_down(0.5, calls=1_000)
    assert await load.run(60, rate=20) <= 40
    assert await load.run(300, rate=20) == 0
    assert len(store.calls) >= 15


async def test_a_thousand_callers_of_a_cold_sequence_are_answered_within_three_store_calls(
    store: MemoryStore, clock: FakeClock
) -> None:
    allocator = Allocator(store, clock, TERMS)
    gates = [store.hold(method) for method in ("grant", "create")]
    callers = []
    for n in range(1_000):
        callers.append(asyncio.create_task(allocator.allocate("s", 1 + n % 3)))
        await asyncio.sleep(0)
        assert len(store.calls) <= 1
    for gate in gates:
        gate.set()
        await asyncio.sleep(0.01)
    taken = await asyncio.gather(*callers)
    assert len(store.calls) == 3
    assert ids(*taken) == list(range(1, 1 + sum(1 + n % 3 for n in range(1_000))))


async def test_a_burst_from_idle_is_met_by_one_refill_for_all_who_wait(load: Load, clock: FakeClock) -> None:
    await load.run(1, rate=1)
    clock.advance(30.0)
    calls = len(load.store.calls)
    taken = await asyncio.gather(*(load.allocator.allocate("s", 5) for _ in range(1_000)))
    assert len(set(ids(*taken))) == 5_000
    assert len(load.store.calls) - calls == 1
