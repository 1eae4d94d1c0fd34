"""Retention of recorded answers: which may be removed, by the boot clock of this process (P7)."""

from bisect import bisect_right
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

# The window of rows without one: the default of the older version that recorded them.
OLD_WINDOW = 3600.0
# Positions are kept at intervals of up to 1/SPACING of their age.
SPACING = 10


class RecordPosition(NamedTuple):
    """A position in the order in which a store recorded allocations; independent of wall clocks."""

    number: float  # rises from one record to the next within a term
    term: int = 0  # never falls
    # The latest ``written_at`` up to this position, in seconds; only narrows a search.
    written_at: float = 0.0


class Retention(NamedTuple):
    """What a process may remove now."""

    # Positions in order, each with the seconds since this process first saw it; not empty.
    seen: Many[tuple[RecordPosition, float]]
    # The window of this process, in seconds; rows without a window are kept at least this long.
    own_window: float

    @property
    def last(self) -> RecordPosition:
        """The last position that may be removed."""
        return self.seen[-1][0]

    def is_over(self, number: float, term: int, window_ms: int | None) -> bool:
        """Return whether a row's window has passed since this process first saw the row."""
        window = max(self.own_window, OLD_WINDOW) if window_ms is None else window_ms / 1000
        count = bisect_right(self.seen, -window, key=lambda seen: -seen[1])
        if not count:
            return False
        position, _ = self.seen[count - 1]
        return number <= position.number and term <= position.term


@dataclass(eq=False)
class SeenRecords:
    """Positions that this process saw, and when; a few hundred at most, however long it runs."""

    _seen: list[tuple[RecordPosition, float]] = field(default_factory=list)

    def note(self, newest: RecordPosition | None, now: float) -> None:
        """Add the newest position.

        Args:
            newest: The position that the store returned; None if it has no records.
            now: ``Clock.boot`` after the store call.
        """
        if newest is None:
            self._seen = []
            return
        last = self._seen[-1][0] if self._seen else newest
        if (newest.term, newest.number) < (last.term, last.number):
            self._seen = []  # the table was replaced, by a restored one for example
        elif self._seen and (newest.term, newest.number) == (last.term, last.number):
            return
        # The first and the last position stay. Another one goes if its neighbors are close together
        # for their age.
        kept: list[tuple[RecordPosition, float]] = self._seen[:1]
        for this, (_, next_at) in pairwise([*self._seen[1:], (newest, now)]):
            _, kept_at = kept[-1]
            if next_at - kept_at > (now - next_at) / SPACING:
                kept.append(this)
        self._seen = [*kept, (newest, now)]

    def retention(self, now: float, own_window: float) -> Retention | None:
        """Return what may be removed, or None if nothing may be."""
        old = [(position, now - at) for position, at in self._seen if now - at >= own_window]
        return Retention(old, own_window) if old else None
