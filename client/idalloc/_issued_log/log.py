"""The writer of the log of issued ids: one record of each range that a client received."""

import os
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from idalloc._core.fork import process_marker
from idalloc._core.locks import Lock
from idalloc._issued_log.format import FORMAT, JSON_LINES, BinaryEncoder, Encoder, JsonLinesEncoder, dump
from idalloc.v1 import id_allocator_pb2 as pb

if TYPE_CHECKING:
    from idalloc._issued_log.format import RangeRequest, RangeResponse

    DocIdsResponse: TypeAlias = pb.GenerateDocIdResponse | pb.StreamDocIdsResponse


class IssuedLog:
    """Records the ids that a client received, before they are returned to the caller.

    Each record is written at once. It survives a kill of the process, but not a power failure. A
    forked child creates its own file with its first record. The file's name ends in the child's
    process id, such as ``issued.log.4711``; if that exists, it is ``issued.log.4711.2`` and so on.

    Threads may share a log.

    Args:
        path: The file, which must not exist.

    Raises:
        FileExistsError: The file exists.
        OSError: The file cannot be created. From all methods that write: the record cannot be
            written. Then no part of it is in the file, and its ids must not be used; the next
            record is tried again.
        RuntimeError: From all methods that write: the log is closed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._boot_time = time.time_ns() - _boot_clock()
        self._closed = False
        self._state = _ProcessState(process_marker())
        _logs.add(self)
        try:
            self._start(self._state, self._path)
        except BaseException:
            if self._state.file is not None:  # a signal handler raised after the last step
                self._state.file.remove()
            raise

    def now(self) -> int:
        """Return nanoseconds since 1970, on a clock that cannot be set while the log is open."""
        return self._boot_time + _boot_clock()

    def range(self, request: "RangeRequest", response: "RangeResponse", asked: int) -> None:
        """Record a range that has just arrived; ``asked`` is ``now()`` before the request."""
        answered = self.now()
        self._write(lambda encoder: encoder.range(request, response, asked, answered))

    def doc_ids(self, response: "DocIdsResponse", asked: int) -> None:
        """Record document ids of the view COMPACT that have just arrived, one record per run."""
        answered = self.now()
        if not response.runs:
            raise ValueError("the reply has no runs of document ids, which the log requires")
        self._write(lambda encoder: encoder.doc_ids(response.runs, asked, answered))

    def reply(self, request: Any, response: Any, asked: int) -> None:
        """Record the ids of a reply or of a stream's message, if it has any.

        UUIDs are not recorded.
        """
        if isinstance(response, pb.AllocateRangeResponse | pb.StreamRangesResponse):
            self.range(request, response, asked)
        elif isinstance(response, pb.BatchAllocateRangesResponse):
            for each, result in zip(request.requests, response.results, strict=True):
                if result.HasField("response"):
                    self.range(each, result.response, asked)
        elif isinstance(response, pb.GenerateDocIdResponse | pb.StreamDocIdsResponse):
            self.doc_ids(response, asked)

    def close(self) -> None:
        state = self._current_state()
        with state.lock:
            self._closed = True
            if state.file is not None:
                state.file.close()
                state.file = None

    def reset_after_fork(self) -> None:
        """Give up the parent's file, and its lock, which a thread of the parent may hold."""
        self._state = _ProcessState(process_marker())

    def _current_state(self) -> "_ProcessState":
        if not next(self._state.process):  # after a fork that bypassed Python
            self.reset_after_fork()
        return self._state

    def _write(self, encode: Callable[[Encoder], bytes]) -> None:
        state = self._current_state()
        with state.lock:
            if self._closed:
                raise RuntimeError("the log of issued ids is closed")
            file = state.file or self._start_child_file(state)
            file.append(encode(file.encoder))
            file.encoder.commit()

    def _start(self, state: "_ProcessState", path: Path) -> "_File":
        """Create a file with a header.

        After an exception, even of a signal handler, no file is left.
        """
        header = {
            "idalloc_log": FORMAT,
            "boot_id": _boot_id(),
            "boot_time_ns": self._boot_time,
            "boot_offset_ns": _boot_offset(),
            "client": f"{socket.gethostname()} {os.getpid()}",
        }
        file = _File(path, JsonLinesEncoder() if self._path.name.endswith(JSON_LINES) else BinaryEncoder())
        try:
            file.create()
            file.append(file.encoder.header(dump(header)))
            state.file = file
        except BaseException:
            file.remove()
            raise
        return file

    def _start_child_file(self, state: "_ProcessState") -> "_File":
        """Create the file of a forked process.

        The name has a number if the process id was used before.
        """
        path = f"{self._path}.{os.getpid()}"
        for name in chain([path], (f"{path}.{number}" for number in count(2))):
            with suppress(FileExistsError):
                return self._start(state, Path(name))
        raise AssertionError


