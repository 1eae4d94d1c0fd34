"""Comparison of the marks of a witness with the rows of its store, and deletion of marks."""

from typing import NamedTuple

import pytest

from idalloc_server.domain.errors import StartRefused, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from idalloc_server.domain.store.identity import ANY_STORE, IDENTITY, Opening
from idalloc_server.domain.store.records import Mark, RowChange
from idalloc_server.domain.witness.binding import open_with_witness
from idalloc_server.domain.witness.comparison import Repair, State, compare, forget_marks
from idalloc_server.domain.witness.marks import START
from idalloc_server.domain.witness.store import WitnessedStore
from tests.support.fake_store import MemoryStore
from tests.support.fake_witness import MemoryWitness
from tests.support.memory_rows import PrefixRow, Row

DOWN = Sequence(start=-1, step=-1, min_value=-1000, max_value=-1)
YEARLY = Sequence(reset=Reset.YEARLY, format="{year}-{value}")


@pytest.fixture
def witness() -> MemoryWitness:
    return MemoryWitness()


class Case(NamedTuple):
    """A mark, the row beside it, and what an operator has to do."""

    mark: Mark
    row: Row | None
    state: State
    repair: Repair | None = None


CASES = {
    "reached": Case(Mark(2, 10, 1, "t"), Row(Sequence(), 10, 2), State.OK),
    "newer": Case(Mark(2, 10, 1, "t"), Row(Sequence(), 15, 3), State.OK),
    "lower value": Case(Mark(2, 10, 1, "t"), Row(Sequence(), 9, 2), State.BEHIND, Repair.ADVANCE),
    "lower generation": Case(Mark(2, 10, 1, "t"), Row(Sequence(), 10, 1), State.BEHIND, Repair.ADVANCE),
    "down reached": Case(Mark(2, -10, -1, "t"), Row(DOWN, -11, 2), State.OK),
    "down behind": Case(Mark(2, -10, -1, "t"), Row(DOWN, -9, 2), State.BEHIND, Repair.ADVANCE),
    "other direction": Case(Mark(2, 10, 1, "t"), Row(DOWN, -9, 2), State.BEHIND, Repair.FORGET),
    "no row": Case(Mark(2, 10, 1, "t"), None, State.MISSING, Repair.CREATE),
    "value of a reset": Case(Mark(2, 10, 1, "t"), Row(YEARLY, 0, 2), State.OK),
    "generation of a reset": Case(Mark(2, 0, 1, "t"), Row(YEARLY, 0, 1), State.BEHIND, Repair.ADVANCE),
}


