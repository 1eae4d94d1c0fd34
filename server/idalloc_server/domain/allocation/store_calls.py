"""The store calls of one counter: each has a timeout, and burns its ids if its outcome is unknown."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import SharedState
from idalloc_server.domain.errors import SequenceNotFound, ServerDraining, StoreOutcomeUnknown
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.sequences.model import Kind, Sequence
from idalloc_server.domain.sequences.text import check_text
from idalloc_server.domain.store.protocol import within_timeout
from idalloc_server.domain.store.records import Grant, Row

_T = TypeVar("_T")
_DEFAULTS = Sequence()


class StoreCalls:
    """Calls the store for one counter.

    Attributes:
        outcome_unknown: Whether the last call may have been applied without an answer.
        requested: The number of ids requested by calls in flight.
        abandoned: Whether the allocator was abandoned, which has burned the ids in flight: calls then fail.
        created: Whether this node created the row.
    """

    __slots__ = (
        "_name",
        "_period",
        "_sequence_name",
        "_shared",
        "abandoned",
        "created",
        "outcome_unknown",
        "requested",
    )

    def __init__(self, name: str, shared: SharedState, sequence: str, period: str) -> None:
        self._name = name
        self._sequence_name = sequence
        self._period = period
        self._shared = shared
        self.outcome_unknown = False
        self.requested = 0
        self.abandoned = False
        self.created = False

    async def within_timeout(self, call: Awaitable[_T], requested: int = 0) -> _T:
        """Awaits a call that requests ids.

        Raises:
            StoreOutcomeUnknown: The call may have been applied, such as after ``store_timeout``. Its ids are burned, as
                after a cancellation.
            ServerDraining: The allocator was abandoned meanwhile.
        """
        self.requested += requested
        try:
            answer = await within_timeout(self._shared.allocation_config.store_timeout, call)
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self.outcome_unknown = True
            if not self.abandoned:
                self._shared.burned.add(self._sequence_name, self._period, BurnCause.UNKNOWN_OUTCOME, requested)
            raise
        finally:
            self.requested -= requested
        if self.abandoned:
            raise ServerDraining
        return answer

    async def grant(self, wanted: int, sequence: Sequence) -> Grant | None:
        """Requests ids of the sequence, whose settings may be out of date. See ``Store.grant``."""
        store, config, kind = self._shared.store, self._shared.allocation_config, sequence.kind
        lease_ms = int(config.lease_ttl * 1000)
        floor = self._shared.high_water_marks.floor(self._name)
        if kind == Kind.COUNTER or not wanted:
            call = store.grant(self._name, wanted, lease_ms, floor)
        else:
            ahead = int(config.max_clock_skew * kind.per_second)
            now = int(self._shared.clock.wall() * kind.per_second)
            call = store.grant_timestamps(self._name, wanted, lease_ms, now, ahead, floor)
        return await self.within_timeout(call, wanted)

    async def create(self) -> None:
        """Creates the row with default settings, unless another node already has.

        Raises:
            SequenceNotFound: ``auto_create_sequences`` is off.
            InvalidRequest: The name has unsafe characters.
        """
        if not self._shared.allocation_config.auto_create_sequences:
            raise SequenceNotFound(self._sequence_name, ", and auto_create_sequences is off")
        check_text("sequence", self._sequence_name)
        now = self._shared.clock.wall()
        generation = generation_after(_DEFAULTS, 0, self._shared.clock)
        row = Row(self._name, _DEFAULTS.before_start, _DEFAULTS, generation, created_at=now, changed_at=now)
        stored = await self.within_timeout(self._shared.store.create(row))
        self.created = stored.generation == generation
