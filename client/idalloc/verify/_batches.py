"""Reads several logs in parallel, in the order of time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from idalloc.verify._columns import Ints
from idalloc.verify._logs import ROW, Log, Rows


@dataclass(eq=False, slots=True)
class _Feed:
    """A log, and the records that were read but not yet processed."""

    log: Log
    rows: Rows = field(default_factory=lambda: np.empty(0, ROW))
    stall: int = 0  # the longest time between two consecutive replies, in nanoseconds
    _last_reply: int | None = None

    def fill(self, share: int) -> None:
        """Read on to about `share` records, and at least one record if one is left."""
        if self.log.ended or len(self.rows) > share // 2:
            return
        rows = self.log.read(max(share - len(self.rows), 1))
        if not len(rows):
            return
        answered = rows["answered"]
        gaps = np.diff(answered)
        if int(gaps.min(initial=0)) < 0:  # several threads logged them slightly out of order
            answered = np.sort(answered)
            gaps = np.diff(answered)
        first = 0 if self._last_reply is None else int(answered[0]) - self._last_reply
        self.stall = max(self.stall, first, int(gaps.max(initial=0)))
        self._last_reply = max(int(answered[-1]), self._last_reply or 0)
        rows["asked"] -= self.log.boot_time
        rows["answered"] -= self.log.boot_time
        self.rows = np.concatenate([self.rows, rows]) if len(self.rows) else rows

    def take(self, horizon: int) -> Rows:
        """Remove and return the records answered at or before a time."""
        due = self.rows["answered"] <= horizon
        taken = self.rows if due.all() else self.rows[due]
        self.rows = self.rows[~due]
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
        taken = [(feed.log.number, rows) for feed in feeds if len(rows := feed.take(horizon))]
        stalls += [feed.stall for feed in feeds if feed.log.ended and not len(feed.rows)]
        feeds = [feed for feed in feeds if not feed.log.ended or len(feed.rows)]
        if taken:
            numbers, parts = zip(*taken, strict=True)
            rows = np.concatenate(parts) if len(parts) > 1 else parts[0]
            yield rows, np.repeat(np.array(numbers, np.int64), list(map(len, parts)))
