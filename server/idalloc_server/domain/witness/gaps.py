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

    def has(self, other: "Gap", step: int) -> bool:
        """Return whether the ids of another gap are all in this one."""
        if step > 0:
            return self.before <= other.before and other.last <= self.last
        return self.before >= other.before and other.last >= self.last


def add_gap(gaps: str, gap: Gap) -> str:
    """Return the gaps with another one, unless it is empty."""
    return _text([*_parse(gaps), gap])


def take_from_gap(gaps: str, ids: Gap, step: int) -> str | None:
    """Return the gaps without these ids, or None if no gap has all of them."""
    parsed = _parse(gaps)
    found = next((gap for gap in parsed if gap.has(ids, step)), None)
    if found is None:
        return None
    rest = [Gap(found.before, ids.before), Gap(ids.last, found.last)]
    return _text([*(gap for gap in parsed if gap is not found), *rest])


def gaps_up_to(gaps: str, value: int, step: int) -> str:
    """Return the gaps that end at or before a value."""
    return _text([gap for gap in _parse(gaps) if (value - gap.last) * step >= 0])


def _parse(gaps: str) -> list[Gap]:
    return [Gap(*map(int, gap.split(":"))) for gap in gaps.split()]


def _text(gaps: list[Gap]) -> str:
    kept = [gap for gap in gaps if gap.before != gap.last]
    return " ".join(f"{before}:{last}" for before, last in kept[-_MAX_GAPS:])
