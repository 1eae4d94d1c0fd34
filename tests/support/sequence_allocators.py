"""What the tests of lanes share: terms, making a sequence, listing the ids of ranges, acting amid a refill."""

from collections.abc import Callable

import pytest

from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.sequence_allocator import SequenceAllocator
from idalloc_server.domain.sequences.model import Sequence
from tests.support.fake_store import MemoryStore
from tests.support.memory_rows import Row

TERMS = AllocationConfig(lease_ttl=180.0, store_timeout=2.0, auto_create_sequences=True)


def make(store: MemoryStore, name: str, sequence: Sequence) -> Row:
    """Puts a sequence that issued nothing into the store."""
    store.rows[name] = row = Row(sequence, sequence.before_start)
    return row


def ids(*ranges: IdRange) -> list[int]:
    """Returns the ids of ranges, in their order."""
    return [i for taken in ranges for i in range(taken.first_id, taken.last_id + taken.step, taken.step)]


def right_after_serving(sequence_allocator: object, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has something happen between the taking of ids by a refill and the waking of those who waited."""
    assert isinstance(sequence_allocator, SequenceAllocator)
    serve = sequence_allocator._serve

    def serve_and_act(at_bound: bool, remaining: int, most: int) -> None:
        serve(at_bound, remaining, most)
        act()

    monkeypatch.setattr(sequence_allocator, "_serve", serve_and_act)
