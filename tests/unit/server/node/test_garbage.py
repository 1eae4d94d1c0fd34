"""Which objects the garbage collector visits while sequences come into use."""

import gc
from collections.abc import Iterator

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.node.garbage import NEW_SEQUENCES, freeze, freeze_if_grown, freeze_new_sequences
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import CONFIG, close_idle


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

    def freeze_more(frozen: int) -> tuple[int, bool]:
        before = gc.get_freeze_count()
        return freeze_if_grown(frozen, allocator.sequence_count), gc.get_freeze_count() - before > NEW_SEQUENCES

    await use(allocator, 0, NEW_SEQUENCES - 1)
    assert freeze_more(0) == (0, False)
    await use(allocator, NEW_SEQUENCES - 1, NEW_SEQUENCES)
    assert freeze_more(0) == (NEW_SEQUENCES, True)
    assert freeze_more(NEW_SEQUENCES) == (NEW_SEQUENCES, False)
    await close_idle(allocator)
    assert freeze_more(NEW_SEQUENCES) == (0, False)
    await use(allocator, 0, NEW_SEQUENCES)
    assert freeze_more(0) == (NEW_SEQUENCES, True)


async def test_the_number_of_sequences_is_checked_again_and_again() -> None:
    """The server freezes what came into use since the last check."""
    counts = iter((0, 0, NEW_SEQUENCES, NEW_SEQUENCES))
    before = gc.get_freeze_count()
    with pytest.raises(RuntimeError):  # there are no more counts
        await freeze_new_sequences(lambda: next(counts))
    assert gc.get_freeze_count() > before
