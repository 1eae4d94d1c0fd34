"""Issued ids by sequence, between two samples: a call only adds to a number."""

from collections.abc import Iterator
from typing import Protocol


class _Row(Protocol):
    sequence: str


class Issuer(Protocol):
    """Issues ids of a sequence.

    Attributes:
        new_ids: The ids issued since the last sample.
    """

    new_ids: int

    @property
    def row(self) -> _Row:
        """Has the sequence's name."""
        ...


class IssuedIds:
    """The issuers with new ids.

    Attributes:
        issuing: Each issuer adds itself when its ``new_ids`` leaves 0.
    """

    def __init__(self) -> None:
        self.issuing: list[Issuer] = []

    def pop_new(self) -> Iterator[tuple[str, int]]:
        """Yield and remove the sequence and number of new ids, one by one: a break of the loop loses none."""
        while self.issuing:
            issuer = self.issuing.pop()
            ids, issuer.new_ids = issuer.new_ids, 0
            yield issuer.row.sequence, ids
