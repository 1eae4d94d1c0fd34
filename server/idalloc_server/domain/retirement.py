"""A store that its sequences have left for another one: the mark that says so, and where they went.

The mark is a row in the table of sequences, under a name that no sequence can have. A tombstone of it means that the
retirement was undone.
"""

from datetime import UTC, datetime

from idalloc_server.domain.errors import StoreRetired
from idalloc_server.domain.records import Revision, Row
from idalloc_server.domain.sequences.model import PERIOD_MARK, Reset, Sequence

# The mark's name. It begins with what no name of a sequence may have in it.
RETIREMENT = f"{PERIOD_MARK}retired"
# The change_token of a tombstone that a retirement made begins with it: such a sequence was not deleted, but has moved.
RETIRED_BY = "retire:"


def mark(moved_to: str, by: str, at: float) -> Row:
    """Returns the mark of a retired store.

    Args:
        moved_to: Where to go on, for people.
        by: Who retires it.
        at: When, in seconds since 1970.
    """
    return Row(RETIREMENT, 0, Sequence(description=moved_to), revised_by=by, created_at=at, changed_at=at)


def refuse_retired(found: Row | None, sequence: str = "") -> None:
    """Refuses what a retired store does not do any more.

    Args:
        found: The row named RETIREMENT.
        sequence: Which sequence the call is about; empty for none.

    Raises:
        StoreRetired: The store is retired.
    """
    if found is not None and not found.deleted:
        at = datetime.fromtimestamp(int(found.changed_at or 0), UTC).isoformat()
        raise StoreRetired(sequence, at, found.sequence.description)


def retired(row: Row, found: Row) -> Revision:
    """Returns the change that ends a row which was made while the store was retired; ``found`` is the mark."""
    at = found.changed_at or 0.0
    newer = row.generation + 1
    generation = newer if row.sequence.reset == Reset.NEVER else newer | 1  # as in ``fencing``
    before = row.sequence.before_start
    return Revision(row.sequence, before, found.revised_by, at, generation=generation, deleted=True)


def is_refused(name: str, change: Revision | None = None) -> bool:
    """Whether a retired store refuses to create a row of this name, or to change it: all but to end a sequence."""
    return name != RETIREMENT and not (change and change.deleted)
