"""The log of issued ids: one record for each range that a client got, as proof of who got what.

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
import os
import socket
import struct
import threading
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from idalloc._fork import this_process

if TYPE_CHECKING:
    from idalloc.v1 import id_allocator_pb2 as pb

    RangeRequest: TypeAlias = pb.AllocateRangeRequest | pb.StreamRangesRequest
    RangeResponse: TypeAlias = pb.AllocateRangeResponse | pb.StreamRangesResponse
    DocIdsResponse: TypeAlias = pb.GenerateDocIdResponse | pb.StreamDocIdsResponse

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
# How many characters of a document id are its name in rows, and what is taken off its serial, which has no sign.
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


class IssuedLog:
    """Writes down what a client got, before its caller gets it.

    Each record is written by itself and at once: it outlives a kill of the process, though not a loss of power. In the
    child of a fork, records go to a file of the child's own, made at the first of them: the name with the child's
    process id behind it, as ``issued.log.4711``; where that exists, ``issued.log.4711.2`` and so on.

    Args:
        path: The file. It must not exist.

    Raises:
        FileExistsError: The file exists.
        OSError: It cannot be made. From all methods that write: the record could not be written. Then it is not in the
            file, not even in part, and its ids are not to be used; the next record is tried anew.
        RuntimeError: From all methods that write: the log is closed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._boot_time = time.time_ns() - _boot_clock()
        self._closed = False
        self._own = _Own(this_process())
        self._own.file = self._start(self._path)
        _logs.add(self)

    def now(self) -> int:
        """The time, in nanoseconds since 1970, by a clock that is not set while this log is written."""
        return self._boot_time + _boot_clock()

    def range(self, request: "RangeRequest", response: "RangeResponse", asked: int) -> None:
        """Writes down a range that just arrived.

        Args:
            request: What was asked for.
            response: What arrived.
            asked: ``now()`` before it was asked for.
        """
        answered = self.now()
        self._write(lambda form: form.range(request, response, asked, answered))

    def doc_ids(self, response: "DocIdsResponse", asked: int) -> None:
        """Writes down document ids that just arrived, a record for each run.

        Args:
            response: What arrived, as runs or as texts.
            asked: ``now()`` before they were asked for.

        Raises:
            ValueError: It has neither.
        """
        answered = self.now()
        runs = [Run(run.first_doc_id, run.step, run.id_count) for run in response.runs] or _runs(response.doc_ids)
        if not runs:
            raise ValueError("document ids are logged from runs or texts, and this reply has neither")
        self._write(lambda form: form.doc_ids(runs, asked, answered))

    def close(self) -> None:
        """Ends the log."""
        own = self._of_this_process()
        with own.lock:
            self._closed = True
            file, own.file = own.file, None
            if file is not None:
                file.close()

    def leave_to_parent(self) -> None:
        """Gives the file up, in the child of a fork: also its lock, which a thread of the parent may have held."""
        self._own = _Own(this_process())

    def _of_this_process(self) -> "_Own":
        if not next(self._own.process):  # after a fork that bypassed Python
            self.leave_to_parent()
        return self._own

    def _write(self, encode: "Callable[[_Form], bytes]") -> None:
        own = self._of_this_process()
        with own.lock:
            if self._closed:
                raise RuntimeError("the log of issued ids is closed")
            file = own.file
            if file is None:
                file = own.file = self._start_own()
            file.append(encode(file.form))
            file.form.written()

    def _start(self, path: Path) -> "_File":
        """Makes a file that has a header."""
        header = {
            "idalloc_log": FORMAT,
            "boot_id": _boot_id(),
            "boot_time_ns": self._boot_time,
            "boot_offset_ns": _boot_offset(),
            "client": f"{socket.gethostname()} {os.getpid()}",
        }
        file = _File(path, _Lines() if self._path.name.endswith(JSON_LINES) else _Rows())
        try:
            file.append(file.form.header(_dump(header)))
        except BaseException:
            file.close()
            path.unlink()  # else it could not be tried again under this name
            raise
        return file

    def _start_own(self) -> "_File":
        """Makes the file of a forked process. A process id may come again: then the name has a number, too."""
        own = f"{self._path}.{os.getpid()}"
        for name in chain([own], (f"{own}.{number}" for number in count(2))):
            with suppress(FileExistsError):
                return self._start(Path(name))
        raise AssertionError


