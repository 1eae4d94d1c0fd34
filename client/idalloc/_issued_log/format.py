"""The format of the log of issued ids.

A file whose name ends in ``.jsonl`` contains JSON lines: a header, then one line per record. Any
other file contains rows of 88 bytes, little-endian. Each row has 84 bytes of content, then a
checksum: zlib's CRC-32, started with 0x2144DF1C. With that start, the CRC-32 of any number of valid
rows is 0x2144DF1C again. The content of the rows:

* The header: ``IDALLOC``, the format's number, the length of a JSON text (u32) and that text,
  padded with zeros to whole rows.
* A name: a row of kind 2 with its number, and its length in bytes as the count. Its UTF-8 bytes
  follow, padded with zeros to whole rows. It precedes the first record of that name. After a failed
  write it may be repeated with the same number.
* A record: a row of kind 1. The name of a sequence with a period is sequence, U+001F, period. A run
  of document ids has flag 2, the 12 characters that the ids share as its name, and its serials less
  2^63. The request id is its 16 bytes, or zeros.

A file may end within a row or a line, if its writer was killed.

In the header, ``boot_offset_ns`` is how far the boot clock of the process is ahead of the
machine's, because a container may run in a time namespace. It is null if unknown.
"""

import json
import struct
import uuid
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from idalloc.v1 import id_allocator_pb2 as pb

    RangeRequest: TypeAlias = pb.AllocateRangeRequest | pb.StreamRangesRequest
    RangeResponse: TypeAlias = pb.AllocateRangeResponse | pb.StreamRangesResponse

# The format's number, in the header of both encodings.
FORMAT = 2
# The suffix of a file of JSON lines.
JSON_LINES = ".jsonl"

# The first bytes of a binary log; the length of the header's JSON text follows.
MAGIC = b"IDALLOC" + bytes([FORMAT])
LENGTH = struct.Struct("<I")
# The content of a row: the fields of `Row`, and 0.
CONTENT = struct.Struct("<BBHIqqqqqqq16s4x")
# The checksum of a row, and the start value of its CRC-32.
CHECK = struct.Struct("<I")
CHECK_START = 0x2144DF1C
# A row with its checksum.
ROW = struct.Struct(f"{CONTENT.format}I")
# Kinds of rows.
RECORD = 1
NAME = 2
# Flags of a record.
RISING = 1
DOC_IDS = 2
# The separator of sequence and period in a name, as in the store.
PERIOD_SEPARATOR = "\x1f"
# The 12 characters that the ids of a run share, their name in rows. The unsigned serial is stored
# less the offset.
SHARED_LENGTH = 12
SERIAL_OFFSET = 2**63

# ORDERING_RISING, without importing the protos, which a reader of a log does not need.
_ORDERING_RISING = 2


class Row(NamedTuple):
    """The content of a row."""

    kind: int
    flags: int = 0
    zero: int = 0
    name: int = 0
    generation: int = 0
    node: int = 0
    first: int = 0
    step: int = 0
    id_count: int = 0
    asked: int = 0
    answered: int = 0
    request_id: bytes = bytes(16)

    def pack(self) -> bytes:
        return CONTENT.pack(*self)


class BinaryEncoder:
    """Encodes rows of a fixed size."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._written: set[str] = set()  # the names in the file
        self._new: set[str] = set()  # the names added by the last record

    def header(self, text: str) -> bytes:
        return _pad_rows(MAGIC + LENGTH.pack(len(text.encode())) + text.encode())

    def range(self, request: "RangeRequest", response: "RangeResponse", asked: int, answered: int) -> bytes:
        ids = response.range
        name = f"{request.sequence}{PERIOD_SEPARATOR}{response.period}" if response.period else request.sequence
        request_id = _request_id(request)
        self._new = set()
        return self._record(
            name,
            flags=RISING if response.ordering == _ORDERING_RISING else 0,
            generation=response.generation,
            node=response.node_id,
            first=ids.first_id,
            step=ids.step,
            id_count=ids.id_count,
            asked=asked,
            answered=answered,
            request_id=request_id.bytes if request_id else bytes(16),
        )

    def doc_ids(self, runs: "Iterable[pb.DocIdRun]", asked: int, answered: int) -> bytes:
        rows = []
        self._new = set()
        for run in runs:
            shared = run.first_doc_id[:SHARED_LENGTH]
            serial = int(run.first_doc_id[SHARED_LENGTH:], 16) - SERIAL_OFFSET
            numbers = {"first": serial, "step": run.step, "id_count": run.id_count}
            rows.append(self._record(shared, flags=DOC_IDS, **numbers, asked=asked, answered=answered))
        return b"".join(rows)

    def commit(self) -> None:
        """Remember that the last encoded record was written."""
        self._written |= self._new

    def _record(self, name: str, **fields: Any) -> bytes:
        """Encode a record, after its name if the file lacks it."""
        number = self._numbers.setdefault(name, len(self._numbers))
        row = _row(Row(RECORD, name=number, **fields).pack())
        if name in self._written or name in self._new:
            return row
        self._new.add(name)
        text = name.encode()
        return _row(Row(NAME, name=number, id_count=len(text)).pack()) + _pad_rows(text) + row


class JsonLinesEncoder:
    """Encodes one line of JSON per record."""

    def header(self, text: str) -> bytes:
        return f"{text}\n".encode()

    def range(self, request: "RangeRequest", response: "RangeResponse", asked: int, answered: int) -> bytes:
        ids = response.range
        record: dict[str, Any] = {"sequence": request.sequence}
        if response.period:
            record["period"] = response.period
        record |= {"generation": response.generation, "first": ids.first_id, "step": ids.step, "count": ids.id_count}
        if response.node_id:
            record["node"] = response.node_id
        if response.ordering == _ORDERING_RISING:
            record["rising"] = True
        if request_id := _request_id(request):
            record["request_id"] = str(request_id)
        return f"{dump(record | {'asked': asked, 'answered': answered})}\n".encode()

    def doc_ids(self, runs: "Iterable[pb.DocIdRun]", asked: int, answered: int) -> bytes:
        times = {"asked": asked, "answered": answered}
        lines = [dump({"doc_id": run.first_doc_id, "step": run.step, "count": run.id_count} | times) for run in runs]
        return "".join(f"{line}\n" for line in lines).encode()

    def commit(self) -> None:
        pass


Encoder: TypeAlias = BinaryEncoder | JsonLinesEncoder


def _request_id(request: "RangeRequest") -> uuid.UUID | None:
    text: str = getattr(request, "request_id", "")  # streams have none
    return uuid.UUID(text) if text else None


def _row(content: bytes) -> bytes:
    return content + CHECK.pack(zlib.crc32(content, CHECK_START))


def _pad_rows(data: bytes) -> bytes:
    size = CONTENT.size
    return b"".join(_row(data[at : at + size].ljust(size, b"\0")) for at in range(0, len(data), size))


dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
