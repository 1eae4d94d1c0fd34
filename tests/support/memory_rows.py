"""The rows of ``fake_store.MemoryStore``."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from idalloc_server.domain.errors import NULL_LAST_VALUE, SequenceInvalid
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import Demand, RecordedAllocation
from idalloc_server.domain.store.records import Row as StoredRow


@dataclass
class Row:
    """A stored sequence, or the counter of a period."""

    sequence: Sequence
    last_value: int | None
    generation: int = 1
    lease_ms: int = 0
    version: int = 0
    writes: int = 0
    revision: int = 0
    revised_by: str = ""
    created_at: float | None = None
    changed_at: float | None = None
    deleted: bool = False
    demand: Demand | None = None

    def counter(self, name: str) -> int:
        """Return the counter; a write fails without one."""
        if self.last_value is None:
            raise SequenceInvalid(name, NULL_LAST_VALUE)
        return self.last_value

    def stored(self, name: str) -> StoredRow:
        """Return the row as the store returns it."""
        columns: dict[str, Any] = {column: value for column, value in vars(self).items() if column in StoredRow._fields}
        return StoredRow(name, **columns)


@dataclass
class PrefixRow:
    """A stored prefix."""

    last_start: int = -1
    holder: str = ""
    seen_at: float = 0.0


class RecordedRow(NamedTuple):
    """A recorded allocation, and its position in the order of records."""

    allocation: RecordedAllocation
    number: int
