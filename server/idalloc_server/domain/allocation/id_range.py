"""A contiguous range of ids."""

from typing import NamedTuple

from idalloc_server.domain.sequences.model import Sequence


class IdRange(NamedTuple):
    """Ids issued to one caller: first_id, first_id + step, … last_id."""

    first_id: int  # the first id, inclusive
    id_count: int  # the number of ids; 0 in lease metadata (``SequenceAllocator.proof``)
    step: int  # the distance from one id to the next, never 0
    generation: int  # the generation of the lease
    expires_at: float  # when the lease expires, in ``Clock.boot`` seconds
    sequence: Sequence  # the settings of the sequence
    # The period of the counter, such as "2026-11"; empty if the sequence has no reset.
    period: str = ""

    @property
    def last_id(self) -> int:
        """The last id, inclusive."""
        return self.first_id + (self.id_count - 1) * self.step
