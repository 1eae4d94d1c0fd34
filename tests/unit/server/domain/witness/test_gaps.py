"""The gaps of a mark: each id leaves them once."""

import asyncio
import os

from hypothesis import example, given, strategies

from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.chain import MarkChain, WitnessOvertaken
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


async def test_two_marks_of_one_name_in_a_batch_are_one() -> None:
    """P1: of two grants of the same ids that are confirmed at once, one is issued."""
    seen = Mark(1, 10, 1, "seen")
    witness = MemoryWitness(marks={"s": seen})
    chain = MarkChain(witness, os.urandom)
    confirmed = await asyncio.gather(
        *(chain.append("s", seen, 10, Mark(1, 20, 1)) for _ in range(2)), return_exceptions=True
    )
    assert [type(each) for each in confirmed] == [type(None), WitnessOvertaken]
    assert [len(call.arguments[0]) for call in witness.calls_of("replace")] == [1]  # type: ignore[arg-type]


async def test_a_mark_keeps_its_direction() -> None:
    """P1: a newer sequence that counts the other way does not replace the mark of issued ids."""
    seen = Mark(1, 5, 1, "seen")
    witness = MemoryWitness(marks={"s": seen})
    chain = MarkChain(witness, os.urandom)
    assert await chain.raise_to("s", seen, Mark(2, 100, -1), counts=True)
    assert witness.marks["s"] == seen
    assert await chain.raise_to("s", seen, Mark(2, 100, 1), counts=True)
    assert witness.marks["s"].value == 100


@given(
    strategies.sampled_from([1, -1, 3, -7]),
    strategies.lists(strategies.tuples(strategies.integers(0, 60), strategies.integers(1, 30)), max_size=40),
)
@example(-1, [(5, 30)])
def test_no_id_is_taken_twice(step: int, grants: list[tuple[int, int]]) -> None:
    """P1: an id is taken out of the gaps once, and none that was in no gap, in both directions."""
    gaps = [Gap(10 * step, 30 * step), Gap(40 * step, 50 * step)]
    left = {*range(11, 31), *range(41, 51)}
    for before, count in grants:
        rest = take_from_gap(gaps, Gap(before * step, (before + count) * step), step)
        ids = set(range(before + 1, before + count + 1))
        assert (rest is not None) == (ids <= left)
        if rest is not None:
            gaps = parse_gaps(format_gaps(rest))
            left -= ids
