"""One sequence with a reset on this node: the parent's standing, and a lane for each period's counter."""

import asyncio
import math

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import SharedState
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.sequence_allocator import SequenceAllocator
from idalloc_server.domain.errors import SequenceDeleted, StoreUnavailable
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.records import Grant, Revision, Row
from idalloc_server.domain.sequences.calendar import period_at, period_end
from idalloc_server.domain.sequences.model import Reset, Sequence, name_of_period
from idalloc_server.domain.store import within_timeout

# How often ids are taken anew because the sequence's generation changed meanwhile.
_ATTEMPTS = 4


class PeriodAllocator(SequenceAllocator):
    """Issues the ids of one period; the parent's standing says of which generation they must be."""

    def __init__(self, sequence: str, period: str, shared: SharedState) -> None:
        super().__init__(name_of_period(sequence, period), shared, sequence, period)
        self._settings = Sequence()
        self._wanted_generation = 0
        self._opened = 0

    def enter(self, standing: IdRange) -> None:
        """Goes on in the parent's generation: ids of an older one are burned."""
        self._settings = standing.sequence
        self._wanted_generation = standing.generation
        if self.generation < standing.generation:
            self.drop(BurnCause.GENERATION)

    async def _grant(self, wanted: int) -> Grant | None:
        await self._open()
        return await super()._grant(wanted)

    async def _look(self) -> Row | None:
        await self._open()
        return await super()._look()

    async def _make(self) -> None:
        self._opened = 0
        await self._open()

    async def _open(self) -> None:
        """Sees that the counter is there, in the parent's generation; a row that was there must not be made again."""
        generation = self._wanted_generation
        if max(self._opened, self._high_water_marks.generation(self._name)) < generation:
            opening = self._store.open_period(self._name, self._settings, self._settings.before_start, generation)
            await self._within_timeout(opening, at_stake=0)
            self._opened = generation


