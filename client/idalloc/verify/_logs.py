"""Reads logs of issued ids, so many records at a time."""

import json
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt

from idalloc import _log
from idalloc.verify._names import Names

# A row of a binary log; a record's name is its number in Names, not in the file.
ROW = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("zero", "<u2"),
        ("name", "<u4"),
        ("generation", "<i8"),
        ("node", "<i8"),
        ("first", "<i8"),
        ("step", "<i8"),
        ("count", "<i8"),
        ("asked", "<i8"),
        ("answered", "<i8"),
        ("request", "<u8"),
    ]
)
Rows: TypeAlias = npt.NDArray[np.void]

# No header and no name is longer; what says so is damaged.
_MOST_HEADER = 64 * 1024
_MOST_NAME = 1024


class NoLog(Exception):
    """A file cannot be read as what it should be; the text tells its name, too."""


class Log:
    """A log that is read from its beginning to its end.

    Attributes:
        path: The file.
        number: Its place among all logs.
        boot_id: Which run of the machine its times are of; empty if that is not known.
        boot_time: When that began, in nanoseconds since 1970.
        ended: Whether all of it was read.
        cut: Whether it ends in the middle of a record.
        malformed: How many places in it are no records.
        told: The first of them, in words.
    """

    def __init__(self, path: Path, number: int, header: dict[str, Any], begin: int, names: Names) -> None:
        self.path = path
        self.number = number
        boot_id, boot_time = header.get("boot_id"), header.get("boot_time_ns")
        if not isinstance(boot_id, str) or type(boot_time) is not int or not 0 <= boot_time < 2**63:
            raise NoLog(f"{path}: the header of this log is damaged")
        self.boot_id = boot_id
        self.boot_time = boot_time
        self._begin = begin
        self._names = names
        self.rewind()

    def rewind(self) -> None:
        """Goes back to the first record."""
        self._at = self._begin
        self._row = 0
        self._size = self.path.stat().st_size
        self.ended = False
        self.cut = False
        self.malformed = 0
        self.told: list[str] = []

    def read(self, most: int) -> Rows:
        """Reads the next records, some if there are any left."""
        raise NotImplementedError

    def _tell(self, finding: str) -> None:
        self.malformed += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(f"{self.path}: {finding}")


# So many findings of each kind are told in words.
MOST_TOLD = 5


