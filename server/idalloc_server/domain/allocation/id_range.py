"""A contiguous range of ids."""

from typing import NamedTuple

from idalloc_server.domain.sequences.model import Sequence


class IdRange(NamedTuple):
    """Ids issued to one caller: first_id, first_id + step, … last_id.

    Attributes:
        first_id: The first id, inclusive.
        id_count: The number of ids; 0 in lease metadata (``SequenceAllocator.proof``).
        step: The distance from one id to the next, never 0.
        generation: The generation of the lease.
        expires_at: When the lease expires, in ``Clock.boot`` seconds.
        sequence: The settings of the sequence.
        period: The period of the counter, such as "2026-11"; empty if the sequence has no reset.
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
