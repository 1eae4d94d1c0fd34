"""Which ids were seen, as intervals: neighbours are joined, so what counts is how many gaps there are, not ids."""

from bisect import bisect_right
from collections.abc import Iterator

from idalloc._core.congruences import solve


class Intervals:
    """Whole numbers as disjoint intervals, sorted, of which no two touch."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, last: int) -> int | None:
        """Adds first … last; returns the smallest of them that was there already."""
        firsts, lasts = self._firsts, self._lasts
        # Those from low to high overlap with the new one or touch it, and become one with it.
        high = bisect_right(firsts, last + 1)
        low = high
        while low and lasts[low - 1] >= first - 1:
            low -= 1
        if low == high:
            firsts.insert(low, first)
            lasts.insert(low, last)
            return None
        found = min((begin for begin, _ in self.within(first, last)), default=None)
        firsts[low:high] = [min(first, firsts[low])]
        lasts[low:high] = [max(last, lasts[high - 1])]
        return found

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yields those parts of the intervals that lie in first … last, from above."""
        at = bisect_right(self._firsts, last)
        while at and self._lasts[at - 1] >= first:
            at -= 1
            yield max(first, self._firsts[at]), min(last, self._lasts[at])


class IssuedIds:
    """All ids that were seen of one sequence, in any steps: the ids of one step and one remainder are intervals."""

    def __init__(self) -> None:
        self._lattices: dict[tuple[int, int], Intervals] = {}

    def __len__(self) -> int:
        """How many intervals there are."""
        return sum(map(len, self._lattices.values()))

    def add(self, first: int, last: int, step: int) -> int | None:
        """Adds first, first + step, … last; returns one of them that was there already."""
        if step < 0:
            first, last, step = last, first, -step
        row, remainder = divmod(first, step)
        key = step, remainder
        intervals = self._lattices.get(key)
        if intervals is None:
            intervals = self._lattices[key] = Intervals()
        again = intervals.add(row, last // step)
        if again is not None:
            return again * step + remainder
        if len(self._lattices) == 1:
            return None
        others = (self._common(first, last, key, other) for other in self._lattices if other != key)
        return next((number for number in others if number is not None), None)

    def _common(self, first: int, last: int, key: tuple[int, int], other: tuple[int, int]) -> int | None:
        """The id in first … last, of the step and remainder of ``key``, that was seen with those of ``other``."""
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