class BinaryLog(Log):
    """A log of rows."""

    def rewind(self) -> None:
        """Goes back to the first record."""
        super().rewind()
        self._numbers = np.empty((2, 0), np.int64)

    def read(self, most: int) -> Rows:
        """Reads the next records, some if there are any left."""
        wanted = most
        while not self.ended:
            available = (self._size - self._at) // ROW.itemsize
            rows = np.fromfile(self.path, ROW, min(wanted, available), offset=self._at)
            last = len(rows) == available or len(rows) < min(wanted, available)
            first_row = self._at // ROW.itemsize
            kept, used = self._without_names(rows, first_row, last)
            self._at += used * ROW.itemsize
            if last and used == len(rows):
                self.ended = True
                self.cut |= self._at < self._size
            wanted = most if used else 2 * wanted
            if len(kept):
                kept = self._named(kept, first_row)
            if len(kept):
                return kept
        return np.empty(0, ROW)

    def _without_names(self, rows: Rows, first_row: int, last: bool) -> tuple[Rows, int]:
        """Takes the names out of rows; returns the records, and how many rows were used up."""
        kinds = rows["kind"]
        if bool((kinds == _log.RECORD).all()):
            return rows, len(rows)
        kept = np.ones(len(rows), np.bool_)
        used, at = len(rows), 0
        for place in np.flatnonzero(kinds != _log.RECORD).tolist():
            if place < at:
                continue  # in the text of a name
            length = int(rows["count"][place])
            if kinds[place] != _log.NAME or not 0 < length <= _MOST_NAME:
                self._tell(f"row {first_row + place} is neither a record nor a name")
                kept[place] = False
                continue
            at = place + 1 + -(-length // ROW.itemsize)
            if at > len(rows):
                if last:
                    self.cut = True
                else:
                    used = place
                kept[place:] = False
                break
            kept[place:at] = False
            self._learn(int(rows["name"][place]), rows[place + 1 : at].tobytes()[:length], first_row + place)
        return rows[kept], used

    def _learn(self, number: int, text: bytes, row: int) -> None:
        try:
            name = text.decode()
        except UnicodeDecodeError:
            self._tell(f"the name in row {row} is no UTF-8")
            return
        known = self._numbers.shape[1]
        if number > 2 * known + 1024:
            self._tell(f"the name in row {row} has a number out of turn")
            return
        if number >= known:
            more = np.full((2, max(number + 1, 2 * known) - known), -1, np.int64)
            self._numbers = np.concatenate([self._numbers, more], axis=1)
        self._numbers[:, number] = [self._names.number(name), self._names.number(name, doc_ids=True)]

    def _named(self, rows: Rows, first_row: int) -> Rows:
        local = rows["name"]
        known = local < self._numbers.shape[1]
        doc_ids = (rows["flags"] & _log.DOC_IDS) // _log.DOC_IDS
        if not self._numbers.shape[1]:
            numbers = np.full(len(rows), -1, np.int64)
        else:
            numbers = self._numbers[doc_ids, np.where(known, local, 0)]
        known &= numbers >= 0
        if not known.all():
            for _ in range(int((~known).sum())):
                self._tell(f"a record at or after row {first_row} has a name that was not told")
            rows, numbers = rows[known], numbers[known]
        rows["name"] = numbers
        return rows


class JsonLog(Log):
    """A log of JSON lines."""

    def read(self, most: int) -> Rows:
        """Reads the next records, some if there are any left."""
        while not self.ended:
            records: list[tuple[int, ...]] = []
            with self.path.open("rb") as file:
                file.seek(self._at)
                lines = list(islice(file, most))
            for line in lines:
                self._at += len(line)
                self._row += 1
                record = self._record(line)
                if record is not None:
                    records.append(record)
                elif not line.endswith(b"\n"):
                    self.cut = True
                else:
                    self._tell(f"line {self._row + 1} is no record")
            self.ended = len(lines) < most
            if records:
                return np.array(records, ROW)
        return np.empty(0, ROW)

    def _record(self, line: bytes) -> tuple[int, ...] | None:
        try:
            record = json.loads(line)
            text, flags, request = record.get("doc_id"), 0, 0
            if text is None:
                sequence, period = record["sequence"], record.get("period", "")
                name = self._names.number(_log.PERIOD_MARK.join([sequence, period] if period else [sequence]))
                first, generation, node = record["first"], record["generation"], record.get("node", 0)
                if record.get("rising"):
                    flags = _log.RISING
                if "request_id" in record:
                    request = int.from_bytes(UUID(record["request_id"]).bytes[:8]) | 1
            else:
                if len(text) != 28:
                    return None
                name, flags = self._names.number(text[: _log.HEAD], doc_ids=True), _log.DOC_IDS
                first, generation, node = int(text[_log.HEAD :], 16) - _log.SERIAL_OFFSET, 0, 0
            step, count, asked, answered = record["step"], record["count"], record["asked"], record["answered"]
            row = (_log.RECORD, flags, 0, name, generation, node, first, step, count, asked, answered, request)
            _log.ROW.pack(*row)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error):
            return None
        return row


def open_log(path: Path, number: int, names: Names) -> Log | None:
    """Opens a log, in either of its forms; returns None if it is none."""
    with path.open("rb") as file:
        begin = file.read(len(_log.MAGIC) + _log.LENGTH.size)
        if begin.startswith(_log.MAGIC):
            if len(begin) < len(_log.MAGIC) + _log.LENGTH.size:
                raise NoLog(f"{path}: this log ends in its header, before any record")
            (length,) = _log.LENGTH.unpack(begin[len(_log.MAGIC) :])
            text = file.read(min(length, _MOST_HEADER))
            rows = -(-(len(begin) + length) // ROW.itemsize)
            if path.stat().st_size < rows * ROW.itemsize:
                raise NoLog(f"{path}: this log ends in its header, before any record")
            header = _object(text)
            if header is None:
                raise NoLog(f"{path}: the header of this log is damaged")
            return BinaryLog(path, number, header, rows * ROW.itemsize, names)
        file.seek(0)
        line = file.readline(_MOST_HEADER)
        header = _object(line)
        if header is None or "idalloc_log" not in header:
            return None
        if header["idalloc_log"] != _log.FORMAT:
            raise NoLog(f"{path}: this log is of format {header['idalloc_log']}, which this version does not know")
        return JsonLog(path, number, header, len(line), names)


def blocks(log: Log, most: int) -> Iterator[Rows]:
    """Reads a log once more from its beginning, to look something up."""
    log.rewind()
    while not log.ended:
        yield log.read(most)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
