"""One sequence with a reset on this node: the parent's standing, and a lane for each period's counter."""

import asyncio
import math

from idalloc_server.domain.allocation.burned import Cause
from idalloc_server.domain.allocation.config import Shared
from idalloc_server.domain.allocation.id_range import Range
from idalloc_server.domain.allocation.sequence_allocator import Lane
from idalloc_server.domain.errors import SequenceDeleted, StoreUnavailable
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.records import Grant, Revision, Row
from idalloc_server.domain.sequences.calendar import period_at, period_end
from idalloc_server.domain.sequences.model import Reset, Sequence, name_of_period
from idalloc_server.domain.store import within

# How often ids are taken anew because the sequence's generation changed meanwhile.
_ATTEMPTS = 4


class PeriodLane(Lane):
    """Issues the ids of one period; the parent's standing says of which generation they must be."""

    def __init__(self, sequence: str, period: str, shared: Shared) -> None:
        super().__init__(name_of_period(sequence, period), shared, sequence, period)
        self._settings = Sequence()
        self._wanted_generation = 0
        self._opened = 0

    def enter(self, standing: Range) -> None:
        """Goes on in the parent's generation: ids of an older one are burned."""
        self._settings = standing.sequence
        self._wanted_generation = standing.generation
        if self.generation < standing.generation:
            self.drop(Cause.GENERATION)

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
        if max(self._opened, self._marks.generation(self._name)) < generation:
            opening = self._store.open_period(self._name, self._settings, self._settings.before_start, generation)
            await self._within_timeout(opening, at_stake=0)
            self._opened = generation


class Periods:
    """Issues the ids of one sequence with a reset, each from the counter of the period that it is by this node's clock.

    The sequence's own row grants nothing: to have it renewed, like any lease, proves the generation, and ids of a
    period's counter are issued only as long as that is proven, and theirs.

    Args:
        name: The sequence's name.
        parent: The lane of the sequence's own row.
        shared: What all lanes share.
    """

    def __init__(self, name: str, parent: Lane, shared: Shared) -> None:
        self._name = name
        self._parent = parent
        self._shared = shared
        self._clock = shared.clock
        self._lanes: dict[str, PeriodLane] = {}
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
        return any(lane.has_lease for lane in self.parts)

    @property
    def parts(self) -> list[Lane]:
        """All lanes, to be closed."""
        return [*self._lanes.values(), self._parent]

    def take(self, count: int) -> Range | None:
        """See ``Lane.take``."""
        standing = self._parent.take(0)
        if standing is None:
            return None
        lane = self._lanes.get(self._period_now(standing.sequence))
        if lane is None or lane.generation != standing.generation:
            return self._parent.take(count) if standing.sequence.reset == Reset.NEVER else None
        taken = lane.take(count)
        return taken if taken is None else _no_longer_than(standing, taken)

    async def allocate(self, count: int) -> Range:
        """Takes ids, waiting for the store.

        Raises:
            Refusal: See ``Allocator.allocate``.
        """
        for _ in range(_ATTEMPTS):
            standing = self.standing() or await self.prove()
            if standing.sequence.reset == Reset.NEVER:  # another sequence replaced it, in a store that went backwards
                return self._parent.take(count) or await self._parent.allocate(count)
            lane = self._lane_now(standing)
            if lane.generation > standing.generation:
                standing = await self._prove_at_least(lane.generation)
                lane = self._lane_now(standing)
            taken = (lane.take(count) if lane.generation == standing.generation else None) or await lane.allocate(count)
            proven = await self._prove_for(taken)
            if proven is not None:
                return proven
        raise StoreUnavailable(f"sequence {self._name!r} is being changed")

    def standing(self) -> Range | None:
        """See ``Lane.standing``."""
        return self._parent.standing()

    async def prove(self) -> Range:
        """See ``Lane.prove``."""
        try:
            return await self._parent.prove()
        except SequenceDeleted:
            for lane in self._lanes.values():
                lane.drop(Cause.GENERATION)
            raise

    async def forget(self) -> None:
        """See ``Lane.forget``."""
        await asyncio.gather(*(part.forget() for part in self.parts))

    def pop_idle(self) -> list[Lane]:
        """Removes the lanes that issued nothing since the last call, and returns them to be closed."""
        idle = {period: lane for period, lane in self._lanes.items() if lane.is_idle()}
        for period in idle:
            del self._lanes[period]
        return list(idle.values())

    def is_idle(self) -> bool:
        """Whether nothing of it is used. Only the parent is left to be closed then."""
        return self._parent.is_idle() and not self._lanes

    def _period_now(self, sequence: Sequence) -> str:
        wall = self._clock.wall()
        if not self._since <= wall < self._until:
            self._period = period_at(sequence, wall)
            self._since, self._until = wall, period_end(sequence, wall)
        return self._period

    def _lane_now(self, standing: Range) -> PeriodLane:
        if standing.sequence.reset != self._reset:  # at first, and where another sequence replaced this one
            self._reset, self._until = standing.sequence.reset, -math.inf
        period = self._period_now(standing.sequence)
        lane = self._lanes.get(period)
        if lane is None:
            lane = self._lanes[period] = PeriodLane(self._name, period, self._shared)
            now = self._clock.boot()
            over_at = now + self._until - self._clock.wall()
            self._shared.marks.begin_period(self._name, period, now, over_at, self._lanes)
        lane.enter(standing)
        return lane

    async def _prove_at_least(self, generation: int) -> Range:
        """Has the sequence's generation told anew, where a period's counter is in a newer one than was known.

        An advance moves the period's counter first: until the sequence follows, no id of either can be issued. One that
        was broken off in between, and would still be under way by its own patience, is finished here.
        """
        standing = await self.prove()
        if standing.generation < generation:
            now = self._clock.boot()
            if self._behind[0] != generation:
                self._behind = (generation, now)
            if now - self._behind[1] >= self._shared.terms.store_timeout:
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

        await within(self._shared.terms.store_timeout, follow())

    async def _prove_for(self, taken: Range) -> Range | None:
        """Returns ids that were taken, if the sequence's generation is theirs; otherwise they are burned."""
        cause = Cause.GENERATION
        try:
            standing = self.standing()
            if standing is None or standing.generation < taken.generation:
                standing = await self._prove_at_least(taken.generation)
            taken = _no_longer_than(standing, taken)
            if self._clock.boot() >= taken.expires_at:
                cause = Cause.EXPIRED
                raise StoreUnavailable(f"the lease of sequence {self._name!r} ended before the answer")
            if standing.generation == taken.generation:
                return taken
        except asyncio.CancelledError:
            self._shared.burned.add(self._name, taken.period, Cause.CANCELLED, taken.id_count)
            raise
        except BaseException:
            self._shared.burned.add(self._name, taken.period, cause, taken.id_count)
            raise
        self._shared.burned.add(self._name, taken.period, cause, taken.id_count)
        return None


def _no_longer_than(standing: Range, taken: Range) -> Range:
    """Returns a range that ends with the standing, if not before."""
    return taken if taken.expires_at <= standing.expires_at else taken._replace(expires_at=standing.expires_at)
