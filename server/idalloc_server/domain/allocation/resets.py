"""The allocator of a sequence with a reset: one counter for each period."""

import asyncio
import math

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import SharedState
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.sequence_allocator import SequenceAllocator
from idalloc_server.domain.errors import SequenceDeleted, StoreUnavailable
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.sequences.calendar import period_at, period_end
from idalloc_server.domain.sequences.model import Reset, Sequence, name_of_period
from idalloc_server.domain.store.protocol import within_timeout
from idalloc_server.domain.store.records import Grant, Revision, Row

# How often ids are taken again because the sequence's generation changed meanwhile.
_ATTEMPTS = 4


class PeriodAllocator(SequenceAllocator):
    """Issues the ids of one period, in the generation of the sequence's own lease."""

    def __init__(self, sequence: str, period: str, shared: SharedState) -> None:
        super().__init__(name_of_period(sequence, period), shared, sequence, period)
        self._parent_settings = Sequence()
        self._parent_generation = 0
        self._opened_generation = 0

    def follow(self, proof: IdRange) -> None:
        """Adopts the sequence's generation and settings; burns the ids of an older generation."""
        self._parent_settings = proof.sequence
        self._parent_generation = proof.generation
        if self.generation < proof.generation:
            self.drop(BurnCause.GENERATION)

    async def _grant(self, wanted: int) -> Grant | None:
        await self._open()
        return await super()._grant(wanted)

    async def _read_row(self) -> Row | None:
        await self._open()
        return await super()._read_row()

    async def _create_row(self) -> None:
        self._opened_generation = 0
        await self._open()

    async def _open(self) -> None:
        """Creates the row or moves it to the sequence's generation, unless this process has seen it there."""
        generation = self._parent_generation
        if max(self._opened_generation, self._high_water_marks.generation(self._name)) < generation:
            settings = self._parent_settings
            call = self._store.open_period(self._name, settings, settings.before_start, generation)
            await self._store_calls.within_timeout(call)
            self._opened_generation = generation


