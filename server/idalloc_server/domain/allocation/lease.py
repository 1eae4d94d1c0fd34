"""A lease: ids that the store granted to this process, and the time when they expire (P4).

A lease expires at ``Lease.expires_at``: ``lease_ttl`` seconds after the start of the last
successful write that granted ids or renewed it (``CounterAllocator``), on ``Clock.boot``.
``Lease.issue`` issues nothing from then on. ``CounterAllocator`` drops a lease earlier when the
sequence has a new generation, and gives it back when idle.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import Grant, RowVersion

_DEFAULTS = Sequence()
# Shared by all leases of one range, which are most of them.
_NO_LATER_RANGES: list[tuple[int, int]] = []


class IdRange(NamedTuple):
    """Ids issued to one caller: first_id, first_id + step, … last_id."""

    first_id: int  # the first id, inclusive
    id_count: int  # the number of ids; 0 in a lease proof (``SequenceAllocator.proof``)
    step: int  # the distance from one id to the next, never 0
    generation: int  # the generation of the lease
    expires_at: float  # when the lease expires, in ``Clock.boot`` seconds
    sequence: Sequence  # the settings of the sequence
    # The period of the counter, such as "2026-11"; empty if the sequence has no reset.
    period: str = ""
    created: bool = False  # whether the call created the sequence

    @property
    def last_id(self) -> int:
        """The last id, inclusive."""
        return self.first_id + (self.id_count - 1) * self.step


@dataclass(slots=True, eq=False)
class Lease:
    """Granted ids of one generation, as contiguous ranges in the order of the sequence.

    A new lease is expired and has no ids. Usually there is one range. Grants of other nodes between
    two grants of this one separate further ranges.
    """

    period: str = ""  # the period of the counter; empty if the sequence has no reset
    generation: int = 0  # the sequence's generation
    sequence: Sequence = _DEFAULTS  # the settings of the sequence
    step: int = 1  # the distance from one id to the next
    left: int = 0  # the number of ids left
    expires_at: float = -math.inf  # when the lease expires, in ``Clock.boot`` seconds
    # The first range.
    _first: int = 0
    _count: int = 0
    # The ranges after the first one, as (first_id, id_count).
    later_ranges: list[tuple[int, int]] = field(default_factory=lambda: _NO_LATER_RANGES)
    # The row after the last write.
    last_value: int = 0  # the counter after the last write
    _version: RowVersion = (0, 0, 0)
    _writes: int = -2  # the creation of a row is number 0, so no write follows this one
    # The last value of the counter that another node may have read.
    _others_saw: int = 0

    @property
    def next_range_size(self) -> int:
        """The number of ids in the first contiguous range."""
        return self._count

    def is_expired(self, now: float) -> bool:
        """Return whether the lease has expired at ``now``, in ``Clock.boot`` seconds."""
        return now >= self.expires_at

    def issue(self, count: int, now: float) -> IdRange | None:
        """Take ids from the first range; None if it has too few, or the lease has expired.

        A ``count`` of 0 returns a lease proof: an empty range.
        """
        if count > self._count or now >= self.expires_at:
            return None
        first = self._first
        self._first += count * self.step
        self._count -= count
        self.left -= count
        if not self._count and self.later_ranges:
            self._first, self._count = self.later_ranges.pop(0)
        # As the constructor of a named tuple does, which is Python.
        return tuple.__new__(
            IdRange, (first, count, self.step, self.generation, self.expires_at, self.sequence, self.period, False)
        )

    def skip_to(self, count: int) -> int:
        """Drop the ranges before the first one that has ``count`` ids; none if no range has.

        Returns:
            The number of ids dropped. They are burned, since the ids of a node rise.
        """
        if count <= self._count or all(later < count for _, later in self.later_ranges):
            return 0
        skipped = 0
        while self._count < count:
            skipped += self._count
            self._first, self._count = self.later_ranges.pop(0)
        self.left -= skipped
        return skipped

    def usable(self, largest_call: int) -> int:
        """Return how many ids calls of up to ``largest_call`` ids can get in any order.

        A call gets contiguous ids, so up to ``largest_call - 1`` ids at the end of each range may
        be too few.
        """
        unusable = largest_call - 1
        if unusable <= 0:
            return self.left
        later = sum(count - unusable for _, count in self.later_ranges if count > unusable)
        return max(0, self._count - unusable) + later

    def add(self, grant: Grant, expires_at: float) -> None:
        """Add the ids of a grant, which may be none, and renew the lease until ``expires_at``.

        Unless the lease is empty, ``grant.generation`` must be its generation.
        """
        step = grant.sequence.step
        value_before = grant.last_value - grant.granted * step
        self.generation = grant.generation
        self.sequence = grant.sequence
        self.expires_at = expires_at
        if grant.writes != self._writes + 1 or value_before != self.last_value:
            self._others_saw = value_before  # another process wrote the row since
        self.last_value = grant.last_value
        self._version = grant.version
        self._writes = grant.writes
        if not self._count:
            self.step = step
        if not grant.granted:
            return
        self.left += grant.granted
        if not self._count:
            self._first = value_before + step
            self._count = grant.granted
            return
        ranges = [(self._first, self._count), *self.later_ranges]
        last_first, last_count = ranges[-1]
        if last_first + last_count * self.step == value_before + step:
            ranges[-1] = (last_first, last_count + grant.granted)
        else:
            ranges.append((value_before + step, grant.granted))
        self._first, self._count = ranges.pop(0)
        self.later_ranges = ranges

    def tail(self) -> tuple[int, int, RowVersion]:
        """Return the unused ids at the counter, which can be given back to the store.

        There are none if another node has advanced the counter since, or if the row was created
        with these ids, since ``Store.create`` returns no version. Ids below a counter value that
        another node may have read are excluded: that node must not find the counter lower.

        Returns:
            The value before the tail, its number of ids, and the row's version.
        """
        first, count = self.later_ranges[-1] if self.later_ranges else (self._first, self._count)
        value = first - self.step
        if value + count * self.step != self.last_value or not self._writes:
            return value, 0, self._version
        excluded = min(max(0, (self._others_saw - value) // self.step), count)
        return value + excluded * self.step, count - excluded, self._version
