"""What lies in the store in memory of ``fakes``."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.domain.records import RecordedAllocation
from idalloc_server.domain.records import Row as StoredRow
from idalloc_server.domain.sequences.model import Sequence


@dataclass
class Row:
    """A sequence, or the counter of a period, as it lies in the store."""

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

    def counter(self, name: str) -> int:
        """Returns the counter, as a write of the row needs it."""
        if self.last_value is None:
            raise SequenceInvalid(name, "it has no last_value")
        return self.last_value

    def stored(self, name: str) -> StoredRow:
        """Returns what the store tells of it."""
        columns: dict[str, Any] = {column: value for column, value in vars(self).items() if column in StoredRow._fields}
        return StoredRow(name, **columns)


@dataclass
class PrefixRow:
    """A prefix as it lies in the store."""

    last_start: int = -1
    holder: str = ""
    seen_at: float = 0.0


class Written(NamedTuple):
    """What was written down under a request id."""

    allocation: RecordedAllocation
    number: int
