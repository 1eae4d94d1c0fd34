"""Reads several logs side by side, in the order of time."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from idalloc.verify._columns import Ints
from idalloc.verify._logs import ROW, Log, Rows


class Stall:
    """Looks for the longest time between two answers that came one after another.

    Attributes:
        longest: That time, in nanoseconds.
    """

    def __init__(self) -> None:
        self.longest = 0
        self._last: int | None = None

    def add(self, answered: Ints) -> None:
        """Looks at the next answers. Those of several threads may be in the file not quite in their order."""
        if not len(answered):
            return
        gaps = np.diff(answered)
        if len(gaps) and int(gaps.min()) < 0:
            answered = np.sort(answered)
            gaps = np.diff(answered)
        first = 0 if self._last is None else int(answered[0]) - self._last
        self.longest = max(self.longest, first, int(gaps.max(initial=0)))
        self._last = max(int(answered[-1]), self._last or 0)


class _Feed:
    """A log, and records of it that were read but not yet looked at."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.stall = Stall()
        self.rows: Rows = np.empty(0, ROW)

    def fill(self, share: int) -> None:
        """Reads on, to about so many records, and at least one if there is one left."""
        if self.log.ended or len(self.rows) > share // 2:
            return
        more = self.log.read(max(share - len(self.rows), 1))
        self.stall.add(more["answered"])
        more["asked"] -= self.log.boot_time
        more["answered"] -= self.log.boot_time
        self.rows = np.concatenate([self.rows, more]) if len(self.rows) else more

    def take(self, horizon: int) -> Rows:
        """Takes out what was answered up to a time."""
        due = self.rows["answered"] <= horizon
        if due.all():
            taken, self.rows = self.rows, self.rows[:0]
        else:
            taken, self.rows = self.rows[due], self.rows[~due]
        return taken


def batches(logs: Sequence[Log], most: int, stalls: list[int]) -> Iterator[tuple[Rows, Ints]]:
    """Reads logs of one boot of a machine, so that each batch is of later times than the one before.

    Where a log itself is not in the order of its answers, what comes late in it comes with a later batch.

    Args:
        logs: The logs.
        most: How many records to hold at a time, about; each log has at least 16 of them.
        stalls: Gets the longest stall of each log.

    Yields:
        Records, their times counted from when the machine started, and of each the number of its log.
    """
    feeds = [_Feed(log) for log in logs]
    while feeds:
        share = max(most // len(feeds), min(most, 16))
        for feed in feeds:
            feed.fill(share)
        ends = [int(feed.rows["answered"].max()) for feed in feeds if not feed.log.ended and len(feed.rows)]
        horizon = min(ends, default=2**63 - 1)
        taken = [(feed.log.number, feed.take(horizon)) for feed in feeds]
        stalls += [feed.stall.longest for feed in feeds if feed.log.ended and not len(feed.rows)]
        feeds = [feed for feed in feeds if not feed.log.ended or len(feed.rows)]
        yield _together((number, rows) for number, rows in taken if len(rows))


def _together(parts: Iterable[tuple[int, Rows]]) -> tuple[Rows, Ints]:
    parts = list(parts)
    numbers = np.repeat([number for number, _ in parts], [len(rows) for _, rows in parts]).astype(np.int64)
    if len(parts) == 1:
        return parts[0][1], numbers
    return np.concatenate([rows for _, rows in parts]) if parts else np.empty(0, ROW), numbers
