"""Overlaps of spans, compared with every single id of them."""

from collections import defaultdict
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idalloc.verify._spans import Duplicates, Spans, count_shared, merged
from tests.support.planted_logs import Planted
from tests.support.verify_command import VerifyCommand

MIN, MAX = -(2**63), 2**63 - 1
# Also steps whose common step is beyond 2^62, 2^63 and 2^64, and the largest ones.
STEPS = st.sampled_from(
    [1, 2, 3, 6, 2**31, 2**31 - 1, 2**32 + 1, 2**33 + 1, 2**33 + 3, 3**39, 2**61 - 1, 2**62, 2**62 - 1, MAX - 1, MAX]
)
# Spans meet at a few ids, also at both ends and on both sides of 0.
MEETINGS = st.sampled_from([0, 1, -1, 7, 2**40, -(2**40), 2**62, -(2**62), MIN, MIN + 1, MAX - 1, MAX])


@st.composite
def ranges(draw: st.DrawFn) -> range:
    """Generate the ids of a reply, rising or falling: a few on each side of a meeting."""
    met, step = draw(MEETINGS), draw(STEPS)
    below = draw(st.integers(0, min(4, (met - MIN) // step)))
    above = draw(st.integers(0, min(4, (MAX - met) // step)))
    ids = range(met - below * step, met + above * step + 1, step)
    return ids[::-1] if draw(st.booleans()) else ids


def spans_of(replies: list[range]) -> Spans:
    """Return spans of one name, as the verifier makes them of records."""
    rising = [ids if ids.step > 0 else ids[::-1] for ids in replies]
    columns = [[ids[0] for ids in rising], [ids[-1] for ids in rising], [ids.step for ids in rising]]
    low, high, step = (np.array(column, np.int64) for column in columns)
    return Spans(np.zeros(len(replies), np.int64), low, high, step, np.zeros(len(replies), np.uint64))


def duplicates_of(replies: list[range]) -> tuple[int, set[int]]:
    """Count the duplicates of every id, and return the ids that are in two replies."""
    lattices: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for ids in replies:
        lattices[abs(ids.step), ids[0] % abs(ids.step)] += ids
    count = sum(len(ids) - len(set(ids)) for ids in lattices.values())
    count += sum(len({*one} & {*other}) for one, other in combinations(lattices.values(), 2))
    every = [number for ids in replies for number in ids]
    return count, {number for number in every if every.count(number) > 1}


@given(st.lists(ranges(), min_size=1, max_size=6), MEETINGS, st.integers(-3, 3))
@example([range(MIN, MAX, MAX), range(MIN + 1, MAX, MAX - 1)], 0, 0)
def test_overlaps_equal_those_of_every_id(replies: list[range], at: int, offset: int) -> None:
    """P1: ids shared by spans of any step, sign and place are counted exactly, also if split."""
    expected, twice = duplicates_of(replies)
    duplicates = Duplicates(99)
    spans = merged(spans_of(replies), duplicates)
    halves = Duplicates(99)
    count_shared(spans, duplicates)
    for half in spans.split(0, max(MIN + 1, min(at + offset, MAX))):
        count_shared(half.sort_by_low(), halves)
    assert duplicates.ids == expected
    assert {number for _, number in duplicates.examples} <= twice
    assert bool(duplicates.examples) == bool(expected)
    assert halves.ids == count_shared(spans, Duplicates(0)).get(0, 0)


@pytest.mark.parametrize(
    ("replies", "twice"),
    [
        # More than 2^63 ids, of which each is shared.
        ([range(MIN, 0), range(MAX), range(MAX, MAX + 1)] * 2, 2**64),
        ([range(MIN, 0), range(MAX + 1), range(MIN, MAX, 2)], 2**63),
        ([range(MIN, MAX, 2), range(MIN, MAX, 4)], 2**62),
        ([range(MIN, MAX, 3), range(MIN, MAX, 5)], (2**64 - 1) // 15 + (((2**64 - 1) % 15) > 0)),
    ],
    ids=["all ids twice", "all and every second", "every second and fourth", "every third and fifth"],
)
def test_shared_ids_beyond_64_bits(replies: list[range], twice: int) -> None:
    """P1: the number of shared ids is exact, also beyond 2^63."""
    spans, duplicates = spans_of(replies), Duplicates(9)
    count_shared(merged(spans, duplicates), duplicates)
    assert duplicates.ids == twice


def test_common_step_beyond_64_bits(verifier: VerifyCommand) -> None:
    """P1: overlapping spans with a common step beyond 2^64 are compared; a shared id is found."""
    one, other = 2**33 + 1, 2**33 + 3
    verifier.log(Planted(0, 2**20, step=one), Planted(1, 2**20, step=other))
    assert verifier.passes()["ids"] == 2**21
    verifier.log(*(Planted(MAX, 2, sequence="falling", step=-step) for step in (2**62 + 1, 3**39)))
    verifier.finds(f"falling: {MAX} was issued twice", duplicates=1)
