"""Timestamp sequences: clock values that rise and are unique, whatever the clock does (P1)."""

import asyncio

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import InvalidRequest, SequenceAheadOfClock, SequenceExhausted
from idalloc_server.domain.sequences.sequence import Kind, Ordering, Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import ids, make

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True, max_clock_skew=2.0)
MS = Sequence(kind=Kind.TIMESTAMP_MS, ordering=Ordering.RISING)


@pytest.fixture
def nodes(store: MemoryStore, clock: FakeClock) -> list[Allocator]:
    make(store, "s", MS)
    return [Allocator(store, clock, CONFIG) for _ in range(2)]


async def test_values_are_the_current_time(nodes: list[Allocator], store: MemoryStore, clock: FakeClock) -> None:
    """A timestamp sequence issues the time in the unit of its kind."""
    assert ids(await nodes[0].issue("s", 1)) == [int(clock.wall() * 1_000)]
    make(store, "us", Sequence(kind=Kind.TIMESTAMP_US, ordering=Ordering.RISING))
    clock.advance(5.25)
    assert ids(await nodes[0].issue("us", 1)) == [int(clock.wall() * 1_000_000)]
    assert ids(await nodes[0].issue("s", 1)) == [int(clock.wall() * 1_000)]


async def test_timestamps_of_one_millisecond_are_unique(nodes: list[Allocator], clock: FakeClock) -> None:
    """P1: timestamps requested in one millisecond are unique and contiguous."""
    taken = await asyncio.gather(*(nodes[n % 2].issue("s", 1 + n % 3) for n in range(300)))
    everything = ids(*taken)
    assert sorted(everything) == list(range(int(clock.wall() * 1_000), int(clock.wall() * 1_000) + 600))


async def test_timestamps_rise_when_the_clock_steps_back(nodes: list[Allocator], clock: FakeClock) -> None:
    """P1: timestamps rise when the clock steps back, up to max_clock_skew ahead of it."""
    before = (await nodes[0].issue("s", 5)).last_id
    clock.wall_seconds -= 1.0
    assert (await nodes[1].issue("s", 1)).first_id == before + 1
    clock.wall_seconds -= 5.0
    with pytest.raises(SequenceAheadOfClock) as refused:
        await nodes[0].issue("s", 1)
    assert refused.value.retry_after == pytest.approx(4.0, abs=0.02)
    clock.advance(refused.value.retry_after)
    assert (await nodes[0].issue("s", 1)).first_id == before + 2


async def test_a_request_beyond_max_clock_skew_takes_nothing(nodes: list[Allocator], clock: FakeClock) -> None:
    """A request beyond max_clock_skew fails and takes no timestamps."""
    first, second = await asyncio.gather(*(nodes[0].issue("s", 1_500) for _ in range(2)), return_exceptions=True)
    assert not isinstance(first, BaseException)
    assert isinstance(second, SequenceAheadOfClock)
    assert (await nodes[1].issue("s", 1)).first_id == first.last_id + 1
    assert not nodes[0].burned.by_cause


async def test_a_count_beyond_max_clock_skew_is_invalid(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """A count that max_clock_skew can never allow is invalid, and takes no timestamps."""
    for _ in range(2):  # without and with a lease
        with pytest.raises(InvalidRequest, match="id_count: must be at most 2001"):
            await nodes[0].issue("s", 2_002)
    assert store.rows["s"].last_value == 0
    assert (await nodes[0].issue("s", 2_001)).first_id == int(clock.wall() * 1_000)


async def test_at_max_value_it_is_exhausted(nodes: list[Allocator], store: MemoryStore, clock: FakeClock) -> None:
    """At max_value a timestamp sequence is exhausted; what is left can be used."""
    now = int(clock.wall() * 1_000)
    make(store, "end", Sequence(kind=Kind.TIMESTAMP_MS, ordering=Ordering.RISING, max_value=now + 4))
    with pytest.raises(SequenceExhausted) as refused:
        await nodes[0].issue("end", 6)
    assert refused.value.metadata["remaining"] == "5"
    assert ids(await nodes[1].issue("end", 5)) == list(range(now, now + 5))
    make(store, "past", Sequence(kind=Kind.TIMESTAMP_MS, ordering=Ordering.RISING, max_value=now - 1))
    with pytest.raises(SequenceExhausted) as refused:
        await nodes[0].issue("past", 1)
    assert refused.value.metadata["remaining"] == "0"


async def test_concurrent_callers_share_writes(nodes: list[Allocator], store: MemoryStore) -> None:
    """Concurrent callers share writes, and no timestamps are held in memory."""
    await nodes[0].issue("s", 1)
    await asyncio.gather(*(nodes[0].issue("s", 1) for _ in range(500)))
    assert len(store.calls_of("grant_timestamps")) <= 3
    assert nodes[0].issue_now("s", 1) is None


async def test_a_wrong_clock_does_not_block_other_nodes(
    nodes: list[Allocator], store: MemoryStore, clock: FakeClock
) -> None:
    """A node whose clock is hours ahead does not use up the sequence for others."""
    wrong = FakeClock(wall=clock.wall() + 7_200.0)
    ahead = Allocator(store, wrong, CONFIG)
    issued = []
    for _ in range(100):
        issued += ids(await ahead.issue("s", 2), await nodes[0].issue("s", 2))
        clock.advance(0.5)
        wrong.advance(0.5)
    assert issued == sorted(set(issued))
    assert abs(issued[-1] / 1_000 - clock.wall()) < CONFIG.max_clock_skew
