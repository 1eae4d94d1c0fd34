"""Compares the marks of a witness with the rows of its store, and deletes marks, for operators."""

from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, counts_ids
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.protocol import Store, all_rows
from idalloc_server.domain.store.records import Mark, Row
from idalloc_server.domain.witness.chain import ATTEMPTS
from idalloc_server.domain.witness.marks import START, Witness

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
    mark: Mark
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
    names = {part for name, _ in found_marks for part in (name, name.partition(PERIOD_SEPARATOR)[0])}
    # After the marks: a server raises a row first, and then its mark.
    if sequence is None:
        rows = {row.name: row async for row in all_rows(store, with_periods=True) if row.name in names}
    else:
        rows = {name: row for name in names if (row := await store.get(name)) is not None}
    starts = {f"{START}{prefix}": last for prefix, last in (await store.claimed_starts()).items()}
    found = []
    for name, mark in found_marks:
        if name.startswith(START):
            last = starts.get(name)
            state = State.MISSING if last is None else State.BEHIND if mark.is_past(last) else State.OK
            found.append(Comparison(name, mark, generation=None, value=last, state=state, repair=None))
        elif name != IDENTITY:
            found.append(await _compare_present(store, witness, name, mark, rows=rows))
    return found


async def forget_marks(witness: Witness, sequence: str | None = None) -> int:
    """Delete the marks of a sequence and its periods, or all if it is None; return their number.

    All marks include the name of the store.
    """
    names = [name async for name, _ in marks(witness, sequence)]
    parts = [names[start : start + _PAGE_SIZE] for start in range(0, len(names), _PAGE_SIZE)]
    return sum([await witness.forget(part) for part in parts])


async def marks(witness: Witness, sequence: str | None = None) -> AsyncIterator[tuple[str, Mark]]:
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


async def _compare_present(
    store: Store, witness: Witness, name: str, mark: Mark, rows: Mapping[str, Row]
) -> Comparison:
    """Compare a mark with its row, and again if the mark has changed meanwhile.

    A server lowers a mark before its row.
    """
    own = name.partition(PERIOD_SEPARATOR)[0]
    found = _compare(name, mark, rows.get(name), rows.get(own))
    for _ in range(ATTEMPTS):
        present = found.mark if found.state == State.OK else (await witness.read({name})).get(name)
        if present is None or present == found.mark:
            break
        found = _compare(name, present, await store.get(name), await store.get(own))
    return found


def _compare(name: str, mark: Mark, row: Row | None, own: Row | None) -> Comparison:
    """Compare a mark with the row of its name; ``own`` is the row of the sequence.

    The two rows differ if the mark is one of a period.
    """
    state = State.MISSING
    generation = 0
    if row is not None:
        generation = row.generation
        counts = counts_ids(name, row.sequence.reset)
        is_behind = counts
        if row.last_value is not None:
            is_behind = (counts and mark.step * row.sequence.step < 0) or mark.is_ahead_of(
                generation, row.last_value if counts else None
            )
        state = State.BEHIND if is_behind else State.OK
    if own is not None and own.name != name and own.generation > max(generation, mark.generation):
        # The next use of the period moves it past the mark, to a newer generation.
        state = State.OK if mark.step * own.sequence.step > 0 else state
    repair = None
    if state != State.OK and row is not None and mark.step * row.sequence.step < 0:
        repair = Repair.FORGET
    elif state != State.OK:
        repair = Repair.CREATE if own is None or own.deleted else Repair.ADVANCE
    return Comparison(
        name,
        mark,
        generation=row.generation if row else None,
        value=row.last_value if row else None,
        state=state,
        repair=repair,
    )
