"""Percentiles and histograms of durations, from counts in buckets.

Buckets grow by at most a fifth, so a percentile is within 10 % of the true value.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, sqrt

# The upper bounds of histograms, in seconds: those of Prometheus' default histogram, and shorter
# ones, as most calls take below 1 ms. A last bucket has longer durations, here and below.
BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_GROWTH = 1.2
# The upper bounds of durations, from 20 µs to about 100 s, with those of histograms.
BOUNDS = tuple(sorted({*BUCKETS, *(20e-6 * _GROWTH**step for step in range(86))}))
# Where each bucket of a histogram begins, and the end of the last one.
_STARTS = (0, *(bisect_left(BOUNDS, bound) + 1 for bound in BUCKETS), len(BOUNDS) + 1)


def percentile(buckets: Sequence[int], share: float) -> float:
    """Return the duration, in seconds, that this share of the durations does not exceed.

    It is 0 without durations.
    """
    rank = ceil(sum(buckets) * share)
    if not rank:
        return 0.0
    lower = BOUNDS[0] / _GROWTH
    for bound, seen in zip(BOUNDS, accumulate(buckets), strict=False):
        if seen >= rank:
            return sqrt(lower * bound)
        lower = bound
    return BOUNDS[-1]


def histogram(buckets: Sequence[int]) -> list[int]:
    """Return the same counts in ``BUCKETS``."""
    return [sum(buckets[start:end]) for start, end in pairwise(_STARTS)]
