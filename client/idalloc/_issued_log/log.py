"""The log of issued ids: one record for each range that a client got, as proof of who got what."""

import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from idalloc._core.fork import this_process
from idalloc._core.requests import StreamRequest, StreamResponse
from idalloc._issued_log.format import FORMAT, JSON_LINES, Form, Lines, Rows, Run, dump, runs_of
from idalloc.v1 import id_allocator_pb2 as pb

if TYPE_CHECKING:
    from idalloc._issued_log.format import RangeRequest, RangeResponse

    DocIdsResponse: TypeAlias = pb.GenerateDocIdResponse | pb.StreamDocIdsResponse


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
        _logs.add(self)
        try:
            self._start(self._own, self._path)
        except BaseException:
            if self._own.file is not None:  # a signal's handler raised after the last step
                self._own.file.remove()
            raise

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
        runs = [Run(run.first_doc_id, run.step, run.id_count) for run in response.runs] or runs_of(response.doc_ids)
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

    def _write(self, encode: Callable[[Form], bytes]) -> None:
        own = self._of_this_process()
        with own.lock:
            if self._closed:
                raise RuntimeError("the log of issued ids is closed")
            file = own.file or self._start_own(own)
            file.append(encode(file.form))
            file.form.written()

    def _start(self, own: "_Own", path: Path) -> "_File":
        """Makes a file that has a header. An exception, also of a signal's handler, leaves no file."""
        header = {
            "idalloc_log": FORMAT,
            "boot_id": _boot_id(),
            "boot_time_ns": self._boot_time,
            "boot_offset_ns": _boot_offset(),
            "client": f"{socket.gethostname()} {os.getpid()}",
        }
        file = _File(path, Lines() if self._path.name.endswith(JSON_LINES) else Rows())
        try:
            file.create()
            file.append(file.form.header(dump(header)))
            own.file = file
        except BaseException:
            file.remove()
            raise
        return file

    def _start_own(self, own: "_Own") -> "_File":
        """Makes the file of a forked process. A process id may come again: then the name has a number, too."""
        path = f"{self._path}.{os.getpid()}"
        for name in chain([path], (f"{path}.{number}" for number in count(2))):
            with suppress(FileExistsError):
                return self._start(own, Path(name))
        raise AssertionError


def log_chunk(log: IssuedLog, request: StreamRequest, response: StreamResponse, asked: int) -> None:
    """Writes down what a message of a stream brings."""
    if isinstance(response, pb.StreamDocIdsResponse):
        log.doc_ids(response, asked)
    elif isinstance(request, pb.StreamRangesRequest):
        log.range(request, response, asked)


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
        close: Closes it, once.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self.form = form
        self._path = path
        self._size = 0  # of its whole pieces
        self._is_torn = False  # whether more than those may be in it
        self._descriptors: list[int] = []  # one, once it is created
        self.close = weakref.finalize(self, deque, map(os.close, self._descriptors), 0)
        self.close.atexit = False  # other threads may still write then

    def create(self) -> None:
        """Creates it. FileExistsError: there is one."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        # All of it runs in C: no exception of a signal's handler comes between the file and its descriptor in the list.
        self._descriptors.extend(map(os.open, [self._path], [flags], [0o600]))

    def remove(self) -> None:
        """Removes it, if this object created it: then another one can be created under its name."""
        if self._descriptors:
            self.close()
            self._path.unlink()

    def append(self, data: bytes) -> None:
        """Writes all of it or, with an exception, nothing: what it left is cut off before the next piece."""
        try:
            self._cut()
            self._is_torn = True
            written = 0
            while written < len(data):
                written += os.write(self._descriptors[0], data[written:])
            self._size += written
            self._is_torn = False
        except OSError as error:
            with suppress(OSError):  # tried again before the next piece
                self._cut()
            error.filename = str(self._path)
            raise

    def _cut(self) -> None:
        if self._is_torn:
            os.ftruncate(self._descriptors[0], self._size)
            self._is_torn = False


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
