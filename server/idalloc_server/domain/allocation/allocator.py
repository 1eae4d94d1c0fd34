"""The allocator of a node: issues ids of all sequences."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from idalloc_server.domain.allocation.config import AllocationConfig, SharedState
from idalloc_server.domain.allocation.counter_allocator import CounterAllocator
from idalloc_server.domain.allocation.high_water_marks import HighWaterMarks
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.allocation.sequence_allocator import SequenceAllocator
from idalloc_server.domain.allocation.survey import Survey, survey
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import ServerDraining, StoreUnavailable
from idalloc_server.domain.fork import NO_PROCESS, OS_PROCESS, Process
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, check_name
from idalloc_server.domain.store.protocol import Store

# A sequence that issued nothing between two checks is closed. They are ``outage_reserve`` apart if
# that is longer: a sequence that is called once in that time is in use (P10).
IDLE_CHECKS_PER_LEASE_TTL = 3
# How many sequences are closed at once: a stop with many leases must not flood the store.
CLOSE_CONCURRENCY = 32
# How many sequences are checked before the event loop runs other tasks.
IDLE_CHECK_BATCH = 1000


class Allocator:
    """Issues ids of any number of sequences, from leases in memory if possible.

    All methods must be called on one event loop. A fork of the process issues nothing (P8).

    Args:
        store: The store of the counters. The caller opens and closes it.
        clock: The clock that leases expire by.
        allocation_config: The settings of all sequence allocators.
        random: Returns random bytes of a given number.
        process: The process that holds the leases.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        allocation_config: AllocationConfig,
        random: Callable[[int], bytes] = os.urandom,
        process: Process = OS_PROCESS,
    ) -> None:
        self._allocation_config = allocation_config
        self._high_water_marks = HighWaterMarks(allocation_config.max_sequences)
        self._shared = SharedState(
            store=store,
            clock=clock,
            allocation_config=allocation_config,
            high_water_marks=self._high_water_marks,
            drop_unknown=self._drop_unknown,
            is_closed=lambda: self._is_closed,
            random=random,
        )
        self.refills = self._shared.refills  # the duration of refills by outcome
        self.burned = self._shared.burned
        self.store_health = self._shared.store_health
        self._sequence_allocators: dict[str, SequenceAllocator] = {}
        self._is_closed = False
        # Counters of sequences that were removed from the dict above, but not closed yet, in the
        # order of removal.
        self._closing: dict[CounterAllocator, None] = {}
        self._current_pid = process.pid
        self._pid = process.pid()
        process.register(self)

    @property
    def lease_count(self) -> int:
        """The number of sequences with ids in memory."""
        return sum(sequence_allocator.has_lease for sequence_allocator in self._sequence_allocators.values())

    @property
    def sequence_count(self) -> int:
        """The number of sequences in use."""
        return len(self._sequence_allocators)

    def reserve_seconds(self, sequence: str) -> float | None:
        """Return how long a sequence's ids in memory last at the present rate; None if unused."""
        allocator = self._sequence_allocators.get(sequence)
        return allocator.reserve_seconds if allocator else None

    def reserve_limit(self, sequence: str) -> str:
        """Return what limits the reserve (``reserve.LIMITS``); "" if it is long enough."""
        allocator = self._sequence_allocators.get(sequence)
        return allocator.reserve_limit if allocator else ""

    def rates(self, counters: Iterable[str]) -> dict[str, float]:
        """Return the rates of this process above 0, in ids a second, by the names of counters.

        The name of a counter is that of its row, see ``name_of_period``.
        """
        rates: dict[str, float] = {}
        for name in counters:
            sequence, _, period = name.partition(PERIOD_SEPARATOR)
            for counter in self._counters_of(sequence):
                if counter.row.period == period and (rate := counter.ids_per_second):
                    rates[name] = rate
        return rates

    def pop_issued(self) -> Iterator[tuple[str, int]]:
        """Yield and remove the new ids of each sequence: a break of the loop loses none."""
        issuing = self._shared.issuing
        now = self._shared.clock.boot()
        while issuing:
            counter = issuing.pop()
            ids = counter.new_ids
            counter.new_ids = 0
            counter.use.add(ids, counter.new_since, now)
            yield counter.row.sequence, ids

    def ids_in_memory(self, sequence: str) -> int:
        """Return how many ids of a sequence, of all its periods, could be issued from memory."""
        return sum(each.state.ids_in_memory for each in self._counters_of(sequence))

    @property
    def held_ids(self) -> int:
        """The ids granted and not yet issued, burned or given back, also of expired leases."""
        return sum(
            counter.state.held_ids
            for sequence_allocator in self._sequence_allocators.values()
            for counter in sequence_allocator.counters
        )

    async def survey(self) -> Survey:
        """Return a survey of all sequences in use; the more there are, the longer it takes."""
        names = list(self._sequence_allocators)
        lease_ttl = self._allocation_config.lease_ttl
        return await survey(
            names, lambda name: [each.state for each in self._counters_of(name)], self._shared.clock, lease_ttl
        )

    def issue_now(self, sequence: str, count: int) -> IdRange | None:
        """Take ``count`` ids, at least 1, from memory; None if that needs the store."""
        sequence_allocator = self._sequence_allocators.get(sequence)
        if sequence_allocator is None or self._current_pid() != self._pid:
            return None
        return sequence_allocator.issue_now(count)

    async def issue(self, sequence: str, count: int) -> IdRange:
        """Take one contiguous range, waiting for the store if the lease has too few ids.

        Waiting callers of a sequence share store calls and are served in FIFO order. A caller
        cancelled before its ids were taken takes none; afterwards its ids are burned.

        Args:
            sequence: The sequence's name.
            count: The number of ids, at least 1.

        Raises:
            InvalidRequest: The name is invalid, or ``count`` timestamps are never available at
                once.
            TooManySequences: The process has used ``max_sequences`` others.
            SequenceNotFound: The sequence does not exist, and ``auto_create_sequences`` is off.
            SequenceDeleted: The sequence was deleted.
            SequenceExhausted: The sequence has fewer ids left; none was taken.
            SequenceAheadOfClock: The timestamps are available later.
            SequenceInvalid: The stored row is corrupt.
            StoreUnavailable: The store is unreachable, too slow, or returned an error.
            StoreWentBackwards: The store is behind what this process saw of the sequence.
        """
        issued = self.issue_now(sequence, count)
        return await self._get_or_add(sequence).issue(count) if issued is None else issued

    async def proof(self, sequence: str) -> IdRange:
        """Return the lease proof of a sequence, from memory if its lease has not expired.

        It is an empty range: the settings and the generation as the store returned them. Changes
        are not effective before its ``expires_at``.

        Raises:
            Refusal: As ``issue``.
        """
        sequence_allocator = self._get_or_add(sequence)
        return sequence_allocator.proof() or await sequence_allocator.renew_proof()

    async def drop_lease(self, sequence: str) -> None:
        """Drop this node's lease after a change of the sequence: later calls wait for the store.

        Waits for a refill in progress. Also retries a sequence whose store went backwards.
        """
        sequence_allocator = self._sequence_allocators.get(sequence)
        if sequence_allocator is not None:
            await sequence_allocator.drop_after_change()

    def generation_seen(self, sequence: str) -> int:
        """Return the newest generation that a write of this node returned for a sequence, or 0."""
        return self._high_water_marks.generation(sequence)

    async def close_idle_sequences(self) -> None:
        """Close idle sequences, which gives their unused ids back. Run until cancelled."""
        config = self._allocation_config
        while True:
            await asyncio.sleep(max(config.lease_ttl / IDLE_CHECKS_PER_LEASE_TTL, config.outage_reserve))
            await self.check_idle_sequences()

    async def check_idle_sequences(self) -> None:
        """Close the sequences that issued nothing since the last call."""
        names = list(self._sequence_allocators)
        for start in range(0, len(names), IDLE_CHECK_BATCH):
            idle: list[CounterAllocator] = []
            for name in names[start : start + IDLE_CHECK_BATCH]:
                if sequence_allocator := self._sequence_allocators.get(name):
                    idle += sequence_allocator.pop_idle_periods()
                    if sequence_allocator.is_idle():
                        del self._sequence_allocators[name]
                        idle += sequence_allocator.counters
            await self._return_leases_of(idle)
            await asyncio.sleep(0)

    async def return_leases(self) -> None:
        """Close all sequences, which gives their unused ids back.

        Later calls raise ServerDraining.
        """
        allocators = self._pop_all()
        try:
            await self._return_leases_of([*self._closing, *allocators])  # also idle ones in progress
        finally:  # empty unless this was cancelled
            self._abandon_closing()

    def abandon(self) -> None:
        """Burn all ids held, without waiting for the store. Later calls raise ServerDraining."""
        self._closing.update(dict.fromkeys(self._pop_all()))
        self._abandon_closing()

    def _counters_of(self, sequence: str) -> list[CounterAllocator]:
        allocator = self._sequence_allocators.get(sequence)
        return allocator.counters if allocator else []

    def _pop_all(self) -> list[CounterAllocator]:
        self._is_closed = True
        counters = [counter for name in self._sequence_allocators for counter in self._counters_of(name)]
        self._sequence_allocators = {}
        return counters

    def _abandon_closing(self) -> None:
        while self._closing:
            self._closing.popitem()[0].abandon()

    def _get_or_add(self, sequence: str) -> SequenceAllocator:
        if self._current_pid() != self._pid:
            raise StoreUnavailable("this process is a fork of the server and issues no ids")
        sequence_allocator = self._sequence_allocators.get(sequence)
        if sequence_allocator is None:
            if self._is_closed:  # a second allocator of a sequence would take the first one's writes for a restore
                raise ServerDraining
            check_name(sequence)
            self._high_water_marks.admit(sequence)
            sequence_allocator = self._sequence_allocators[sequence] = SequenceAllocator(sequence, self._shared)
        return sequence_allocator

    def _drop_unknown(self, name: str) -> None:
        """Drop the allocator of a name without a mark: rejected names use no memory."""
        self._high_water_marks.cancel_admission(name)
        self._sequence_allocators.pop(name, None)

    async def _return_leases_of(self, counters: list[CounterAllocator]) -> None:
        closing = deque(counters)
        self._closing.update(dict.fromkeys(closing))

        async def close_some() -> None:
            while closing:
                counter = closing.popleft()
                try:
                    await counter.return_lease()
                finally:
                    self._closing.pop(counter, None)

        await asyncio.gather(*(close_some() for _ in range(min(CLOSE_CONCURRENCY, len(counters)))))
        if not self._closing:
            self._closing.clear()  # frees the memory of removed keys

    def forget_after_fork(self) -> None:
        """Discard the parent's leases; called in the child of a fork."""
        self._sequence_allocators.clear()
        self._pid = NO_PROCESS
