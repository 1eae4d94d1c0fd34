"""Latencies of a bench: few numbers are kept, and what is told of them is right to 0.2 %."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc.bench._latencies import Latencies


def latencies(values: list[int]) -> Latencies:
    made = Latencies()
    for value in values:
        made.add(value)
    return made


def test_percentiles_are_those_of_the_sorted_values() -> None:
    chance = random.Random(7)
    values = sorted(int(chance.lognormvariate(16, 1)) for _ in range(100_000))
    for percentage, found in latencies(values).percentiles((50.0, 90.0, 95.0, 99.0, 99.9, 100.0)):
        assert found == pytest.approx(values[int(len(values) * percentage / 100) - 1], rel=0.002)


def test_memory_does_not_grow_with_the_number_of_calls() -> None:
    chance = random.Random(8)
    kept = latencies([chance.randrange(10**5, 10**8) for _ in range(200_000)])._counts
    assert len(kept) <= 11 * 1_024  # so many for each doubling


@given(st.lists(st.lists(st.integers(0, 2**44), max_size=20), max_size=4))
def test_several_together_are_as_one(parts: list[list[int]]) -> None:
    values = [value for part in parts for value in part]
    merged, one = Latencies.of_all(map(latencies, parts)), latencies(values)
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
