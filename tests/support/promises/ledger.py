"""A node's connection to a store, which records the store's answers for the promise checks."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from idalloc_server.domain.errors import SequenceDeleted, StoreOutcomeUnknown, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Reset, Sequence
from idalloc_server.domain.store.records import FIRST_USE, NO_MARK, Demand, Grant, Mark, Row, RowVersion
from tests.support.forwarding_store import ForwardingStore


@dataclass
class Ledger:
    """The store's answers to one node."""

    # By counter and generation, the time at which the last write that returned this generation was
    # sent.
    proofs: dict[tuple[str, int], float] = field(default_factory=dict)
    last: dict[str, Grant] = field(default_factory=dict)  # by counter, the last grant
    # By counter, all ids granted to the node (P1).
    ranges: dict[str, list[range]] = field(default_factory=lambda: defaultdict(list))
    # By counter, ids granted by a store that was behind what the node had seen (P3).
    behind: dict[str, list[range]] = field(default_factory=lambda: defaultdict(list))
    # Name, counter and settings after each grant.
    all: list[tuple[str, int, Sequence]] = field(default_factory=list)
    granted: int = 0  # number of ids granted
    unknown: int = 0  # number of ids requested by writes with an unknown outcome
    returned: int = 0  # number of ids returned, by the answers
    deleted: set[str] = field(default_factory=set)  # sequences that the store called deleted
    # Whether the node may have forgotten a current period, since its clock was set.
    forgets_periods: bool = False

    def note(self, name: str, grant: Grant, sent: float) -> None:
        """Record the answer of a grant."""
        self.granted += grant.granted
        self.all.append((name, grant.last_value, grant.sequence))
        if grant.granted:
            self.ranges[name].append(granted_ids(grant))
        if self.is_behind(name, grant):
            if grant.granted:
                self.behind[name].append(granted_ids(grant))
            return
        self.proofs[name, grant.generation] = sent
        self.last[name] = grant

    def newest_generation(self, name: str) -> int:
        """Return the newest generation of a counter that a write has returned; 0 without one."""
        return max((generation for counter, generation in self.proofs if counter == name), default=0)

    def is_behind(self, name: str, grant: Grant) -> bool:
        """Whether a grant comes from a store that is behind what the node has seen of a counter."""
        seen = self.last.get(name)
        if seen is None or seen.step * grant.step < 0:
            return False
        counts = not self.forgets_periods if PERIOD_SEPARATOR in name else grant.sequence.reset == Reset.NEVER
        back = counts and (seen.last_value - grant.value_before) * grant.step > 0
        return back or grant.generation < seen.generation

    def note_tail(self, name: str, count: int, version: RowVersion) -> None:
        """Record that a tail is returned: from now on the counter may be at the tail's start."""
        seen = self.last.get(name)
        if seen is not None and seen.version == version:
            self.last[name] = seen._replace(last_value=seen.last_value - count * seen.step, granted=0)


def granted_ids(grant: Grant) -> range:
    """Return the ids of a grant."""
    return range(grant.value_before + grant.step, grant.last_value + grant.step, grant.step)


class RecordedConnection(ForwardingStore):
    """A node's connection to a store, with a ledger. A subclass delivers the calls.

    Args:
        now: Returns the simulated time, in seconds.
        report: Called with each broken promise that is seen in a request.
    """

    def __init__(self, now: Callable[[], float], report: Callable[[str], None]) -> None:
        self._now = now
        self._report = report
        self.ledger = Ledger()
        self.cut = False
        self.pending = 0  # the number of calls without an answer

    @property
    def address(self) -> str:
        return "simulated:"

    async def close(self) -> None:
        self.cut = True

    async def grant(
        self, name: str, wanted: int, lease_ms: int, floor: Mark = NO_MARK, demand: Demand | None = None
    ) -> Grant | None:
        return await self._grant(name, wanted, "grant", name, wanted, lease_ms, floor, demand)

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mark = NO_MARK
    ) -> Grant | None:
        return await self._grant(name, wanted, "grant_timestamps", name, wanted, lease_ms, now, ahead, floor)

    async def create(self, row: Row) -> Row:
        by_first_use = row.revised_by.startswith(FIRST_USE)
        if by_first_use and row.name in self.ledger.last:
            self._report(f"sequence {row.name!r}, which the node had seen, is created again (P3)")
        assert row.last_value is not None
        granted = (row.last_value - row.sequence.before_start) // row.sequence.step if by_first_use else 0
        sent = self._now()
        try:
            created = await super().create(row)
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self.ledger.unknown += granted
            raise
        if by_first_use and created.revised_by == row.revised_by:
            grant = Grant(row.last_value, granted, row.sequence, 0, row.generation, (0, 0, row.generation), writes=0)
            self.ledger.note(row.name, grant, sent)
        return created

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool:
        self.ledger.note_tail(name, count, version)
        returned = await super().give_back(name, count, version)
        self.ledger.returned += count * returned
        return returned

    async def _grant(self, name: str, wanted: int, method: str, *arguments: Any) -> Grant | None:
        sent = self._now()
        try:
            grant: Grant | None = await self._call(method, *arguments)
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self.ledger.unknown += wanted
            raise
        except SequenceDeleted:
            self.ledger.deleted.add(name)
            raise
        except StoreWentBackwards as error:
            self.ledger.unknown += error.granted
            raise
        if grant is not None:
            self.ledger.note(name, grant, sent)
        return grant