@dataclass(eq=False, slots=True)
class _ProcessState:
    """The state of a log in one process."""

    process: Iterator[float]  # the marker of the process
    lock: Lock = field(default_factory=Lock)  # held while the file is written
    file: "_File | None" = None  # after it is created


class _File:
    """A new file to which records are appended as a whole or not at all."""

    def __init__(self, path: Path, encoder: Encoder) -> None:
        self.encoder = encoder
        self._path = path
        self._size = 0  # of the complete records
        self._is_torn = False  # whether a part of a record may follow them
        self._descriptors: list[int] = []  # one, after it is created
        # Closes the file, once.
        self.close = weakref.finalize(self, deque, map(os.close, self._descriptors), 0)
        self.close.atexit = False  # at exit, other threads may still write

    def create(self) -> None:
        """Create the file. Raise FileExistsError if it exists."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        # It runs in C: a signal handler cannot raise between the creation and the append of the
        # descriptor to the list.
        self._descriptors.extend(map(os.open, [self._path], [flags], [0o600]))

    def remove(self) -> None:
        """Remove the file if this object created it. It can then be created again."""
        if self._descriptors:
            self.close()
            self._path.unlink()

    def append(self, data: bytes) -> None:
        """Write all data or, with an exception, nothing.

        What this call cannot remove after an error, the next one does.
        """
        try:
            self._truncate()
            self._is_torn = True
            written = 0
            while written < len(data):
                written += os.write(self._descriptors[0], data[written:])
            self._size += written
            self._is_torn = False
        except OSError as error:
            with suppress(OSError):  # tried again before the next write
                self._truncate()
            error.filename = str(self._path)
            raise

    def _truncate(self) -> None:
        if self._is_torn:
            os.ftruncate(self._descriptors[0], self._size)
            self._is_torn = False


def _boot_clock() -> int:
    """Return nanoseconds on a clock that cannot be set and that counts suspended time."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_MONOTONIC"):  # macOS: counts sleep, unlike time.monotonic_ns()
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()


def _boot_id() -> str:
    """Return the id of the machine's current boot; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _boot_offset() -> int | None:
    """Return how many ns this process's boot clock is ahead of the machine's; None if unknown."""
    try:
        namespaces = [each.name for each in Path("/proc/self/ns").iterdir()]
        if namespaces and "time" not in namespaces:  # the kernel has no time namespaces
            return 0
        # The offsets belong to the time namespace of the children, which may differ from this
        # process's.
        if Path("/proc/self/ns/time").readlink() != Path("/proc/self/ns/time_for_children").readlink():
            return None
        offsets = [line.split() for line in Path("/proc/self/timens_offsets").read_text().splitlines()]
        [(seconds, nanoseconds)] = [line[1:] for line in offsets if line[0] in ("boottime", "7")]
        return int(seconds) * 10**9 + int(nanoseconds)
    except (OSError, ValueError, IndexError):
        return None


_logs: "weakref.WeakSet[IssuedLog]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for log in list(_logs):
        log.reset_after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_after_fork_in_child)
