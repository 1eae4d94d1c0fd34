"""A bounded queue of log lines with a writer thread: a stalled reader blocks only that thread.

The standard library has no equivalent. A full ``QueueHandler`` prints a traceback to standard error
for each record, which blocks, and counts nothing; ``QueueListener.stop`` waits without a limit.
"""

import os
import select
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from queue import SimpleQueue

# The most queued bytes of each share.
MAX_QUEUED_BYTES = 2**20
# The longest wait of an exit for the queued lines.
FLUSH_SECONDS = 2.0

STDOUT = 1
STDERR = 2


class Share(StrEnum):
    """A part of the queue with its own limit: one kind of lines cannot displace another."""

    LOG = "log"
    # Audit lines of rejected callers: unauthenticated clients can cause very many.
    REFUSED = "refused"
    # Audit lines of administrative calls.
    AUDIT = "audit"


class _Gap(Counter[str]):
    """The number of lines lost at one place in the queue, by share."""


class LogQueue:
    """Writes lines in order, in its own thread. Safe for threads, ``__del__`` and forks.

    A line is lost if its share is full or the write fails. A line in its place has the number of
    lost lines. A forked child starts with an empty queue, since the parent writes the queued lines.

    Args:
        lost_line: Returns the line that reports lost lines by share.
    """

    def __init__(self, lost_line: Callable[[Counter[str]], str]) -> None:
        self._lost_line = lost_line
        self._reset()
        if hasattr(os, "register_at_fork"):  # Windows has no fork.
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.lost: Counter[str] = Counter()  # the number of lost lines, by share
        # Reentrant: a __del__ may log inside their methods.
        self._lock = threading.RLock()
        self._entries: SimpleQueue[tuple[Share, bytes, int] | _Gap | threading.Event] = SimpleQueue()
        self._queued: Counter[str] = Counter()
        self._gap: _Gap | None = None  # the last entry, if it is a gap
        self._thread: threading.Thread | None = None

    def put(self, share: Share, text: str, stream: int = STDERR) -> None:
        """Queue a line, given without a newline, for a file descriptor. Never waits."""
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
                # A daemon: the interpreter does not wait for it at exit.
                thread = threading.Thread(target=self._run, name="log", daemon=True)
                with suppress(RuntimeError):  # The system has no thread left; the next line retries.
                    thread.start()
                    self._thread = thread

    def flush(self) -> None:
        """Wait until the queued lines are written, for ``FLUSH_SECONDS`` at most."""
        if self._thread is not None:
            written = threading.Event()
            self._entries.put(written)
            written.wait(FLUSH_SECONDS)

    def _run(self) -> None:
        unreported = _Gap()
        while True:
            entry = self._entries.get()
            if isinstance(entry, threading.Event):
                entry.set()
                continue
            if isinstance(entry, _Gap):
                with self._lock:
                    if self._gap is entry:
                        self._gap = None
                unreported.update(entry)
            if unreported and _write(STDERR, self._lost_line(unreported).encode() + b"\n"):
                unreported.clear()
            if isinstance(entry, tuple):
                share, line, stream = entry
                is_written = _write(stream, line)
                with self._lock:
                    self._queued[share] -= len(line)
                    if not is_written:
                        self.lost[share] += 1
                        unreported[share] += 1


def _write(stream: int, line: bytes) -> bool:
    """Write a line; return whether that succeeded.

    It is written in one call if the stream has room, since processes may share the stream.
    ``sys.stderr`` is not used: the interpreter needs its lock at exit.
    """
    while line:
        try:
            line = line[os.write(stream, line) :]
        except BlockingIOError:  # Another process may have made the terminal non-blocking.
            select.select([], [stream], [])
        except OSError:
            return False
    return True
