"""All sequences of this node, each with a lane of its own."""

import asyncio
import os
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from idalloc_server.domain import fork
from idalloc_server.domain.allocation.burned import Burned
from idalloc_server.domain.allocation.config import Shared, Terms
from idalloc_server.domain.allocation.high_water_marks import Marks
from idalloc_server.domain.allocation.id_range import Range
from idalloc_server.domain.allocation.resets import Periods
from idalloc_server.domain.allocation.sequence_allocator import Lane, StartsOver
from idalloc_server.domain.allocation.usage import Rates
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.sequences.model import Sequence, check_name
from idalloc_server.domain.store import Store
from idalloc_server.domain.store_health import StoreCheck

# A lane that issued nothing for one to two of these parts of a lease's life is dropped.
IDLE_SHARE = 3
# How many lanes are closed at a time, so that a stop with many leases does not flood the store.
CLOSE_CONCURRENCY = 32
# How many lanes are looked at in one go, so that a million of them do not hold up the event loop.
LOOK_AT_ONCE = 1000


class Standing(NamedTuple):
    """What the store proved of a sequence.

    Attributes:
        generation: The generation.
        sequence: The settings.
        expires_at: Until when no change of it counts, in ``Clock.boot`` seconds.
    """

    generation: int
    sequence: Sequence
    expires_at: float


