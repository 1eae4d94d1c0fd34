"""The allocator of a sequence: its own counter and, with a reset, a counter for each period."""

import asyncio
import math
from dataclasses import dataclass, field

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import SharedState
from idalloc_server.domain.allocation.counter_allocator import CounterAllocator, CounterRow, PeriodRow
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import LeaseExpired, ServerDraining, StoreUnavailable
from idalloc_server.domain.generations import next_generation
from idalloc_server.domain.sequences.calendar import period_at, period_end
from idalloc_server.domain.sequences.sequence import Reset

# A node opens the next period's counter this many times outage_reserve before the period, at a
# moment of its own.
_LONGEST_LEAD = 3
_SHORTEST_LEAD = 2
# The interval, in seconds, at which the next period is checked from then on.
_CHECK_SECONDS = 1.0
# How often ids are issued while the sequence's generation changes, before the call fails.
_ATTEMPTS = 4


@dataclass(slots=True, eq=False)
class SequenceAllocator:
    """Issues the ids of a sequence; with a reset, from the counter of the current period.

    The period is that of this node's wall clock. With a reset the sequence's own row grants no ids:
    its lease proves the generation. Ids of a period are issued only while that lease is valid and
    has the same generation. While calls come, the counter of the next period is opened before the
    period begins, and gets the reserve of the present one (P10).
    """

    _name: str
    _shared: SharedState
    _clock: Clock = field(init=False)
    _own: CounterAllocator = field(init=False)
    # By period; empty without a reset.
    _periods: dict[str, CounterAllocator] = field(default_factory=dict)
    # The current period and the kind of reset; the span of the wall clock in which the period is
    # current.
    _reset: Reset = Reset.NEVER
    _period: str = ""
    _since: float = math.inf
    _until: float = -math.inf
    # The next period once it is opened; when to open it, and when to look at the wall clock's
    # period again.
    _next_period: str = ""
    _open_at: float = math.inf
    _check_at: float = -math.inf
    # A generation that a period's counter has and the sequence does not have, and when this was
    # first seen.
    _pending_generation: tuple[int, float] = (0, math.inf)

    def __post_init__(self) -> None:
        self._clock = self._shared.clock
        self._own = CounterAllocator(CounterRow(self._name, self._shared), self._shared)

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        return any(counter.has_lease for counter in self.counters)

    @property
    def counters(self) -> list[CounterAllocator]:
        """The allocators of all periods, then the allocator of the sequence's own row."""
        return [*self._periods.values(), self._own]

    def issue_now(self, count: int) -> IdRange | None:
        """Issue ids from the lease; None if ``issue`` must wait for the store."""
        if not self._periods:
            return self._own.issue_now(count)
        proof = self.proof()
        if proof is None:
            return None
        if proof.sequence.reset != self._reset:  # another sequence replaced this one
            return self._own.issue_now(count) if proof.sequence.reset == Reset.NEVER else None
        counter = self._periods.get(self._current_period(proof))
        if counter is None or counter.generation != proof.generation:
            return None
        issued = counter.issue_now(count)
        return issued if issued is None else _limit_expiry(issued, proof)

    async def issue(self, count: int) -> IdRange:
        """Issue ids, waiting for the store.

        Raises:
            Refusal: See ``Allocator.issue``.
        """
        for _ in range(_ATTEMPTS):
            proof = self.proof() if self._own.row.has_reset else None
            if proof is None:
                proof = await self._own.issue(count)
            if proof.id_count:  # without a reset
                return proof
            if proof.sequence.reset != self._reset:  # at first, and after another sequence replaced this one
                self._reset = proof.sequence.reset
                self._until = -math.inf
                self._check_at = -math.inf
            counter = self._counter_of(self._current_period(proof), self._since, proof)
            if counter.generation > proof.generation:
                await self._renew_proof_of(counter.generation)
                continue
            valid = await self._validate(counter.issue_now(count) or await counter.issue(count))
            if valid is not None:
                return valid
        raise StoreUnavailable(f"sequence {self._name!r} was changed during each of {_ATTEMPTS} attempts: try again")

    def proof(self) -> IdRange | None:
        """Return the lease proof, an empty range, or None if the lease has expired."""
        return self._own.issue_now(0)

    async def renew_proof(self) -> IdRange:
        """Return a lease proof after a renewal in the store."""
        return await self._own.issue(0)

    @property
    def reserve_seconds(self) -> float | None:
        """How long the ids of the counter in use last, in seconds; None without a rate."""
        return self._counter_in_use.reserve_seconds

    @property
    def reserve_limit(self) -> str:
        """What limits the reserve (``reserve.LIMITS``); "" if it is long enough."""
        seconds = self.reserve_seconds
        if seconds is None or seconds >= self._shared.allocation_config.outage_reserve:
            return ""
        return self._counter_in_use.state.reserve_limit

    async def drop_after_change(self) -> None:
        """Drop the leases and the results of refills in progress, after a change."""
        await asyncio.gather(*(counter.drop_after_change() for counter in self.counters))

    def pop_idle_periods(self) -> list[CounterAllocator]:
        """Remove and return the idle periods, for the caller to return their leases."""
        idle = [period for period, counter in self._periods.items() if counter.is_idle()]
        is_used = self._period in self._periods and self._period not in idle
        if is_used and self._next_period in idle and self._next_period > self._period:
            idle.remove(self._next_period)
        return [self._periods.pop(period) for period in idle]

    def is_idle(self) -> bool:
        """Return whether there are no periods left and the own row's allocator is idle."""
        return self._own.is_idle() and not self._periods

    @property
    def _counter_in_use(self) -> CounterAllocator:
        counter = self._periods.get(self._period) if self._period else None
        return counter or self._own

    def _current_period(self, proof: IdRange) -> str:
        wall = self._clock.wall()
        if not self._since <= wall < self._check_at:
            self._check_period(proof, wall)
        return self._period

    def _check_period(self, proof: IdRange, wall: float) -> None:
        """Find the current period, and open the next one in time."""
        if not self._since <= wall < self._until:
            self._period = period_at(proof.sequence, wall)
            self._since = wall
            self._until = period_end(proof.sequence, wall)
            share = int.from_bytes(self._shared.random(2)) / 2**16
            lead = _SHORTEST_LEAD + (_LONGEST_LEAD - _SHORTEST_LEAD) * share
            self._open_at = self._until - lead * self._shared.allocation_config.outage_reserve
        if wall < self._open_at:
            self._check_at = self._open_at
            return
        self._check_at = min(self._until, wall + _CHECK_SECONDS)
        counter = self._periods.get(self._period)
        if counter and (demand := counter.demand) and not proof.sequence.is_rising and not self._shared.is_closed():
            self._next_period = period_at(proof.sequence, self._until)
            self._counter_of(self._next_period, self._until, proof).expect(demand)

    def _counter_of(self, period: str, wall: float, proof: IdRange) -> CounterAllocator:
        """Return a period's counter, without ids of generations before the proof's.

        ``wall`` is a moment in the period.
        """
        counter = self._periods.get(period)
        if counter is None:
            if self._shared.is_closed():
                raise ServerDraining
            row = PeriodRow(period, self._own.row, self._shared)
            counter = self._periods[period] = CounterAllocator(row, self._shared)
            now = self._clock.boot()
            ends_at = now + period_end(proof.sequence, wall) - self._clock.wall()
            self._shared.high_water_marks.begin_period(self._name, period, now=now, ends_at=ends_at, used=self._periods)
        if counter.generation < proof.generation:
            counter.drop(BurnCause.GENERATION)
            if period == self._next_period and not counter.has_issued:
                # An older copy of the store may begin it again: nothing of it was issued here.
                self._shared.high_water_marks.forget_period(counter.row.name)
        return counter

    async def _renew_proof_of(self, generation: int) -> IdRange:
        """Renew the proof after a period's counter was seen in a newer generation.

        An advance writes the period's counter before the sequence. Between these writes no id of
        either is issued. An advance that was interrupted there is completed here, after
        ``store_timeout``.

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
        """Move the sequence past its counter's generation.

        Any number of nodes may do this concurrently.
        """
        store = self._shared.store

        async def revise() -> None:
            row = await store.get(self._name)
            if row is not None and not row.deleted and row.generation < generation:
                by = f"catch up with generation {generation}"
                change = next_generation(row, self._clock, by, newest=generation)
                await store.revise(self._name, row.revision, change)

        # The caller may leave, but all callers of the sequence need it.
        completion = asyncio.create_task(revise(), name="complete advance")
        # Retrieves a failure whose caller has left, which asyncio would log: the next call retries.
        completion.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({completion})
        completion.result()

    async def _validate(self, issued: IdRange) -> IdRange | None:
        """Return the ids of a period; None, and burn them, if the generation has changed."""
        cause: BurnCause | None = BurnCause.GENERATION
        try:
            proof = self.proof()
            if proof is None or proof.generation < issued.generation:
                proof = await self._renew_proof_of(issued.generation)
            issued = _limit_expiry(issued, proof)
            if self._clock.boot() >= issued.expires_at:
                cause = BurnCause.EXPIRED
                raise LeaseExpired(self._name)
            if proof.generation != issued.generation:
                return None
            cause = None
            return issued
        except asyncio.CancelledError:
            cause = BurnCause.CANCELLED
            raise
        finally:
            if cause:
                self._shared.burned.add(self._name, issued.period, cause, issued.id_count)


def _limit_expiry(issued: IdRange, proof: IdRange) -> IdRange:
    """Return the range with the earlier one of the two expiry times."""
    return issued if issued.expires_at <= proof.expires_at else issued._replace(expires_at=proof.expires_at)