class ResettingSequenceAllocator:
    """Issues the ids of one sequence with a reset, each from the counter of the period that it is by this node's clock.

    The sequence's own row grants nothing: to have it renewed, like any lease, proves the generation, and ids of a
    period's counter are issued only as long as that is proven, and theirs.

    Args:
        name: The sequence's name.
        parent: The lane of the sequence's own row.
        shared: What all lanes share.
    """

    def __init__(self, name: str, parent: SequenceAllocator, shared: SharedState) -> None:
        self._name = name
        self._parent = parent
        self._shared = shared
        self._clock = shared.clock
        self._sequence_allocators: dict[str, PeriodAllocator] = {}
        # The present period, its reset, since when it was looked up, and until when it is that one, by the wall clock.
        self._reset = Reset.NEVER
        self._period = ""
        self._since = math.inf
        self._until = -math.inf
        # Since when the sequence has been behind a generation of one of its counters; that, and when it was seen.
        self._behind = (0, math.inf)

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        return any(sequence_allocator.has_lease for sequence_allocator in self.parts)

    @property
    def parts(self) -> list[SequenceAllocator]:
        """All lanes, to be closed."""
        return [*self._sequence_allocators.values(), self._parent]

    def take(self, count: int) -> IdRange | None:
        """See ``SequenceAllocator.take``."""
        standing = self._parent.take(0)
        if standing is None:
            return None
        sequence_allocator = self._sequence_allocators.get(self._period_now(standing.sequence))
        if sequence_allocator is None or sequence_allocator.generation != standing.generation:
            return self._parent.take(count) if standing.sequence.reset == Reset.NEVER else None
        taken = sequence_allocator.take(count)
        return taken if taken is None else _no_longer_than(standing, taken)

    async def allocate(self, count: int) -> IdRange:
        """Takes ids, waiting for the store.

        Raises:
            Refusal: See ``Allocator.allocate``.
        """
        for _ in range(_ATTEMPTS):
            standing = self.proof() or await self.renew_proof()
            if standing.sequence.reset == Reset.NEVER:  # another sequence replaced it, in a store that went backwards
                return self._parent.take(count) or await self._parent.allocate(count)
            sequence_allocator = self._period_allocator_now(standing)
            if sequence_allocator.generation > standing.generation:
                standing = await self._prove_at_least(sequence_allocator.generation)
                sequence_allocator = self._period_allocator_now(standing)
            taken = (
                sequence_allocator.take(count) if sequence_allocator.generation == standing.generation else None
            ) or await sequence_allocator.allocate(count)
            proven = await self._prove_for(taken)
            if proven is not None:
                return proven
        raise StoreUnavailable(f"sequence {self._name!r} is being changed")

    def proof(self) -> IdRange | None:
        """See ``SequenceAllocator.standing``."""
        return self._parent.proof()

    async def renew_proof(self) -> IdRange:
        """See ``SequenceAllocator.prove``."""
        try:
            return await self._parent.renew_proof()
        except SequenceDeleted:
            for sequence_allocator in self._sequence_allocators.values():
                sequence_allocator.drop(BurnCause.GENERATION)
            raise

    async def forget(self) -> None:
        """See ``SequenceAllocator.forget``."""
        await asyncio.gather(*(part.forget() for part in self.parts))

    def pop_idle(self) -> list[SequenceAllocator]:
        """Removes the lanes that issued nothing since the last call, and returns them to be closed."""
        idle = {
            period: sequence_allocator
            for period, sequence_allocator in self._sequence_allocators.items()
            if sequence_allocator.is_idle()
        }
        for period in idle:
            del self._sequence_allocators[period]
        return list(idle.values())

    def is_idle(self) -> bool:
        """Whether nothing of it is used. Only the parent is left to be closed then."""
        return self._parent.is_idle() and not self._sequence_allocators

    def _period_now(self, sequence: Sequence) -> str:
        wall = self._clock.wall()
        if not self._since <= wall < self._until:
            self._period = period_at(sequence, wall)
            self._since, self._until = wall, period_end(sequence, wall)
        return self._period

    def _period_allocator_now(self, standing: IdRange) -> PeriodAllocator:
        if standing.sequence.reset != self._reset:  # at first, and where another sequence replaced this one
            self._reset, self._until = standing.sequence.reset, -math.inf
        period = self._period_now(standing.sequence)
        sequence_allocator = self._sequence_allocators.get(period)
        if sequence_allocator is None:
            sequence_allocator = self._sequence_allocators[period] = PeriodAllocator(self._name, period, self._shared)
            now = self._clock.boot()
            over_at = now + self._until - self._clock.wall()
            self._shared.high_water_marks.begin_period(self._name, period, now, over_at, self._sequence_allocators)
        sequence_allocator.enter(standing)
        return sequence_allocator

    async def _prove_at_least(self, generation: int) -> IdRange:
        """Has the sequence's generation told anew, where a period's counter is in a newer one than was known.

        An advance moves the period's counter first: until the sequence follows, no id of either can be issued. One that
        was broken off in between, and would still be under way by its own patience, is finished here.
        """
        standing = await self.renew_proof()
        if standing.generation < generation:
            now = self._clock.boot()
            if self._behind[0] != generation:
                self._behind = (generation, now)
            if now - self._behind[1] >= self._shared.allocation_config.store_timeout:
                self._behind = (generation, now)
                await self._catch_up(generation)
            raise StoreUnavailable(f"sequence {self._name!r} is being changed")
        return standing

    async def _catch_up(self, generation: int) -> None:
        """Has the sequence follow its counter into a generation. Any number of nodes may do this at once."""
        store = self._shared.store

        async def follow() -> None:
            row = await store.get(self._name)
            if row is not None and not row.deleted and row.generation < generation:
                by = f"catch up with generation {generation}"
                newer = generation_after(row.sequence, generation, self._clock)
                change = Revision(row.sequence, row.sequence.before_start, by, self._clock.wall(), True, newer)
                await store.revise(self._name, row.revision, change)

        await within_timeout(self._shared.allocation_config.store_timeout, follow())

    async def _prove_for(self, taken: IdRange) -> IdRange | None:
        """Returns ids that were taken, if the sequence's generation is theirs; otherwise they are burned."""
        cause = BurnCause.GENERATION
        try:
            standing = self.proof()
            if standing is None or standing.generation < taken.generation:
                standing = await self._prove_at_least(taken.generation)
            taken = _no_longer_than(standing, taken)
            if self._clock.boot() >= taken.expires_at:
                cause = BurnCause.EXPIRED
                raise StoreUnavailable(f"the lease of sequence {self._name!r} ended before the answer")
            if standing.generation == taken.generation:
                return taken
        except asyncio.CancelledError:
            self._shared.burned.add(self._name, taken.period, BurnCause.CANCELLED, taken.id_count)
            raise
        except BaseException:
            self._shared.burned.add(self._name, taken.period, cause, taken.id_count)
            raise
        self._shared.burned.add(self._name, taken.period, cause, taken.id_count)
        return None


def _no_longer_than(standing: IdRange, taken: IdRange) -> IdRange:
    """Returns a range that ends with the standing, if not before."""
    return taken if taken.expires_at <= standing.expires_at else taken._replace(expires_at=standing.expires_at)
