"""A contiguous piece of a sequence."""

from typing import NamedTuple

from idalloc_server.domain.sequences.model import Sequence


class IdRange(NamedTuple):
    """Ids taken for one caller: first_id, first_id + step, … last_id.

    Attributes:
        first_id: The first id, inclusive.
        id_count: How many ids, at least 1.
        step: The distance from one id to the next, never 0.
        generation: The generation of the sequence that they were taken in.
        expires_at: When the lease that they were taken from ends, in ``Clock.boot`` seconds.
        sequence: The settings of the sequence.
        period: The period whose counter gave them, such as "2026-11"; empty where the sequence has no reset.
    """

    first_id: int
    id_count: int
    step: int
    generation: int
    expires_at: float
    sequence: Sequence
    period: str = ""

    @property
    def last_id(self) -> int:
        """The last id, inclusive."""
        return self.first_id + (self.id_count - 1) * self.step
