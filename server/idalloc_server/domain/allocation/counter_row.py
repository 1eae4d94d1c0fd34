"""A counter's row in the store.

Each call has a timeout, and burns its ids if its outcome is unknown.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import SharedState, admit_creation
from idalloc_server.domain.errors import (
    GrantLost,
    Refusal,
    SequenceAheadOfClock,
    SequenceDeleted,
    SequenceExhausted,
    SequenceNotFound,
    ServerDraining,
    StoreOutcomeUnknown,
    StoreRetired,
    StoreUnavailable,
    StoreWentBackwards,
)
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.sequences.model import PERIOD_SEPARATOR, Kind, Reset, Sequence, name_of_period
from idalloc_server.domain.sequences.text import check_text
from idalloc_server.domain.store.protocol import within_timeout
from idalloc_server.domain.store.records import FIRST_USE, Demand, Grant, Row, RowVersion
from idalloc_server.domain.store.reservation import raise_if_reserved
from idalloc_server.domain.witness.chain import WitnessOvertaken

_T = TypeVar("_T")
_DEFAULTS = Sequence()
_TOKEN_BYTES = 16
# How often a grant is repeated because marks of other nodes overtook it, or its answer was lost.
_MAX_REPEATS = 4


@dataclass(slots=True, eq=False)
class CounterRow:
    """The row of a counter, as one process uses it."""

    name: str  # the name of the row: the sequence's, or ``name_of_period``
    _shared: SharedState
    sequence: str = field(init=False)  # the sequence's name
    period: str = field(init=False)  # the period of the counter; empty in the sequence's own row
    settings: Sequence = _DEFAULTS  # the settings that the last grant returned
    generation: int = 0  # the generation that the last grant returned; 0 before
    outcome_unknown: bool = False  # whether the last write may have been applied without an answer
    requested: int = 0  # the number of ids requested by calls in flight
    # Whether the allocator was abandoned, which has burned the ids in flight: calls then fail.
    abandoned: bool = False
    created: bool = False  # whether this node created the row, and nobody got ids of it yet
    # Whether this is the own row of a sequence with a reset: it grants lease proofs only.
    has_reset: bool = False
    is_rising: bool = False  # whether ids rise in the order of the calls, over all nodes

    def __post_init__(self) -> None:
        self.sequence, _, self.period = self.name.partition(PERIOD_SEPARATOR)

    def burn(self, cause: BurnCause, count: int) -> None:
        """Count burned ids of the counter."""
        self._shared.burned.add(self.sequence, self.period, cause, count)

    def insufficient_ids_error(self, count: int, left: int, largest: int) -> Refusal:
        """Return SequenceExhausted, or SequenceAheadOfClock if a later call can succeed.

        ``left`` is the number of ids left, in memory and in the store; ``largest`` is the largest
        contiguous range of a counter.
        """
        name = self.sequence
        settings = self.settings
        if settings.kind == Kind.COUNTER:
            return SequenceExhausted(name, count, left, largest)
        # Timestamps continue from the clock, regardless of the counter.
        now = int(self._shared.clock.wall() * settings.kind.per_second)
        value = max(settings.max_value - left, now - 1)
        if value + count > settings.max_value:
            left = max(0, settings.max_value - value)
            return SequenceExhausted(name, count, left, left)
        max_skew = self._shared.allocation_config.max_clock_skew
        return SequenceAheadOfClock(name, (value + count - now) / settings.kind.per_second, max_skew)

    async def grant(self, wanted: int, demand: Demand | None = None) -> Grant | None:
        """Advance the counter by ``wanted`` ids, or by none if fewer are left; None without a row.

        ``demand`` replaces the row's, unless it is None.

        Raises:
            StoreWentBackwards: The store is behind what this process saw; what it granted is
                burned.
            SequenceReserved: The name is reserved.
            Refusal: As ``Store.grant``.
        """
        shared = self._shared
        kind = self.settings.kind
        lease_ms = shared.allocation_config.lease_ms
        repeats = 0
        while True:
            floor = shared.high_water_marks.floor(self.name)
            if kind == Kind.COUNTER or not wanted:
                call = shared.store.grant(self.name, wanted, lease_ms, floor, demand=demand)
            else:
                ahead = int(shared.allocation_config.max_clock_skew * kind.per_second)
                now = int(shared.clock.wall() * kind.per_second)
                call = shared.store.grant_timestamps(self.name, wanted, lease_ms, now=now, ahead=ahead, floor=floor)
            try:
                grant = await self._within_timeout(call, wanted)
            except (WitnessOvertaken, GrantLost):
                repeats += 1
                if repeats > _MAX_REPEATS:
                    raise
            except SequenceDeleted as refusal:
                if not isinstance(refusal, StoreRetired):  # else the tombstone may reserve the name
                    raise_if_reserved(await self._within_timeout(shared.store.get(self.sequence)))
                raise
            except StoreWentBackwards as error:
                self.burn(BurnCause.WENT_BACKWARDS, error.granted)
                raise
            else:
                return self._accept(grant)

    async def create(self, wanted: int) -> Grant:
        """Create the row with default settings and grant ``wanted`` ids.

        If the row exists, this is a ``grant``. The new row has a token that no other call has. If
        the stored row has it, the ids from the start belong to this process, even if another node
        has advanced the counter since. The store may apply the write again, which changes nothing.

        Raises:
            SequenceNotFound: ``auto_create_sequences`` is off.
            QuotaExceeded: The caller creates sequences too fast (``admit_creation``).
            InvalidRequest: The name has unsafe characters.
            Refusal: As ``grant`` and ``Store.create``.
        """
        if not self._shared.allocation_config.auto_create_sequences:
            raise SequenceNotFound(self.sequence, ", and auto_create_sequences is off: create it first")
        check_text("sequence", self.sequence)
        admit_creation.get()()
        before = _DEFAULTS.before_start
        bound = _DEFAULTS.bound
        granted = wanted if wanted <= bound - before else 0
        generation = generation_after(_DEFAULTS, 0, self._shared.clock)
        now = self._shared.clock.wall()
        token = FIRST_USE + self._shared.random(_TOKEN_BYTES).hex()
        row = Row(
            name=self.name,
            last_value=before + granted,
            sequence=_DEFAULTS,
            generation=generation,
            lease_ms=self._shared.allocation_config.lease_ms,
            revision=0,
            revised_by=token,
            created_at=now,
            changed_at=now,
        )
        try:
            stored = await self._within_timeout(self._shared.store.create(row), granted)
        except WitnessOvertaken:
            return await self._grant_existing(wanted)
        if stored.revised_by != token:
            return await self._grant_existing(wanted)
        left = bound - before - granted
        # The version is unknown, and 0 is the number of writes after the creation (``Lease.tail``).
        grant = Grant(
            last_value=before + granted,
            granted=granted,
            sequence=stored.sequence,
            remaining=left,
            generation=generation,
            version=(0, 0, generation),
            writes=0,
        )
        self._accept(grant)
        self.created = True
        return grant

    async def read(self) -> Row | None:
        """Return the row; see ``Store.get``."""
        return await self._within_timeout(self._shared.store.get(self.name))

    async def give_back(self, count: int, version: RowVersion) -> bool:
        """Give an unused tail back; see ``Store.give_back``."""
        return await self._within_timeout(self._shared.store.give_back(self.name, count, version))

    async def _grant_existing(self, wanted: int) -> Grant:
        grant = await self.grant(wanted)
        if grant is None:
            raise StoreUnavailable(f"the row of sequence {self.sequence!r} disappeared after its creation")
        return grant

    def _accept(self, grant: Grant | None) -> Grant | None:
        """Move the high-water mark to the result of a write, and return it; None without a row."""
        shared = self._shared
        self.outcome_unknown = False
        shared.store_health.record_success()
        try:
            shared.high_water_marks.update(self.name, grant)
        except StoreWentBackwards:
            self.burn(BurnCause.WENT_BACKWARDS, grant.granted if grant else 0)
            raise
        if grant is not None:
            self.settings = grant.sequence
            self.generation = grant.generation
            self.has_reset = grant.sequence.reset != Reset.NEVER and not self.period
            self.is_rising = grant.sequence.is_rising
        return grant

    async def _within_timeout(self, call: Awaitable[_T], requested: int = 0) -> _T:
        """Await a call that requests ids.

        Raises:
            StoreOutcomeUnknown: The call may have been applied, such as after ``store_timeout``.
                Its ids are burned, as after a cancellation.
            ServerDraining: The allocator was abandoned meanwhile.
        """
        self.requested += requested
        try:
            answer = await within_timeout(self._shared.allocation_config.store_timeout, call)
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self.outcome_unknown = True
            if not self.abandoned:
                self.burn(BurnCause.UNKNOWN_OUTCOME, requested)
            raise
        finally:
            self.requested -= requested
        if self.abandoned:
            raise ServerDraining
        return answer


class PeriodRow(CounterRow):
    """The row of a period's counter.

    It exists from the first use of the period, in the generation of the sequence's own row.
    """

    __slots__ = ("_opened_generation", "_sequence_row")

    def __init__(self, period: str, sequence_row: CounterRow, shared: SharedState) -> None:
        super().__init__(name_of_period(sequence_row.name, period), shared)
        self._sequence_row = sequence_row
        self._opened_generation = 0

    async def grant(self, wanted: int, demand: Demand | None = None) -> Grant | None:
        await self._open()
        return await super().grant(wanted, demand)

    async def create(self, wanted: int) -> Grant:
        self._opened_generation = 0
        return await self._grant_existing(wanted)

    async def read(self) -> Row | None:
        await self._open()
        return await super().read()

    async def _open(self) -> None:
        """Create the row or move it to the sequence's generation, unless it was seen there."""
        generation = self._sequence_row.generation
        settings = self._sequence_row.settings
        if max(self._opened_generation, self._shared.high_water_marks.generation(self.name)) < generation:
            call = self._shared.store.open_period(self.name, settings, settings.before_start, generation)
            await self._within_timeout(call)
            self._opened_generation = generation
