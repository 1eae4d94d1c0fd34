"""A contiguous piece of a sequence."""

from typing import NamedTuple


class Range(NamedTuple):
    """Ids taken for one caller: first_id, first_id + step, … last_id.

    Attributes:
        first_id: The first id, inclusive.
        id_count: How many ids, at least 1.
        step: The distance from one id to the next, never 0.
        generation: The generation of the sequence that they were taken in.
        expires_at: When the lease that they were taken from ends, in ``Clock.boot`` seconds.
    """

    first_id: int
    id_count: int
    step: int
    generation: int
    expires_at: float

    @property
    def last_id(self) -> int:
        """The last id, inclusive."""
        return self.first_id + (self.id_count - 1) * self.step
