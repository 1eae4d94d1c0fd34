"""Compares the marks of a witness with the rows of its store, and deletes marks, for operators."""

from collections.abc import AsyncIterator, Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from idalloc_server.domain.sequences.model import PERIOD_SEPARATOR, counts_ids
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.witness.chain import ATTEMPTS
from idalloc_server.domain.witness.marks import START, Witness, WitnessMark

_PAGE_SIZE = 500


class State(StrEnum):
    """Whether the store has reached a mark."""

    OK = "ok"
    BEHIND = "behind"
    MISSING = "missing"


class Repair(StrEnum):
    """What makes servers issue ids of a sequence again.

    After CREATE and FORGET, it may have to be advanced, too.
    """

    ADVANCE = "advance"
    CREATE = "create"
    FORGET = "forget"


class Comparison(NamedTuple):
    """A mark beside what the store has."""

    name: str  # the name of the row; of a start timestamp, ``START`` and its prefix
    mark: WitnessMark
    # The generation of the row; None without a row, and of a start timestamp.
    generation: int | None
    # The counter of the row, or the last claimed start timestamp; None without one.
    value: int | None
    state: State  # whether the store has reached the mark
    repair: Repair | None  # the next step; None if servers continue by themselves


async def compare(store: Store, witness: Witness, sequence: str | None = None) -> list[Comparison]:
    """Compare the marks of a sequence and its periods, or all marks if it is None, with the store.

    Servers may run.

    Returns:
        The comparisons in byte order of their names. Those of start timestamps come first.

    Raises:
        SequenceInvalid: The settings of a row cannot be read.
        StoreFailure: The store or the witness failed.
    """
    found_marks = [each async for each in marks(witness, sequence)]
    # After the marks: a server raises a row first, and then its mark.
    rows = await _rows(
        store, {_sequence_of(name) for name, _ in found_marks} | {name for name, _ in found_marks}, sequence
    )
    starts = {f"{START}{prefix}": last for prefix, last in (await store.claimed_starts()).items()}
    found = []
    for name, mark in found_marks:
        if name.startswith(START):
            found.append(_compare_start(name, mark, starts.get(name)))
        elif name != IDENTITY:
            found.append(await _compare_present(store, witness, name, mark, rows))
    return found


async def forget_marks(witness: Witness, sequence: str | None = None) -> int:
    """Delete the marks of a sequence and its periods, or all if it is None; return their number.

    All marks include the name of the store.
    """
    names = [name async for name, _ in marks(witness, sequence)]
    parts = [names[start : start + _PAGE_SIZE] for start in range(0, len(names), _PAGE_SIZE)]
    return sum([await witness.forget(part) for part in parts])


async def marks(witness: Witness, sequence: str | None = None) -> AsyncIterator[tuple[str, WitnessMark]]:
    """Yield the marks of a sequence and its periods, or all marks if it is None."""
    prefix = "" if sequence is None else f"{sequence}{PERIOD_SEPARATOR}"
    if sequence is not None:
        for own in (await witness.read({sequence})).items():
            yield own
    after = prefix
    while True:
        page = await witness.list(after, _PAGE_SIZE)
        for name, mark in page:
            if not name.startswith(prefix):
                return
            yield name, mark
        if len(page) < _PAGE_SIZE:
            return
        after = page[-1][0]


async def _rows(store: Store, names: Collection[str], sequence: str | None) -> dict[str, Row]:
    """Return the rows with these names; unless it is None, all belong to ``sequence``."""
    if sequence is not None:
        return {name: row for name in names if (row := await store.get(name)) is not None}
    rows, after = dict[str, Row](), ""
    while True:
        page = await store.list("", after, _PAGE_SIZE, with_deleted=True, with_periods=True)
        rows |= {row.name: row for row in page if row.name in names}
        if len(page) < _PAGE_SIZE:
            return rows
        after = page[-1].name


async def _compare_present(
    store: Store, witness: Witness, name: str, mark: WitnessMark, rows: Mapping[str, Row]
) -> Comparison:
    """Compare a mark with its row, and again if the mark has changed meanwhile.

    A server lowers a mark before its row.
    """
    found = _compare(name, mark, rows.get(name), rows.get(_sequence_of(name)))
    for _ in range(ATTEMPTS):
        present = found.mark if found.state == State.OK else (await witness.read({name})).get(name)
        if present is None or present == found.mark:
            break
        found = _compare(name, present, await store.get(name), await store.get(_sequence_of(name)))
    return found


def _compare(name: str, mark: WitnessMark, row: Row | None, own: Row | None) -> Comparison:
    """Compare a mark with the row of its name; ``own`` is the row of the sequence.

    The two rows differ if the mark is one of a period.
    """
    generation, value = (row.generation, row.last_value) if row else (None, None)
    state = State.MISSING if row is None else State.BEHIND if _is_behind(mark, row) else State.OK
    if state == State.OK or (own is not None and own.name != name and _reopens(mark, generation or 0, own)):
        return Comparison(name, mark, generation, value, State.OK, None)
    if row is not None and mark.step * row.sequence.step < 0:
        repair = Repair.FORGET
    else:
        repair = Repair.CREATE if own is None or own.deleted else Repair.ADVANCE
    return Comparison(name, mark, generation, value, state, repair)


def _is_behind(mark: WitnessMark, row: Row) -> bool:
    counts = counts_ids(row.name, row.sequence.reset)
    if row.last_value is None:
        return counts
    return mark.is_ahead_of(row.generation, row.last_value, row.sequence.step, counts=counts)


def _reopens(mark: WitnessMark, generation: int, own: Row) -> bool:
    """Return whether the next use of a period moves it past the mark, to a newer generation."""
    return own.generation > max(generation, mark.generation) and mark.step * own.sequence.step > 0


def _compare_start(name: str, mark: WitnessMark, last: int | None) -> Comparison:
    state = State.MISSING if last is None else State.BEHIND if mark.is_past(last) else State.OK
    return Comparison(name, mark, None, last, state, None)


def _sequence_of(name: str) -> str:
    return name.partition(PERIOD_SEPARATOR)[0]
