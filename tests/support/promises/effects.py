"""When a change of a sequence is effective, and what nobody may issue from then on (P5).

Times are in any unit and on any clock, the same for the change and for what is checked.
"""

from typing import NamedTuple


class EffectiveChange(NamedTuple):
    """The time from which on only ids of this generation, or of newer ones, are issued."""

    at: float
    generation: int

    def forbids(self, generation: int, at: float) -> bool:
        """Whether ids of a generation may not be issued at a time."""
        return at >= self.at and generation < self.generation


class EffectiveAdvance(NamedTuple):
    """The time from which on only ids past this value, in the direction of the step, are issued."""

    at: float
    value: int
    step: int

    def covers(self, value: int) -> bool:
        """Whether an id is at or before the value."""
        return (self.value - value) * self.step >= 0

    def forbids(self, ids: range, at: float) -> bool:
        """Whether ids may not be issued at a time."""
        return at >= self.at and self.covers(ids[0])
