"""Ids that this node took and did not issue: of which sequence, and why."""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class BurnCause(StrEnum):
    """Why ids were burned."""

    CANCELLED = "cancelled"  # taken for a caller who had gone before the answer
    EXPIRED = "expired"  # left in a lease that ended
    GENERATION = "generation"  # left in a lease of a generation that is over
    LEFTOVER = "leftover"  # left behind because a larger request needed one contiguous range
    NOT_RETURNED = "not_returned"  # a tail that the store no longer took back
    REPEATED = "repeated"  # taken for a request whose earlier ids were given again
    UNKNOWN_OUTCOME = "unknown_outcome"  # wanted in a write whose answer did not come: at most this many
    WENT_BACKWARDS = "went_backwards"  # held of a sequence whose store went backwards


class Burn(NamedTuple):
    """Ids of one counter that were burned for one cause.

    Attributes:
        sequence: The sequence's name.
        period: Which period's counter; empty where the sequence has no reset.
        cause: Why.
        id_count: How many.
    """

    sequence: str
    period: str
    cause: BurnCause
    id_count: int


class BurnedIds:
    """Counts burned ids, for the whole process by cause, and what is new by counter, too (P9).

    What was told of a counter is not kept: there may be any number of them.

    Attributes:
        by_cause: All that were burned.
    """

    def __init__(self) -> None:
        self.by_cause: Counter[BurnCause] = Counter()
        self._new: Counter[tuple[str, str, BurnCause]] = Counter()

    def add(self, sequence: str, period: str, cause: BurnCause, count: int) -> None:
        """Counts ids that nobody will ever get."""
        if count:
            self.by_cause[cause] += count
            self._new[sequence, period, cause] += count

    def pop_new(self) -> Iterator[Burn]:
        """Yields what was burned and was not yielded before. Each is taken out just before it is yielded."""
        while self._new:
            key, count = self._new.popitem()
            yield Burn(*key, count)
