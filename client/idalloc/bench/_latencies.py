"""How long calls took, in memory that does not grow with their number."""

from collections.abc import Iterable, Iterator

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

# An hour, in nanoseconds: no call that is tried out takes longer.
LONGEST = 3_600_000_000_000
PERCENTAGES = (50.0, 90.0, 95.0, 99.0, 99.9)


class Latencies:
    """Latencies in nanoseconds, each to 0.1 %.

    Attributes:
        fastest: The shortest one, exactly; 0 where there is none.
        slowest: The longest one, exactly.
        count: How many there are.
    """

    def __init__(self) -> None:
        self.fastest = 0
        self.slowest = 0
        self.count = 0
        self._sum = 0
        # To record one in the histogram takes ten times as long as to count it here by its first eleven bits.
        self._counts: dict[int, int] = {}

    @classmethod
    def of_all(cls, parts: "Iterable[Latencies]") -> "Latencies":
        """Puts several together."""
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
        """Adds one."""
        if nanoseconds > self.slowest:
            self.slowest = nanoseconds
        if nanoseconds < self.fastest or not self.count:
            self.fastest = nanoseconds
        self.count += 1
        self._sum += nanoseconds
        spare = nanoseconds.bit_length() - 11
        if spare > 0:
            nanoseconds = nanoseconds >> spare << spare
        self._counts[nanoseconds] = self._counts.get(nanoseconds, 0) + 1

    @property
    def average(self) -> int:
        """The mean; 0 where there is none."""
        return self._sum // self.count if self.count else 0

    def percentiles(self, percentages: Iterable[float]) -> Iterator[tuple[float, int]]:
        """Yields each percentage and the latency that so many of the calls did not exceed."""
        histogram = HdrHistogram(1, LONGEST, 3)
        for value, count in self._counts.items():
            histogram.record_value(min(max(value, 1), LONGEST), count)
        for percentage in percentages:
            # The histogram's steps are wider than what is known exactly.
            value = min(histogram.get_value_at_percentile(percentage), self.slowest)
            yield percentage, max(value, self.fastest)

    def distribution(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yields latencies in even steps, from the fastest to the slowest, and how many lie above the step before."""
        width = (self.slowest - self.fastest) / steps
        found = [0] * (steps + 1)
        for value, count in self._counts.items():
            step = -int(-(max(value, self.fastest) - self.fastest) // width) if width else 0
            found[min(step, steps)] += count
        for step, count in enumerate(found):
            yield round(self.fastest + step * width), count
