"""Reads logs of issued ids that are JSON lines."""

import codecs
import json
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from idalloc._issued_log import format as _log
from idalloc.verify._json import parse
from idalloc.verify._logs import MOST_HEADER, ROW, EndsInHeader, Log, NoLog, Rows
from idalloc.verify._names import Names, sequence_name

# No line is longer; what says so is damaged.
_MOST_LINE = 64 * 1024
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BEGIN = b'{"idalloc_log"'


class JsonLog(Log):
    """A log of JSON lines."""

    def read(self, most: int) -> Rows:
        """Reads the next records, some if there are any left."""
        while not self.ended:
            records: list[tuple[int, ...]] = []
            with self.path.open("rb") as file:
                file.seek(self._at)
                for _ in range(most):
                    line = file.readline(_MOST_LINE)
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
            if not line.endswith(b"\n") and len(line) < _MOST_LINE and _is_cut(line):
                self.cut = True
                return
            self._tell(f"line {self._row + 1} is no record")
        while not line.endswith(b"\n") and len(line) == _MOST_LINE:  # the rest of a line that is too long
            line = file.readline(_MOST_LINE)

    def _record(self, line: bytes) -> tuple[int, ...]:
        record = parse(line)
        keys, flags, request = record.keys(), 0, bytes(16)
        if "doc_id" in keys:
            text = record["doc_id"]
            if keys != _OF_DOC_IDS or not _DOC_ID.fullmatch(text):
                raise ValueError("is no record of document ids")
            name, flags = self._names.number(text[: _log.HEAD], doc_ids=True), _log.DOC_IDS
            first, generation, node = int(text[_log.HEAD :], 16) - _log.SERIAL_OFFSET, 0, 0
        else:
            if not _OF_RANGE <= keys <= _OF_ANY_RANGE:
                raise ValueError("is no record of a range")
            name = self._names.number(sequence_name(record["sequence"], record.get("period", "")))
            first, generation, node = record["first"], record["generation"], record.get("node", 0)
            rising = record.get("rising", False)
            if type(rising) is not bool:
                raise ValueError("rising is neither true nor false")
            flags = _log.RISING if rising else 0
            if "request_id" in keys:
                request = _request(record["request_id"])
        step, count, asked, answered = record["step"], record["count"], record["asked"], record["answered"]
        numbers = (generation, node, first, step, count, asked, answered)
        if {*map(type, numbers)} != {int}:
            raise ValueError("a number is no integer")
        content = _log.CONTENT.pack(_log.RECORD, flags, 0, name, *numbers, request)
        return (*_log.CONTENT.unpack(content)[:-1], *_HALVES.unpack(request), 0, 0)


_OF_DOC_IDS = {"doc_id", "step", "count", "asked", "answered"}
_OF_RANGE = {"sequence", "generation", "first", "step", "count", "asked", "answered"}
_OF_ANY_RANGE = _OF_RANGE | {"period", "node", "rising", "request_id"}
_DOC_ID = re.compile("[0-9a-f]{28}")
_HALVES = struct.Struct("<QQ")


def _request(text: object) -> bytes:
    if not isinstance(text, str) or not _UUID.fullmatch(text):
        raise ValueError("request_id is no UUID")
    request = bytes.fromhex(text.replace("-", ""))
    if not any(request):
        raise ValueError("request_id is zero")
    return request


def _is_cut(line: bytes) -> bool:
    """Whether the last line of a file, which could not be read, is the beginning of a record."""
    text = ""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(line)
        parse(text.encode())
    except json.JSONDecodeError as wrong:
        rest = text[wrong.pos :]
        words = wrong.msg == "Expecting value" and any(word.startswith(rest) for word in ("true", "false", "-"))
        escape = wrong.msg.startswith("Invalid \\uXXXX") and len(rest) < len("\\u1234")
        in_text = wrong.msg.startswith("Unterminated string")
        return text.startswith("{") and (not rest or words or escape or in_text)
    except ValueError:
        pass
    return False


def open_lines(path: Path, number: int, names: Names, file: BinaryIO) -> Log | None:
    """Opens a log of JSON lines; returns None if it is none."""
    line = file.readline(MOST_HEADER)
    try:
        header = parse(line)
    except ValueError:
        if not line.endswith(b"\n") and _BEGIN.startswith(line[: len(_BEGIN)]):
            raise EndsInHeader(path) from None
        return None
    if "idalloc_log" not in header:
        return None
    _check_format(path, header)
    return JsonLog(path, number, header, len(line), names)


def _check_format(path: Path, header: dict[str, Any]) -> None:
    form = header["idalloc_log"]
    if type(form) is not int or not 0 < form < 2**31:
        raise NoLog(f"{path}: the header of this log is damaged")
    if form > _log.FORMAT:
        raise NoLog(f"{path}: this log is of format {form}; this version reads formats 1 and {_log.FORMAT}")
