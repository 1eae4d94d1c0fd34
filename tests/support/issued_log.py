"""A reader of logs of issued ids, written from the documented format alone."""

import json
import struct
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROW = 88
CONTENT = 84  # of a row; the checksum follows


class Record(NamedTuple):
    """A record."""

    name: str  # the sequence, or the 12 characters that a run of document ids shares
    period: str
    generation: int
    node: int
    first: int  # the first id or serial
    step: int
    id_count: int
    asked: int
    answered: int
    rising: bool
    doc_ids: bool
    request: int  # the request id as a number; 0 for none

    @property
    def ids(self) -> range:
        """The ids or serials."""
        return range(self.first, self.first + self.id_count * self.step, self.step)

    @property
    def texts(self) -> list[str]:
        """The document ids."""
        assert self.doc_ids
        return [f"{self.name}{serial:016x}" for serial in self.ids]


class Log(NamedTuple):
    """The contents of a log."""

    header: dict[str, Any]
    records: list[Record]
    cut: int  # the number of bytes of an incomplete record at the end

    @property
    def ids(self) -> list[int]:
        """All ids, in the order of the records."""
        return [value for record in self.records for value in record.ids]

    @property
    def texts(self) -> list[str]:
        """All document ids, in the order of the records."""
        return [text for record in self.records for text in record.texts]


def request_number(text: str) -> int:
    """Return a request id as a number."""
    return uuid.UUID(text).int


def read(path: Path) -> Log:
    """Read a file, which may end anywhere."""
    return parse(path.read_bytes())


def parse(data: bytes) -> Log:
    """Parse the contents of a file."""
    return _rows(data) if data.startswith(b"IDALLOC\x02") else _lines(data)


def _lines(data: bytes) -> Log:
    *lines, cut = data.split(b"\n")
    header, *records = (json.loads(line) for line in lines)
    return Log(header, [_record(**each) for each in records], len(cut))


def _record(
    *,
    step: int,
    count: int,
    asked: int,
    answered: int,
    doc_id: str = "",
    sequence: str = "",
    period: str = "",
    generation: int = 0,
    first: int = 0,
    node: int = 0,
    rising: bool = False,
    request_id: str = "",
) -> Record:
    name, first = (doc_id[:12], int(doc_id[12:], 16)) if doc_id else (sequence, first)
    request = request_number(request_id) if request_id else 0
    return Record(
        name, period, generation, node, first, step, count, asked, answered, rising, doc_id != "", request
    )  # fmt: skip


def _rows(data: bytes) -> Log:
    rows = [data[at : at + ROW] for at in range(0, len(data) - ROW + 1, ROW)]
    for row in rows:
        assert zlib.crc32(row[:CONTENT], 0x2144DF1C) == int.from_bytes(row[CONTENT:], "little")
    content = b"".join(row[:CONTENT] for row in rows)
    length = int.from_bytes(content[8:12], "little")
    header = json.loads(content[12 : 12 + length])
    return Log(header, list(_records(content, _whole(content, 12 + length))), len(data) % ROW)


def _records(data: bytes, at: int) -> Iterator[Record]:
    names: dict[int, str] = {}
    while at + CONTENT <= len(data):
        kind, flags, nothing, number = struct.unpack_from("<BBHI", data, at)
        generation, node, first, step, count, asked, answered = struct.unpack_from("<7q", data, at + 8)
        request = int.from_bytes(data[at + 64 : at + 80])
        assert nothing == 0
        assert not any(data[at + 80 : at + CONTENT])
        at += CONTENT
        if kind == 2:
            if at + count > len(data):
                return
            name = data[at : at + count].decode()
            assert names.setdefault(number, name) == name, "a number stands for two names"
            at = _whole(data, at + count)
            continue
        assert kind == 1
        name, _, period = names[number].partition("\x1f")
        doc_ids = bool(flags & 2)
        if doc_ids:
            first += 2**63
        yield Record(
            name, period, generation, node, first, step, count, asked, answered, bool(flags & 1), doc_ids, request
        )


def _whole(data: bytes, end: int) -> int:
    """Return where the content of the next row begins, after the padding."""
    rows = -(-end // CONTENT) * CONTENT
    assert not data[end:rows].strip(b"\0")
    return rows
