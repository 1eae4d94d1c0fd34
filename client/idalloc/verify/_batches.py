"""Reads several logs in parallel, in the order of time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from idalloc.verify._columns import Ints
from idalloc.verify._logs import ROW, Log, Rows


@dataclass(eq=False, slots=True)
class Stall:
    """Finds the longest time between two consecutive replies of a log."""

    longest: int = 0  # in nanoseconds
    _last: int | None = None

    def add(self, answered: Ints) -> None:
        """Add the times of the next replies.

        Several threads may have logged them slightly out of order.
        """
        if not len(answered):
            return
        gaps = np.diff(answered)
        if len(gaps) and int(gaps.min()) < 0:
            answered = np.sort(answered)
            gaps = np.diff(answered)
        first = 0 if self._last is None else int(answered[0]) - self._last
        self.longest = max(self.longest, first, int(gaps.max(initial=0)))
        self._last = max(int(answered[-1]), self._last or 0)


@dataclass(eq=False, slots=True)
class _Feed:
    """A log, and the records that were read but not yet processed."""

    log: Log
    stall: Stall = field(default_factory=Stall)
    rows: Rows = field(default_factory=lambda: np.empty(0, ROW))

    def fill(self, share: int) -> None:
        """Read on to about `share` records, and at least one record if one is left."""
        if self.log.ended or len(self.rows) > share // 2:
            return
        rows = self.log.read(max(share - len(self.rows), 1))
        self.stall.add(rows["answered"])
        rows["asked"] -= self.log.boot_time
        rows["answered"] -= self.log.boot_time
        self.rows = np.concatenate([self.rows, rows]) if len(self.rows) else rows

    def take(self, horizon: int) -> Rows:
        """Remove and return the records answered at or before a time."""
        due = self.rows["answered"] <= horizon
        if due.all():
            taken, self.rows = self.rows, self.rows[:0]
        else:
            taken, self.rows = self.rows[due], self.rows[~due]
        return taken


def batches(logs: Sequence[Log], max_records: int, stalls: list[int]) -> Iterator[tuple[Rows, Ints]]:
    """Read logs of one boot of a machine in batches, each of later times than the one before.

    If a log is not in the order of its replies, its late records are in a later batch.

    Args:
        logs: Logs of one boot.
        max_records: About how many records to hold at a time; at least 16 of each log.
        stalls: The list to which the longest stall of each log is appended.

    Yields:
        Records, with times since the boot of the machine, and the number of each record's log.
    """
    feeds = [_Feed(log) for log in logs]
    while feeds:
        share = max(max_records // len(feeds), min(max_records, 16))
        for feed in feeds:
            feed.fill(share)
        ends = [int(feed.rows["answered"].max()) for feed in feeds if not feed.log.ended and len(feed.rows)]
        horizon = min(ends, default=2**63 - 1)
        taken = [(feed.log.number, feed.take(horizon)) for feed in feeds]
        stalls += [feed.stall.longest for feed in feeds if feed.log.ended and not len(feed.rows)]
        feeds = [feed for feed in feeds if not feed.log.ended or len(feed.rows)]
        yield _concatenated((number, rows) for number, rows in taken if len(rows))


def _concatenated(parts: Iterable[tuple[int, Rows]]) -> tuple[Rows, Ints]:
    parts = list(parts)
    numbers = np.repeat([number for number, _ in parts], [len(rows) for _, rows in parts]).astype(np.int64)
    if len(parts) == 1:
        return parts[0][1], numbers
    return np.concatenate([rows for _, rows in parts]) if parts else np.empty(0, ROW), numbers
