"""The gaps of a mark: ids before its value that no grant has confirmed yet.

Two nodes may confirm their grants in the other order than the store made them. The later grant then
leaves a gap, out of which the earlier one is confirmed. An id leaves the gaps when it is confirmed,
so no two grants confirm it.
"""

from typing import NamedTuple

# The most gaps of a mark; the oldest ones are forgotten, and their ids are burned.
_MAX_GAPS = 32


class Gap(NamedTuple):
    """The ids after ``before`` up to ``last``, in the direction of the counter."""

    before: int
    last: int


def parse_gaps(text: str) -> list[Gap]:
    """Return the gaps in a mark's text."""
    pairs = (gap.split(":") for gap in text.split())
    return [Gap(int(before), int(last)) for before, last in pairs]


def format_gaps(gaps: list[Gap]) -> str:
    """Return the text of gaps, without empty ones, and without the oldest if they are too many."""
    kept = [gap for gap in gaps if gap.before != gap.last]
    return " ".join(f"{before}:{last}" for before, last in kept[-_MAX_GAPS:])


def take_from_gap(gaps: list[Gap], ids: Gap, step: int) -> list[Gap] | None:
    """Return the gaps without these ids, or None if no gap has all of them."""
    for gap in gaps:
        if (ids.before - gap.before) * step >= 0 and (gap.last - ids.last) * step >= 0:
            others = [each for each in gaps if each is not gap]
            return [*others, Gap(gap.before, ids.before), Gap(ids.last, gap.last)]
    return None
