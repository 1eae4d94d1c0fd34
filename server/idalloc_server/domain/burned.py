"""Ids that this node took and did not issue, by cause."""

from collections import Counter
from enum import StrEnum


class Cause(StrEnum):
    """Why ids were burned."""

    CANCELLED = "cancelled"  # taken for a caller who had gone before the answer
    EXPIRED = "expired"  # left in a lease that ended
    GENERATION = "generation"  # left in a lease of a generation that is over
    LEFTOVER = "leftover"  # left behind because a larger request needed one contiguous range
    NOT_RETURNED = "not_returned"  # a tail that the store no longer took back
    REPEATED = "repeated"  # taken for a request whose earlier ids were given again
    UNKNOWN_OUTCOME = "unknown_outcome"  # wanted in a write whose answer did not come: at most this many
    WENT_BACKWARDS = "went_backwards"  # held of a sequence whose store went backwards


class Burned:
    """Counts burned ids by cause, for the whole process (P9)."""

    def __init__(self) -> None:
        self.by_cause: Counter[Cause] = Counter()

    def add(self, cause: Cause, count: int) -> None:
        """Counts ids that nobody will ever get."""
        if count:
            self.by_cause[cause] += count