class _Own:
    """What a log has in one process.

    Attributes:
        process: The mark of that process.
        lock: Held while its file is written.
        file: The file, once it is made.
    """

    def __init__(self, process: Iterator[float]) -> None:
        self.process = process
        self.lock = threading.Lock()
        self.file: _File | None = None


class _File:
    """A new file that only grows, by whole pieces.

    Attributes:
        form: What its records are written as.
    """

    def __init__(self, path: Path, form: "_Form") -> None:
        self.form = form
        self._path = str(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._file = os.open(path, flags, 0o666)
        self._size = 0  # of its whole pieces
        self._is_torn = False  # whether more than those may be in it
        self.close = weakref.finalize(self, os.close, self._file)
        self.close.atexit = False  # other threads may still write then

    def append(self, data: bytes) -> None:
        """Writes all of it or, with an exception, nothing: what it left is cut off before the next piece."""
        try:
            self._cut()
            self._is_torn = True
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            self._size += written
            self._is_torn = False
        except OSError as error:
            with suppress(OSError):  # tried again before the next piece
                self._cut()
            error.filename = self._path
            raise

    def _cut(self) -> None:
        if self._is_torn:
            os.ftruncate(self._file, self._size)
            self._is_torn = False


class _Form(Protocol):
    """Writes records as bytes."""

    def header(self, text: str) -> bytes: ...

    def range(self, request: "RangeRequest", response: "RangeResponse", asked: int, answered: int) -> bytes: ...

    def doc_ids(self, runs: Iterable[Run], asked: int, answered: int) -> bytes: ...

    def written(self) -> None:
        """Learns that the last record is in the file."""


class _Rows:
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
            response.node,
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


class _Lines:
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
        if response.node:
            record["node"] = response.node
        if response.ordering == _ORDERING_RISING:
            record["rising"] = True
        if request_id := _request_id(request):
            record["request_id"] = str(request_id)
        return f"{_dump(record | {'asked': asked, 'answered': answered})}\n".encode()

    def doc_ids(self, runs: Iterable[Run], asked: int, answered: int) -> bytes:
        lines = [
            _dump({"doc_id": first, "step": step, "count": how_many, "asked": asked, "answered": answered})
            for first, step, how_many in runs
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    def written(self) -> None:
        pass


def _request_id(request: "RangeRequest") -> uuid.UUID | None:
    text: str = getattr(request, "request_id", "")  # streams have none
    return uuid.UUID(text) if text else None


def _runs(texts: Iterable[str]) -> list[Run]:
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


_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _boot_clock() -> int:
    """Nanoseconds, on a clock that no one sets and that goes on while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_MONOTONIC"):  # macOS: unlike time.monotonic_ns() it counts sleep
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()


def _boot_id() -> str:
    """Which run of the machine this is, where it can be known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _boot_offset() -> int | None:
    """How many nanoseconds the boot clock of this process is ahead of the machine's; None if that is not known."""
    try:
        namespaces = [each.name for each in Path("/proc/self/ns").iterdir()]
        if namespaces and "time" not in namespaces:  # the kernel has one boot clock for all processes
            return 0
        # The offsets are those of the children's time namespace, which may be another one than this process's.
        if Path("/proc/self/ns/time").readlink() != Path("/proc/self/ns/time_for_children").readlink():
            return None
        offsets = [line.split() for line in Path("/proc/self/timens_offsets").read_text().splitlines()]
        [(seconds, nanoseconds)] = [line[1:] for line in offsets if line[0] in ("boottime", "7")]
        return int(seconds) * 10**9 + int(nanoseconds)
    except (OSError, ValueError, IndexError):
        return None


_logs: "weakref.WeakSet[IssuedLog]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for log in list(_logs):
        log.leave_to_parent()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_forget_in_child)
