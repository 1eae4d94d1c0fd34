"""Reads binary logs of issued ids."""

import codecs
import json
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from idalloc._issued_log import format as _log
from idalloc.verify._columns import Bits, factorize
from idalloc.verify._json import parse
from idalloc.verify._logs import COMMON, HALF, MOST_HEADER, ROW, EndsInHeader, Log, NoLog, Rows
from idalloc.verify._names import Names, begins_name, is_head, is_name

_ROW_OF_FORMAT_1 = np.dtype([*COMMON, ("request_head", "<u8")])
# No name is longer; what says so is damaged.
_MOST_NAME = 512
_DAMAGED = 255  # in place of a row's kind


class BinaryLog(Log):
    """A log of rows."""

    _form = ROW
    _content = _log.CONTENT

    def rewind(self) -> None:
        """Goes back to the first record."""
        super().rewind()
        # For each number of a name: its number as a sequence and as the beginning of document ids; -1 where it is none.
        self._numbers: dict[int, tuple[int, int]] = {}

    def read(self, most: int) -> Rows:
        """Reads the next records, some if there are any left."""
        wanted, size = most, self._form.itemsize
        while not self.ended:
            available = (self._size - self._at) // size
            rows = np.fromfile(self.path, self._form, min(wanted, available), offset=self._at)
            short = len(rows) < min(wanted, available)
            last = len(rows) == available or short
            first_row = self._at // size
            kept, used = self._without_names(rows, first_row, last)
            self._at += used * size
            if last and used == len(rows):
                self.ended = True
                self.cut |= self._at < self._size and not short
                if short:
                    self._tell(f"the file ended at row {first_row + len(rows)} while it was read")
            wanted = most if used else 2 * wanted
            if len(kept):
                kept = self._named(self._sound(self._converted(kept), first_row), first_row)
            if len(kept):
                return kept
        return np.empty(0, ROW)

    def _kinds(self, rows: Rows) -> npt.NDArray[np.uint8]:
        """The kind of each row; _DAMAGED where its check is not that of its content."""
        kinds: npt.NDArray[np.uint8] = rows["kind"]
        content, size = rows.view(np.uint8).data, self._form.itemsize
        if zlib.crc32(content, _log.CHECK_START) != _log.CHECK_START:
            kinds = kinds.copy()
            for place in range(len(rows)):
                if zlib.crc32(content[place * size : (place + 1) * size], _log.CHECK_START) != _log.CHECK_START:
                    kinds[place] = _DAMAGED
        return kinds

    def _without_names(self, rows: Rows, first_row: int, last: bool) -> tuple[Rows, int]:
        """Takes the names out of rows; returns the records, and how many rows were used up."""
        kinds = self._kinds(rows)
        if bool((kinds == _log.RECORD).all()):
            return rows, len(rows)
        kept = kinds == _log.RECORD
        used, at = len(rows), 0
        for place in np.flatnonzero(~kept).tolist():
            if place < at:
                continue  # in the text of a name
            if kinds[place] == _DAMAGED:
                self._tell(f"row {first_row + place} is damaged")
                continue
            length = int(rows["count"][place])
            if not self._is_name(rows, place, length):
                self._tell(f"row {first_row + place} is neither a record nor a name")
                continue
            at = place + 1 + -(-length // self._content.size)
            if at > len(rows) and not last:
                used = place
                kept[place:] = False
                break
            if self._learn(rows[place : min(at, len(rows))], kinds[place:at], length, first_row + place):
                kept[place:at] = False
                self.cut |= at > len(rows)
            else:  # its length may be what is damaged: what looks like a row behind it, is one
                at = place + 1
                while at < len(rows) and kinds[at] not in (_log.RECORD, _log.NAME):
                    at += 1
        return rows[kept], used

    def _is_name(self, rows: Rows, place: int, length: int) -> bool:
        """Whether a row begins a name, and has nothing but what such a row has."""
        if rows["kind"][place] != _log.NAME or not 0 < length <= _MOST_NAME:
            return False
        row = self._content.pack(_log.NAME, 0, 0, int(rows["name"][place]), 0, 0, 0, 0, length, 0, 0, self._no_request)
        return rows[place : place + 1].tobytes()[: self._content.size] == row

    _no_request: Any = bytes(16)

    def _learn(self, rows: Rows, kinds: npt.NDArray[np.uint8], length: int, row: int) -> bool:
        """Learns a name, of which rows may lack at the end; returns whether it is one."""
        if (kinds == _DAMAGED).any():
            self._tell(f"the name in row {row} is damaged")
            return False
        content = rows[1:].view(np.uint8).reshape(-1, self._form.itemsize)[:, : self._content.size].tobytes()
        whole = len(content) >= length
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(content[:length], whole)
        except UnicodeDecodeError:
            self._tell(f"the name in row {row} is no UTF-8")
            return False
        if any(content[length:]) or (not whole and not begins_name(text)):
            self._tell(f"the name in row {row} is damaged")
            return False
        if not whole:
            return True
        if not is_name(text) and not is_head(text):
            self._tell(f"the name in row {row} is no sequence, no period, and no beginning of document ids")
            return False
        number = int(rows["name"][0])
        numbers = (
            self._names.number(text) if is_name(text) else -1,
            self._names.number(text, doc_ids=True) if is_head(text) else -1,
        )
        if self._numbers.get(number, numbers) != numbers:
            self._tell(f"the name in row {row} has the number of another name")
        self._numbers[number] = numbers
        return True

    def _sound(self, rows: Rows, first_row: int) -> Rows:
        """The records whose flags can be, and whose unused fields are empty."""
        flags = rows["flags"]
        wrong = (flags > _log.DOC_IDS) | (rows["zero"] != 0) | (rows["zeros"] != 0)
        doc_ids = flags == _log.DOC_IDS
        if doc_ids.any():
            for field in ("generation", "node", "request_head", "request_tail"):
                wrong |= doc_ids & (rows[field] != 0)
        return self._without(rows, wrong, first_row, "has fields that no record has")

    def _converted(self, rows: Rows) -> Rows:
        """Rows as this version writes them."""
        return rows

    def _named(self, rows: Rows, first_row: int) -> Rows:
        different, places = factorize(rows["name"])
        known = [self._numbers.get(number, (-1, -1)) for number in different.tolist()]
        doc_ids = (rows["flags"] & _log.DOC_IDS) // _log.DOC_IDS
        numbers = np.array(known, np.int64).reshape(-1, 2)[places, doc_ids]
        wrong = numbers < 0
        rows["name"] = numbers
        return self._without(rows, wrong, first_row, "has a name that was not introduced")

    def _without(self, rows: Rows, wrong: Bits, first_row: int, why: str) -> Rows:
        if not wrong.any():
            return rows
        for _ in range(int(wrong.sum())):
            self._tell(f"a record at or after row {first_row} {why}")
        return rows[~wrong]


class BinaryLogOfFormat1(BinaryLog):
    """A log of rows without checks, which have half of each request id."""

    _form = _ROW_OF_FORMAT_1
    _content = struct.Struct("<BBHIqqqqqqqQ")
    _no_request = 0

    def _kinds(self, rows: Rows) -> npt.NDArray[np.uint8]:
        kinds: npt.NDArray[np.uint8] = rows["kind"]
        return kinds

    def _converted(self, rows: Rows) -> Rows:
        converted = np.zeros(len(rows), ROW)
        for field in self._form.names or ():
            converted[field] = rows[field]
        return converted

    def read(self, most: int) -> Rows:
        """Reads the next records, some if there are any left."""
        rows = super().read(most)
        rows["flags"] |= np.where(rows["request_head"] != 0, np.uint8(HALF), np.uint8(0))
        return rows


def open_rows(path: Path, number: int, names: Names, file: BinaryIO) -> Log:
    """Opens a binary log."""
    [form] = file.read(1) or [_log.FORMAT]
    if form not in (1, _log.FORMAT):
        raise NoLog(f"{path}: this log is of format {form}; this version reads formats 1 and {_log.FORMAT}")
    log = BinaryLog if form == _log.FORMAT else BinaryLogOfFormat1
    row, content = log._form.itemsize, log._content.size
    begin = len(_log.MAGIC) + _log.LENGTH.size
    length = file.read(_log.LENGTH.size)
    end = begin + (_log.LENGTH.unpack(length)[0] if len(length) == _log.LENGTH.size else 0)
    rows = -(-end // content)
    if len(length) < _log.LENGTH.size or path.stat().st_size < rows * row:
        raise EndsInHeader(path)
    damaged = NoLog(f"{path}: the header of this log is damaged")
    if end > MOST_HEADER:
        raise damaged
    file.seek(0)
    found = file.read(rows * row)
    if form == _log.FORMAT and zlib.crc32(found, _log.CHECK_START) != _log.CHECK_START:
        raise damaged
    text = b"".join(found[at : at + content] for at in range(0, len(found), row))
    header = _parsed(text[begin:end])
    if header is None or any(text[end:]) or json.dumps(header.get("idalloc_log")) != str(form):
        raise damaged
    return log(path, number, header, rows * row, names)


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        return parse(text)
    except ValueError:
        return None
