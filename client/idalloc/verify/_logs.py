"""Logs of issued ids, in both formats, and records of several logs in the order of time."""

import codecs
import json
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from idalloc._core.text import escaped
from idalloc._issued_log import format as _log
from idalloc.verify._columns import Bits, Ints, factorize
from idalloc.verify._parsing import Names, begins_name, is_name, is_shared_part, parse, sequence_name

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
        ("request_head", "<u8"),
        ("request_tail", "<u8"),
        ("zeros", "<u4"),
        ("check", "<u4"),
    ]
)
Rows: TypeAlias = npt.NDArray[np.void]

# The longest header; a longer one is damaged.
_MAX_HEADER = 64 * 1024
# The limit of times since the boot: 146 years in nanoseconds.
MAX_TIME = 2**62
# The findings of each kind that have a message.
MAX_MESSAGES = 5

_ROW_SIZE = ROW.itemsize
_CONTENT_SIZE = _log.CONTENT.size
# The longest name of a binary log; a longer one is damaged.
_MAX_NAME = 512
_DAMAGED = 255  # replaces the kind of a damaged row
_OTHER_NAME = "has the number of another name"
# The longest line of a log in JSON lines; a longer one is damaged.
_MAX_LINE = 64 * 1024
_JSON_BEGIN = b'{"idalloc_log"'
_DOC_ID_KEYS = {"doc_id", "step", "count", "asked", "answered"}
_RANGE_KEYS = {"sequence", "generation", "first", "step", "count", "asked", "answered"}
_ALL_RANGE_KEYS = _RANGE_KEYS | {"period", "node", "rising", "request_id"}
_DOC_ID = re.compile("[0-9a-f]{28}")
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HALVES = struct.Struct("<QQ")


class InvalidFile(Exception):
    """A file cannot be read. The message begins with its path; unsafe characters are escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(escaped(message))


class TruncatedHeader(InvalidFile):
    """A log ends before its first record."""

    def __init__(self, path: Path) -> None:
        why = "ends in its header, before any record" if path.stat().st_size else "is empty"
        super().__init__(f"{path}: this log {why}; leave it out if its client was killed at its start")


def _damaged_header(path: Path) -> InvalidFile:
    return InvalidFile(f"{path}: the header of this log is damaged")


class Log:
    """A log, the records that were read of it but not yet taken, and what was found on the way."""

    def __init__(self, path: Path, number: int, header: dict[str, Any], *, begin: int, names: Names) -> None:
        self.path = path
        self.number = number  # its index among all logs
        boot_id = header.get("boot_id")
        ahead = header.get("boot_offset_ns")
        times: list[Any] = [header.get("boot_time_ns"), 0 if ahead is None else ahead]
        timely = {*map(type, times)} == {int} and all(abs(time) < MAX_TIME for time in [*times, sum(times)])
        if not timely or not isinstance(boot_id, str) or not boot_id.isascii():
            raise _damaged_header(path)
        # The time of the boot by the log's clock, in nanoseconds since the Unix epoch.
        self.boot_time = sum(times)
        # The machine's boot that the times belong to; empty if the boot, or the offset of the log's
        # clock from the machine's, is unknown.
        self.boot_id = "" if ahead is None else boot_id.lower()
        self._begin = begin
        self._names = names
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first record."""
        self._at = self._begin
        self._size = self.path.stat().st_size
        self._last_reply: int | None = None
        self.rows: Rows = np.empty(0, ROW)  # read but not yet taken, with times since the boot
        self.ended = False  # whether the whole log was read
        self.truncated = False  # whether the log ends in the middle of a record
        self.stall = 0  # the longest time between two consecutive replies, in nanoseconds
        self.malformed = 0  # the number of malformed records
        self.messages: list[str] = []  # of the first of them

    def fill(self, share: int) -> None:
        """Read on to about `share` records, and at least one record if one is left."""
        if self.ended or len(self.rows) > share // 2:
            return
        rows = self._read(max(share - len(self.rows), 1))
        if not len(rows):
            return
        answered = rows["answered"]
        gaps = np.diff(answered)
        if int(gaps.min(initial=0)) < 0:  # several threads logged them slightly out of order
            answered = np.sort(answered)
            gaps = np.diff(answered)
        first = 0 if self._last_reply is None else int(answered[0]) - self._last_reply
        self.stall = max(self.stall, first, int(gaps.max(initial=0)))
        self._last_reply = max(int(answered[-1]), self._last_reply or 0)
        rows["asked"] -= self.boot_time
        rows["answered"] -= self.boot_time
        self.rows = np.concatenate([self.rows, rows]) if len(self.rows) else rows

    def take(self, horizon: int) -> Rows:
        """Remove and return the records answered at or before a time."""
        due = self.rows["answered"] <= horizon
        taken = self.rows if due.all() else self.rows[due]
        self.rows = self.rows[~due]
        return taken

    def _read(self, max_records: int) -> Rows:
        """Read the next records, at least one if any is left."""
        raise NotImplementedError

    def _add_malformed(self, message: str) -> None:
        self.malformed += 1
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(f"{self.path}: {message}")


