"""Reserved names: an import skipped their counters, so a sequence of that name must not start at 1.

A reserved name is a tombstone: a server that does not know reservations rejects it as a deleted
sequence.
"""

from dataclasses import replace

from idalloc_server.domain.errors import Refusal, SequenceDeleted
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.sequences.text import replaced
from idalloc_server.domain.store.records import Row

# Prefix of ``revised_by`` in the tombstone of a reserved name, and of its description.
RESERVED_BY = "reserved:"
# The most characters of the reason.
_MAX_REASON = 300


class SequenceReserved(SequenceDeleted):
    """The name is reserved until the sequence is created with a start, or advanced."""

    def __init__(self, sequence: str, why: str) -> None:
        next_step = "create it with a start, or advance it, past the highest id in use"
        Refusal.__init__(self, f"sequence {sequence!r} is {why}: {next_step}", sequence=sequence)


def reserved_row(name: str, why: str, *, by: str, generation: int, at: float) -> Row:
    """Return the row of a reserved name.

    Args:
        name: The reserved name.
        why: The reason, cut to ``_MAX_REASON``.
        by: The change key, without its prefix.
        generation: The generation, as of a new sequence.
        at: The time, in seconds since 1970.
    """
    why = replaced(why.removeprefix(RESERVED_BY).strip())
    if len(why) > _MAX_REASON:
        why = f"{why[:_MAX_REASON]}…"
    sequence = Sequence(description=f"{RESERVED_BY} {why}")
    return Row(
        name,
        sequence.before_start,
        sequence,
        generation=generation,
        revision=1,
        revised_by=RESERVED_BY + by,
        created_at=at,
        changed_at=at,
        deleted=True,
    )


def is_reserved(row: Row) -> bool:
    """Return whether a row reserves its name."""
    return row.deleted and row.revised_by.startswith(RESERVED_BY)


def raise_if_reserved(row: Row | None) -> None:
    """Raise ``SequenceReserved`` if a row reserves its name."""
    if row is not None and is_reserved(row):
        raise SequenceReserved(row.name, row.sequence.description)


def settings_before(row: Row, after: Sequence) -> Sequence:
    """Return the settings that a change of a row must be compatible with.

    A reserved name has no kind or periods.
    """
    if not is_reserved(row):
        return row.sequence
    return replace(row.sequence, kind=after.kind, reset=after.reset, time_zone=after.time_zone)
