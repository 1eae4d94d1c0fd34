"""All sequences of this node, each with a lane of its own."""

import asyncio
import os
import weakref
from collections import deque

from idalloc_server.domain.burned import Burned
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.lane import Lane, Terms
from idalloc_server.domain.mark import Marks
from idalloc_server.domain.range import Range
from idalloc_server.domain.sequence import check_name
from idalloc_server.domain.store import Store

# A lane that issued nothing for one to two of these parts of a lease's life is dropped.
IDLE_SHARE = 3
# How many lanes are closed at a time, so that a stop with many leases does not flood the store.
CLOSE_CONCURRENCY = 32
# How many lanes are looked at in one go, so that a million of them do not hold up the event loop.
LOOK_AT_ONCE = 1000

_allocators: "weakref.WeakSet[Allocator]" = weakref.WeakSet()


class Allocator:
    """Issues ids of any number of sequences, from leases in memory where it can.

    All methods must be called on one event loop of the process that made it. A fork of that process issues nothing.

    Args:
        store: Where the counters are kept; opened, and closed, by the caller.
        clock: Ends the leases.
        terms: What all lanes are run by.

    Attributes:
        burned: The ids that were taken and not issued.
    """

    def __init__(self, store: Store, clock: Clock, terms: Terms) -> None:
        self.burned = Burned()
        self._store = store
        self._clock = clock
        self._terms = terms
        self._marks = Marks()
        self._lanes: dict[str, Lane] = {}
        self._pid = os.getpid()
        _allocators.add(self)

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
            SequenceNotFound: There is no such sequence, and none is created on first use.
            SequenceExhausted: The sequence has fewer ids left; none was taken.
            SequenceInvalid: Its row in the store cannot be counted on.
            StoreUnavailable: The store is away, slow, or refused.
            StoreWentBackwards: The store is behind what this process saw of the sequence.
        """
        if os.getpid() != self._pid:
            raise StoreUnavailable("this process is a fork of the server; it issues no ids")
        lane = self._lanes.get(sequence)
        if lane is None:
            check_name(sequence)
            lane = Lane(sequence, self._store, self._clock, self._terms, self._marks, self.burned)
            self._lanes[sequence] = lane
        taken = lane.take(count)
        return await lane.allocate(count) if taken is None else taken

    async def run(self) -> None:
        """Drops idle lanes and gives their tails back, for ever. Its owner cancels it."""
        while True:
            await asyncio.sleep(self._terms.lease_ttl / IDLE_SHARE)
            await self.drop_idle_lanes()

    async def drop_idle_lanes(self) -> None:
        """Drops the lanes that issued nothing since the last call."""
        names = list(self._lanes)
        for start in range(0, len(names), LOOK_AT_ONCE):
            lanes = ((name, self._lanes.get(name)) for name in names[start : start + LOOK_AT_ONCE])
            await self._close_lanes([name for name, lane in lanes if lane and lane.is_idle()])
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Gives all unused tails back to the store. Nothing may be taken after this."""
        await self._close_lanes(list(self._lanes))

    async def _close_lanes(self, names: list[str]) -> None:
        # Popped before the first await: a caller who comes now gets a lane of its own.
        lanes = deque([self._lanes.pop(name) for name in names])

        async def close_some() -> None:
            while lanes:
                await lanes.popleft().close()

        try:
            await asyncio.gather(*(close_some() for _ in range(min(CLOSE_CONCURRENCY, len(names)))))
        finally:
            for lane in lanes:  # none, unless the time was too short
                lane.abandon()

    def _forget(self) -> None:
        self._lanes.clear()


def _forget_in_child() -> None:
    for allocator in list(_allocators):
        allocator._forget()
        allocator._pid = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
