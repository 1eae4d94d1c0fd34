"""The allocator of one counter: its lease, the refill loop, and the queue of callers that wait for it."""

import asyncio

import structlog

from idalloc_server.domain.allocation.backwards import Backwards
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import EXHAUSTED, FAILED, OK, SharedState
from idalloc_server.domain.allocation.counter_row import CounterRow
from idalloc_server.domain.allocation.counter_state import CounterState
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.allocation.reserve import PREFETCH_SHARE, Reserve
from idalloc_server.domain.allocation.waiter_queue import Waiter, WaiterQueue
from idalloc_server.domain.errors import (
    Refusal,
    SequenceDeleted,
    SequenceNotFound,
    ServerDraining,
    StoreUnavailable,
    StoreWentBackwards,
)
from idalloc_server.domain.sequences.model import Kind, Reset
from idalloc_server.domain.store.records import Demand, Grant

# A failed renewal is retried after this time.
RENEW_RETRY_SECONDS = 1.0

_log = structlog.get_logger("idalloc.allocation")


class CounterAllocator:
    """Issues the ids of one counter: of a sequence, or of one period of a sequence.

    All methods must be called on one event loop. One refill at a time writes to the store, in its own task that no
    caller's cancellation ends.

    Ids that rise over all nodes (``Ordering.RISING``, and timestamps) go only to callers that waited when the write
    began; the rest is given back. Later callers wait for a later write.

    Args:
        row: The counter's row in the store.
        shared: The state shared by all allocators.

    Attributes:
        new_ids: See ``Issuer``.
        has_issued: Whether it has issued any id.
    """

    __slots__ = (
        *("row", "new_ids", "has_issued", "_clock", "_config", "_high_water_marks", "_store_health", "_drop_unknown"),
        *("_refills", "_rates", "_issuing", "_lease", "_refill_at", "_renew_at", "_refilled_at", "_has_failed"),
        *("_waiters", "_refill_task", "_backwards", "_remaining", "_writes", "_reserve", "_expects_calls"),
        *("_returning", "_last_activity"),
    )

    def __init__(self, row: CounterRow, shared: SharedState) -> None:
        self.row = row
        self._clock = shared.clock
        self._config = shared.allocation_config
        self._high_water_marks = shared.high_water_marks
        self._store_health = shared.store_health
        self._drop_unknown = shared.drop_unknown
        self._refills = shared.refills
        self._rates = shared.rates
        self._issuing = shared.issued.issuing
        self.new_ids, self.has_issued = 0, False
        self._lease = Lease(row.period)
        # When a call starts a refill: to renew the lease, or to review the reserve.
        self._refill_at = self._renew_at = self._refilled_at = 0.0
        self._has_failed = False  # the last refill
        self._waiters = WaiterQueue()
        self._refill_task: asyncio.Task[None] | None = None
        self._backwards: Backwards | None = None
        # The ids that the sequence had left after the last write, the number of writes, and the ids being given back.
        self._remaining = self._writes = self._returning = 0
        self._reserve = Reserve(self._config, self._clock.boot())
        self._expects_calls = False  # so that a refill follows the first write at once
        self._last_activity: object = None

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        return self._lease.left > 0 and not self._lease.is_expired(self._clock.boot())

    @property
    def state(self) -> CounterState:
        """What a survey shows of this counter."""
        row, lease = self.row, self._lease
        left, remaining = lease.left if self.has_lease else 0, self._remaining if self._writes else None
        times = (lease.expires_at, remaining, self._refilled_at)
        problems = (self._has_failed, self._reserve.limited_by, self._backwards is not None)
        return CounterState(row.name, row.period, row.settings, left, lease.left, *times, *problems)

    @property
    def reserve_seconds(self) -> float | None:
        """How long the ids in memory last at the present rate, in seconds; None if none are kept, or none are used."""
        if self.row.settings.is_rising or self.has_reset or not self._writes:
            return None
        return self._reserve.seconds_left(self._lease.left, self._clock.boot())

    @property
    def has_reset(self) -> bool:
        """Whether this is the own row of a sequence with a reset: it grants only lease metadata."""
        return self.row.settings.reset != Reset.NEVER and not self.row.period

    @property
    def generation(self) -> int:
        """The generation of the lease; 0 before the first one."""
        return self._lease.generation

    def issue_from_lease(self, count: int) -> IdRange | None:
        """Issues ids from the lease; None if ``issue_after_refill`` must wait for the store.

        A ``count`` of 0 returns lease metadata: an empty range. Starts a refill if few ids are left, or if the lease is
        due for renewal.
        """
        now, lease, reserve = self._clock.boot(), self._lease, self._reserve
        issued = lease.issue(count, now) or self._issue_from_later_range(count, now)
        if issued is not None:
            if count > reserve.largest_call:
                reserve.largest_call = count
            if self.new_ids:
                self.new_ids += count
            elif count:
                self.new_ids, self.has_issued = count, True
                self._issuing.append(self)
            if now >= self._refill_at or lease.left < reserve.refill_below:
                self._review(now)
        return issued

    async def issue_after_refill(self, count: int) -> IdRange:
        """Issues ids after the refill in progress, or a new one; lease metadata if the sequence has a reset.

        Raises:
            Refusal: See ``Allocator.allocate``.
        """
        if self._backwards:
            await self._backwards.recheck()
            self._backwards = None
        if self.row.abandoned:
            raise ServerDraining
        waiter = self._waiters.add(count)
        self._start_refill()
        try:
            issued = await waiter.answer
        except asyncio.CancelledError:
            if not self.row.abandoned:
                self.row.burn(BurnCause.CANCELLED, waiter.served_ids)
            raise
        finally:
            self._waiters.mark_resumed(waiter)
        if self.row.abandoned:
            raise ServerDraining
        if self._clock.boot() >= issued.expires_at:  # the process was paused after the ids were served
            self.row.burn(BurnCause.EXPIRED, issued.id_count)
            raise StoreUnavailable(f"the lease of sequence {self.row.sequence!r} expired before the reply; try again")
        self._reserve.largest_call = max(self._reserve.largest_call, count)
        return issued

    @property
    def demand(self) -> Demand | None:
        """What the callers of this node need; None before it is measured."""
        return self._reserve.demand(self._lease.left, self._clock.boot(), self._clock.wall())

    def expect(self, demand: Demand) -> None:
        """Holds what ``demand`` needs before the first call. The caller repeats it, to retry a refill and to renew."""
        if self._backwards and self.has_issued:
            return
        self._backwards = None  # its mark was removed
        self._reserve.expect(demand, self._lease.left, now := self._clock.boot())
        self._review(now)

    def is_idle(self) -> bool:
        """Returns whether nothing is in progress, and nothing was issued since the last call."""
        last, self._last_activity = self._last_activity, (self._writes, self._lease.left)
        return not self._refill_task and not self._waiters and not self._backwards and last == self._last_activity

    async def drop_after_change(self) -> None:
        """Drops the lease after a change of the sequence, and the result of a refill in progress."""
        if self._refill_task:
            await asyncio.wait([self._refill_task])
        self.drop(BurnCause.GENERATION)
        self._backwards = None

    async def return_lease(self) -> None:
        """Waits for the refill, then gives the unused tail back to the store. Nothing is issued afterwards."""
        try:
            while self._refill_task:
                await self._refill_task
            await self._return_tail()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Burns all ids held or in flight without waiting. Nothing is issued or counted afterwards."""
        if self.row.abandoned:
            return
        self.drop(BurnCause.NOT_RETURNED)
        self.row.burn(BurnCause.NOT_RETURNED, self._returning)
        self.row.burn(BurnCause.UNKNOWN_OUTCOME, self.row.requested)
        self.row.burn(BurnCause.CANCELLED, self._waiters.served_ids)
        self.row.abandoned = True
        if self._refill_task:
            self._refill_task.cancel()
        self._waiters.fail_all(ServerDraining())  # a refill that has not begun cannot do this

    def drop(self, cause: BurnCause) -> None:
        """Burns the rest of the lease."""
        self.row.burn(cause, self._lease.left)
        self._lease = Lease(self.row.period)
        self._reserve.record_drop()

    def _issue_from_later_range(self, count: int, now: float) -> IdRange | None:
        """Issues ids from a later range of the lease if one has ``count``, and burns the ranges before it.

        Near the bound it issues none: the last ids are kept for smaller calls.
        """
        if self._remaining < PREFETCH_SHARE or now >= self._lease.expires_at:
            return None
        self._skip_to(count)
        return self._lease.issue(count, now)

    def _skip_to(self, count: int) -> None:
        skipped = self._lease.skip_to(count)
        self.row.burn(BurnCause.LEFTOVER, skipped)
        self._reserve.record_skipped(skipped)

    def _review(self, now: float) -> None:
        """Starts a refill if none runs, and the lease is due for renewal, or more ids are needed."""
        if self._refill_task:
            return
        if now >= self._renew_at or (self._reserve.is_short(self._lease, now) and self._wanted()):
            self._start_refill()
        else:
            self._reserve.skip_refill(self._lease.left, now)
            self._refill_at = min(self._renew_at, self._reserve.review_at)
            self._record_rate()

    def _start_refill(self) -> None:
        if not self._refill_task:
            # In a trace, the refill belongs to the call that waits for it; without one it belongs to no call.
            context = self._waiters.first_context()
            self._refill_task = asyncio.create_task(self._run_refill(), name="refill", context=context)

    async def _run_refill(self) -> None:
        """Runs one refill; its error goes to the waiters. Callers that wait by then start the next one."""
        began, outcome, self._expects_calls = self._clock.boot(), FAILED, False
        try:
            outcome = await self._refill_once()
        except asyncio.CancelledError:
            outcome = ""
            self._fail_waiters(ServerDraining())
            raise
        except Exception as error:
            outcome = self._end_failed_refill(error)
        finally:
            if outcome:
                self._has_failed = outcome == FAILED
                self._refills[outcome].observe(self._clock.boot() - began)
            self._refill_task = None
            self._continue_after_refill()

    def _end_failed_refill(self, error: Exception) -> str:
        """Fails the waiters with a refill's error, and returns the outcome; empty if there is nothing to refill."""
        if isinstance(error, StoreWentBackwards):
            self.drop(BurnCause.WENT_BACKWARDS)
            self._backwards = Backwards(self.row, self._high_water_marks, self._clock, error)
        elif isinstance(error, SequenceDeleted):
            self.drop(BurnCause.GENERATION)
        elif not isinstance(error, Refusal):
            _log.exception("refill_failed", sequence=self.row.sequence)
        self._fail_waiters(error)
        return "" if isinstance(error, SequenceNotFound) else FAILED

    def _continue_after_refill(self) -> None:
        if self._waiters:
            self._start_refill()
        elif self._expects_calls:
            self._review(self._clock.boot())
        elif self.row.name not in self._high_water_marks and not self._backwards:
            self._drop_unknown(self.row.name)

    async def _refill_once(self) -> str:
        """Requests what waiters and reserve need, adds it to the lease, and serves the waiters; returns the outcome."""
        waiting, wanted = len(self._waiters), self._wanted()
        sent_at = self._clock.boot()
        if self._lease.left and self._lease.is_expired(sent_at):
            self.drop(BurnCause.EXPIRED)
        was_counter = self.row.settings.kind == Kind.COUNTER
        grant = await self.row.grant(wanted, self._reserve.demand_to_write(self.demand))
        if grant is None:
            wanted, sent_at = self._wanted(), self._clock.boot()  # more callers may wait by now
            grant = await self.row.create(wanted)
        self._add_to_lease(grant, sent_at)
        if wanted and was_counter != (grant.sequence.kind == Kind.COUNTER):
            return OK  # Nothing was granted. The next refill knows the kind.
        rising = grant.sequence.is_rising
        self._serve(grant.granted < wanted, grant.remaining, waiting if rising else len(self._waiters))
        if self._lease.left and rising:
            await self._return_tail()
        is_counter = grant.sequence.kind == Kind.COUNTER
        return EXHAUSTED if grant.granted < wanted and not grant.remaining and is_counter else OK

    def _wanted(self) -> int:
        """Returns how many ids to request in the next write."""
        settings = self.row.settings
        if self.has_reset:
            return 0
        if settings.kind != Kind.COUNTER:
            limit = int(self._config.max_clock_skew * settings.kind.per_second) + 1
            self._waiters.reject_above(limit, f"for sequence {self.row.sequence!r}, as max_clock_skew allows")
        requested = self._waiters.requested_ids()
        if settings.is_rising or self.row.outcome_unknown:  # else a failing store burns one reserve after another
            return requested
        return requested + self._reserve.prefetch(self._lease, settings, requested, self._remaining, self._clock.boot())

    def _add_to_lease(self, grant: Grant, sent_at: float) -> None:
        if (grant.generation, grant.step) != (self._lease.generation, self._lease.step) or grant.sequence.is_rising:
            self.drop(BurnCause.GENERATION)
        before = self._lease.left
        # The TTL starts before the store call: the store may have granted at any time since (P4).
        self._lease.add(grant, expires_at=sent_at + self._config.lease_ttl)
        self._renew_at = sent_at + self._config.lease_ttl / 3
        self._refilled_at = sent_at
        usable, now = self._lease.usable(self._reserve.largest_recent_call), self._clock.boot()
        self._reserve.record_refill(before, self._lease.left, usable, sent_at, now)
        self._refill_at = min(self._renew_at, self._reserve.review_at)
        self._remaining, self._reserve.demand_in_row = grant.remaining, grant.demand
        self._record_rate()
        if not self._writes and not grant.sequence.is_rising:
            self._expects_calls = self._reserve.adopt_demand(self._lease.left, now, self._clock.wall())
        self._writes += 1

    def _record_rate(self) -> None:
        lease = self._lease
        self._rates.record(self.row.name, lease.last_value - lease.left * lease.step, lease.step)

    def _serve(self, at_bound: bool, remaining: int, most: int) -> None:
        """Answers the waiters in FIFO order.

        At the bound of a counter nothing was granted. Waiters that want more than the store has left fail; the others
        wait for a write that requests at most that.

        Args:
            at_bound: Whether fewer ids were granted than requested.
            remaining: The number of ids that the sequence has left in the store.
            most: The most waiters to answer.
        """
        now = self._clock.boot()
        deferred: list[Waiter] = []
        for _ in range(most):
            waiter = self._waiters.first
            if not waiter.answer.done():
                count = 0 if self.has_reset else waiter.id_count
                if remaining and not at_bound:  # the last ids of a sequence are not skipped
                    self._skip_to(count)
                issued = self._lease.issue(count, now)
                if issued is not None:
                    waiter.answer.set_result(issued)
                    self._count_issued(count)
                elif not at_bound or self._lease.is_expired(now):
                    break  # It arrived during the write, or the lease has expired: the next refill serves it.
                elif count <= remaining and self.row.settings.kind == Kind.COUNTER:
                    remaining -= count
                    deferred.append(waiter)
                else:
                    left, largest = self._lease.left + remaining, self._lease.next_range_size or remaining
                    waiter.answer.set_exception(self.row.insufficient_ids_error(count, left, largest))
            self._waiters.pop_first()
        self._waiters.defer(deferred)

    def _count_issued(self, count: int) -> None:
        if count and not self.new_ids:
            self.has_issued = True
            self._issuing.append(self)
        self.new_ids += count

    def _fail_waiters(self, error: Exception) -> None:
        self._refill_at = self._renew_at = self._clock.boot() + RENEW_RETRY_SECONDS
        self._reserve.record_failure()
        if all(waiter.answer.done() for waiter in self._waiters):  # else each caller that still waits reports it
            self._store_health.record_failure(error)
        self._waiters.fail_all(error)

    async def _return_tail(self) -> None:
        """Gives the unused tail back to the store, and burns the rest of the lease."""
        lease, self._lease = self._lease, Lease(self.row.period)
        self._reserve.record_drop()
        value, count, version = lease.tail()
        returned = 0
        self._returning = lease.left
        try:
            if count:
                self._high_water_marks.move_back(self.row.name, lease.generation, value + count * lease.step, value)
                if await self.row.give_back(count, version):
                    returned = count
        except Refusal as error:
            _log.warning("tail_not_returned", sequence=self.row.sequence, ids=count, error=str(error))
        finally:
            self._returning = 0
            if not self.row.abandoned:
                self.row.burn(BurnCause.NOT_RETURNED, lease.left - returned)
