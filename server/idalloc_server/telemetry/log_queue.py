"""A bounded queue of log lines, and the thread that writes them: a reader that stalls blocks that thread alone.

The standard library's ``QueueHandler`` and ``QueueListener`` are not used. With a full queue, ``QueueHandler`` prints a
traceback to standard error for each record, which blocks again, and counts nothing. ``QueueListener.stop`` waits
without a limit. structlog has no queue.
"""

import os
import select
import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from queue import SimpleQueue

# The most bytes of each share that wait to be written.
MAX_QUEUED_BYTES = 2**20
# How long the end of a process waits for the lines that are queued.
FLUSH_SECONDS = 2.0

STDOUT, STDERR = 1, 2


class Share(StrEnum):
    """A part of the queue with a limit of its own: lines of one share never take another's place."""

    LOG = "log"
    # What callers that are refused cause in the audit: strangers can cause very many.
    REFUSED = "refused"
    # Administrative calls.
    AUDIT = "audit"


class _Gap(Counter[str]):
    """How many lines were lost at this place, by share."""


class LogQueue:
    """Writes lines in a thread of its own, in order. Safe for threads, for ``__del__``, and for forks.

    A line that finds its share full is lost, as is one that cannot be written. A line in their place says how many were
    lost. The child of a fork begins with an empty queue: the parent writes what it had queued.

    Args:
        lost_line: Returns the line that says how many were lost, by share.

    Attributes:
        lost: How many lines were lost, by share.
    """

    def __init__(self, lost_line: Callable[[Counter[str]], str]) -> None:
        self._lost_line = lost_line
        self._begin()
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self.lost: Counter[str] = Counter()
        # Both may be entered again by a __del__ amid their own methods.
        self._lock = threading.RLock()
        self._entries: SimpleQueue[tuple[Share, bytes, int] | _Gap | threading.Event] = SimpleQueue()
        self._queued: Counter[str] = Counter()
        self._gap: _Gap | None = None  # the last entry, if that is one
        self._thread: threading.Thread | None = None

    def put(self, share: Share, text: str, stream: int = STDERR) -> None:
        """Queues a line, without waiting.

        Args:
            share: What it counts as.
            text: The line, without its end.
            stream: The descriptor to write it to.
        """
        line = text.encode(errors="backslashreplace") + b"\n"
        with self._lock:
            if self._queued[share] + len(line) > MAX_QUEUED_BYTES:
                self.lost[share] += 1
                if self._gap is None:
                    self._gap = _Gap()
                    self._entries.put(self._gap)
                self._gap[share] += 1
                return
            self._queued[share] += len(line)
            self._gap = None
            self._entries.put((share, line, stream))
            if self._thread is None:
                self._start()

    def flush(self, within: float = FLUSH_SECONDS) -> None:
        """Waits until the lines queued so far are written, for ``within`` seconds at most."""
        if self._thread is not None:
            written = threading.Event()
            self._entries.put(written)
            written.wait(within)

    def _start(self) -> None:
        # A daemon: the interpreter does not wait for it at its end.
        thread = threading.Thread(target=self._run, name="log", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # No thread can be made now: the next line tries again.
        self._thread = thread

    def _run(self) -> None:
        owed = _Gap()
        while True:
            entry = self._entries.get()
            if isinstance(entry, threading.Event):
                entry.set()
                continue
            if isinstance(entry, _Gap):
                with self._lock:
                    if self._gap is entry:
                        self._gap = None
                owed.update(entry)
            if owed and _is_written(STDERR, self._lost_line(owed).encode() + b"\n"):
                owed.clear()
            if isinstance(entry, tuple):
                share, line, stream = entry
                is_written = _is_written(stream, line)
                with self._lock:
                    self._queued[share] -= len(line)
                    if not is_written:
                        self.lost[share] += 1
                        owed[share] += 1


def _is_written(stream: int, line: bytes) -> bool:
    """Writes a line, in one go where the stream has room: several processes may share it.

    Past ``sys.stderr``, whose lock the interpreter needs at its end.
    """
    while line:
        try:
            line = line[os.write(stream, line) :]
        except BlockingIOError:  # another process of a terminal may have made it so
            select.select([], [stream], [])
        except OSError:
            return False
    return True
