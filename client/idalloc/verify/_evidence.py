"""Messages of findings: the id, and the records that show it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from idalloc._issued_log.format import DOC_IDS, RISING, SERIAL_OFFSET
from idalloc.verify._columns import Bits, distance
from idalloc.verify._extents import Overlap
from idalloc.verify._files import Files
from idalloc.verify._logs import Log, Rows, batches

# The records that are kept for each query.
_MAX_RECORDS = 16


class Record(NamedTuple):
    """A record of a log."""

    log: Log
    name: int  # the number of its name
    generation: int
    node: int  # the id of the server process; 0 if unknown
    first: int
    step: int  # the difference of consecutive ids
    id_count: int
    asked: int  # when the call began, in nanoseconds since the Unix epoch
    answered: int  # when the reply arrived, in nanoseconds since the Unix epoch
    request: tuple[int, int]  # the request id as two integers; zeros without one

    @classmethod
    def of(cls, log: Log, row: np.void) -> "Record":
        """Create a record from a row of a log, whose times count from the boot."""
        return cls(
            log,
            id_count=int(row["count"]),
            asked=int(row["asked"]) + log.boot_time,
            answered=int(row["answered"]) + log.boot_time,
            request=(int(row["request_head"]), int(row["request_tail"])),
            **{field: int(row[field]) for field in ("name", "generation", "node", "first", "step")},
        )

    @property
    def last(self) -> int:
        return self.first + (self.id_count - 1) * self.step


@dataclass(eq=False, slots=True)
class Query:
    """A query for the first records that have an id."""

    name: int  # the number of the id's name
    number: int
    matches: Callable[[Log, Rows], Bits] | None = None  # selects rows of a log; None selects all
    records: list[Record] = field(default_factory=list)  # found

    def search(self, log: Log, rows: Rows) -> None:
        """Add records of a log."""
        missing = _MAX_RECORDS - len(self.records)
        if not missing:
            return
        some = rows[rows["name"] == self.name]
        some = some[(some["count"] > 0) & (some["step"] != 0)]
        if self.matches is not None:
            some = some[self.matches(log, some)]
        self.records += [Record.of(log, row) for row in some[_has_id(some, self.number)][:missing]]


def look_up(logs: Iterable[Log], queries: Sequence[Query], max_records: int) -> None:
    """Read all logs once more, each in its own order, and answer queries."""
    for log in logs if queries else ():
        for rows, _ in batches([log], max_records):
            for query in queries:
                query.search(log, rows)


def _has_id(rows: Rows, number: int) -> Bits:
    """Return which records have an id."""
    first = rows["first"]
    step = rows["step"]
    up = step > 0
    ahead = np.where(up, first <= number, first >= number)
    wanted = np.full(len(rows), number, np.int64)
    offset = np.where(up, distance(wanted, first), distance(first, wanted))
    width = np.abs(step).astype(np.uint64)
    return np.asarray(ahead & (offset % width == 0) & (offset // width < rows["count"].astype(np.uint64)))


@dataclass(eq=False, slots=True)
class Messages:
    """Formats findings as messages."""

    _files: Files

    def identifier(self, name: int, number: int) -> str:
        """Return an id with its sequence."""
        if name & 1:
            return f"document id {self._files.names.text(name)}{number + SERIAL_OFFSET:016x}"
        sequence, period = self._files.names.parts(name)
        return f"{sequence} of {period}: {number}" if period else f"{sequence}: {number}"

    def record(self, record: Record) -> str:
        """Return a record's ids, file and times."""
        first = record.first
        last = record.last
        if record.name & 1:
            first += SERIAL_OFFSET
            last += SERIAL_OFFSET
        steps = f" in steps of {record.step}" if record.step != 1 and record.id_count > 1 else ""
        ids = f"{first}…{last}{steps}" if record.id_count != 1 else f"{first}"
        times = f"asked {_time(record.asked)}, answered {_time(record.answered)}"
        return f"{ids} in {record.log.path} ({times})"

    def duplicate(self, twice: Query) -> str:
        """Return the message for an id that was issued twice."""
        shown = twice.records[:1]
        shown += [each for each in twice.records[1:] if not _is_retry(each, shown[0])][:1]
        return f"{self.identifier(twice.name, twice.number)} was issued twice: " + "; ".join(map(self.record, shown))

    def out_of_order(self, late: Record, ahead: Query) -> str:
        """Return the message for a record that was asked for after a later id was answered."""
        start = self.identifier(late.name, late.first)
        text = f"{start} is out of order: it was asked for after the same or a later id was answered"
        return "; ".join([f"{text}: {self.record(late)}", *map(self.record, ahead.records[:1])])

    def overlap(self, overlap: Overlap, older: Query, newer: Query) -> str:
        """Return the message for a generation that does not follow an older one."""
        identifier = self.identifier(overlap.name, overlap.first)
        text = (
            f"{identifier} of generation {overlap.newer} is out of order: generation {overlap.older} has {overlap.last}"
        )
        return "; ".join([text, *map(self.record, older.records[:1] + newer.records[:1])])

    def beyond_export(self, record: Record) -> str:
        exported = self._files.exported
        text = self._files.names.text(record.name)
        if record.name & 1:
            start = exported.claims.get(int(text[:4], 16))
            limit = "any claim in the export" if start is None else f"the exported claim of its prefix, {start}"
        else:
            values = ", ".join(map(str, exported.last_values.get(text, ())))
            limit = f"the exported last value, {values}" if values else "the export, which has no counter for it"
        return f"{self.identifier(record.name, record.last)} is beyond {limit}: {self.record(record)}"

    def malformed(self, record: Record, why: str) -> str:
        return f"{record.log.path}: {why}: {self.record(record)}"


def answered_before(late: Record, node: int) -> Callable[[Log, Rows], Bits]:
    """Return a selector of records that were answered before another one was asked for.

    Args:
        late: The other record.
        node: The server process of the records; 0 for any, in sequences that rise over all nodes.
    """
    asked = late.asked - late.log.boot_time

    def matches(log: Log, rows: Rows) -> Bits:
        if log is not late.log and (log.boot_id != late.log.boot_id or not log.boot_id):
            return np.zeros(len(rows), np.bool_)
        chosen = (rows["answered"] < asked) & ((rows["request_head"] | rows["request_tail"]) == 0)
        if node == 0:
            chosen &= rows["flags"] & RISING != 0
        else:
            chosen &= (rows["node"] == node) | (rows["flags"] & DOC_IDS != 0)
        return np.asarray(chosen)

    return matches


def of_generation(generation: int) -> Callable[[Log, Rows], Bits]:
    return lambda log, rows: np.asarray(rows["generation"] == generation)


def _is_retry(one: Record, other: Record) -> bool:
    fields = ("request", "generation", "first", "step", "id_count")
    return any(one.request) and all(getattr(one, field) == getattr(other, field) for field in fields)


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    except (OverflowError, ValueError, OSError):
        return f"{nanoseconds} ns"
