"""The memory of a process grows by little for each sequence that it has served."""

import gc
import tracemalloc

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import CONFIG, make

NAMES = 1_500
# Of the allocator's own memory; a process needs more for the objects' places. A million idle ones
# then take 400 MB.
MOST_IN_USE, MOST_IDLE = 1_600, 400


@pytest.mark.timeout(120)
async def test_sequences_take_little_memory(store: MemoryStore, clock: FakeClock) -> None:
    """A sequence that was served once takes at most 1,600 bytes in use, and 400 bytes once idle."""
    allocator = Allocator(store, clock, CONFIG)
    for number in range(NAMES):
        make(store, f"tenant-{number:08}", Sequence())
    names = list(store.rows)
    await allocator.issue(names.pop(), 1)
    tracemalloc.start(1)
    try:
        for name in names:
            await allocator.issue(name, 1)
        assert allocator.sequence_count == NAMES
        in_use = held_by(store, allocator)
        for _ in range(2):  # the first check finds each sequence in use
            await allocator.check_idle_sequences()
        assert allocator.sequence_count == 0
        idle = held_by(store, allocator)
    finally:
        tracemalloc.stop()
    assert in_use / len(names) < MOST_IN_USE
    assert idle / len(names) < MOST_IDLE


def held_by(store: MemoryStore, allocator: Allocator) -> int:
    """Return the traced memory in bytes, without the fake store's records and sampled counts."""
    store.calls.clear()
    for _ in allocator.pop_issued():
        pass
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
