"""P10 for nodes that share a sequence: interleaved grants split their leases into many ranges."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import SequenceExhausted
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply
from tests.support.sequence_allocators import make, own_counter
from tests.support.steady_nodes import CONFIG, SteadyNodes

# The sizes of consecutive calls, in ids.
SIZES = {"1": [1], "2": [2], "7": [7], "10": [10], "mixed": [1, 10, 2, 7, 1, 30, 3]}


@pytest.mark.parametrize("how_many", [1, 2, 3])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
async def test_no_caller_notices_a_stalled_store(
    store: MemoryStore, clock: FakeClock, how_many: int, sizes: list[int]
) -> None:
    """P10: all nodes serve callers of any size while the store stalls for ``outage_reserve``."""
    nodes = SteadyNodes(store, clock, how_many, sizes)
    await nodes.run(300)
    store.next("grant", *(Fault(before=asyncio.Event()) for _ in range(how_many)))
    assert await nodes.run_without_store(CONFIG.outage_reserve) == 0
    nodes.check()
    for allocator in nodes.allocators:
        allocator.abandon()


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
async def test_no_caller_notices_an_unknown_outcome(store: MemoryStore, clock: FakeClock, sizes: list[int]) -> None:
    """P10: the gap that a lost reply leaves between two ranges makes no call wait."""
    nodes = SteadyNodes(store, clock, 1, sizes)
    await nodes.run(300)
    for _ in range(5):
        store.next("grant", lost_reply())
        assert await nodes.run(60) == 0
    assert nodes.allocators[0].burned.by_cause[BurnCause.UNKNOWN_OUTCOME]
    nodes.check()


async def test_ids_before_a_later_range_are_burned_as_leftover(store: MemoryStore, clock: FakeClock) -> None:
    """P9: a call that only a later range can serve burns the ids before it, and calls no store."""
    nodes = SteadyNodes(store, clock, 2, [10])
    await nodes.run(100)
    allocator = nodes.allocators[0]
    counter = own_counter(allocator, "s")
    held = counter.state.held_ids
    burned = allocator.burned.by_cause[BurnCause.LEFTOVER]
    writes = len(store.calls)
    taken = 0
    store.down = True
    while (range_taken := allocator.issue_now("s", 7)) is not None:
        taken += range_taken.id_count
        await asyncio.sleep(0)
    left = counter.state.held_ids
    leftover = allocator.burned.by_cause[BurnCause.LEFTOVER] - burned
    assert leftover > 0
    assert taken + leftover + left == held
    assert left < 7
    assert len(store.calls) - writes <= 1  # the refill that a low lease starts


async def test_nothing_is_prefetched_after_an_unknown_outcome(store: MemoryStore, clock: FakeClock) -> None:
    """P9: after an unknown outcome, grants request only what callers need until one succeeds."""
    nodes = SteadyNodes(store, clock, 1, [10])
    await nodes.run(100)
    allocator = nodes.allocators[0]
    before = allocator.burned.by_cause[BurnCause.UNKNOWN_OUTCOME]
    store.next("grant", *(lost_reply() for _ in range(8)))
    await nodes.run(60)
    lost = allocator.burned.by_cause[BurnCause.UNKNOWN_OUTCOME] - before
    asked = [call.arguments[1] for call in store.calls_of("grant")]
    first_lost = max(n for n in asked[-20:] if isinstance(n, int))
    assert 0 < lost <= first_lost  # the first one was a prefetch, the others were renewals
    assert await nodes.run(60) == 0
    nodes.check()


@pytest.mark.parametrize("limit", [{"max_value": 99_999}, {"max_lease_size": 100}], ids=["share of the rest", "lease"])
@pytest.mark.parametrize("large", [200, 1_000_000])
async def test_a_large_call_does_not_make_each_call_write(
    store: MemoryStore, clock: FakeClock, limit: dict[str, Any], large: int
) -> None:
    """After a call larger than any lease, many later calls still share one write."""
    make(store, "s", Sequence(**limit))
    nodes = SteadyNodes(store, clock, 1, [1])
    await nodes.run(60)
    with suppress(SequenceExhausted):
        await nodes.allocators[0].issue("s", large)
    before = len(store.calls)
    await nodes.run(50)
    assert len(store.calls) - before < 100  # of 1,000 calls
