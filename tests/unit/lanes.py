"""What the tests of lanes share: making a sequence, and listing the ids of ranges."""

from idalloc_server.domain.range import Range
from idalloc_server.domain.sequence import Sequence
from tests.fakes import MemoryStore, Row


def make(store: MemoryStore, name: str, sequence: Sequence) -> Row:
    """Puts a sequence that issued nothing into the store."""
    store.rows[name] = row = Row(sequence, sequence.before_start)
    return row


def ids(*ranges: Range) -> list[int]:
    """Returns the ids of ranges, in their order."""
    return [i for taken in ranges for i in range(taken.first_id, taken.last_id + taken.step, taken.step)]
