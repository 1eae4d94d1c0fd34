"""The allocator of one counter: its lease, its refills, and the queue of callers that wait."""

import asyncio
from contextvars import Context
from dataclasses import dataclass, field

import structlog

from idalloc_server.domain.allocation.backwards import Backwards
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import EXHAUSTED, FAILED, OK, SharedState
from idalloc_server.domain.allocation.counter_row import CounterRow
from idalloc_server.domain.allocation.counter_state import CounterState
from idalloc_server.domain.allocation.held_ids import HeldIds
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.usage import RecentUse
from idalloc_server.domain.allocation.waiter_queue import WaiterQueue
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    LeaseExpired,
    QuotaExceeded,
    Refusal,
    SequenceDeleted,
    SequenceNotFound,
    ServerDraining,
    StoreWentBackwards,
)
from idalloc_server.domain.sequences.model import Kind
from idalloc_server.domain.store.records import Demand, Grant

_log = structlog.get_logger("idalloc.allocation")


@dataclass(slots=True, eq=False)
class CounterAllocator:
    """Issues the ids of one counter: of a sequence, or of one period of a sequence.

    All methods must be called on one event loop. One refill at a time writes to the store, in its
    own task that no caller's cancellation ends.

    Ids that rise over all nodes (``Ordering.RISING``, and timestamps) go only to callers that
    waited when the write began; the rest is given back. Later callers wait for a later write.
    """

    row: CounterRow  # the counter's row in the store
    _shared: SharedState
    new_ids: int = 0  # see ``Issuer``
    new_since: float = 0.0  # see ``Issuer``
    use: RecentUse = field(default_factory=RecentUse)
    has_issued: bool = False  # whether it has issued any id
    _clock: Clock = field(init=False)
    _held: HeldIds = field(init=False)
    _waiters: WaiterQueue = field(default_factory=WaiterQueue)
    _refill_task: asyncio.Task[None] | None = None
    _backwards: Backwards | None = None
    _has_failed: bool = False  # whether the last refill failed
    _expects_calls: bool = False  # whether a refill follows the first write at once
    _returning: int = 0  # the number of ids being given back
    _last_activity: object = None  # what ``is_idle`` saw

    def __post_init__(self) -> None:
        self._clock = self._shared.clock
        self._held = HeldIds(self.row, self._shared)

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        lease = self._held.lease
        return lease.left > 0 and not lease.is_expired(self._clock.boot())

    @property
    def state(self) -> CounterState:
        """What a survey shows of this counter."""
        row, held = self.row, self._held
        left = held.lease.left if self.has_lease else 0
        times = (held.lease.expires_at, held.remaining if held.writes else None, held.refilled_at)
        problems = (self._has_failed, held.reserve.limited_by, self._backwards is not None)
        return CounterState(row.period, row.settings, left, held.lease.left, *times, *problems, self.ids_per_second)

    @property
    def reserve_seconds(self) -> float | None:
        """How many seconds the reserve lasts at the present rate; None without reserve or rate."""
        if self.row.settings.is_rising or self.row.has_reset or not self._held.writes:
            return None
        return self._held.reserve.seconds_left(self._held.lease.left, self._clock.boot())

    @property
    def ids_per_second(self) -> float:
        """How fast this process issues ids, see ``RecentUse``."""
        return self.use.per_second(self._clock.boot())

    @property
    def generation(self) -> int:
        """The generation of the lease; 0 before the first one."""
        return self._held.lease.generation

    def issue_from_lease(self, count: int) -> IdRange | None:
        """Issue ids from the lease; None if ``issue_after_refill`` must wait for the store.

        A ``count`` of 0 returns lease metadata: an empty range. Starts a refill if few ids are
        left, or if the lease is due for renewal.
        """
        now, held = self._clock.boot(), self._held
        lease, reserve = held.lease, held.reserve
        issued = lease.issue(count, now)
        if issued is None and lease.later_ranges:
            issued = held.issue_from_later_range(count, now)
        if issued is not None:
            if count > reserve.largest_call:
                reserve.largest_call = count
            if self.new_ids:
                self.new_ids += count
            elif count:
                self.new_ids, self.new_since, self.has_issued = count, now, True
                self._shared.issued.issuing.append(self)
            if now >= held.refill_at or lease.left < reserve.refill_below:
                self._review(now)
        return issued

    async def issue_after_refill(self, count: int) -> IdRange:
        """Issue ids after the refill in progress, or a new one.

        If the sequence has a reset, issue lease metadata.

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
            raise LeaseExpired(self.row.sequence)
        reserve = self._held.reserve
        reserve.largest_call = max(reserve.largest_call, count)
        return issued

    @property
    def demand(self) -> Demand | None:
        """What the callers of this node need; None before it is measured."""
        return self._held.reserve.demand(self._held.lease.left, self._clock.boot(), self._clock.wall())

    def expect(self, demand: Demand) -> None:
        """Hold what ``demand`` needs before the first call.

        The caller repeats it, to retry a refill and to renew.
        """
        if self._backwards and self.has_issued:
            return
        self._backwards = None  # its mark was removed
        now = self._clock.boot()
        self._held.reserve.expect(demand, now)
        self._review(now)

    def is_idle(self) -> bool:
        """Return whether nothing is in progress, and nothing was issued since the last call."""
        last, self._last_activity = self._last_activity, (self._held.writes, self._held.lease.left)
        return (
            not self._refill_task and not self._waiters.waiting and not self._backwards and last == self._last_activity
        )

    async def drop_after_change(self) -> None:
        """Drop the lease after a change of the sequence, and the result of a refill in progress."""
        if self._refill_task:
            await asyncio.wait([self._refill_task])
        self._held.drop(BurnCause.GENERATION)
        self._backwards = None

    async def return_lease(self) -> None:
        """Wait for the refill, then give the unused tail back to the store.

        Nothing is issued afterwards.
        """
        try:
            while self._refill_task:
                await self._refill_task
            await self._return_tail()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Burn all ids held or in flight without waiting.

        Nothing is issued or counted afterwards.
        """
        if self.row.abandoned:
            return
        self._held.drop(BurnCause.NOT_RETURNED)
        self.row.burn(BurnCause.NOT_RETURNED, self._returning)
        self.row.burn(BurnCause.UNKNOWN_OUTCOME, self.row.requested)
        self.row.burn(BurnCause.CANCELLED, self._waiters.served_ids)
        self.row.abandoned = True
        if self._refill_task:
            self._refill_task.cancel()
        self._waiters.fail(ServerDraining())  # a refill that has not begun cannot do this

    def drop(self, cause: BurnCause) -> None:
        """Burn the rest of the lease."""
        self._held.drop(cause)

    def _review(self, now: float) -> None:
        """Start a refill if none runs, and the lease is due for renewal, or more ids are needed."""
        if self._refill_task:
            return
        held = self._held
        if now >= held.renew_at or (held.reserve.is_short(held.lease, now) and self._wanted(now)):
            self._start_refill()
        else:
            held.postpone_refill(now)

    def _start_refill(self) -> None:
        if not self._refill_task:
            # In a trace, the refill belongs to the call that waits for it; without one it belongs
            # to no call.
            waiting = self._waiters.waiting
            context = waiting[0].context if waiting else Context()
            self._refill_task = asyncio.create_task(self._run_refill(), name="refill", context=context)

    async def _run_refill(self) -> None:
        """Run one refill; its error goes to the waiters.

        Callers that wait by then start the next one.
        """
        began, outcome, self._expects_calls = self._clock.boot(), FAILED, False
        try:
            outcome = await self._refill()
        except asyncio.CancelledError:
            outcome = ""
            self._fail_waiters(ServerDraining())
            raise
        except Exception as error:
            outcome = self._end_failed_refill(error)
        finally:
            if outcome:
                self._has_failed = outcome == FAILED
                self._shared.refills[outcome].observe(self._clock.boot() - began)
            self._refill_task = None
            self._continue_after_refill()

    async def _refill(self) -> str:
        """Fetch ids, answer the waiters, and return the outcome."""
        waiting, was_counter = len(self._waiters.waiting), self.row.settings.kind == Kind.COUNTER
        wanted, grant = await self._fetch()
        is_counter, is_rising = grant.sequence.kind == Kind.COUNTER, grant.sequence.is_rising
        if wanted and was_counter != is_counter:
            return OK  # Nothing was granted. The next refill knows the kind.
        most = waiting if is_rising else len(self._waiters.waiting)
        serve = self._waiters.serve if grant.granted >= wanted else self._waiters.serve_at_bound
        self._count_issued(serve(self._held, most, self._clock.boot()))
        if is_rising and self._held.lease.left:
            await self._return_tail()
        return EXHAUSTED if grant.granted < wanted and not grant.remaining and is_counter else OK

    async def _fetch(self) -> tuple[int, Grant]:
        """Request what waiters and reserve need, and add it to the lease.

        Returns:
            The number of ids requested, and what the store granted.
        """
        clock, held = self._clock, self._held
        sent_at = clock.boot()
        wanted = self._wanted(sent_at)
        if held.lease.left and held.lease.is_expired(sent_at):
            held.drop(BurnCause.EXPIRED)
        demand = held.reserve.demand_to_write(held.lease.left, sent_at, clock)
        grant = await self.row.grant(wanted, demand)
        if grant is None:
            sent_at = clock.boot()
            wanted = self._wanted(sent_at)  # more callers may wait by now
            grant = await self.row.create(wanted)
        now = clock.boot()
        held.add(grant, sent_at, now)
        if held.writes == 1 and not grant.sequence.is_rising:
            self._expects_calls = held.reserve.adopt_demand(now, clock.wall())
        return wanted, grant

    def _wanted(self, now: float) -> int:
        """Return how many ids to request in the next write."""
        settings = self.row.settings
        if self.row.has_reset:
            return 0
        if settings.kind != Kind.COUNTER:
            limit = int(self._shared.allocation_config.max_clock_skew * settings.kind.per_second) + 1
            self._waiters.reject_above(limit, f"for sequence {self.row.sequence!r}, as max_clock_skew allows")
        requested = self._waiters.requested_ids()
        if settings.is_rising or self.row.outcome_unknown:  # else a failing store burns one reserve after another
            return requested
        held = self._held
        return requested + held.reserve.prefetch(held.lease, settings, requested, held.remaining, now)

    def _count_issued(self, count: int) -> None:
        if count and not self.new_ids:
            self.new_since, self.has_issued = self._clock.boot(), True
            self._shared.issued.issuing.append(self)
        self.new_ids += count

    def _end_failed_refill(self, error: Exception) -> str:
        """Fail the waiters with a refill's error; return the outcome, or "" without a sequence."""
        if isinstance(error, StoreWentBackwards):
            self._held.drop(BurnCause.WENT_BACKWARDS)
            self._backwards = Backwards(self.row, self._shared.high_water_marks, self._clock, error)
        elif isinstance(error, SequenceDeleted):
            self._held.drop(BurnCause.GENERATION)
        elif not isinstance(error, Refusal):
            _log.exception("refill_failed", sequence=self.row.sequence)
        self._fail_waiters(error)
        return "" if isinstance(error, SequenceNotFound | QuotaExceeded) else FAILED

    def _fail_waiters(self, error: Exception) -> None:
        self._held.record_failure(self._clock.boot())
        # The quota is that of the caller that started the refill.
        most = 1 if isinstance(error, QuotaExceeded) else None
        if not self._waiters.fail(error, most=most):  # else each caller that still waits reports it
            self._shared.store_health.record_failure(error)

    def _continue_after_refill(self) -> None:
        if self._waiters.waiting:
            self._start_refill()
        elif self._expects_calls:
            self._review(self._clock.boot())
        elif not self._held.writes and self.row.name not in self._shared.high_water_marks and not self._backwards:
            self._shared.drop_unknown(self.row.name)

    async def _return_tail(self) -> None:
        """Give the unused tail back to the store, and burn the rest of the lease."""
        lease, row, returned = self._held.detach(), self.row, 0
        value, count, version = lease.tail()
        self._returning = lease.left
        try:
            if count:
                end = value + count * lease.step
                self._shared.high_water_marks.move_back(row.name, lease.generation, end, value)
                if await row.give_back(count, version):
                    returned = count
        except Refusal as error:
            _log.warning("unused_ids_not_returned", sequence=row.sequence, ids=count, error=str(error))
        finally:
            self._returning = 0
            if not row.abandoned:
                row.burn(BurnCause.NOT_RETURNED, lease.left - returned)
