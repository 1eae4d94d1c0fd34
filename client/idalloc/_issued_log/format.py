"""The format of the log of issued ids.

A file whose name ends in ``.jsonl`` is JSON lines: a header, then a line a record. Any other is rows of 88 bytes,
little-endian. Each row has 84 bytes of content, then their check: the CRC-32 of zlib, begun with 0x2144DF1C. With that
start, the CRC-32 of any number of sound rows is 0x2144DF1C again. The content of the rows:

* The header: ``IDALLOC``, the format's number, the length of a JSON text (u32) and that text, zeros up to whole rows.
* A name: a row of kind 2 with its number and its length in bytes as the count; its UTF-8 bytes follow, zeros up to
  whole rows. It stands before the first record of that name; where writing failed it may be there once more, under the
  same number.
* A record: a row of kind 1. A sequence with a period is named as sequence, U+001F, period. Document ids have flag 2,
  the 12 characters that a run of them shares as their name, and their serials less 2^63. The request id is its 16
  bytes, zeros for none.

The last piece of a file may be less than a row, or half a line: its writer was killed.

In the header, ``boot_offset_ns`` is how far the process's boot clock is ahead of the machine's, null if unknown: a
container may run in a time namespace.

Format 1 had no ``boot_offset_ns``. Its rows had 72 bytes and no check. Of a request id they had the first 8 bytes as a
number, with the lowest bit set.
"""

import json
import struct
import uuid
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from idalloc.v1 import id_allocator_pb2 as pb

    RangeRequest: TypeAlias = pb.AllocateRangeRequest | pb.StreamRangesRequest
    RangeResponse: TypeAlias = pb.AllocateRangeResponse | pb.StreamRangesResponse

# The header of both forms says this number.
FORMAT = 2
# How the name of a file of JSON lines ends.
JSON_LINES = ".jsonl"

# What a binary log begins with; the length of the header's JSON text comes next.
MAGIC = b"IDALLOC" + bytes([FORMAT])
LENGTH = struct.Struct("<I")
# The content of a row: kind, flags, 0, name, generation, node, first, step, count, asked, answered, request id, 0
CONTENT = struct.Struct("<BBHIqqqqqqq16s4x")
# The check of a row, and what its CRC-32 begins with.
CHECK = struct.Struct("<I")
CHECK_START = 0x2144DF1C
# A row with its check.
ROW = struct.Struct(f"{CONTENT.format}I")
# Kinds of rows.
RECORD, NAME = 1, 2
# Flags of a record.
RISING, DOC_IDS = 1, 2
# Between a sequence and its period in a name, as in the store.
PERIOD_MARK = "\x1f"
# How many characters of a document id are its name in rows. Its unsigned serial is stored less the offset.
HEAD = 12
SERIAL_OFFSET = 2**63

# How far apart the serials of document ids can be: MySQL's auto_increment_increment.
_FARTHEST = 65_535

# ORDERING_RISING; not taken from the protos, which who reads a log need not load.
_ORDERING_RISING = 2


class Run(NamedTuple):
    """Document ids that differ in their serials only."""

    first: str
    step: int
    id_count: int


class Form(Protocol):
    """Writes records as bytes."""

    def header(self, text: str) -> bytes: ...

    def range(self, request: "RangeRequest", response: "RangeResponse", asked: int, answered: int) -> bytes: ...

    def doc_ids(self, runs: Iterable[Run], asked: int, answered: int) -> bytes: ...

    def written(self) -> None:
        """Learns that the last record is in the file."""


class Rows:
    """Rows of a fixed size, of which a reader makes an array."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._named: set[str] = set()  # names that the file has
        self._new: set[str] = set()  # and those that the last record brings

    def header(self, text: str) -> bytes:
        return _rows(MAGIC + LENGTH.pack(len(text.encode())) + text.encode())

    def range(self, request: "RangeRequest", response: "RangeResponse", asked: int, answered: int) -> bytes:
        ids = response.range
        name = f"{request.sequence}{PERIOD_MARK}{response.period}" if response.period else request.sequence
        flags = RISING if response.ordering == _ORDERING_RISING else 0
        request_id = _request_id(request)
        self._new = set()
        before = b"" if name in self._named else self._name(name)
        content = CONTENT.pack(
            RECORD,
            flags,
            0,
            self._numbers[name],
            response.generation,
            response.node_id,
            ids.first_id,
            ids.step,
            ids.id_count,
            asked,
            answered,
            request_id.bytes if request_id else b"",
        )
        return before + _row(content)

    def doc_ids(self, runs: Iterable[Run], asked: int, answered: int) -> bytes:
        rows = []
        self._new = set()
        for first, step, how_many in runs:
            head, serial = first[:HEAD], int(first[HEAD:], 16) - SERIAL_OFFSET
            if head not in self._named and head not in self._new:
                rows.append(self._name(head))
            content = (RECORD, DOC_IDS, 0, self._numbers[head], 0, 0, serial, step, how_many, asked, answered, b"")
            rows.append(_row(CONTENT.pack(*content)))
        return b"".join(rows)

    def written(self) -> None:
        self._named |= self._new

    def _name(self, name: str) -> bytes:
        number = self._numbers.setdefault(name, len(self._numbers))
        self._new.add(name)
        text = name.encode()
        return _row(CONTENT.pack(NAME, 0, 0, number, 0, 0, 0, 0, len(text), 0, 0, b"")) + _rows(text)


class Lines:
    """JSON, a line a record."""

    def header(self, text: str) -> bytes:
        return f"{text}\n".encode()

    def range(self, request: "RangeRequest", response: "RangeResponse", asked: int, answered: int) -> bytes:
        ids = response.range
        record: dict[str, Any] = {"sequence": request.sequence}
        if response.period:
            record["period"] = response.period
        record |= {
            "generation": response.generation,
            "first": ids.first_id,
            "step": ids.step,
            "count": ids.id_count,
        }
        if response.node_id:
            record["node"] = response.node_id
        if response.ordering == _ORDERING_RISING:
            record["rising"] = True
        if request_id := _request_id(request):
            record["request_id"] = str(request_id)
        return f"{dump(record | {'asked': asked, 'answered': answered})}\n".encode()

    def doc_ids(self, runs: Iterable[Run], asked: int, answered: int) -> bytes:
        lines = [
            dump({"doc_id": first, "step": step, "count": how_many, "asked": asked, "answered": answered})
            for first, step, how_many in runs
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    def written(self) -> None:
        pass


def _request_id(request: "RangeRequest") -> uuid.UUID | None:
    text: str = getattr(request, "request_id", "")  # streams have none
    return uuid.UUID(text) if text else None


def runs_of(texts: Iterable[str]) -> list[Run]:
    """Document ids as runs."""
    runs: list[Run] = []
    for text in texts:
        head, serial = text[:HEAD], int(text[HEAD:], 16)
        if runs and runs[-1].first[:HEAD] == head:
            first, step, how_many = runs[-1]
            begun = int(first[HEAD:], 16)
            if how_many == 1 and 0 < serial - begun <= _FARTHEST:
                step = serial - begun
            if serial == begun + how_many * step:
                runs[-1] = Run(first, step, how_many + 1)
                continue
        runs.append(Run(text, 1, 1))
    return runs


def _row(content: bytes) -> bytes:
    return content + CHECK.pack(zlib.crc32(content, CHECK_START))


def _rows(data: bytes) -> bytes:
    size = CONTENT.size
    return b"".join(_row(data[at : at + size].ljust(size, b"\0")) for at in range(0, len(data), size))


dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
