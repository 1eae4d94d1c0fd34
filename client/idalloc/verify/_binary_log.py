"""Reads logs of issued ids in the binary format."""

import codecs
import json
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from idalloc._issued_log import format as _log
from idalloc.verify._columns import Bits, factorize
from idalloc.verify._logs import MAX_HEADER, ROW, InvalidFile, Log, Rows, TruncatedHeader
from idalloc.verify._names import Names, begins_name, is_name, is_shared_part
from idalloc.verify._strict_json import parse

_ROW_SIZE = ROW.itemsize
_CONTENT_SIZE = _log.CONTENT.size
# The longest name; a longer one is damaged.
_MAX_NAME = 512
_DAMAGED = 255  # replaces the kind of a damaged row


class BinaryLog(Log):
    """A binary log: rows of fixed size, with a checksum each."""

    def rewind(self) -> None:
        super().rewind()
        # By the file's number of a name: its numbers in Names as a sequence and as document ids, -1
        # for an invalid one.
        self._numbers: dict[int, tuple[int, int]] = {}

    def read(self, max_records: int) -> Rows:
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
            if self._read_name(rows[place : min(at, len(rows))], kinds[place:at], length, first_row + place):
                kept[place:at] = False
                self.truncated |= at > len(rows)
            else:  # the length itself may be damaged: continue at the next row of a valid kind
                others = range(place + 1, len(rows))
                at = next((each for each in others if kinds[each] in (_log.RECORD, _log.NAME)), len(rows))
        return rows[kept], used

    def _is_name(self, rows: Rows, place: int, length: int) -> bool:
        """Return whether a row is a valid header of a name."""
        if rows["kind"][place] != _log.NAME or not 0 < length <= _MAX_NAME:
            return False
        row = _log.Row(_log.NAME, name=int(rows["name"][place]), id_count=length)
        return rows[place : place + 1].tobytes()[:_CONTENT_SIZE] == row.pack()

    def _read_name(self, rows: Rows, kinds: npt.NDArray[np.uint8], length: int, row: int) -> bool:
        """Read a name, whose last rows may be missing in the file; return whether it is valid."""
        if (kinds == _DAMAGED).any():
            self._add_malformed(f"the name in row {row} is damaged")
            return False
        content = rows[1:].view(np.uint8).reshape(-1, _ROW_SIZE)[:, :_CONTENT_SIZE].tobytes()
        whole = len(content) >= length
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(content[:length], whole)
        except UnicodeDecodeError:
            self._add_malformed(f"the name in row {row} is not UTF-8")
            return False
        if any(content[length:]) or (not whole and not begins_name(text)):
            self._add_malformed(f"the name in row {row} is damaged")
            return False
        if not whole:
            return True
        if not is_name(text) and not is_shared_part(text):
            self._add_malformed(f"the name in row {row} is not a sequence, a period or a part of document ids")
            return False
        number = int(rows["name"][0])
        numbers = (
            self._names.number(text) if is_name(text) else -1,
            self._names.number(text, doc_ids=True) if is_shared_part(text) else -1,
        )
        if self._numbers.get(number, numbers) != numbers:
            self._add_malformed(f"the name in row {row} has the number of another name")
        self._numbers[number] = numbers
        return True

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


def open_binary_log(path: Path, number: int, names: Names, file: BinaryIO) -> Log:
    """Open a binary log.

    Raises `TruncatedHeader`, or `InvalidFile` if its header cannot be read.
    """
    [form] = file.read(1) or [_log.FORMAT]
    if form != _log.FORMAT:
        raise InvalidFile(f"{path}: this log is of format {form}; this version reads format {_log.FORMAT}")
    begin = len(_log.MAGIC) + _log.LENGTH.size
    length = file.read(_log.LENGTH.size)
    end = begin + (_log.LENGTH.unpack(length)[0] if len(length) == _log.LENGTH.size else 0)
    rows = -(-end // _CONTENT_SIZE)
    if len(length) < _log.LENGTH.size or path.stat().st_size < rows * _ROW_SIZE:
        raise TruncatedHeader(path)
    damaged = InvalidFile(f"{path}: the header of this log is damaged")
    if end > MAX_HEADER:
        raise damaged
    file.seek(0)
    data = file.read(rows * _ROW_SIZE)
    if zlib.crc32(data, _log.CHECK_START) != _log.CHECK_START:
        raise damaged
    text = b"".join(data[at : at + _CONTENT_SIZE] for at in range(0, len(data), _ROW_SIZE))
    try:
        header = parse(text[begin:end])
    except ValueError:
        raise damaged from None
    if any(text[end:]) or json.dumps(header.get("idalloc_log")) != str(_log.FORMAT):
        raise damaged
    return BinaryLog(path, number, header, begin=rows * _ROW_SIZE, names=names)
