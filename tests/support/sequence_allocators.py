"""Helpers of the tests of allocation: settings, rows, lists of ids, a hook inside a refill."""

from collections.abc import Callable

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.counter_allocator import CounterAllocator
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.fake_store import MemoryStore
from tests.support.memory_rows import Row

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=2.0, auto_create_sequences=True)


def make(store: MemoryStore, name: str, sequence: Sequence) -> Row:
    """Add a sequence without issued ids to the store."""
    store.rows[name] = row = Row(sequence, sequence.before_start)
    return row


def ids(*ranges: IdRange) -> list[int]:
    """Return the ids of ranges, in order."""
    return [i for taken in ranges for i in range(taken.first_id, taken.last_id + taken.step, taken.step)]


async def close_idle(allocator: Allocator) -> None:
    """Close all sequences, which must be idle; their tails are given back."""
    for _ in range(2):
        await allocator.check_idle_sequences()


def own_counter(allocator: Allocator, name: str) -> CounterAllocator:
    """Return the allocator of a sequence's own row."""
    return allocator._sequence_allocators[name].counters[-1]


def right_after_serving(counter: CounterAllocator, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``act`` after a refill has served its waiters, before they resume."""
    count_issued = CounterAllocator._count_issued

    def count_and_act(self: CounterAllocator, count: int, now: float) -> None:
        count_issued(self, count, now)
        if self is counter:
            act()

    monkeypatch.setattr(CounterAllocator, "_count_issued", count_and_act)
