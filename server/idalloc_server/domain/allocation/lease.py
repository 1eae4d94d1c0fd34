"""Ids in memory that the store granted to this process."""

import math

from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.records import Grant
from idalloc_server.domain.sequences.model import Sequence

_UNKNOWN = Sequence()


class Lease:
    """Ids that the store returned to this process, all of one generation, and the time until which it may issue them.

    They are kept as contiguous pieces in the order of the sequence. There is mostly one piece; a further one comes
    where another node allocated between two grants.

    Args:
        period: Whose ids they are, where each period has a counter of its own.

    Attributes:
        generation: The sequence's generation.
        sequence: The settings of the sequence.
        step: The distance from one id to the next.
        left: How many ids are left.
        expires_at: When the lease ends, in ``Clock.boot`` seconds.
    """

    __slots__ = (
        "_count",
        "_first",
        "_last_value",
        "_later",
        "_period",
        "_seen",
        "_version",
        "_writes",
        "expires_at",
        "generation",
        "left",
        "sequence",
        "step",
    )

    def __init__(self, period: str = "") -> None:
        """Makes a lease that has no ids and has ended."""
        self._period = period
        self.generation = 0
        self.sequence = _UNKNOWN
        self.step = 1
        self.left = 0
        self.expires_at = -math.inf
        self._first = 0
        self._count = 0
        self._later: list[tuple[int, int]] = []  # mostly none, and then a deque is ten times as large
        self._last_value = 0
        self._version = (0, 0, 0)
        self._writes = -1  # a row's first write is number 1, so none follows this
        # No tail goes back to before this value: another node may have seen the counter there.
        self._seen = 0

    @property
    def next_range(self) -> int:
        """How many ids the next range can have."""
        return self._count

    def take(self, count: int, now: float) -> IdRange | None:
        """Takes the next ids, if the lease lives and its first piece has that many.

        None at all (``count`` 0) can be had from every lease that lives: the range then tells what it is of.
        """
        if count > self._count or now >= self.expires_at:
            return None
        first = self._first
        self._first += count * self.step
        self._count -= count
        self.left -= count
        if not self._count and self._later:
            self._first, self._count = self._later.pop(0)
        return IdRange(first, count, self.step, self.generation, self.expires_at, self.sequence, self._period)

    def skip_to(self, count: int) -> int:
        """Leaves behind the pieces in front of the first one that has ``count`` ids, if one has.

        Returns:
            How many ids were left behind: nobody will get them, as ids of a node rise.
        """
        if count <= self._count or all(later < count for _, later in self._later):
            return 0
        skipped = 0
        while self._count < count:
            skipped += self._count
            self._first, self._count = self._later.pop(0)
        self.left -= skipped
        return skipped

    def usable(self, largest: int) -> int:
        """Returns how many of the ids calls are sure to get, whatever their order, if none asks for over ``largest``.

        A call gets contiguous ids, so of each piece up to ``largest - 1`` ids at its end may serve nobody.
        """
        end = largest - 1
        if end <= 0:
            return self.left
        return max(0, self._count - end) + sum(count - end for _, count in self._later if count > end)

    def add(self, grant: Grant, expires_at: float) -> None:
        """Adds what a write granted, and lets all ids live until ``expires_at``.

        The write proved that the generation still stands: ``grant.generation`` must be the lease's own, unless
        the lease is empty.
        """
        self.generation = grant.generation
        self.sequence = grant.sequence
        self.expires_at = expires_at
        if grant.writes != self._writes + 1 or grant.value_before != self._last_value:
            self._seen = grant.value_before  # another process wrote the row in between
        self._last_value = grant.last_value
        self._version = grant.version
        self._writes = grant.writes
        if not self._count:
            self.step = grant.step
        if not grant.granted:
            return
        self.left += grant.granted
        if not self._count:
            self._first = grant.value_before + grant.step
            self._count = grant.granted
            return
        pieces = [(self._first, self._count), *self._later]
        last_first, last_count = pieces[-1]
        if last_first + last_count * self.step == grant.value_before + grant.step:
            pieces[-1] = (last_first, last_count + grant.granted)
        else:
            pieces.append((grant.value_before + grant.step, grant.granted))
        self._first, self._count = pieces.pop(0)
        self._later = pieces

    def tail(self) -> tuple[int, int, tuple[int, int, int]]:
        """Returns the unused ids up to the counter: the value before them, their count, the row's version.

        There are none where another node allocated since: the counter is then past ids that are not of this lease. Nor
        any from before where another node may have seen the counter, which must not find it lower.
        """
        first, count = self._later[-1] if self._later else (self._first, self._count)
        value = first - self.step
        if value + count * self.step != self._last_value:
            return value, 0, self._version
        seen = min(max(0, (self._seen - value) // self.step), count)
        return value + seen * self.step, count - seen, self._version
