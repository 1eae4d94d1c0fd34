"""A repair reserves what was lost, and advances what is behind, by what is known elsewhere."""

import pytest

from idalloc_server.backup.repair import Repaired, repair
from idalloc_server.domain.sequences.sequence import Sequence, name_of_period
from idalloc_server.domain.store.name_holds import is_reserved
from idalloc_server.domain.store.records import Mark, RecordedAllocation
from idalloc_server.domain.witness.marks import START
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.fake_witness import MemoryWitness
from tests.support.store_rows import new_row


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def recorded(store: MemoryStore, *ends: tuple[str, int, int], period: str = "") -> None:
    """Record answers of five ids that end at an id, each with a step."""
    await store.record(
        [
            RecordedAllocation(f"{number}{period}", name, last - 4 * step, 5, step, 1, period, 0, "node")
            for number, (name, last, step) in enumerate(ends)
        ]
    )


async def test_lost_names_are_reserved(store: MemoryStore) -> None:
    """P1: a lost sequence issues nothing until it is given a start; the error names its id."""
    await recorded(store, ("a", 5000, 10), ("a", 6000, 1), ("down", 946, -3))
    assert await repair(store, None, FakeClock()) == [
        Repaired("a", "", 6000, "reserved"),
        Repaired("down", "", 946, "reserved"),
    ]
    assert all(is_reserved(store.rows[name].stored(name)) for name in ("a", "down"))
    assert "its last known id is 6000" in store.rows["a"].sequence.description
    assert await repair(store, None, FakeClock()) == []


async def test_sequences_behind_known_ids_are_advanced(store: MemoryStore) -> None:
    """P1: after the import of an older export, a second repair moves past the recorded answers."""
    await store.create(new_row("up", last_value=10))
    await store.create(new_row("down", Sequence(start=-1, step=-3, min_value=-999, max_value=-1)))
    await store.create(new_row("ahead", last_value=99))
    await store.create(new_row("gone", last_value=1, deleted=True))
    await recorded(store, ("up", 510, 1), ("down", -40, -3), ("ahead", 50, 1), ("gone", 7, 1))
    assert await repair(store, None, FakeClock()) == [
        Repaired("down", "", -40, "advanced"),
        Repaired("up", "", 510, "advanced"),
    ]
    assert (store.rows["up"].last_value, store.rows["down"].last_value) == (510, -40)
    assert store.rows["up"].generation > 1


async def test_periods_are_reported(store: MemoryStore) -> None:
    """P1: a period that is behind is named with its last known id, for `sequences advance`."""
    await recorded(store, ("daily", 10, 1), period="2026-11-28")
    assert await repair(store, None, FakeClock()) == [Repaired("daily", "2026-11-28", 10, "behind")]
    await store.create(new_row(name_of_period("daily", "2026-11-28"), last_value=10))
    assert await repair(store, None, FakeClock()) == []


async def test_a_witness_knows_more(store: MemoryStore) -> None:
    """P1, P6: marks are ends of sequences, too, and of start timestamps."""
    witness = MemoryWitness(marks={"a": Mark(1, 77, 1, "t"), f"{START}3": Mark(0, 1000, 1, "t")})
    await recorded(store, ("a", 5, 1))
    assert await repair(store, witness, FakeClock()) == [Repaired("a", "", 77, "reserved")]
    assert await store.claimed_starts() == {3: 1000}
