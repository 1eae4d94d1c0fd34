"""Reads logs of issued ids in JSON lines."""

import codecs
import json
import re
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from idalloc._issued_log import format as _log
from idalloc.verify._logs import MAX_HEADER, ROW, InvalidFile, Log, Rows, TruncatedHeader
from idalloc.verify._names import Names, sequence_name
from idalloc.verify._strict_json import parse

# The longest line; a longer one is damaged.
_MAX_LINE = 64 * 1024
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BEGIN = b'{"idalloc_log"'


class JsonLog(Log):
    """A log in JSON lines."""

    def read(self, max_records: int) -> Rows:
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
        self._row += 1
        try:
            records.append(self._record(line))
        except (ValueError, TypeError, struct.error):
            if not line.endswith(b"\n") and len(line) < _MAX_LINE and _is_cut(line):
                self.truncated = True
                return
            self._add_malformed(f"line {self._row + 1} is not a valid record")
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


_DOC_ID_KEYS = {"doc_id", "step", "count", "asked", "answered"}
_RANGE_KEYS = {"sequence", "generation", "first", "step", "count", "asked", "answered"}
_ALL_RANGE_KEYS = _RANGE_KEYS | {"period", "node", "rising", "request_id"}
_DOC_ID = re.compile("[0-9a-f]{28}")
_HALVES = struct.Struct("<QQ")


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


def open_json_log(path: Path, number: int, names: Names, file: BinaryIO) -> Log | None:
    """Open a log in JSON lines; return None if the file is not one.

    Raises as `open_binary_log` does.
    """
    line = file.readline(MAX_HEADER)
    try:
        header = parse(line)
    except ValueError:
        if not line.endswith(b"\n") and _BEGIN.startswith(line[: len(_BEGIN)]):
            raise TruncatedHeader(path) from None
        return None
    if "idalloc_log" not in header:
        return None
    form = header["idalloc_log"]
    if type(form) is not int or not 0 < form < 2**31:
        raise InvalidFile(f"{path}: the header of this log is damaged")
    if form != _log.FORMAT:
        raise InvalidFile(f"{path}: this log is of format {form}; this version reads format {_log.FORMAT}")
    return JsonLog(path, number, header, begin=len(line), names=names)