def batches(logs: Sequence[Log], max_records: int) -> Iterator[tuple[Rows, Ints]]:
    """Read logs from their beginning in batches, each of later times than the one before.

    The logs are of one boot of a machine. If a log is not in the order of its replies, its late
    records are in a later batch. The batches of one log alone have its records in the log's order.

    Args:
        logs: Logs of one boot.
        max_records: About how many records to hold at a time; at least 16 of each log.

    Yields:
        Records, with times since the boot of the machine, and the number of each record's log.
    """
    for log in logs:
        log.rewind()
    while logs:
        share = max(max_records // len(logs), min(max_records, 16))
        for log in logs:
            log.fill(share)
        horizon = min((int(log.rows["answered"].max()) for log in logs if not log.ended), default=2**63 - 1)
        taken = [(log.number, rows) for log in logs if len(rows := log.take(horizon))]
        logs = [log for log in logs if not log.ended or len(log.rows)]
        if taken:
            numbers, parts = zip(*taken, strict=True)
            rows = np.concatenate(parts) if len(parts) > 1 else parts[0]
            yield rows, np.repeat(np.array(numbers, np.int64), list(map(len, parts)))


class BinaryLog(Log):
    """A binary log: rows of fixed size, with a checksum each."""

    def rewind(self) -> None:
        super().rewind()
        # By the file's number of a name: its numbers in Names as a sequence and as document ids, -1
        # for an invalid one.
        self._numbers: dict[int, tuple[int, int]] = {}

    def _read(self, max_records: int) -> Rows:
        wanted = max_records
        while not self.ended:
            available = (self._size - self._at) // _ROW_SIZE
            rows = np.fromfile(self.path, ROW, min(wanted, available), offset=self._at)
            short = len(rows) < min(wanted, available)
            last = len(rows) == available or short
            first_row = self._at // _ROW_SIZE
            records, used = self._split_names(rows, first_row, last)
            self._at += used * _ROW_SIZE
            if last and used == len(rows):
                self.ended = True
                self.truncated |= self._at < self._size and not short
                if short:
                    self._add_malformed(f"the file ended at row {first_row + len(rows)} while it was read")
            wanted = max_records if used else 2 * wanted
            if len(records):
                records = self._resolve(records, first_row)
            if len(records):
                return records
        return np.empty(0, ROW)

    def _kinds(self, rows: Rows) -> npt.NDArray[np.uint8]:
        """Return the kind of each row, _DAMAGED if its checksum is wrong."""
        kinds: npt.NDArray[np.uint8] = rows["kind"]
        content = rows.view(np.uint8).data
        if zlib.crc32(content, _log.CHECK_START) != _log.CHECK_START:
            kinds = kinds.copy()
            for place in range(len(rows)):
                row = content[place * _ROW_SIZE : (place + 1) * _ROW_SIZE]
                if zlib.crc32(row, _log.CHECK_START) != _log.CHECK_START:
                    kinds[place] = _DAMAGED
        return kinds

    def _split_names(self, rows: Rows, first_row: int, last: bool) -> tuple[Rows, int]:
        """Read and remove the names among rows; return the records and the number of rows used."""
        kinds = self._kinds(rows)
        if bool((kinds == _log.RECORD).all()):
            return rows, len(rows)
        kept = kinds == _log.RECORD
        used = len(rows)
        at = 0
        for place in np.flatnonzero(~kept).tolist():
            if place < at:
                continue  # part of a name's text
            if kinds[place] == _DAMAGED:
                self._add_malformed(f"row {first_row + place} is damaged")
                continue
            length = int(rows["count"][place])
            if not self._is_name(rows, place, length):
                self._add_malformed(f"row {first_row + place} is neither a record nor a name")
                continue
            at = place + 1 + -(-length // _CONTENT_SIZE)
            if at > len(rows) and not last:
                used = place
                kept[place:] = False
                break
            fault = self._read_name(rows[place:at], kinds[place:at], length)
            if fault:
                self._add_malformed(f"the name in row {first_row + place} {fault}")
            if fault and fault != _OTHER_NAME:
                # The length itself may be damaged: continue at the next row of a valid kind.
                others = range(place + 1, len(rows))
                at = next((each for each in others if kinds[each] in (_log.RECORD, _log.NAME)), len(rows))
            else:
                kept[place:at] = False
                self.truncated |= at > len(rows)
        return rows[kept], used

    def _is_name(self, rows: Rows, place: int, length: int) -> bool:
        """Return whether a row is a valid header of a name."""
        if rows["kind"][place] != _log.NAME or not 0 < length <= _MAX_NAME:
            return False
        row = _log.Row(_log.NAME, name=int(rows["name"][place]), id_count=length)
        return rows[place : place + 1].tobytes()[:_CONTENT_SIZE] == row.pack()

    def _read_name(self, rows: Rows, kinds: npt.NDArray[np.uint8], length: int) -> str:
        """Read a name, whose last rows may be missing in the file; return its fault, if any."""
        if (kinds == _DAMAGED).any():
            return "is damaged"
        content = rows[1:].view(np.uint8).reshape(-1, _ROW_SIZE)[:, :_CONTENT_SIZE].tobytes()
        whole = len(content) >= length
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(content[:length], whole)
        except UnicodeDecodeError:
            return "is not UTF-8"
        if any(content[length:]):
            return "is damaged"
        if not whole:
            return "" if begins_name(text) else "is damaged"
        if not is_name(text) and not is_shared_part(text):
            return "is not a sequence, a period or a part of document ids"
        numbers = (
            self._names.number(text) if is_name(text) else -1,
            self._names.number(text, doc_ids=True) if is_shared_part(text) else -1,
        )
        known = self._numbers.get(int(rows["name"][0]), numbers)
        self._numbers[int(rows["name"][0])] = numbers
        return "" if known == numbers else _OTHER_NAME

    def _resolve(self, rows: Rows, first_row: int) -> Rows:
        """Return the records with valid fields, and the numbers of their names in Names."""
        flags = rows["flags"]
        wrong = (flags > _log.DOC_IDS) | (rows["zero"] != 0) | (rows["zeros"] != 0)
        doc_ids = flags == _log.DOC_IDS
        if doc_ids.any():
            for field in ("generation", "node", "request_head", "request_tail"):
                wrong |= doc_ids & (rows[field] != 0)
        rows = self._drop(rows, wrong, first_row, "has invalid fields")
        distinct, places = factorize(rows["name"])
        known = [self._numbers.get(number, (-1, -1)) for number in distinct.tolist()]
        doc_ids = (rows["flags"] & _log.DOC_IDS) // _log.DOC_IDS
        numbers = np.array(known, np.int64).reshape(-1, 2)[places, doc_ids]
        wrong = numbers < 0
        rows["name"] = numbers
        return self._drop(rows, wrong, first_row, "refers to an undefined name")

    def _drop(self, rows: Rows, wrong: Bits, first_row: int, reason: str) -> Rows:
        if not wrong.any():
            return rows
        for _ in range(int(wrong.sum())):
            self._add_malformed(f"a record at or after row {first_row} {reason}")
        return rows[~wrong]


class JsonLog(Log):
    """A log in JSON lines."""

    def rewind(self) -> None:
        super().rewind()
        self._line = 1

    def _read(self, max_records: int) -> Rows:
        while not self.ended:
            records: list[tuple[int, ...]] = []
            with self.path.open("rb") as file:
                file.seek(self._at)
                for _ in range(max_records):
                    line = file.readline(_MAX_LINE)
                    if not line:
                        self.ended = True
                        break
                    self._add(line, file, records)
                self._at = file.tell()
            if records:
                return np.array(records, ROW)
        return np.empty(0, ROW)

    def _add(self, line: bytes, file: BinaryIO, records: list[tuple[int, ...]]) -> None:
        self._line += 1
        try:
            records.append(self._record(line))
        except (ValueError, TypeError, struct.error):
            if not line.endswith(b"\n") and len(line) < _MAX_LINE and _is_cut(line):
                self.truncated = True
                return
            self._add_malformed(f"line {self._line} is not a valid record")
        while not line.endswith(b"\n") and len(line) == _MAX_LINE:  # skip the rest of a line that is too long
            line = file.readline(_MAX_LINE)

    def _record(self, line: bytes) -> tuple[int, ...]:
        record = parse(line)
        keys = {*record}
        request = bytes(16)
        if "doc_id" in keys:
            text = record["doc_id"]
            if keys != _DOC_ID_KEYS or not _DOC_ID.fullmatch(text):
                raise ValueError("is not a record of document ids")
            name = self._names.number(text[: _log.SHARED_LENGTH], doc_ids=True)
            flags = _log.DOC_IDS
            record |= {"generation": 0, "first": int(text[_log.SHARED_LENGTH :], 16) - _log.SERIAL_OFFSET}
        else:
            if not _RANGE_KEYS <= keys <= _ALL_RANGE_KEYS:
                raise ValueError("is not a record of a range")
            name = self._names.number(sequence_name(record["sequence"], record.get("period", "")))
            rising = record.get("rising", False)
            if type(rising) is not bool:
                raise ValueError("rising must be true or false")
            flags = _log.RISING if rising else 0
            if "request_id" in keys:
                request = _request_bytes(record["request_id"])
        numbers = {field: record[field] for field in ("generation", "first", "step", "asked", "answered")}
        numbers |= {"node": record.get("node", 0), "id_count": record["count"]}
        if {*map(type, numbers.values())} != {int}:
            raise ValueError("a number is not an integer")
        row = _log.Row(_log.RECORD, flags, name=name, request_id=request, **numbers)
        row.pack()  # fails if a number has more than 64 bits
        return (*row[:-1], *_HALVES.unpack(request), 0, 0)


def _request_bytes(text: object) -> bytes:
    if not isinstance(text, str) or not _UUID.fullmatch(text):
        raise ValueError("request_id is not a UUID")
    request = bytes.fromhex(text.replace("-", ""))
    if not any(request):
        raise ValueError("request_id is zero")
    return request


def _is_cut(line: bytes) -> bool:
    """Return whether an invalid last line of a file is the beginning of a record."""
    text = ""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(line)
        parse(text.encode())
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        in_word = error.msg == "Expecting value" and any(word.startswith(rest) for word in ("true", "false", "-"))
        in_escape = error.msg.startswith("Invalid \\uXXXX") and len(rest) < len("\\u1234")
        in_text = error.msg.startswith("Unterminated string")
        return text.startswith("{") and (not rest or in_word or in_escape or in_text)
    except ValueError:
        pass
    return False


def open_log(path: Path, number: int, names: Names) -> Log | None:
    """Open a log in either format; return None if the file is not a log.

    Raises `TruncatedHeader`, or another `InvalidFile` if the header cannot be read.
    """
    magic = _log.MAGIC[:-1]
    with path.open("rb") as file:
        begin = file.read(len(magic))
        if len(begin) < len(magic) and magic.startswith(begin):
            raise TruncatedHeader(path)
        if begin == magic:
            return _open_binary_log(path, number, names, file)
        file.seek(0)
        return _open_json_log(path, number, names, file)


def _open_binary_log(path: Path, number: int, names: Names, file: BinaryIO) -> Log:
    [form] = file.read(1) or [_log.FORMAT]
    if form != _log.FORMAT:
        raise InvalidFile(f"{path}: this log is of format {form}; this version reads format {_log.FORMAT}")
    begin = len(_log.MAGIC) + _log.LENGTH.size
    length = file.read(_log.LENGTH.size)
    end = begin + (_log.LENGTH.unpack(length)[0] if len(length) == _log.LENGTH.size else 0)
    rows = -(-end // _CONTENT_SIZE)
    if len(length) < _log.LENGTH.size or path.stat().st_size < rows * _ROW_SIZE:
        raise TruncatedHeader(path)
    if end > _MAX_HEADER:
        raise _damaged_header(path)
    file.seek(0)
    data = file.read(rows * _ROW_SIZE)
    text = b"".join(data[at : at + _CONTENT_SIZE] for at in range(0, len(data), _ROW_SIZE))
    try:
        header = parse(text[begin:end])
    except ValueError:
        raise _damaged_header(path) from None
    valid = zlib.crc32(data, _log.CHECK_START) == _log.CHECK_START and not any(text[end:])
    if not valid or json.dumps(header.get("idalloc_log")) != str(_log.FORMAT):
        raise _damaged_header(path)
    return BinaryLog(path, number, header, begin=rows * _ROW_SIZE, names=names)


def _open_json_log(path: Path, number: int, names: Names, file: BinaryIO) -> Log | None:
    line = file.readline(_MAX_HEADER)
    try:
        header = parse(line)
    except ValueError:
        if not line.endswith(b"\n") and _JSON_BEGIN.startswith(line[: len(_JSON_BEGIN)]):
            raise TruncatedHeader(path) from None
        return None
    if "idalloc_log" not in header:
        return None
    form = header["idalloc_log"]
    if type(form) is not int or not 0 < form < 2**31:
        raise _damaged_header(path)
    if form != _log.FORMAT:
        raise InvalidFile(f"{path}: this log is of format {form}; this version reads format {_log.FORMAT}")
    return JsonLog(path, number, header, begin=len(line), names=names)
