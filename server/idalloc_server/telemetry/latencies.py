"""Percentiles of durations, from counts in buckets.

Buckets grow by a fifth, so a percentile is within 10 % of the true value.
"""

from collections.abc import Sequence
from math import ceil, sqrt

_GROWTH = 1.2
# Upper bounds in seconds, from 20 µs to about 100 s; a last bucket has longer durations.
BOUNDS = tuple(20e-6 * _GROWTH**step for step in range(86))


def new_buckets() -> list[int]:
    """Return an empty bucket for each bound, and one for longer durations."""
    return [0] * (len(BOUNDS) + 1)


def percentile(buckets: Sequence[int], share: float) -> float:
    """Return the duration, in seconds, that this share of the durations does not exceed.

    It is 0 without durations.
    """
    rank, seen = ceil(sum(buckets) * share), 0
    if rank:
        for bound, count in zip(BOUNDS, buckets, strict=False):
            seen += count
            if seen >= rank:
                return bound / sqrt(_GROWTH)
        return BOUNDS[-1]
    return 0.0
