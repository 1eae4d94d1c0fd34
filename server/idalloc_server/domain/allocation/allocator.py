"""All sequences of this node, each with a lane of its own."""

import asyncio
import os
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from idalloc_server.domain import fork
from idalloc_server.domain.allocation.burned import BurnedIds
from idalloc_server.domain.allocation.config import AllocationConfig, SharedState
from idalloc_server.domain.allocation.high_water_marks import HighWaterMarks
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.resets import ResettingSequenceAllocator
from idalloc_server.domain.allocation.sequence_allocator import SequenceAllocator, SequenceHasReset
from idalloc_server.domain.allocation.usage import UsageRates
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.sequences.model import Sequence, check_name
from idalloc_server.domain.store import Store
from idalloc_server.domain.store_health import StoreHealth

# A lane that issued nothing for one to two of these parts of a lease's life is dropped.
IDLE_SHARE = 3
# How many lanes are closed at a time, so that a stop with many leases does not flood the store.
CLOSE_CONCURRENCY = 32
# How many lanes are looked at in one go, so that a million of them do not hold up the event loop.
LOOK_AT_ONCE = 1000


class LeaseProof(NamedTuple):
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

    def __init__(self, store: Store, clock: Clock, allocation_config: AllocationConfig) -> None:
        self.burned = BurnedIds()
        self.rates = UsageRates(clock)
        self.store_check = StoreHealth()
        self._allocation_config = allocation_config
        self._high_water_marks = HighWaterMarks(allocation_config.max_sequences)
        self._shared = SharedState(
            store,
            clock,
            allocation_config,
            self._high_water_marks,
            self.burned,
            self.rates,
            self.store_check,
            self._drop_unknown,
        )
        self._sequence_allocators: dict[str, SequenceAllocator | ResettingSequenceAllocator] = {}
        # Those that are out of use and not closed yet.
        self._closing: set[SequenceAllocator] = set()
        self._pid = os.getpid()
        fork.register(self)

    @property
    def lease_count(self) -> int:
        """How many sequences have ids in memory."""
        return sum(sequence_allocator.has_lease for sequence_allocator in self._sequence_allocators.values())

    def take(self, sequence: str, count: int) -> IdRange | None:
        """Takes ids from memory, at once.

        Args:
            sequence: The sequence's name.
            count: How many ids, at least 1.

        Returns:
            One contiguous range, or None where ``allocate`` must ask the store first.
        """
        sequence_allocator = self._sequence_allocators.get(sequence)
        if sequence_allocator is None or os.getpid() != self._pid:
            return None
        return sequence_allocator.take(count)

    async def allocate(self, sequence: str, count: int) -> IdRange:
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
        sequence_allocator = self._sequence_allocator(sequence)
        taken = sequence_allocator.take(count)
        if taken is not None:
            return taken
        try:
            return await sequence_allocator.allocate(count)
        except SequenceHasReset:
            if (
                isinstance(sequence_allocator, SequenceAllocator)
                and self._sequence_allocators.get(sequence) is sequence_allocator
            ):
                self._sequence_allocators[sequence] = ResettingSequenceAllocator(
                    sequence, sequence_allocator, self._shared
                )
        return await self.allocate(sequence, count)

    def pop_created(self, sequence: str) -> bool:
        """Return, to one caller after ``allocate``, whether this node created the sequence by its first use."""
        sequence_allocator = self._sequence_allocators.get(sequence)
        return isinstance(sequence_allocator, SequenceAllocator) and sequence_allocator.pop_created()

    async def proof(self, sequence: str) -> LeaseProof:
        """Returns what a sequence is, as the store proved it within a lease's life.

        Raises:
            Refusal: As ``allocate``.
        """
        sequence_allocator = self._sequence_allocator(sequence)
        none = sequence_allocator.proof() or await sequence_allocator.renew_proof()
        return LeaseProof(none.generation, none.sequence, none.expires_at)

    async def forget(self, sequence: str) -> None:
        """Drops what this node holds of a sequence that was changed: whoever comes later has the store asked.

        Waits for the refill that is under way. A stop because the store went backwards ends, until that is seen again.
        """
        sequence_allocator = self._sequence_allocators.get(sequence)
        if sequence_allocator is not None:
            await sequence_allocator.forget()

    def generation_seen(self, sequence: str) -> int:
        """Returns the newest generation of a sequence that a write of this node returned; 0 where none did."""
        return self._high_water_marks.generation(sequence)

    async def run(self) -> None:
        """Drops idle lanes and gives their tails back, for ever. Its owner cancels it."""
        while True:
            await asyncio.sleep(self._allocation_config.lease_ttl / IDLE_SHARE)
            await self.drop_idle_sequences()

    async def drop_idle_sequences(self) -> None:
        """Drops the lanes that issued nothing since the last call."""
        names = list(self._sequence_allocators)
        for start in range(0, len(names), LOOK_AT_ONCE):
            await self._close_sequences(self._pop_idle(names[start : start + LOOK_AT_ONCE]))
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Gives all unused tails back to the store. Nothing may be taken after this."""
        # Popped before the first await: a caller who comes now gets a lane of its own.
        sequence_allocators, self._sequence_allocators = self._sequence_allocators.values(), {}
        # Idle ones, too, whose turn to be closed had not come when the task that dropped them was cancelled.
        try:
            await self._close_sequences(
                [
                    *self._closing,
                    *(part for sequence_allocator in sequence_allocators for part in sequence_allocator.parts),
                ]
            )
        finally:  # none is left, unless the time was too short
            self._abandon_closing()

    def abandon(self) -> None:
        """Burns all that is held, where there is no time to give it back. Nothing may be taken after this."""
        sequence_allocators, self._sequence_allocators = self._sequence_allocators.values(), {}
        self._closing.update(part for sequence_allocator in sequence_allocators for part in sequence_allocator.parts)
        self._abandon_closing()

    def _abandon_closing(self) -> None:
        while self._closing:
            self._closing.pop().abandon()

    def _sequence_allocator(self, sequence: str) -> SequenceAllocator | ResettingSequenceAllocator:
        if os.getpid() != self._pid:
            raise StoreUnavailable("this process is a fork of the server; it issues no ids")
        sequence_allocator = self._sequence_allocators.get(sequence)
        if sequence_allocator is None:
            check_name(sequence)
            self._high_water_marks.admit(sequence)
            sequence_allocator = self._sequence_allocators[sequence] = SequenceAllocator(sequence, self._shared)
        return sequence_allocator

    def _drop_unknown(self, name: str) -> None:
        """Drops the lane of a name without a mark, so that names that are refused cost no memory."""
        self._high_water_marks.dismiss(name)
        self._sequence_allocators.pop(name, None)

    def _pop_idle(self, names: Iterable[str]) -> list[SequenceAllocator]:
        idle: list[SequenceAllocator] = []
        for name in names:
            sequence_allocator = self._sequence_allocators.get(name)
            if isinstance(sequence_allocator, ResettingSequenceAllocator):
                idle += sequence_allocator.pop_idle()
                if sequence_allocator.is_idle():
                    del self._sequence_allocators[name]
                    idle += sequence_allocator.parts
            elif sequence_allocator and sequence_allocator.is_idle():
                del self._sequence_allocators[name]
                idle.append(sequence_allocator)
        return idle

    async def _close_sequences(self, closing: list[SequenceAllocator]) -> None:
        sequence_allocators = deque(closing)
        self._closing.update(sequence_allocators)

        async def close_some() -> None:
            while sequence_allocators:
                sequence_allocator = sequence_allocators.popleft()
                try:
                    await sequence_allocator.close()
                finally:
                    self._closing.discard(sequence_allocator)

        await asyncio.gather(*(close_some() for _ in range(min(CLOSE_CONCURRENCY, len(closing)))))

    def forget_after_fork(self) -> None:
        """Gives up the parent's leases, in the child of a fork, which issues nothing."""
        self._sequence_allocators.clear()
        self._pid = fork.NO_PROCESS