class TestCompare:
    @pytest.mark.parametrize("name", CASES)
    async def test_a_state_is_what_a_grant_finds(self, store: MemoryStore, witness: MemoryWitness, name: str) -> None:
        """P3: a mark is ok if and only if a grant of its row is not refused."""
        mark, row, state, repair = CASES[name]
        witness.marks["s"] = mark
        if row is not None:
            store.rows["s"] = row
        [found] = await compare(store, witness)
        values = (row.generation, row.last_value) if row else (None, None)
        assert found == ("s", mark, *values, state, repair)
        grant = WitnessedStore(store, witness).grant("s", 0, 0)
        if state == State.OK:
            assert await grant is not None
        else:
            with pytest.raises(StoreWentBackwards):
                await grant

    async def test_a_tombstone_is_created_again(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """A deleted sequence that is behind must be created again; one that is not is ok."""
        witness.marks["s"] = Mark(2, 10, 1, "t")
        store.rows["s"] = Row(Sequence(), 9, 3, deleted=True)
        assert [each.repair for each in await compare(store, witness)] == [Repair.CREATE]
        store.rows["s"].last_value = 10
        assert [each.state for each in await compare(store, witness)] == [State.OK]

    async def test_a_row_without_a_value_is_behind(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """A row whose value was removed by hand is behind its mark."""
        witness.marks["s"] = Mark(0, 10, 1, "t")
        store.rows["s"] = Row(Sequence(), None, 1)
        assert [each.state for each in await compare(store, witness)] == [State.BEHIND]

    async def test_an_advance_repairs_earlier_periods(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """A period is behind until a newer generation of its sequence moves it past the mark."""
        old, current = name_of_period("s", "2025"), name_of_period("s", "2026")
        witness.marks |= {"s": Mark(2, 0, 1, "a"), old: Mark(2, 9, 1, "b")}
        witness.marks[current] = Mark(2, 10, 1, "c")
        store.rows |= {"s": Row(YEARLY, 0, 2), current: Row(YEARLY, 4, 2)}
        found = {each.name: (each.state, each.repair) for each in await compare(store, witness)}
        assert found == {
            "s": (State.OK, None),
            old: (State.MISSING, Repair.ADVANCE),
            current: (State.BEHIND, Repair.ADVANCE),
        }
        witnessed = WitnessedStore(store, witness)
        await witnessed.revise("s", 0, RowChange(YEARLY, 0, "change", 0.0, generation=3))
        assert {each.state for each in await compare(store, witness)} == {State.OK}
        await witnessed.open_period(old, YEARLY, 0, 3)
        assert store.rows[old].last_value == 9

    async def test_start_timestamps_are_compared(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """P6: start timestamps that the store lacks are shown, without repair; its name is not."""
        witness.marks = {f"{START}{prefix}": Mark(0, 100, 1, "t") for prefix in (1, 2, 3)}
        witness.marks[IDENTITY] = Mark(0, 0, 1, "name")
        store.prefixes |= {1: PrefixRow(100), 2: PrefixRow(99)}
        found = {each.name: (each.value, each.state, each.repair) for each in await compare(store, witness)}
        assert found == {
            f"{START}1": (100, State.OK, None),
            f"{START}2": (99, State.BEHIND, None),
            f"{START}3": (None, State.MISSING, None),
        }

    async def test_only_one_sequence_is_compared(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """With a name only the marks of that sequence and of its periods are compared."""
        names = ["s", name_of_period("s", "2026"), "s2", "r"]
        witness.marks |= {name: Mark(2, 10, 1, "t") for name in names}
        store.rows |= {name: Row(Sequence(), 10, 2) for name in names}
        found = await compare(store, witness, "s")
        assert [(each.name, each.state) for each in found] == [(name, State.OK) for name in names[:2]]
        assert await compare(store, witness, "unknown") == []

    async def test_a_tail_given_back_meanwhile_is_ok(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """A tail given back between the reads of mark and row does not put the row behind."""
        witness.marks["s"] = Mark(2, 10, 1, "t")
        store.rows["s"] = Row(Sequence(), 10, 2)
        read_starts = store.claimed_starts

        async def give_back() -> dict[int, int]:
            witness.marks["s"] = Mark(2, 8, 1, "u")
            return await read_starts()

        store.claimed_starts = give_back  # type: ignore[method-assign]
        store.rows["s"].last_value = 8  # before the marks are read again, and after they were read first
        [found] = await compare(store, witness)
        assert (found.mark.value, found.value, found.state) == (8, 8, State.OK)

    async def test_all_pages_are_compared(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """More marks and rows than one page has are all compared."""
        names = [f"s{number:04}" for number in range(1_001)]
        witness.marks |= {name: Mark(2, 10, 1, "t") for name in names}
        store.rows |= {name: Row(Sequence(), 10, 2) for name in names}
        del store.rows[names[-1]]
        found = await compare(store, witness)
        assert [each.name for each in found] == names
        assert [each.name for each in found if each.repair] == names[-1:]


class TestForget:
    async def test_marks_of_a_sequence_and_its_periods_go(self, witness: MemoryWitness) -> None:
        """The marks of a sequence and its periods are deleted; those of similar names stay."""
        kept = {"r", "s2", "S", IDENTITY, f"{START}1"}
        gone = ["s", *(name_of_period("s", f"{year}") for year in range(2000, 2600))]
        witness.marks |= {name: Mark(1, 1, 1, "t") for name in (*kept, *gone)}
        assert await forget_marks(witness, "s") == len(gone)
        assert witness.marks.keys() == kept
        assert await forget_marks(witness, "s") == 0

    async def test_all_marks_go_with_the_name_of_the_store(self, store: MemoryStore, witness: MemoryWitness) -> None:
        """Without any mark, the witness can be used for another store."""
        await open_with_witness(store, witness, ANY_STORE)
        witness.marks["s"] = Mark(1, 1, 1, "t")
        other = MemoryStore()
        await other.open()
        for opening in (ANY_STORE, Opening(creates=False)):
            with pytest.raises(StartRefused, match=r"give this one a witness of its own"):
                await open_with_witness(other, witness, opening)
        assert await forget_marks(witness, None) == 2
        await open_with_witness(other, witness, Opening(creates=False))
        assert witness.marks == {}
        await open_with_witness(other, witness, ANY_STORE)
        assert witness.marks[IDENTITY].token == other.opened["name"]