class Allocator:
    """Issues ids of any number of sequences, from leases in memory where it can.

    All methods must be called on one event loop of the process that made it. A fork of that process issues nothing.

    Args:
        store: Where the counters are kept; opened, and closed, by the caller.
        clock: Ends the leases.
        terms: What all lanes are run by.

    Attributes:
        burned: The ids that were taken and not issued.
        rates: How fast sequences are used.
        store_check: Whether the store works.
    """

    def __init__(self, store: Store, clock: Clock, terms: Terms) -> None:
        self.burned = Burned()
        self.rates = Rates(clock)
        self.store_check = StoreCheck()
        self._terms = terms
        self._marks = Marks(terms.max_sequences)
        self._shared = Shared(
            store, clock, terms, self._marks, self.burned, self.rates, self.store_check, self._drop_unknown
        )
        self._lanes: dict[str, Lane | Periods] = {}
        # Those that are out of use and not closed yet.
        self._closing: set[Lane] = set()
        self._pid = os.getpid()
        fork.watch(self)

    @property
    def lease_count(self) -> int:
        """How many sequences have ids in memory."""
        return sum(lane.has_lease for lane in self._lanes.values())

    def take(self, sequence: str, count: int) -> Range | None:
        """Takes ids from memory, at once.

        Args:
            sequence: The sequence's name.
            count: How many ids, at least 1.

        Returns:
            One contiguous range, or None where ``allocate`` must ask the store first.
        """
        lane = self._lanes.get(sequence)
        if lane is None or os.getpid() != self._pid:
            return None
        return lane.take(count)

    async def allocate(self, sequence: str, count: int) -> Range:
        """Takes ids, waiting for the store where the lease has not that many.

        Callers of one sequence share one store call and are served first come, first served. One that is cancelled
        before its ids were taken takes none.

        Args:
            sequence: The sequence's name.
            count: How many ids, at least 1.

        Returns:
            One contiguous range.

        Raises:
            InvalidRequest: The name is malformed.
            TooManySequences: The name is one too many for this process.
            SequenceNotFound: There is no such sequence, and none is created on first use.
            SequenceDeleted: It was deleted.
            SequenceExhausted: The sequence has fewer ids left; none was taken.
            SequenceAheadOfClock: So many timestamps there are only later.
            SequenceInvalid: Its row in the store cannot be counted on.
            StoreUnavailable: The store is away, slow, or refused.
            StoreWentBackwards: The store is behind what this process saw of the sequence.
        """
        lane = self._lane(sequence)
        taken = lane.take(count)
        if taken is not None:
            return taken
        try:
            return await lane.allocate(count)
        except StartsOver:
            if isinstance(lane, Lane) and self._lanes.get(sequence) is lane:
                self._lanes[sequence] = Periods(sequence, lane, self._shared)
        return await self.allocate(sequence, count)

    def pop_created(self, sequence: str) -> bool:
        """Return, to one caller after ``allocate``, whether this node created the sequence by its first use."""
        lane = self._lanes.get(sequence)
        return isinstance(lane, Lane) and lane.pop_created()

    async def standing(self, sequence: str) -> Standing:
        """Returns what a sequence is, as the store proved it within a lease's life.

        Raises:
            Refusal: As ``allocate``.
        """
        lane = self._lane(sequence)
        none = lane.standing() or await lane.prove()
        return Standing(none.generation, none.sequence, none.expires_at)

    async def forget(self, sequence: str) -> None:
        """Drops what this node holds of a sequence that was changed: whoever comes later has the store asked.

        Waits for the refill that is under way. A stop because the store went backwards ends, until that is seen again.
        """
        lane = self._lanes.get(sequence)
        if lane is not None:
            await lane.forget()

    def generation_seen(self, sequence: str) -> int:
        """Returns the newest generation of a sequence that a write of this node returned; 0 where none did."""
        return self._marks.generation(sequence)

    async def run(self) -> None:
        """Drops idle lanes and gives their tails back, for ever. Its owner cancels it."""
        while True:
            await asyncio.sleep(self._terms.lease_ttl / IDLE_SHARE)
            await self.drop_idle_lanes()

    async def drop_idle_lanes(self) -> None:
        """Drops the lanes that issued nothing since the last call."""
        names = list(self._lanes)
        for start in range(0, len(names), LOOK_AT_ONCE):
            await self._close_lanes(self._pop_idle(names[start : start + LOOK_AT_ONCE]))
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Gives all unused tails back to the store. Nothing may be taken after this."""
        # Popped before the first await: a caller who comes now gets a lane of its own.
        lanes, self._lanes = self._lanes.values(), {}
        # Idle ones, too, whose turn to be closed had not come when the task that dropped them was cancelled.
        try:
            await self._close_lanes([*self._closing, *(part for lane in lanes for part in lane.parts)])
        finally:  # none is left, unless the time was too short
            self._abandon_closing()

    def abandon(self) -> None:
        """Burns all that is held, where there is no time to give it back. Nothing may be taken after this."""
        lanes, self._lanes = self._lanes.values(), {}
        self._closing.update(part for lane in lanes for part in lane.parts)
        self._abandon_closing()

    def _abandon_closing(self) -> None:
        while self._closing:
            self._closing.pop().abandon()

    def _lane(self, sequence: str) -> Lane | Periods:
        if os.getpid() != self._pid:
            raise StoreUnavailable("this process is a fork of the server; it issues no ids")
        lane = self._lanes.get(sequence)
        if lane is None:
            check_name(sequence)
            self._marks.admit(sequence)
            lane = self._lanes[sequence] = Lane(sequence, self._shared)
        return lane

    def _drop_unknown(self, name: str) -> None:
        """Drops the lane of a name without a mark, so that names that are refused cost no memory."""
        self._marks.dismiss(name)
        self._lanes.pop(name, None)

    def _pop_idle(self, names: Iterable[str]) -> list[Lane]:
        idle: list[Lane] = []
        for name in names:
            lane = self._lanes.get(name)
            if isinstance(lane, Periods):
                idle += lane.pop_idle()
                if lane.is_idle():
                    del self._lanes[name]
                    idle += lane.parts
            elif lane and lane.is_idle():
                del self._lanes[name]
                idle.append(lane)
        return idle

    async def _close_lanes(self, closing: list[Lane]) -> None:
        lanes = deque(closing)
        self._closing.update(lanes)

        async def close_some() -> None:
            while lanes:
                lane = lanes.popleft()
                try:
                    await lane.close()
                finally:
                    self._closing.discard(lane)

        await asyncio.gather(*(close_some() for _ in range(min(CLOSE_CONCURRENCY, len(closing)))))

    def forget_parent(self) -> None:
        """Gives up the parent's leases, in the child of a fork, which issues nothing."""
        self._lanes.clear()
        self._pid = fork.NO_PROCESS
