"""Percentiles of durations."""

from bisect import bisect_left

import pytest

from idalloc_server.telemetry.latencies import BOUNDS, BUCKETS, histogram, percentile


def buckets_of(*durations: float) -> list[int]:
    buckets = [0] * (len(BOUNDS) + 1)
    for each in durations:
        buckets[bisect_left(BOUNDS, each)] += 1
    return buckets


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_percentiles_are_within_a_tenth(share: float) -> None:
    """A percentile differs by at most 10 % from that of the durations themselves."""
    durations = [0.0001 * 1.013**step for step in range(1000)]
    exact = durations[round(share * 1000) - 1]
    assert percentile(buckets_of(*durations), share) == pytest.approx(exact, rel=0.1)


def test_percentiles_of_extremes() -> None:
    """Without durations a percentile is 0; one beyond the last bound is that bound."""
    assert percentile([0] * (len(BOUNDS) + 1), 0.99) == 0
    assert percentile(buckets_of(0.001, 10_000.0), 0.99) == BOUNDS[-1] > 100
    assert percentile(buckets_of(*[0.001] * 99, 5.0), 0.99) == pytest.approx(0.001, rel=0.1)


def test_histograms_count_as_their_own_bounds_do() -> None:
    """Each duration is in the bucket of the least bound that it does not exceed."""
    durations = [*BUCKETS, *(20e-6 * 1.031**step for step in range(600))]
    expected = [0] * (len(BUCKETS) + 1)
    for each in durations:
        expected[bisect_left(BUCKETS, each)] += 1
    assert histogram(buckets_of(*durations)) == expected
