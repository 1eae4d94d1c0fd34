"""The gaps of a mark: each id leaves them once."""

import os

from hypothesis import given, strategies

from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.chain import MarkChain
from idalloc_server.domain.witness.gaps import Gap, format_gaps, parse_gaps, take_from_gap
from tests.support.fake_witness import MemoryWitness


def test_ids_are_taken_out_of_a_gap_once() -> None:
    """Ids in the middle of a gap leave two gaps; they are in none of them."""
    left = take_from_gap(parse_gaps("10:20"), Gap(12, 15), 1)
    assert left is not None
    assert format_gaps(left) == "10:12 15:20"
    assert take_from_gap(left, Gap(12, 15), 1) is None
    assert take_from_gap(left, Gap(11, 16), 1) is None
    assert format_gaps(take_from_gap(left, Gap(15, 20), 1) or []) == "10:12"


def test_empty_gaps_are_left_out() -> None:
    """A gap without ids is none."""
    assert format_gaps([Gap(5, 5)]) == ""


def test_the_oldest_gaps_are_forgotten() -> None:
    """A mark has at most 32 gaps."""
    text = ""
    for number in range(40):
        text = format_gaps([*parse_gaps(text), Gap(10 * number, 10 * number + 5)])
    gaps = parse_gaps(text)
    assert len(gaps) == 32
    assert take_from_gap(gaps, Gap(70, 75), 1) is None
    assert take_from_gap(gaps, Gap(80, 85), 1) is not None


async def test_gaps_past_a_lowered_mark_are_left_out() -> None:
    """A mark that was lowered has no gap past its value, in either direction."""
    up = Mark(1, 40, 1, "seen", gaps="10:20 30:40")
    down = Mark(1, -40, -1, "seen", gaps="-10:-20 -30:-40")
    witness = MemoryWitness(marks={"up": up, "down": down})
    chain = MarkChain(witness, os.urandom)
    assert await chain.replace("up", up, 30)
    assert await chain.replace("down", down, -30)
    assert witness.marks["up"].gaps == "10:20"
    assert witness.marks["down"].gaps == "-10:-20"


@given(
    strategies.sampled_from([1, -1, 3, -7]),
    strategies.lists(strategies.tuples(strategies.integers(0, 60), strategies.integers(1, 6)), max_size=40),
)
def test_no_id_is_taken_twice(step: int, grants: list[tuple[int, int]]) -> None:
    """P1: no id is taken out of the gaps twice, and none that was not in a gap."""
    gaps = [Gap(10 * step, 30 * step), Gap(40 * step, 50 * step)]
    left = {*range(11, 31), *range(41, 51)}
    for before, count in grants:
        rest = take_from_gap(gaps, Gap(before * step, (before + count) * step), step)
        if rest is not None:
            ids = set(range(before + 1, before + count + 1))
            assert ids <= left
            gaps = parse_gaps(format_gaps(rest))
            left -= ids
