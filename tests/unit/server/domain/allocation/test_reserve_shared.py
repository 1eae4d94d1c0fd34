"""P10 where several nodes share a sequence: their grants interleave, so a lease is made of many pieces."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, cycle
from typing import Any

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import SequenceExhausted
from idalloc_server.domain.sequences.model import Sequence
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply
from tests.support.sequence_allocators import ids, make

TERMS = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
# Sizes of calls, in ids: always the same one, or one after the other.
SIZES = {"1": [1], "2": [2], "7": [7], "10": [10], "mixed": [1, 10, 2, 7, 1, 30, 3]}
RATE = 20


class Nodes:
    """Nodes that share a sequence, each under its own callers at a steady rate, on one fake clock."""

    def __init__(self, store: MemoryStore, clock: FakeClock, how_many: int, sizes: list[int]) -> None:
        self.store = store
        self.clock = clock
        self.allocators = [Allocator(store, clock, TERMS) for _ in range(how_many)]
        self.issued: list[list[int]] = [[] for _ in self.allocators]
        self._sizes = [cycle(sizes[turn:] + sizes[:turn]) for turn in range(how_many)]
        self._turns: Iterator[int] = count()

    async def run(self, seconds: float) -> int:
        """Has every node get ``RATE`` calls a second; returns how many of them had to wait for the store."""
        waited = 0
        for _ in range(int(seconds * RATE)):
            for node, allocator in enumerate(self.allocators):
                size = next(self._sizes[node])
                taken = allocator.take("s", size)
                if taken is None:
                    waited += 1
                    taken = await allocator.allocate("s", size)
                self.issued[node] += ids(taken)
            self.clock.advance(1 / RATE)
            for _ in range(4):
                await asyncio.sleep(0)
        return waited

    async def run_without_store(self, seconds: float) -> int:
        """The same while no write is answered; returns how many calls could not be served from memory."""
        refused = 0
        for _ in range(int(seconds * RATE)):
            for node, allocator in enumerate(self.allocators):
                taken = allocator.take("s", next(self._sizes[node]))
                if taken is None:
                    refused += 1
                else:
                    self.issued[node] += ids(taken)
            self.clock.advance(1 / RATE)
            await asyncio.sleep(0)
        return refused

    def check(self) -> None:
        """No id was issued twice, and the ids of each node rise."""
        everything = sorted(i for node in self.issued for i in node)
        assert len(everything) == len(set(everything))
        for node in self.issued:
            assert node == sorted(node)


@pytest.mark.parametrize("how_many", [1, 2, 3])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
async def test_no_caller_notices_a_stalled_store(
    store: MemoryStore, clock: FakeClock, how_many: int, sizes: list[int]
) -> None:
    """P10: callers of any size are served while the store stalls for ``outage_reserve``, on every node."""
    nodes = Nodes(store, clock, how_many, sizes)
    await nodes.run(300)
    store.next("grant", *(Fault(before=asyncio.Event()) for _ in range(how_many)))
    assert await nodes.run_without_store(TERMS.outage_reserve) == 0
    nodes.check()
    for allocator in nodes.allocators:
        allocator.abandon()


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
async def test_no_caller_notices_an_unknown_outcome(store: MemoryStore, clock: FakeClock, sizes: list[int]) -> None:
    """P10: the hole that a lost reply leaves between two pieces makes nobody wait."""
    nodes = Nodes(store, clock, 1, sizes)
    await nodes.run(300)
    for _ in range(5):
        store.next("grant", lost_reply())
        assert await nodes.run(60) == 0
    assert nodes.allocators[0].burned.by_cause[BurnCause.UNKNOWN_OUTCOME]
    nodes.check()


async def test_ids_before_a_later_piece_are_burned_as_leftover(store: MemoryStore, clock: FakeClock) -> None:
    """P9: a call that only a later piece can serve burns what lies before it, counted, and asks no store."""
    nodes = Nodes(store, clock, 2, [10])
    await nodes.run(100)
    allocator = nodes.allocators[0]
    sequence_allocator = allocator._sequence_allocators["s"]
    held = sequence_allocator._lease.left  # type: ignore[union-attr]
    burned = allocator.burned.by_cause[BurnCause.LEFTOVER]
    writes = len(store.calls)
    taken = 0
    store.down = True
    while (range_taken := allocator.take("s", 7)) is not None:
        taken += range_taken.id_count
        await asyncio.sleep(0)
    left = sequence_allocator._lease.left  # type: ignore[union-attr]
    leftover = allocator.burned.by_cause[BurnCause.LEFTOVER] - burned
    assert leftover > 0
    assert taken + leftover + left == held
    assert left < 7
    assert len(store.calls) - writes <= 1  # the refill that a low lease starts


async def test_after_an_unknown_outcome_only_what_is_waited_for(store: MemoryStore, clock: FakeClock) -> None:
    """P9: until a write is answered again, a grant puts nothing at stake but what callers wait for."""
    nodes = Nodes(store, clock, 1, [10])
    await nodes.run(100)
    allocator = nodes.allocators[0]
    before = allocator.burned.by_cause[BurnCause.UNKNOWN_OUTCOME]
    store.next("grant", *(lost_reply() for _ in range(8)))
    await nodes.run(60)
    lost = allocator.burned.by_cause[BurnCause.UNKNOWN_OUTCOME] - before
    asked = [call.arguments[1] for call in store.calls_of("grant")]
    first_lost = max(n for n in asked[-20:] if isinstance(n, int))
    assert 0 < lost <= first_lost  # the first one was a refill ahead, the others were renewals
    assert await nodes.run(60) == 0
    nodes.check()


@pytest.mark.parametrize("limit", [{"max_value": 99_999}, {"max_lease_size": 100}], ids=["share of the rest", "lease"])
@pytest.mark.parametrize("large", [200, 1_000_000])
async def test_one_large_call_does_not_make_each_call_write(
    store: MemoryStore, clock: FakeClock, limit: dict[str, Any], large: int
) -> None:
    """A call larger than a lease may be leaves later calls with a write for many of them, as before it."""
    make(store, "s", Sequence(**limit))
    nodes = Nodes(store, clock, 1, [1])
    await nodes.run(60)
    with suppress(SequenceExhausted):
        await nodes.allocators[0].allocate("s", large)
    before = len(store.calls)
    await nodes.run(50)
    assert len(store.calls) - before < 100  # of 1,000 calls
