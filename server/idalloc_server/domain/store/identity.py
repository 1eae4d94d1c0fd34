"""The identity of a store: a random name, of which each part of the store holds a copy.

A part that was dropped, emptied, made again or taken from another store has no copy, or another
one. The name itself, and the list of the parts that hold a copy, are in a row of the sequences.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import NamedTuple

from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Sequence
from idalloc_server.domain.store.records import RecordedAllocation, Row, RowChange

# The names of the parts.
SEQUENCES = "sequences"
START_TIMESTAMPS = "start_timestamps"
ALLOCATIONS = "allocations"
# The name of the row with the name of the store, and the request id of its copy in the recorded
# allocations. No sequence and no request can have it.
IDENTITY = f"{PERIOD_SEPARATOR}store"
# The beginning of the name of a column of start timestamps; the name of the store follows.
NAME_COLUMN = "store_"
# The label of a store whose start timestamps have rows, which are never deleted.
_USED = "used"
_NAME_BYTES = 16
# Longer than any window, so that no server forgets the copy.
_FOR_EVER_MS = 2**62
_NAME_COLUMN = re.compile(rf"{NAME_COLUMN}([0-9a-f]{{{2 * _NAME_BYTES}}})")
_DROP = "restore the table, or drop it, run `idalloc store repair`, and import the last export"
# The next step for a store that was lost in part.
REPAIR = "put it back, or restore all parts from one backup; run `idalloc store repair` to continue without it"


class Opening(NamedTuple):
    """How a process opens a store."""

    creates: bool = True  # whether it may create, complete and name parts; else it changes nothing
    name: str = ""  # the name for a store that is empty; a random one by default
    witness: str = ""  # the name in the store's witness, which counts before ``name``
    # What the first worker of this server opened, see ``Store.opened``; None for any store.
    expected: Mapping[str, str] | None = None
    repairs: bool = False  # whether lost parts are created again, and named as the others


ANY_STORE = Opening()


class Part(NamedTuple):
    """A table or an index of a store, as a process finds it."""

    name: str
    what: str  # for people
    columns: Collection[str] = ()  # that this version needs
    lacks: Collection[str] = ()  # those of them that it does not have; all if it is missing
    store: str = ""  # the name of the store in it
    has_rows: bool = False  # apart from the copy of the name

    @property
    def is_missing(self) -> bool:
        """Whether there is no such table or index."""
        return len(self.lacks) == len(self.columns)


def check_parts(parts: Many[Part], identity: Sequence | None, opening: Opening) -> str:
    """Return the name of the store; empty if it has none yet. Refuse one that was lost in part.

    Args:
        parts: The sequences, the start timestamps and the recorded allocations.
        identity: The settings in the row of the name; None without one.
        opening: How the store is opened.

    Raises:
        StartRefused: A part was lost or exchanged, or is missing and must not be created.
    """
    sequences, *others = parts
    name, held = (identity.description, identity.labels) if identity else ("", {})
    if opening.repairs:
        names = [name, *(part.store for part in others)]
        if any(names) and sequences.lacks and not sequences.is_missing:
            raise StartRefused("store", f"{sequences.what} lost the values of {', '.join(sequences.lacks)}; {_DROP}")
        return opening.witness or next(filter(None, names), "")
    for part in others:
        if part.store != name and (part.store or part.name in held):
            lost, kept = (part, sequences) if name else (sequences, part)
            found = f"belongs to the store {lost.store}" if lost.store else "has no name of a store"
            raise StartRefused(
                "store",
                f"{lost.what} was lost or exchanged: it {'is missing' if lost.is_missing else found}, and {kept.what} "
                f"belongs to the store {name or kept.store}; {REPAIR}",
            )
    _check_contents(parts, name, held)
    is_used = bool(name) or (opening.creates and any(part.has_rows for part in parts))
    if is_used and opening.witness not in ("", name):
        raise StartRefused(
            "witness",
            f"it belongs to the store {opening.witness}, and {sequences.what} to {name or 'a store without a name'}; "
            "put that store back, or give this one a witness of its own; if it is the witness of this store, run "
            "`idalloc store repair`; if its store is gone for good, run `idalloc witness forget --all`",
        )
    if not opening.creates and (incomplete := next((part for part in parts if part.lacks), None)):
        raise StartRefused(
            "store", f"{incomplete.what} is missing or incomplete; start a server on it, or run `idalloc store repair`"
        )
    return name


def _check_contents(parts: Many[Part], name: str, held: Mapping[str, str]) -> None:
    """Refuse a store that lost columns or rows, or has no name and lost its sequences.

    A node that is used for document ids alone has start timestamps, and no sequence.
    """
    for part in parts:
        if lost := sorted({*held.get(part.name, "").split()} & {*part.lacks}):
            raise StartRefused("store", f"{part.what} lost its columns {', '.join(lost)}; {REPAIR}")
        if part.name == held.get(_USED) and not part.has_rows:
            raise StartRefused("store", f"{part.what} was emptied: start timestamps could be claimed again; {REPAIR}")
    sequences, *others = parts
    for part in others:
        is_lost = part.has_rows and not sequences.has_rows and (sequences.is_missing or part.name == ALLOCATIONS)
        if is_lost and not name:
            found = "missing" if sequences.is_missing else "empty"
            raise StartRefused("store", f"{sequences.what} is {found}, but {part.what} has rows; {REPAIR}")


def name_in(columns: Iterable[str]) -> str:
    """Return the name of the store in the columns of start timestamps; empty if there is none."""
    return next((found[1] for column in sorted(columns) if (found := _NAME_COLUMN.fullmatch(column))), "")


def new_name(parts: Many[Part], opening: Opening) -> str:
    """Return a name for a store that has none: of its witness or an import, or a random one."""
    given = opening.witness or opening.name
    is_used = any(part.has_rows for part in parts)
    return given if given and not is_used else os.urandom(_NAME_BYTES).hex()


def identity_row(name: str) -> Row:
    """Return the row of a store's name."""
    return Row(IDENTITY, 0, Sequence(description=name), revised_by=name)


