"""Burned ids: taken from the store by this node and never issued (P9)."""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

# For how many sequences the burned ids are kept: those that burned ids last.
MAX_BURNED_SEQUENCES = 1_000


class BurnCause(StrEnum):
    """Why ids were burned."""

    CANCELLED = "cancelled"  # taken for a call that was cancelled before its reply
    DOCUMENT_NOT_STORED = "document_not_stored"  # made for documents of an insert that failed
    EXPIRED = "expired"  # left in an expired lease
    GENERATION = "generation"  # left in a lease of an older generation
    LEFTOVER = "leftover"  # skipped because a larger request needed a contiguous range
    NOT_RETURNED = "not_returned"  # an unused tail that could not be given back to the store
    REPEATED = "repeated"  # taken for a retry that got the recorded ids of its request id
    UNKNOWN_OUTCOME = "unknown_outcome"  # requested in a write without an answer: an upper limit
    WENT_BACKWARDS = "went_backwards"  # held or granted when the store went backwards


class Burn(NamedTuple):
    """Ids of one counter that were burned for one cause."""

    sequence: str  # the sequence's name
    period: str  # the period of the counter; empty if the sequence has no reset
    cause: BurnCause
    id_count: int  # the number of ids


class BurnedIds:
    """Counts burned ids: in total by cause, and by counter until ``pop_new`` has returned them."""

    def __init__(self) -> None:
        self.by_cause: Counter[BurnCause] = Counter()  # the totals of this process
        # The totals of the ``MAX_BURNED_SEQUENCES`` sequences that burned ids last.
        self.by_sequence: OrderedDict[str, Counter[BurnCause]] = OrderedDict()
        self._new: Counter[tuple[str, str, BurnCause]] = Counter()

    def add(self, sequence: str, period: str, cause: BurnCause, count: int) -> None:
        """Count burned ids."""
        if count:
            self.by_cause[cause] += count
            self._new[sequence, period, cause] += count
            causes = self.by_sequence.setdefault(sequence, Counter())
            causes[cause] += count
            self.by_sequence.move_to_end(sequence)
            if len(self.by_sequence) > MAX_BURNED_SEQUENCES:
                self.by_sequence.popitem(last=False)

    def pop_new(self) -> Iterator[Burn]:
        """Yield and remove the new counts, one by one: a break of the loop loses none."""
        while self._new:
            (sequence, period, cause), count = self._new.popitem()
            yield Burn(sequence, period, cause, count)
