"""Issued ids by sequence, between two samples: a call only adds to a number."""

from collections.abc import Iterator
from typing import Protocol

from idalloc_server.domain.allocation.usage import RecentUse


class _Row(Protocol):
    sequence: str


class Issuer(Protocol):
    """Issues ids of a sequence."""

    new_ids: int  # the ids issued since the last sample
    new_since: float  # when the first of them was issued, in ``Clock.boot`` seconds
    use: RecentUse  # the ids of all samples

    @property
    def row(self) -> _Row:
        """The counter's row, which has the sequence's name."""
        ...


class IssuedIds:
    """The issuers with new ids."""

    def __init__(self) -> None:
        # Each issuer adds itself when its ``new_ids`` leaves 0.
        self.issuing: list[Issuer] = []

    def pop_new(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield and remove the new ids of each sequence: a break of the loop loses none.

        ``now`` is the time in ``Clock.boot`` seconds.
        """
        while self.issuing:
            issuer = self.issuing.pop()
            ids, issuer.new_ids = issuer.new_ids, 0
            issuer.use.add(ids, issuer.new_since, now)
            yield issuer.row.sequence, ids
