"""Latencies of a bench: bounded memory, percentiles exact to 0.2 %."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc.bench._latencies import Latencies


def latencies(values: list[int]) -> Latencies:
    recorded = Latencies()
    for value in values:
        recorded.add(value)
    return recorded


def test_percentiles_equal_those_of_sorted_values() -> None:
    """Percentiles are within 0.2 % of those of the sorted values."""
    rng = random.Random(7)
    values = sorted(int(rng.lognormvariate(16, 1)) for _ in range(100_000))
    for percentage, value in latencies(values).percentiles((50.0, 90.0, 95.0, 99.0, 99.9, 100.0)):
        assert value == pytest.approx(values[int(len(values) * percentage / 100) - 1], rel=0.002)
    assert [*latencies([*range(1, 5_001)]).percentiles([99.99])] == [(99.99, 5_000)]  # of 4,999.5 calls


def test_memory_does_not_grow_with_the_number_of_calls() -> None:
    """The number of counters is bounded, whatever the number of latencies."""
    rng = random.Random(8)
    counts = latencies([rng.randrange(10**5, 10**8) for _ in range(200_000)])._counts
    assert len(counts) <= 11 * 1_024  # 1,024 for each power of two


@given(st.lists(st.lists(st.integers(0, 2**44), max_size=20), max_size=4))
def test_merge_equals_one_histogram(parts: list[list[int]]) -> None:
    """Merged histograms equal one histogram of all values."""
    values = [value for part in parts for value in part]
    merged, one = Latencies.merge(map(latencies, parts)), latencies(values)
    assert (merged.count, merged.fastest, merged.slowest, merged.average) == (
        one.count,
        min(values, default=0),
        max(values, default=0),
        sum(values) // max(len(values), 1),
    )
    assert list(merged.distribution(10)) == list(one.distribution(10))
    assert sum(count for _, count in merged.distribution(10)) == len(values)
    if values:
        assert list(merged.percentiles([99.0])) == list(one.percentiles([99.0]))
