"""Writes logs of issued ids independently of the SDK, so that they can contain any fault."""

import json
import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 2
BOOT_TIME = 1_700_000_000_000_000_000
BOOT_ID = "9f1c6a52-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class Planted:
    """A record, with times since the machine's boot."""

    first: int
    count: int = 1
    asked: int = 0
    answered: int | None = None
    sequence: str = "orders"
    period: str = ""
    generation: int = 1
    step: int = 1
    node: int = 0
    rising: bool = False
    request_id: str = ""
    doc_ids: str = ""  # the 12 shared characters of document ids, whose serial is `first`

    @property
    def name(self) -> str:
        return self.doc_ids or (f"{self.sequence}\x1f{self.period}" if self.period else self.sequence)

    @property
    def end(self) -> int:
        return self.asked + 1 if self.answered is None else self.answered

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.step * self.count, self.step)


@dataclass
class PlantedLog:
    """A log, which can be written as rows or as lines."""

    records: Sequence[Planted]
    boot_id: str = BOOT_ID
    boot_time: int = BOOT_TIME
    boot_offset: int | None = 0
    more: bytes = field(default=b"")  # appended to the records

    def header(self) -> str:
        times = {"boot_time_ns": self.boot_time, "boot_offset_ns": self.boot_offset}
        return json.dumps({"idalloc_log": FORMAT, "boot_id": self.boot_id, **times, "client": "x 1"})

    def write(self, path: Path) -> Path:
        path.write_bytes((self.lines() if path.suffix == ".jsonl" else self.rows()) + self.more)
        return path

    def lines(self) -> bytes:
        lines = [self.header(), *(json.dumps(self._line(record)) for record in self.records)]
        return "".join(f"{line}\n" for line in lines).encode()

    def rows(self) -> bytes:
        text = self.header().encode()
        rows, numbers = [checked(b"IDALLOC" + struct.pack("<BI", FORMAT, len(text)) + text)], dict[str, int]()
        for record in self.records:
            name = record.name
            if name not in numbers:
                numbers[name] = len(numbers)
                length = len(name.encode())
                rows += [row(kind=2, name=numbers[name], count=length), checked(name.encode())]
            rows.append(self._row(record, numbers[name]))
        return b"".join(rows)

    def _row(self, record: Planted, name: int) -> bytes:
        return row(
            flags=(1 if record.rising else 0) | (2 if record.doc_ids else 0),
            name=name,
            generation=0 if record.doc_ids else record.generation,
            node=record.node,
            first=record.first - 2**63 if record.doc_ids else record.first,
            step=record.step,
            count=record.count,
            asked=self.boot_time + record.asked,
            answered=self.boot_time + record.end,
            request=uuid.UUID(record.request_id).int if record.request_id else 0,
        )

    def _line(self, record: Planted) -> dict[str, Any]:
        times = {"asked": self.boot_time + record.asked, "answered": self.boot_time + record.end}
        if record.doc_ids:
            first = f"{record.doc_ids}{record.first:016x}"
            return {"doc_id": first, "step": record.step, "count": record.count, **times}
        line: dict[str, Any] = {"sequence": record.sequence}
        if record.period:
            line["period"] = record.period
        for name in ("generation", "first", "step", "count"):
            line[name] = getattr(record, name)
        for name in ("node", "rising", "request_id"):
            if getattr(record, name):
                line[name] = getattr(record, name)
        return line | times


def row(*, kind: int = 1, flags: int = 0, name: int = 0, request: int = 0, **fields: int) -> bytes:
    """Return a row of a binary log."""
    names = ("generation", "node", "first", "step", "count", "asked", "answered")
    assert set(fields) <= set(names)
    begin = struct.pack("<BBHIqqqqqqq", kind, flags, 0, name, *(fields.get(each, 0) for each in names))
    return checked(begin + request.to_bytes(16))


def checked(data: bytes) -> bytes:
    """Return data as rows, each with its checksum."""
    contents = [data[at : at + 84].ljust(84, b"\0") for at in range(0, len(data), 84)]
    return b"".join(each + zlib.crc32(each, 0x2144DF1C).to_bytes(4, "little") for each in contents)
