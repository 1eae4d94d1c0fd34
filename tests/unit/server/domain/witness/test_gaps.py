"""The gaps of a mark: each id leaves them once."""

from hypothesis import given, strategies

from idalloc_server.domain.witness.gaps import Gap, add_gap, gaps_up_to, take_from_gap


def test_ids_are_taken_out_of_a_gap_once() -> None:
    """Ids in the middle of a gap leave two gaps; they are in none of them."""
    gaps = add_gap("", Gap(10, 20))
    left = take_from_gap(gaps, Gap(12, 15), 1)
    assert left == "10:12 15:20"
    assert take_from_gap(left, Gap(12, 15), 1) is None
    assert take_from_gap(left, Gap(11, 16), 1) is None
    assert take_from_gap(left, Gap(15, 20), 1) == "10:12"


def test_empty_gaps_are_left_out() -> None:
    """A gap without ids is none."""
    assert add_gap("", Gap(5, 5)) == ""


def test_the_oldest_gaps_are_forgotten() -> None:
    """A mark has at most 32 gaps."""
    gaps = ""
    for number in range(40):
        gaps = add_gap(gaps, Gap(10 * number, 10 * number + 5))
    assert len(gaps.split()) == 32
    assert take_from_gap(gaps, Gap(70, 75), 1) is None
    assert take_from_gap(gaps, Gap(80, 85), 1) is not None


def test_gaps_past_a_lowered_mark_are_left_out() -> None:
    """A mark that was lowered has no gap past its value, in either direction."""
    assert gaps_up_to("10:20 30:40", 30, 1) == "10:20"
    assert gaps_up_to("-10:-20 -30:-40", -30, -1) == "-10:-20"


@given(
    strategies.sampled_from([1, -1, 3, -7]),
    strategies.lists(strategies.tuples(strategies.integers(0, 60), strategies.integers(1, 6)), max_size=40),
)
def test_no_id_is_taken_twice(step: int, grants: list[tuple[int, int]]) -> None:
    """P1: no id is taken out of the gaps twice, and none that was not in a gap."""
    gaps = add_gap(add_gap("", Gap(10 * step, 30 * step)), Gap(40 * step, 50 * step))
    left = {*range(11, 31), *range(41, 51)}
    for before, count in grants:
        rest = take_from_gap(gaps, Gap(before * step, (before + count) * step), step)
        if rest is not None:
            ids = set(range(before + 1, before + count + 1))
            assert ids <= left
            gaps, left = rest, left - ids
