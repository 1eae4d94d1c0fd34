"""Latencies of calls, in memory that does not grow with their number."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

# The bits of a latency that are kept.
_BITS = 11
PERCENTAGES = (50.0, 90.0, 95.0, 99.0, 99.9)


class Latencies:
    """A histogram of latencies in nanoseconds, exact to 0.1 %."""

    def __init__(self) -> None:
        self.fastest = 0  # exact; 0 if there is none
        self.slowest = 0  # exact; 0 if there is none
        self.count = 0
        self._sum = 0
        # Counts by the first eleven bits, as an HdrHistogram of three digits has them.
        self._counts: dict[int, int] = {}

    @classmethod
    def merge(cls, parts: "Iterable[Latencies]") -> "Latencies":
        merged = cls()
        for part in parts:
            if part.count:
                merged.fastest = min(merged.fastest, part.fastest) if merged.count else part.fastest
                merged.slowest = max(merged.slowest, part.slowest)
                merged.count += part.count
                merged._sum += part._sum
                for value, count in part._counts.items():
                    merged._counts[value] = merged._counts.get(value, 0) + count
        return merged

    def add(self, nanoseconds: int) -> None:
        if nanoseconds > self.slowest:
            self.slowest = nanoseconds
        if nanoseconds < self.fastest or not self.count:
            self.fastest = nanoseconds
        self.count += 1
        self._sum += nanoseconds
        excess_bits = nanoseconds.bit_length() - _BITS
        if excess_bits > 0:
            nanoseconds = nanoseconds >> excess_bits << excess_bits
        self._counts[nanoseconds] = self._counts.get(nanoseconds, 0) + 1

    @property
    def average(self) -> int:
        """The mean; 0 if there is none."""
        return self._sum // self.count if self.count else 0

    def percentiles(self, percentages: Iterable[float]) -> Iterator[tuple[float, int]]:
        """Yield each percentage with the latency that it does not exceed; 0 if there is none."""
        values = sorted(self._counts)
        reached = list(accumulate(self._counts[value] for value in values))
        for percentage in percentages:
            rank = max(1, int(percentage * self.count / 100 + 0.5))
            value = values[bisect_left(reached, rank)] if values else 0
            longest = value + (1 << max(0, value.bit_length() - _BITS)) - 1  # that is counted with it
            yield percentage, min(longest, self.slowest)

    def distribution(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yield even steps from fastest to slowest, each with its count since the step before."""
        width = (self.slowest - self.fastest) / steps
        counts = [0] * (steps + 1)
        for value, count in self._counts.items():
            step = -int(-(max(value, self.fastest) - self.fastest) // width) if width else 0
            counts[min(step, steps)] += count
        for step, count in enumerate(counts):
            yield round(self.fastest + step * width), count
