"""The reserve lasts as long as an outage of the store, and not much longer (P10)."""

import asyncio
from dataclasses import replace

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.fake_store import FakeClock, MemoryStore, unreachable
from tests.support.sequence_allocators import ids, make
from tests.support.waiting import settle

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)


class Load:
    """Callers of one sequence at a steady rate, on the fake clock."""

    def __init__(self, store: MemoryStore, clock: FakeClock, allocation_config: AllocationConfig = CONFIG) -> None:
        self.allocator = Allocator(store, clock, allocation_config)
        self.store = store
        self.clock = clock
        self.issued: list[int] = []
        self._latency = 0.0
        self._gates: list[asyncio.Event] = []
        self._asked: float | None = None
        self._answered = 0

    async def run(self, seconds: float, rate: int, count: int = 1) -> int:
        """Make ``rate`` calls a second; return how many of them waited for the store."""
        waited = 0
        for _ in range(int(seconds * rate)):
            taken = self.allocator.issue_now("s", count)
            if taken is None:
                waited += 1
                call = asyncio.create_task(self.allocator.issue("s", count))
                while not call.done():
                    await self._pass(0.01)
                taken = call.result()
            self.issued += ids(taken)
            await self._pass(1 / rate)
        return waited

    def slow_down(self, latency: float, calls: int) -> None:
        """Set the latency of the next ``calls`` grants, in seconds."""
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
        """The number of ids granted and not issued."""
        last_value = self.store.rows["s"].last_value
        assert last_value is not None
        return last_value - self.issued[-1]


@pytest.fixture
def load(store: MemoryStore, clock: FakeClock) -> Load:
    return Load(store, clock)


async def test_no_call_waits_at_a_steady_rate(load: Load, store: MemoryStore) -> None:
    """P10: at a steady rate no call waits, with one write for many seconds."""
    assert await load.run(60, rate=50) < 10
    writes = len(store.calls)
    assert await load.run(300, rate=50) == 0
    assert len(store.calls) - writes <= 30  # one write for many seconds
    assert load.issued == sorted(set(load.issued))


async def test_the_reserve_lasts_outage_reserve(load: Load) -> None:
    """P10: the ids held last outage_reserve at the measured rate, at most four times that."""
    await load.run(200, rate=20, count=3)
    held = []
    for _ in range(60):
        await load.run(1, rate=20, count=3)
        held.append(load.held)
    assert min(held) >= CONFIG.outage_reserve * 20 * 3
    assert max(held) <= 4 * CONFIG.outage_reserve * 20 * 3


@pytest.mark.parametrize("outage", [32.0, 65.0, 90.0])
async def test_no_call_waits_for_a_hanging_store(load: Load, store: MemoryStore, outage: float) -> None:
    """P10: no call waits while the store hangs for up to outage_reserve."""
    await load.run(200, rate=20)
    gate = store.hold("grant")
    assert await load.run(outage, rate=20) == 0
    gate.set()
    assert await load.run(200, rate=20) == 0
    assert load.issued == sorted(set(load.issued))


async def test_an_unreachable_store_is_retried_once_a_second(load: Load, store: MemoryStore) -> None:
    """P10: an unreachable store is retried at most once a second, and no call waits."""
    await load.run(200, rate=20)
    calls = len(store.calls)
    for _ in range(60):
        store.next("grant", unreachable())
    assert await load.run(58, rate=20) == 0
    assert 1 <= len(store.calls) - calls <= 60


async def test_a_hundred_times_the_rate_makes_no_call_wait(load: Load) -> None:
    """P10: from steady to busy, all calls are served from memory if the store answers in 50 ms."""
    load.slow_down(0.05, calls=1_000)
    await load.run(200, rate=5)
    assert await load.run(10, rate=500) == 0
    assert load.held >= CONFIG.outage_reserve * 500


async def test_the_reserve_shrinks_when_the_rate_falls(load: Load) -> None:
    """The reserve shrinks to a falling rate."""
    await load.run(200, rate=50)
    assert load.held >= CONFIG.outage_reserve * 50 * 0.8
    await load.run(10_000, rate=2)
    assert load.held <= 4 * CONFIG.outage_reserve * 2


async def test_a_sequence_called_once_has_no_reserve(load: Load) -> None:
    """A sequence that is called once gets just the ids of the call."""
    await load.run(1, rate=1, count=7)
    await load.settle()
    load.clock.advance(60)
    await load.settle()
    assert load.held == 0


async def test_a_short_burst_counts_as_use_of_two_seconds(load: Load) -> None:
    """A burst of a few milliseconds is not taken for a huge rate."""
    for _ in range(20):
        await load.run(1, rate=1, count=1)
        load.clock.advance(-0.999)
    await load.settle()
    assert load.held <= 3 * CONFIG.outage_reserve * 21 / 2 + 2


async def test_max_reserved_ids_limits_the_reserve(store: MemoryStore, clock: FakeClock) -> None:
    """No more than max_reserved_ids are held."""
    load = Load(store, clock, replace(CONFIG, max_reserved_ids=500))
    await load.run(200, rate=50)
    assert load.held <= 500
    assert await load.run(60, rate=50) == 0


async def test_a_hundredth_of_the_remaining_ids_is_the_limit(load: Load, store: MemoryStore) -> None:
    """No more than a hundredth of the remaining ids is held."""
    make(store, "s", Sequence(max_value=50_000))
    await load.run(100, rate=50)
    assert load.held <= 500


async def test_max_lease_size_limits_the_reserve(load: Load, store: MemoryStore) -> None:
    """No more than the sequence's max_lease_size is held."""
    make(store, "s", Sequence(max_lease_size=100))
    await load.run(100, rate=50)
    assert load.held <= 100
    assert await load.run(60, rate=50) == 0


@pytest.mark.parametrize("outage_reserve", [0.0, 60.0])
async def test_no_call_waits_at_a_steady_rate_for_a_slow_store(
    store: MemoryStore, clock: FakeClock, outage_reserve: float
) -> None:
    """P10: a store with a latency of 500 ms makes no call wait, even without a reserve."""
    load = Load(store, clock, replace(CONFIG, outage_reserve=outage_reserve))
    make(store, "s", Sequence())
    load.slow_down(0.5, calls=1_000)
    assert await load.run(60, rate=20) <= 40
    assert await load.run(300, rate=20) == 0
    assert len(store.calls) >= 6


async def test_a_cold_sequence_serves_1000_callers_with_2_calls(store: MemoryStore, clock: FakeClock) -> None:
    """A thousand callers of a new sequence share two store calls."""
    allocator = Allocator(store, clock, CONFIG)
    gates = [store.hold(method) for method in ("grant", "create")]
    callers = []
    for n in range(1_000):
        callers.append(asyncio.create_task(allocator.issue("s", 1 + n % 3)))
        await asyncio.sleep(0)
        assert len(store.calls) <= 1
    for gate in gates:
        gate.set()
        await settle()
    taken = await asyncio.gather(*callers)
    assert len(store.calls) == 2
    assert ids(*taken) == list(range(1, 1 + sum(1 + n % 3 for n in range(1_000))))


async def test_a_burst_shares_one_refill(load: Load, clock: FakeClock) -> None:
    """A burst of a thousand callers shares one refill."""
    await load.run(1, rate=1)
    clock.advance(30.0)
    calls = len(load.store.calls)
    taken = await asyncio.gather(*(load.allocator.issue("s", 5) for _ in range(1_000)))
    assert len(set(ids(*taken))) == 5_000
    assert len(load.store.calls) - calls == 1