def copy_of(name: str) -> RecordedAllocation:
    """Return the copy of a store's name in the recorded allocations.

    Its ``written_at`` is 0, so it is never the newest one.
    """
    return RecordedAllocation(
        request_id=IDENTITY,
        sequence=name,
        first_id=0,
        id_count=0,
        step=1,
        generation=0,
        period="",
        prefix=0,
        node="",
        window_ms=_FOR_EVER_MS,
    )


def listed(row: Row, name: str, parts: Many[Part]) -> RowChange | None:
    """Return the change of the name's row that lists the parts with a copy; None if it has them."""
    labels = dict(row.sequence.labels)
    for part in parts:
        if part.name == SEQUENCES or part.store == name:
            labels[part.name] = " ".join(sorted({*labels.get(part.name, "").split(), *part.columns}))
        if part.name == START_TIMESTAMPS:
            labels.pop(_USED, None)  # before a repair
            labels |= {_USED: part.name} if part.has_rows else {}
    settings = replace(row.sequence, description=name, labels=labels)
    if settings == row.sequence:
        return None
    return RowChange(settings, at_least=0, by=f"list {labels}", at=row.changed_at or 0.0, ends_leases=False)


def check_place(opening: Opening, found: Mapping[str, str]) -> None:
    """Refuse another place than the one that the first worker of this server opened.

    Raises:
        StartRefused: It is another one.
    """
    for what, seen in (opening.expected or found).items():
        if found.get(what, "") != seen:
            raise StartRefused(
                "store",
                f"the store was exchanged while this server ran: its {what} was {seen}, and is now "
                f"{found.get(what) or 'missing'}; put it back, or stop all servers of the store, then restore it as "
                "after a backup (docs/operations/backup-and-restore.md)",
            )
