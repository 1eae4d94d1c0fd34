"""The rate at which a process issues the ids of a counter."""

from typing import NamedTuple

# A rate covers the last minute, or the time since the first id if that is shorter. Before the second time has passed,
# a few calls would look like a huge rate.
WINDOW_SECONDS, MIN_SECONDS = 60.0, 5.0
# The total is kept this often, so the window is at most this much longer.
MARK_SECONDS = 10.0


class _Mark(NamedTuple):
    at: float
    total: int


class RecentUse:
    """Counts the ids that were issued in about the last minute. Times are in ``Clock.boot`` seconds."""

    __slots__ = ("_last_at", "_marks", "_total")

    def __init__(self) -> None:
        # What was issued before a time, the oldest one at the start of the window.
        self._marks: tuple[_Mark, ...] = ()
        self._total = 0
        self._last_at = 0.0

    def add(self, ids: int, since: float, now: float) -> None:
        """Add ids.

        Args:
            ids: How many.
            since: When the first of them was issued.
            now: The time.
        """
        if since - self._last_at >= WINDOW_SECONDS:
            self._marks = ()
        if not self._marks or since - self._marks[-1].at >= MARK_SECONDS:
            inside = [mark for mark in self._marks if mark.at > now - WINDOW_SECONDS]
            before = self._marks[: len(self._marks) - len(inside)][-1:]
            self._marks = (*before, *inside, _Mark(since, self._total))
        self._total += ids
        self._last_at = now

    def per_second(self, now: float) -> float:
        """Return the rate in ids a second; 0 if none was issued within ``WINDOW_SECONDS``."""
        if not self._marks or now - self._last_at >= WINDOW_SECONDS:
            return 0.0
        start = self._marks[0]
        for mark in self._marks:
            if mark.at <= now - WINDOW_SECONDS:
                start = mark
        return (self._total - start.total) / max(MIN_SECONDS, now - start.at)
