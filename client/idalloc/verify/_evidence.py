"""What is said of findings: which id, and which records."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from idalloc._issued_log.format import DOC_IDS, RISING, SERIAL_OFFSET
from idalloc.verify._columns import Bits, distance
from idalloc.verify._logs import HALF, Log, Rows, blocks
from idalloc.verify._names import Names

# So many records with a wanted id are kept to choose from.
_MOST_RECORDS = 16


class Record(NamedTuple):
    """A record, and where it is.

    Attributes:
        log: The number of its log.
        name: The number of its name.
        generation: The sequence's generation.
        node: Which process of a server made it.
        first: The first id.
        step: From one id to the next.
        id_count: How many ids.
        asked: When they were asked for, in nanoseconds since 1970.
        answered: When they came.
        request: Its request_id, as two numbers; zeros if it had none.
        half: Whether only half of that is known.
    """

    log: int
    name: int
    generation: int
    node: int
    first: int
    step: int
    id_count: int
    asked: int
    answered: int
    request: tuple[int, int]
    half: bool

    @classmethod
    def of(cls, log: int, row: np.void, boot_time: int = 0) -> "Record":
        """Makes one of a row whose times count from ``boot_time``."""
        numbers = {field: int(row[field]) for field in row.dtype.names or ()}
        return cls(
            log=log,
            name=numbers["name"],
            generation=numbers["generation"],
            node=numbers["node"],
            first=numbers["first"],
            step=numbers["step"],
            id_count=numbers["count"],
            asked=numbers["asked"] + boot_time,
            answered=numbers["answered"] + boot_time,
            request=(numbers["request_head"], numbers["request_tail"]),
            half=bool(numbers["flags"] & HALF),
        )

    @property
    def last(self) -> int:
        """The last id."""
        return self.first + (self.id_count - 1) * self.step


class Question(NamedTuple):
    """Which records have an id?

    Attributes:
        name: The number of its name.
        number: The id.
        fits: Which records of a log, of those that have the id, are meant.
    """

    name: int
    number: int
    fits: Callable[[Log, Rows], Bits] | None = None


def look_up(logs: Iterable[Log], questions: list[Question], most: int) -> list[list[Record]]:
    """Reads all logs once more; returns the records that answer each question, or the first of them."""
    answers: list[list[Record]] = [[] for _ in questions]
    if not questions:
        return answers
    for log in logs:
        for rows in blocks(log, most):
            _answer(log, rows, questions, answers)
    return answers


def _answer(log: Log, rows: Rows, questions: list[Question], answers: list[list[Record]]) -> None:
    for question, records in zip(questions, answers, strict=True):
        if len(records) >= _MOST_RECORDS:
            continue
        some = rows[rows["name"] == question.name]
        some = some[(some["count"] > 0) & (some["step"] != 0)]
        if question.fits is not None:
            some = some[question.fits(log, some)]
        for row in some[_has(some, question.number)][: _MOST_RECORDS - len(records)]:
            records.append(Record.of(log.number, row))


def _has(rows: Rows, number: int) -> Bits:
    """Which records have an id."""
    first, step = rows["first"], rows["step"]
    up = step > 0
    ahead = np.where(up, first <= number, first >= number)
    wanted = np.full(len(rows), number, np.int64)
    away = np.where(up, distance(wanted, first), distance(first, wanted))
    width = np.abs(step).astype(np.uint64)
    return np.asarray(ahead & (away % width == 0) & (away // width < rows["count"].astype(np.uint64)))


class Words:
    """Puts findings into words.

    Args:
        names: The names.
        logs: The logs.
    """

    def __init__(self, names: Names, logs: list[Log]) -> None:
        self._names = names
        self._logs = logs

    def identifier(self, name: int, number: int) -> str:
        """An id, with its sequence."""
        if name & 1:
            return f"document id {self._names.text(name)}{number + SERIAL_OFFSET:016x}"
        return f"{self._names.called(name)}: {number}"

    def record(self, record: Record) -> str:
        """A record, its file and its times."""
        ids = self._ids(record)
        times = f"asked {_time(record.asked)}, answered {_time(record.answered)}"
        return f"{ids} in {self._logs[record.log].path} ({times})"

    def twice(self, name: int, number: int, records: list[Record]) -> str:
        """An id that came twice."""
        differ = [each for each in records[1:] if not _repeats(each, records[0])]
        found = [*records[:1], *differ[:1]]
        said = f"{self.identifier(name, number)} came twice: " + "; ".join(map(self.record, found))
        halves = len(found) > 1 and (found[0].half or found[1].half) and _ids(found[0]) == _ids(found[1])
        return f"{said}; a log of format 1 has half of the request id, which does not excuse a repeat" * halves or said

    def disordered(self, late: Record, records: list[Record]) -> str:
        """A record that lies before one that was answered earlier."""
        start = self.identifier(late.name, late.first)
        said = f"{start} was asked for after ids had come that it does not lie behind: {self.record(late)}"
        return "; ".join([said, *map(self.record, records[:1])])

    def fallen(self, name: int, generations: tuple[int, int], numbers: tuple[int, int], found: list[Record]) -> str:
        """A generation that falls along the ids."""
        (older, newer), (ahead, number) = generations, numbers
        said = f"{self.identifier(name, number)} is of generation {newer}, but {ahead} behind it of {older}"
        return "; ".join([said, *map(self.record, found)])

    def beyond(self, record: Record, limit: str) -> str:
        """A record past what the store says was given out."""
        return f"{self.identifier(record.name, record.last)} is beyond {limit}: {self.record(record)}"

    def malformed(self, record: Record, why: str) -> str:
        """A record that cannot be."""
        return f"{self._logs[record.log].path}: {why}: {self.record(record)}"

    def _ids(self, record: Record) -> str:
        first, last = record.first, record.last
        if record.name & 1:
            first, last = first + SERIAL_OFFSET, last + SERIAL_OFFSET
        steps = f" in steps of {record.step}" if record.step != 1 and record.id_count > 1 else ""
        return f"{first}…{last}{steps}" if record.id_count != 1 else f"{first}"


def answered_before(late: Record, of: Log, node: int | None) -> Callable[[Log, Rows], Bits]:
    """Makes what chooses records that were answered before one was asked for, by a node unless that is None.

    Args:
        late: That one.
        of: Its log.
        node: Which node.
    """

    def fits(log: Log, rows: Rows) -> Bits:
        if log is not of and (log.boot_id != of.boot_id or not of.boot_id):
            return np.zeros(len(rows), np.bool_)
        before = rows["answered"] - log.boot_time < late.asked - of.boot_time
        chosen = before & ((rows["request_head"] | rows["request_tail"]) == 0)
        if node is None:
            chosen &= rows["flags"] & RISING != 0
        else:
            chosen &= (rows["node"] == node) | (rows["flags"] & DOC_IDS != 0)
        return np.asarray(chosen)

    return fits


def of_generation(generation: int) -> Callable[[Log, Rows], Bits]:
    """Makes what chooses the records of a generation."""
    return lambda log, rows: np.asarray(rows["generation"] == generation)


def _ids(record: Record) -> tuple[int, int, int, int]:
    return record.generation, record.first, record.step, record.id_count


def _repeats(one: Record, other: Record) -> bool:
    known = any(one.request) and not one.half and not other.half
    return known and one.request == other.request and _ids(one) == _ids(other)


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    except (OverflowError, ValueError, OSError):
        return f"{nanoseconds} ns"
