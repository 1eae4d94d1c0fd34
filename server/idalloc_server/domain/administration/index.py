"""An index of the sequences in the store, for lists that are searched and sorted."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import structlog

from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.administration.summary import SequenceSummary
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import SequenceInvalid, StoreFailure

# How many sequences are kept: the first ones by name.
MAX_KEPT = 10_000
# How many sequences are read at once, and how much longer than a read the pause after it takes.
BATCH = 250
PAUSE_RATIO = 20
LONGEST_PAUSE_SECONDS = 5.0
# The pause between two scans; the shorter one if the list was requested since the last one.
IDLE_SECONDS = 60.0
REQUESTED_SECONDS = 5.0

_log = structlog.get_logger("idalloc.administration")


class SortKey(StrEnum):
    """What a list is sorted by."""

    NAME = "name"
    USED = "used"
    RATE = "rate"
    EXHAUSTS = "exhausts"


# Names come in their order; without a forecast a sequence is exhausted last.
_KEYS: dict[SortKey, Callable[[SequenceSummary], float]] = {
    SortKey.NAME: lambda _: 0.0,
    SortKey.USED: lambda each: each.used_ratio,
    SortKey.RATE: lambda each: each.ids_per_second,
    SortKey.EXHAUSTS: lambda each: float("inf") if each.exhaust_time is None else each.exhaust_time,
}


class Found(NamedTuple):
    """A page of a list."""

    sequences: list[SequenceSummary]
    total: int  # the number of sequences in the whole list
    is_complete: bool  # whether the index has all sequences of the store
    # When the scan began, in seconds since 1970; None before the end of the first scan.
    as_of: float | None


@dataclass(eq=False)
class SequenceIndex:
    """Scans the store again and again, in steps that use at most a twentieth of the time.

    Not thread-safe: call all methods on one event loop.
    """

    _service: SequenceService  # reads the sequences
    _clock: Clock
    _kept: list[SequenceSummary] = field(default_factory=list)
    _folded: list[str] = field(default_factory=list)  # the names of the kept sequences, case-folded
    _sorted: dict[SortKey, list[int]] = field(default_factory=dict)
    _is_complete: bool = True
    _as_of: float | None = None
    _requested: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Scan until cancelled."""
        while True:
            try:
                await self._scan()
            except StoreFailure as error:
                _log.info("scan_failed", error=str(error))
            await asyncio.sleep(REQUESTED_SECONDS)
            try:
                async with asyncio.timeout(IDLE_SECONDS - REQUESTED_SECONDS):
                    await self._requested.wait()
            except TimeoutError:
                pass
            self._requested.clear()

    def find(self, search: str, sort: SortKey, *, descending: bool, offset: int, limit: int) -> Found:
        """Return a page of the list of sequences whose names contain a text, in any case.

        Args:
            search: The text; empty for all sequences.
            sort: What the list is sorted by; equal ones are in the order of their names.
            descending: Whether the largest comes first.
            offset: How many sequences of the list come before the page.
            limit: The most sequences to return.
        """
        self._requested.set()
        if sort not in self._sorted:
            values = [_KEYS[sort](each) for each in self._kept]
            self._sorted[sort] = sorted(range(len(values)), key=values.__getitem__)
        order = self._sorted[sort]
        if search:
            text = search.casefold()
            order = [number for number in order if text in self._folded[number]]
        if descending:
            order = order[::-1]
        page = [self._kept[number] for number in order[offset : offset + limit]]
        return Found(page, len(order), self._is_complete, self._as_of)

    async def _scan(self) -> None:
        as_of = self._clock.wall()
        kept: list[SequenceSummary] = []
        is_complete = True
        after = ""
        limit = BATCH
        while True:
            began = self._clock.boot()
            try:
                rows = await self._service.read_rows("", after, limit)
                found = await self._service.summaries_of(rows)
            except SequenceInvalid as invalid:
                if limit == 1:
                    after = invalid.metadata["sequence"]
                limit = 1  # Only the corrupt row is left out.
                continue
            room = MAX_KEPT - len(kept)
            kept += found[:room]
            is_complete = is_complete and len(found) <= room
            if not rows:
                break
            after = rows[-1].name
            limit = min(BATCH, 2 * limit)
            await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, PAUSE_RATIO * (self._clock.boot() - began)))
        self._kept = kept
        self._is_complete = is_complete
        self._as_of = as_of
        self._folded = [each.row.name.casefold() for each in kept]
        self._sorted = {}
