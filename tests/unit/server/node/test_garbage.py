"""Which objects the garbage collector visits while sequences come into use."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.node.garbage import CHECK_SECONDS, NEW_SEQUENCES, freeze, freeze_new_sequences
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import CONFIG, close_idle
from tests.support.waiting import hold_for_async


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Restore the thresholds of this process."""
    thresholds = gc.get_threshold()
    freeze()
    yield
    gc.set_threshold(*thresholds)


@pytest.fixture
def allocator(clock: FakeClock) -> Allocator:
    return Allocator(MemoryStore(clock=clock), clock, CONFIG)


async def use(allocator: Allocator, since: int, until: int) -> None:
    """Take an id of each of the sequences with these numbers."""
    for number in range(since, until):
        await allocator.issue(f"name-{number}", 1)


async def test_objects_of_new_sequences_are_frozen(allocator: Allocator) -> None:
    """Sequences that come into use are exempt from collections, also after others were closed."""
    freezing = asyncio.create_task(freeze_new_sequences(lambda: allocator.sequence_count))
    await asyncio.sleep(0)

    async def have_frozen() -> bool:
        before = gc.get_freeze_count()
        await hold_for_async(CHECK_SECONDS, "the sequences are counted each second of virtual time")
        return gc.get_freeze_count() - before > NEW_SEQUENCES

    await use(allocator, 0, NEW_SEQUENCES - 1)
    assert not await have_frozen()
    await use(allocator, NEW_SEQUENCES - 1, NEW_SEQUENCES)
    assert await have_frozen()
    assert not await have_frozen()
    await close_idle(allocator)
    assert not await have_frozen()
    await use(allocator, 0, NEW_SEQUENCES)
    assert await have_frozen()
    freezing.cancel()


async def test_the_number_of_sequences_is_checked_again_and_again() -> None:
    """The server freezes what came into use since the last check."""
    counts = iter((0, 0, NEW_SEQUENCES, NEW_SEQUENCES))
    before = gc.get_freeze_count()
    with pytest.raises(RuntimeError):  # there are no more counts
        await freeze_new_sequences(lambda: next(counts))
    assert gc.get_freeze_count() > before
