"""Which recorded answers to requests with a request id may be removed: by this process's own boot clock alone (P7)."""

from bisect import bisect_right
from collections.abc import Sequence as Many
from itertools import pairwise
from typing import NamedTuple

# A row that says no window was recorded by an older version, whose default this was.
OLD_WINDOW = 3600.0
# Of the points that were seen, neighbours may be as far apart as this part of their age.
SPACING = 10


class RecordPosition(NamedTuple):
    """A point in the order in which a store recorded allocations; no clock that can be set has a part in it.

    Attributes:
        number: Grows from one record to the next within a term.
        term: Never falls.
        written_at: The latest ``written_at`` up to this point, in seconds; it narrows a search and decides nothing.
    """

    number: float
    term: int = 0
    written_at: float = 0.0


class Retention(NamedTuple):
    """What one process may remove now.

    Attributes:
        seen: Points in their order, each with how many seconds ago this process first saw it; at least one.
        own_window: How long a row without a window is kept, in seconds.
    """

    seen: Many[tuple[RecordPosition, float]]
    own_window: float

    @property
    def last(self) -> RecordPosition:
        """The last point up to which anything may be removed."""
        return self.seen[-1][0]

    def is_over(self, number: float, term: int, window_ms: int | None) -> bool:
        """Whether a row's window has passed since this process saw that the row was there."""
        window = max(self.own_window, OLD_WINDOW) if window_ms is None else window_ms / 1000
        count = bisect_right(self.seen, -window, key=lambda seen: -seen[1])
        if not count:
            return False
        point, _ = self.seen[count - 1]
        return number <= point.number and term <= point.term


class SeenRecords:
    """What this process saw of the order of records, and when: a few hundred points at most, however long it runs."""

    def __init__(self) -> None:
        self._seen: list[tuple[RecordPosition, float]] = []

    def note(self, newest: RecordPosition | None, now: float) -> None:
        """Notes the newest record.

        Args:
            newest: As the store returned it; None where there is no record.
            now: ``Clock.boot`` after that.
        """
        seen = self._seen
        if seen and (newest is None or (newest.term, newest.number) < (seen[-1][0].term, seen[-1][0].number)):
            seen.clear()  # another table than before, such as a restored one: what was seen says nothing of it
        if newest is None or (seen and newest[:2] == seen[-1][0][:2]):
            return
        seen.append((newest, now))
        # Close together where they are young, further apart where they are old.
        kept = seen[:1]
        for this, following in pairwise(seen[1:]):
            if following[1] - kept[-1][1] > (now - following[1]) / SPACING:
                kept.append(this)
        self._seen = kept if len(seen) == 1 else [*kept, seen[-1]]

    def retention(self, now: float, own_window: float) -> Retention | None:
        """Returns what may be removed; None where nothing may be."""
        old = [(point, now - at) for point, at in self._seen if now - at >= own_window]
        return Retention(old, own_window) if old else None