class ResettingSequenceAllocator:
    """Issues the ids of a sequence with a reset, from the counter of the current period by this node's wall clock.

    The sequence's own row grants no ids: its lease proves the generation. Ids of a period are issued only while that
    lease is valid and has the same generation.

    Args:
        name: The sequence's name.
        parent: The allocator of the sequence's own row.
        shared: The state shared by all sequence allocators.
    """

    def __init__(self, name: str, parent: SequenceAllocator, shared: SharedState) -> None:
        self._name = name
        self._parent = parent
        self._shared = shared
        self._clock = shared.clock
        self._period_allocators: dict[str, PeriodAllocator] = {}
        # The current period and the kind of reset; the span of the wall clock in which the period is current.
        self._reset = Reset.NEVER
        self._period = ""
        self._since = math.inf
        self._until = -math.inf
        # A generation that a period's counter has and the sequence has not, and when this was first seen.
        self._pending_generation = (0, math.inf)

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        return any(allocator.has_lease for allocator in self.allocators)

    @property
    def allocators(self) -> list[SequenceAllocator]:
        """The allocators of all periods, then that of the sequence's own row."""
        return [*self._period_allocators.values(), self._parent]

    def issue_from_lease(self, count: int) -> IdRange | None:
        """See ``SequenceAllocator.issue_from_lease``."""
        proof = self._parent.issue_from_lease(0)
        if proof is None:
            return None
        period_allocator = self._period_allocators.get(self._current_period(proof.sequence))
        if period_allocator is None or period_allocator.generation != proof.generation:
            return self._parent.issue_from_lease(count) if proof.sequence.reset == Reset.NEVER else None
        taken = period_allocator.issue_from_lease(count)
        return taken if taken is None else _limit_expiry(taken, proof)

    async def issue_after_refill(self, count: int) -> IdRange:
        """Takes ids, waiting for the store.

        Raises:
            Refusal: See ``Allocator.allocate``.
        """
        for _ in range(_ATTEMPTS):
            proof = self.proof() or await self.renew_proof()
            if proof.sequence.reset == Reset.NEVER:  # the store went backwards, and has another sequence now
                return self._parent.issue_from_lease(count) or await self._parent.issue_after_refill(count)
            period_allocator = self._current_allocator(proof)
            if period_allocator.generation > proof.generation:
                proof = await self._renew_proof_of(period_allocator.generation)
                period_allocator = self._current_allocator(proof)
            is_current = period_allocator.generation == proof.generation
            taken = (
                period_allocator.issue_from_lease(count) if is_current else None
            ) or await period_allocator.issue_after_refill(count)
            valid = await self._validate(taken)
            if valid is not None:
                return valid
        raise StoreUnavailable(f"sequence {self._name!r} was changed during each of {_ATTEMPTS} attempts: try again")

    def proof(self) -> IdRange | None:
        """See ``SequenceAllocator.proof``."""
        return self._parent.proof()

    async def renew_proof(self) -> IdRange:
        """See ``SequenceAllocator.renew_proof``."""
        try:
            return await self._parent.renew_proof()
        except SequenceDeleted:
            for period_allocator in self._period_allocators.values():
                period_allocator.drop(BurnCause.GENERATION)
            raise

    async def drop_after_change(self) -> None:
        """See ``SequenceAllocator.drop_after_change``."""
        await asyncio.gather(*(allocator.drop_after_change() for allocator in self.allocators))

    def pop_idle(self) -> list[SequenceAllocator]:
        """Removes and returns the periods that issued nothing since the last call; the caller closes them."""
        idle = {period: allocator for period, allocator in self._period_allocators.items() if allocator.is_idle()}
        for period in idle:
            del self._period_allocators[period]
        return list(idle.values())

    def is_idle(self) -> bool:
        """Returns whether there are no periods left and the allocator of the own row is idle."""
        return self._parent.is_idle() and not self._period_allocators

    def _current_period(self, sequence: Sequence) -> str:
        wall = self._clock.wall()
        if not self._since <= wall < self._until:
            self._period = period_at(sequence, wall)
            self._since, self._until = wall, period_end(sequence, wall)
        return self._period

    def _current_allocator(self, proof: IdRange) -> PeriodAllocator:
        if proof.sequence.reset != self._reset:  # at first, and after another sequence replaced this one
            self._reset, self._until = proof.sequence.reset, -math.inf
        period = self._current_period(proof.sequence)
        period_allocator = self._period_allocators.get(period)
        if period_allocator is None:
            period_allocator = self._period_allocators[period] = PeriodAllocator(self._name, period, self._shared)
            now = self._clock.boot()
            ends_at = now + self._until - self._clock.wall()
            self._shared.high_water_marks.begin_period(self._name, period, now, ends_at, self._period_allocators)
        period_allocator.follow(proof)
        return period_allocator

    async def _renew_proof_of(self, generation: int) -> IdRange:
        """Renews the proof after a period's counter was seen in a newer generation.

        An advance writes the period's counter before the sequence, and no id of either is issued in between. An
        advance that was interrupted there is completed here, after ``store_timeout``.

        Raises:
            StoreUnavailable: The sequence is not in that generation yet.
        """
        proof = await self.renew_proof()
        if proof.generation < generation:
            now = self._clock.boot()
            if self._pending_generation[0] != generation:
                self._pending_generation = (generation, now)
            if now - self._pending_generation[1] >= self._shared.allocation_config.store_timeout:
                self._pending_generation = (generation, now)
                await self._complete_advance(generation)
            raise StoreUnavailable(f"sequence {self._name!r} is being changed: try again")
        return proof

    async def _complete_advance(self, generation: int) -> None:
        """Moves the sequence past its counter's generation. Any number of nodes may do this concurrently."""
        store = self._shared.store

        async def revise() -> None:
            row = await store.get(self._name)
            if row is not None and not row.deleted and row.generation < generation:
                by = f"catch up with generation {generation}"
                newer = generation_after(row.sequence, generation, self._clock)
                change = Revision(row.sequence, row.sequence.before_start, by, self._clock.wall(), True, newer)
                await store.revise(self._name, row.revision, change)

        await within_timeout(self._shared.allocation_config.store_timeout, revise())

    async def _validate(self, taken: IdRange) -> IdRange | None:
        """Returns ids that were taken, or burns them and returns None if the sequence has another generation."""
        cause = BurnCause.GENERATION
        try:
            proof = self.proof()
            if proof is None or proof.generation < taken.generation:
                proof = await self._renew_proof_of(taken.generation)
            taken = _limit_expiry(taken, proof)
            if self._clock.boot() >= taken.expires_at:
                cause = BurnCause.EXPIRED
                raise StoreUnavailable(f"the lease of sequence {self._name!r} expired before the reply")
            if proof.generation == taken.generation:
                return taken
        except asyncio.CancelledError:
            self._shared.burned.add(self._name, taken.period, BurnCause.CANCELLED, taken.id_count)
            raise
        except BaseException:
            self._shared.burned.add(self._name, taken.period, cause, taken.id_count)
            raise
        self._shared.burned.add(self._name, taken.period, cause, taken.id_count)
        return None


def _limit_expiry(taken: IdRange, proof: IdRange) -> IdRange:
    """Returns the range with the earlier one of the two expiry times."""
    return taken if taken.expires_at <= proof.expires_at else taken._replace(expires_at=proof.expires_at)
