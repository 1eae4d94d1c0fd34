"""The set of issued ids, kept as merged intervals: its memory grows with the gaps, not the ids."""

from bisect import bisect_right
from collections.abc import Iterator

from idalloc._core.congruences import solve


class Intervals:
    """A set of integers as sorted intervals that neither overlap nor touch."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, last: int) -> int | None:
        """Add first … last; return the smallest of them that was already in the set, or None."""
        firsts, lasts = self._firsts, self._lasts
        # The intervals low … high - 1 overlap or touch the new one, and are merged with it.
        high = bisect_right(firsts, last + 1)
        low = high
        while low and lasts[low - 1] >= first - 1:
            low -= 1
        if low == high:
            firsts.insert(low, first)
            lasts.insert(low, last)
            return None
        duplicate = min((begin for begin, _ in self.within(first, last)), default=None)
        firsts[low:high] = [min(first, firsts[low])]
        lasts[low:high] = [max(last, lasts[high - 1])]
        return duplicate

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of the intervals in first … last, from the largest."""
        index = bisect_right(self._firsts, last)
        while index and self._lasts[index - 1] >= first:
            index -= 1
            yield max(first, self._firsts[index]), min(last, self._lasts[index])


class IssuedIds:
    """The issued ids of one sequence, in any steps: a set of intervals for each step and remainder."""

    def __init__(self) -> None:
        self._lattices: dict[tuple[int, int], Intervals] = {}

    def __len__(self) -> int:
        """Return the number of intervals."""
        return sum(map(len, self._lattices.values()))

    def add(self, first: int, last: int, step: int) -> int | None:
        """Add first, first + step, … last; return one of them that was already in the set, or None."""
        if step < 0:
            first, last, step = last, first, -step
        row, remainder = divmod(first, step)
        key = step, remainder
        intervals = self._lattices.get(key)
        if intervals is None:
            intervals = self._lattices[key] = Intervals()
        duplicate = intervals.add(row, last // step)
        if duplicate is not None:
            return duplicate * step + remainder
        if len(self._lattices) == 1:
            return None
        others = (self._common(first, last, key, other) for other in self._lattices if other != key)
        return next((number for number in others if number is not None), None)

    def _common(self, first: int, last: int, key: tuple[int, int], other: tuple[int, int]) -> int | None:
        """Return an id in first … last, on the lattice `key`, that was issued on the lattice `other`, or None."""
        (step, remainder), (width, offset) = key, other
        met = solve(step, remainder, width, offset)
        if met is None:
            return None
        one, period = met
        for row, end in self._lattices[other].within((first - offset) // width, (last - offset) // width):
            begin = max(first, row * width + offset)
            number = begin + (one - begin) % period
            if number <= min(last, end * width + offset):
                return number
        return None
