"""Retirement: a store whose sequences moved to another store refuses to create and claim.

A row in the table of sequences, with a name that no sequence can have, marks a store as retired.
Its tombstone means that the retirement was undone.
"""

from datetime import UTC, datetime

from idalloc_server.domain.errors import StoreRetired
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Reset, Sequence
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.records import Row, RowChange

# The name of the retirement row. Names of sequences cannot have the separator.
RETIREMENT = f"{PERIOD_SEPARATOR}retired"
# Prefix of ``revised_by`` in tombstones of a retirement: the sequence was moved, not deleted.
RETIRED_BY = "retire:"


def retirement_row(moved_to: str, by: str, at: float) -> Row:
    """Return the row that marks a store as retired.

    Args:
        moved_to: The new place of the sequences, for people.
        by: The change key of the retirement.
        at: The time of the retirement, in seconds since 1970.
    """
    return Row(RETIREMENT, 0, Sequence(description=moved_to), revised_by=by, created_at=at, changed_at=at)


def raise_if_retired(retirement: Row | None, sequence: str = "") -> None:
    """Raise ``StoreRetired`` if the store is retired.

    ``retirement`` is the row named RETIREMENT; ``sequence`` is that of the call, empty for none.
    """
    if retirement is not None and not retirement.deleted:
        at = datetime.fromtimestamp(int(retirement.changed_at or 0), UTC).isoformat()
        raise StoreRetired(sequence, at, retirement.sequence.description)


def retiring_change(row: Row, retirement: Row) -> RowChange:
    """Return the revision that ends a row which was created during the retirement."""
    at = retirement.changed_at or 0.0
    newer = row.generation + 1
    generation = newer if row.sequence.reset == Reset.NEVER else newer | 1  # as in ``generation_after``
    before = row.sequence.before_start
    return RowChange(row.sequence, before, retirement.revised_by, at, generation=generation, deleted=True)


def retirement_blocks(name: str, change: RowChange | None = None) -> bool:
    """Return whether a retired store rejects the creation or change of a row.

    It accepts tombstones of sequences.
    """
    return name not in (RETIREMENT, IDENTITY) and not (change and change.deleted)
