"""One counter: its row in the store, its lease, its reserve, its refills, and waiting callers."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import structlog

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import EXHAUSTED, FAILED, OK, SharedState, admit_creation
from idalloc_server.domain.allocation.issued import RecentUse
from idalloc_server.domain.allocation.lease import IdRange, Lease
from idalloc_server.domain.allocation.reserve import PREFETCH_SHARE, Reserve
from idalloc_server.domain.allocation.survey import CounterState
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    GrantLost,
    InvalidRequest,
    LeaseExpired,
    QuotaExceeded,
    Refusal,
    SequenceAheadOfClock,
    SequenceDeleted,
    SequenceExhausted,
    SequenceNotFound,
    ServerDraining,
    StoreOutcomeUnknown,
    StoreRetired,
    StoreUnavailable,
    StoreWentBackwards,
)
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Kind, Reset, Sequence, name_of_period
from idalloc_server.domain.sequences.text import check_text
from idalloc_server.domain.store.name_holds import raise_if_reserved
from idalloc_server.domain.store.records import FIRST_USE, Demand, Grant, Row, RowVersion
from idalloc_server.domain.witness.chain import WitnessOvertaken

_T = TypeVar("_T")
_DEFAULTS = Sequence()
_NONCE_BYTES = 16
# How often a grant is repeated because marks of other nodes overtook it, or its answer was lost.
_MAX_REPEATS = 4
# A failed renewal is retried after this time.
RENEW_RETRY_SECONDS = 1.0
# How often a sequence whose store went backwards is read, to see whether it was advanced.
RECHECK_SECONDS = 1.0

_log = structlog.get_logger("idalloc.allocation")


@dataclass(slots=True, eq=False)
class CounterRow:
    """The row of a counter, as one process uses it."""

    name: str  # the name of the row: the sequence's, or ``name_of_period``
    _shared: SharedState
    sequence: str = field(init=False)  # the sequence's name
    period: str = field(init=False)  # the period of the counter; empty in the sequence's own row
    settings: Sequence = _DEFAULTS  # the settings that the last grant returned
    generation: int = 0  # the generation that the last grant returned; 0 before
    outcome_unknown: bool = False  # whether the last write may have been applied without an answer
    requested: int = 0  # the number of ids requested by calls in flight
    # Whether the allocator was abandoned, which has burned the ids in flight: calls then fail.
    abandoned: bool = False
    created: bool = False  # whether this node created the row, and nobody got ids of it yet
    # Whether this is the own row of a sequence with a reset: it grants lease proofs only.
    has_reset: bool = False
    is_rising: bool = False  # whether ids rise in the order of the calls, over all nodes

    def __post_init__(self) -> None:
        self.sequence, _, self.period = self.name.partition(PERIOD_SEPARATOR)

    def burn(self, cause: BurnCause, count: int) -> None:
        """Count burned ids of the counter."""
        self._shared.burned.add(self.sequence, self.period, cause, count)

    def insufficient_ids_error(self, count: int, left: int, largest: int) -> Refusal:
        """Return SequenceExhausted, or SequenceAheadOfClock if a later call can succeed.

        ``left`` is the number of ids left, in memory and in the store; ``largest`` is the largest
        contiguous range of a counter.
        """
        name = self.sequence
        settings = self.settings
        if settings.kind == Kind.COUNTER:
            return SequenceExhausted(name, count, left, largest)
        # Timestamps continue from the clock, regardless of the counter.
        now = int(self._shared.clock.wall() * settings.kind.per_second)
        value = max(settings.max_value - left, now - 1)
        if value + count > settings.max_value:
            left = max(0, settings.max_value - value)
            return SequenceExhausted(name, count, left, left)
        max_skew = self._shared.allocation_config.max_clock_skew
        return SequenceAheadOfClock(name, (value + count - now) / settings.kind.per_second, max_skew)

    async def grant(self, wanted: int, demand: Demand | None = None) -> Grant | None:
        """Advance the counter by ``wanted`` ids, or by none if fewer are left; None without a row.

        ``demand`` replaces the row's, unless it is None.

        Raises:
            StoreWentBackwards: The store is behind what this process saw; what it granted is
                burned.
            SequenceReserved: The name is reserved.
            Refusal: As ``Store.grant``.
        """
        shared = self._shared
        kind = self.settings.kind
        lease_ms = int(shared.allocation_config.lease_ttl * 1000)
        repeats = 0
        while True:
            floor = shared.high_water_marks.floor(self.name)
            if kind == Kind.COUNTER or not wanted:
                call = shared.store.grant(self.name, wanted, lease_ms, floor, demand=demand)
            else:
                ahead = int(shared.allocation_config.max_clock_skew * kind.per_second)
                now = int(shared.clock.wall() * kind.per_second)
                call = shared.store.grant_timestamps(self.name, wanted, lease_ms, now=now, ahead=ahead, floor=floor)
            try:
                grant = await self._request(call, wanted)
            except (WitnessOvertaken, GrantLost):
                repeats += 1
                if repeats > _MAX_REPEATS:
                    raise
            except SequenceDeleted as refusal:
                if not isinstance(refusal, StoreRetired):  # else the tombstone may reserve the name
                    raise_if_reserved(await self._request(shared.store.get(self.sequence)))
                raise
            except StoreWentBackwards as error:
                self.burn(BurnCause.WENT_BACKWARDS, error.granted)
                raise
            else:
                return self._accept(grant)

    async def create(self, wanted: int) -> Grant:
        """Create the row with default settings and grant ``wanted`` ids.

        If the row exists, this is a ``grant``. The new row has a nonce that no other call has. If
        the stored row has it, the ids from the start belong to this process, even if another node
        has advanced the counter since. The store may apply the write again, which changes nothing.

        Raises:
            SequenceNotFound: ``auto_create_sequences`` is off.
            QuotaExceeded: The caller creates sequences too fast (``admit_creation``).
            InvalidRequest: The name has unsafe characters.
            Refusal: As ``grant`` and ``Store.create``.
        """
        if not self._shared.allocation_config.auto_create_sequences:
            raise SequenceNotFound(self.sequence, ", and auto_create_sequences is off: create it first")
        check_text("sequence", self.sequence)
        admit_creation.get()()
        before = _DEFAULTS.before_start
        bound = _DEFAULTS.bound
        granted = wanted if wanted <= bound - before else 0
        generation = generation_after(_DEFAULTS, 0, self._shared.clock)
        now = self._shared.clock.wall()
        nonce = FIRST_USE + self._shared.random(_NONCE_BYTES).hex()
        row = Row(
            name=self.name,
            last_value=before + granted,
            sequence=_DEFAULTS,
            generation=generation,
            lease_ms=int(self._shared.allocation_config.lease_ttl * 1000),
            revision=0,
            revised_by=nonce,
            created_at=now,
            changed_at=now,
        )
        try:
            stored = await self._request(self._shared.store.create(row), granted)
        except WitnessOvertaken:
            return await self._grant_existing(wanted)
        if stored.revised_by != nonce:
            return await self._grant_existing(wanted)
        left = bound - before - granted
        # The version is unknown, and 0 is the number of writes after the creation (``Lease.tail``).
        grant = Grant(
            last_value=before + granted,
            granted=granted,
            sequence=stored.sequence,
            remaining=left,
            generation=generation,
            version=(0, 0, generation),
            writes=0,
        )
        self._accept(grant)
        self.created = True
        return grant

    async def read(self) -> Row | None:
        """Return the row; see ``Store.get``."""
        return await self._request(self._shared.store.get(self.name))

    async def give_back(self, count: int, version: RowVersion) -> bool:
        """Give an unused tail back; see ``Store.give_back``."""
        return await self._request(self._shared.store.give_back(self.name, count, version))

    async def _grant_existing(self, wanted: int) -> Grant:
        grant = await self.grant(wanted)
        if grant is None:
            raise StoreUnavailable(f"the row of sequence {self.sequence!r} disappeared after its creation")
        return grant

    def _accept(self, grant: Grant | None) -> Grant | None:
        """Move the high-water mark to the result of a write, and return it; None without a row."""
        shared = self._shared
        self.outcome_unknown = False
        shared.store_health.record_success()
        try:
            shared.high_water_marks.update(self.name, grant)
        except StoreWentBackwards:
            self.burn(BurnCause.WENT_BACKWARDS, grant.granted if grant else 0)
            raise
        if grant is not None:
            self.generation = grant.generation
            if self.settings != grant.sequence:
                self.settings = grant.sequence
                self.has_reset = grant.sequence.reset != Reset.NEVER and not self.period
                self.is_rising = grant.sequence.is_rising
        return grant

    async def _request(self, call: Awaitable[_T], requested: int = 0) -> _T:
        """Await a call that requests ids.

        Raises:
            StoreOutcomeUnknown: The call may have been applied. Its ids are burned, as after a
                cancellation.
            ServerDraining: The allocator was abandoned meanwhile.
        """
        self.requested += requested
        try:
            answer = await call
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self.outcome_unknown = True
            if not self.abandoned:
                self.burn(BurnCause.UNKNOWN_OUTCOME, requested)
            raise
        finally:
            self.requested -= requested
        if self.abandoned:
            raise ServerDraining
        return answer


class PeriodRow(CounterRow):
    """The row of a period's counter.

    It exists from the first use of the period, in the generation of the sequence's own row.
    """

    __slots__ = ("_opened_generation", "_sequence_row")

    def __init__(self, period: str, sequence_row: CounterRow, shared: SharedState) -> None:
        super().__init__(name_of_period(sequence_row.name, period), shared)
        self._sequence_row = sequence_row
        self._opened_generation = 0

    async def grant(self, wanted: int, demand: Demand | None = None) -> Grant | None:
        await self._open()
        return await super().grant(wanted, demand)

    async def create(self, wanted: int) -> Grant:
        self._opened_generation = 0
        return await self._grant_existing(wanted)

    async def read(self) -> Row | None:
        await self._open()
        return await super().read()

    async def _open(self) -> None:
        """Create the row or move it to the sequence's generation, unless it was seen there."""
        generation = self._sequence_row.generation
        settings = self._sequence_row.settings
        if max(self._opened_generation, self._shared.high_water_marks.generation(self.name)) < generation:
            await self._request(self._shared.store.open_period(self.name, settings, settings.before_start, generation))
            self._opened_generation = generation


@dataclass(slots=True, eq=False)
class _Waiter:
    """A caller that waits for ids."""

    id_count: int  # the number of ids requested
    answer: asyncio.Future[IdRange]  # receives the range or the error
    context: Context  # the context of its call

    @property
    def served_ids(self) -> int:
        """The number of ids that the caller got; 0 before its answer, and without one."""
        answer = self.answer
        return answer.result().id_count if answer.done() and not answer.cancelled() and not answer.exception() else 0


@dataclass(slots=True, eq=False)
class _Behind:
    """The store of a counter went backwards: its ids are refused until it is advanced (P3)."""

    error: StoreWentBackwards  # what callers get
    recheck_at: float  # when the next read is due, in ``Clock.boot`` seconds
    read: asyncio.Task[bool] | None = None  # the last read; no caller's cancellation ends it


# Shared by all counters without waiters: a deque of its own would be most of the memory of an idle
# sequence.
_NO_WAITERS: deque[_Waiter] = deque()
_NONE_ACTIVE: set[_Waiter] = set()


@dataclass(slots=True, eq=False)
class CounterAllocator:
    """Issues the ids of one counter: of a sequence, or of one period of a sequence.

    All methods must be called on one event loop. One refill at a time writes to the store, in its
    own task that no caller's cancellation ends. All times are in ``Clock.boot`` seconds.

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
    _lease: Lease = field(init=False)  # the ids that this process holds
    _reserve: Reserve = field(init=False)  # how many ids it should hold
    # When the next call starts a refill or a review, even if enough ids are left.
    _refill_at: float = 0.0
    _renew_at: float = 0.0  # when the next call renews the lease
    _refilled_at: float = 0.0  # when the last write was sent
    _remaining: int = 0  # the number of ids that the sequence had left after the last write
    _writes: int = 0  # the number of writes
    # The callers that were not served, in FIFO order; and all that have not resumed yet.
    _waiting: deque[_Waiter] = field(default_factory=lambda: _NO_WAITERS)
    _active: set[_Waiter] = field(default_factory=lambda: _NONE_ACTIVE)
    # The next write is for this many waiters at the front; None for all.
    _next_write: int | None = None
    _refill_task: asyncio.Task[None] | None = None
    _behind: _Behind | None = None
    _has_failed: bool = False  # whether the last refill failed
    _expects_calls: bool = False  # whether a refill follows the first write at once
    _returning: int = 0  # the number of ids being given back
    _last_activity: object = None  # what ``is_idle`` saw

    def __post_init__(self) -> None:
        self._clock = self._shared.clock
        self._lease = Lease(self.row.period)
        self._reserve = Reserve(self._shared.allocation_config, self._clock.boot())

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        return self._lease.left > 0 and not self._lease.is_expired(self._clock.boot())

    @property
    def state(self) -> CounterState:
        """What a survey shows of this counter."""
        return CounterState(
            period=self.row.period,
            settings=self.row.settings,
            ids_in_memory=self._lease.left if self.has_lease else 0,
            held_ids=self._lease.left,
            expires_at=self._lease.expires_at,
            remaining=self._remaining if self._writes else None,
            refilled_at=self._refilled_at,
            has_failed=self._has_failed,
            reserve_limit=self._reserve.limited_by,
            is_behind=self._behind is not None,
            ids_per_second=self.ids_per_second,
        )

    @property
    def reserve_seconds(self) -> float | None:
        """How many seconds the reserve lasts at the present rate; None without reserve or rate."""
        if self.row.is_rising or self.row.has_reset or not self._writes:
            return None
        return self._reserve.seconds_left(self._lease.left, self._clock.boot())

    @property
    def ids_per_second(self) -> float:
        """How fast this process issues ids, see ``RecentUse``."""
        return self.use.per_second(self._clock.boot())

    @property
    def generation(self) -> int:
        """The generation of the lease; 0 before the first one."""
        return self._lease.generation

    def issue_now(self, count: int) -> IdRange | None:
        """Issue ids from the lease; None if ``issue`` must wait for the store.

        A ``count`` of 0 returns a lease proof: an empty range. Starts a refill if few ids are
        left, or if the lease is due for renewal.
        """
        now = self._clock.boot()
        lease = self._lease
        reserve = self._reserve
        issued = lease.issue(count, now)
        if issued is None and lease.later_ranges and self._remaining >= PREFETCH_SHARE and not lease.is_expired(now):
            # Not near the bound: there the last ids are kept for smaller calls.
            self._skip_to(count)
            issued = lease.issue(count, now)
        if issued is not None:
            if count > reserve.largest_call:
                reserve.largest_call = count
            if self.new_ids:
                self.new_ids += count
            elif count:
                self._count_issued(count, now)
            if now >= self._refill_at or lease.left < reserve.refill_below:
                self._review(now)
        return issued

    async def issue(self, count: int) -> IdRange:
        """Issue ids after the refill in progress, or a new one.

        If the sequence has a reset, issue a lease proof.

        Raises:
            Refusal: See ``Allocator.issue``.
        """
        if self._behind:
            await self._recheck(self._behind)
            self._behind = None
        if self.row.abandoned:
            raise ServerDraining
        waiter = _Waiter(count, asyncio.get_running_loop().create_future(), copy_context())
        if self._active is _NONE_ACTIVE:
            self._waiting = deque()
            self._active = set()
        self._waiting.append(waiter)
        self._active.add(waiter)
        self._start_refill()
        try:
            issued = await waiter.answer
        except asyncio.CancelledError:
            if not self.row.abandoned:
                self.row.burn(BurnCause.CANCELLED, waiter.served_ids)
            raise
        finally:
            self._active.discard(waiter)
            if not self._active and not self._waiting:
                self._waiting = _NO_WAITERS
                self._active = _NONE_ACTIVE
        if self.row.abandoned:
            raise ServerDraining
        if self._clock.boot() >= issued.expires_at:  # the process was paused after the ids were served
            self.row.burn(BurnCause.EXPIRED, issued.id_count)
            raise LeaseExpired(self.row.sequence)
        self._reserve.largest_call = max(self._reserve.largest_call, count)
        return issued

    @property
    def demand(self) -> Demand | None:
        """What the callers of this node need; None before it is measured."""
        return self._reserve.demand(self._lease.left, self._clock.boot(), self._clock.wall())

    def expect(self, demand: Demand) -> None:
        """Hold what ``demand`` needs before the first call.

        The caller repeats it, to retry a refill and to renew.
        """
        if self._behind and self.has_issued:
            return
        self._behind = None  # its mark was removed
        now = self._clock.boot()
        self._reserve.expect(demand, now)
        self._review(now)

    def is_idle(self) -> bool:
        """Return whether nothing is in progress, and nothing was issued since the last call."""
        last = self._last_activity
        self._last_activity = (self._writes, self._lease.left)
        return not self._refill_task and not self._waiting and not self._behind and last == self._last_activity

    async def drop_after_change(self) -> None:
        """Drop the lease after a change of the sequence, and the result of a refill in progress."""
        if self._refill_task:
            await asyncio.wait([self._refill_task])
        self.drop(BurnCause.GENERATION)
        self._behind = None

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
        self.drop(BurnCause.NOT_RETURNED)
        self.row.burn(BurnCause.NOT_RETURNED, self._returning)
        self.row.burn(BurnCause.UNKNOWN_OUTCOME, self.row.requested)
        self.row.burn(BurnCause.CANCELLED, sum(waiter.served_ids for waiter in self._active))
        self.row.abandoned = True
        if self._refill_task:
            self._refill_task.cancel()
        self._fail_waiting(ServerDraining())  # a refill that has not begun cannot do this

    def drop(self, cause: BurnCause) -> None:
        """Burn the rest of the lease."""
        self.row.burn(cause, self._detach().left)

    def _detach(self) -> Lease:
        """Remove and return the lease."""
        lease = self._lease
        self._lease = Lease(self.row.period)
        self._reserve.record_drop()
        return lease

    def _skip_to(self, count: int) -> None:
        """Burn the ranges before the first one that has ``count`` ids, if any."""
        if skipped := self._lease.skip_to(count):
            self.row.burn(BurnCause.LEFTOVER, skipped)
            self._reserve.record_skipped(skipped)

    def _count_issued(self, count: int, now: float) -> None:
        if count and not self.new_ids:
            self.new_since = now
            self.has_issued = True
            self._shared.issuing.append(self)
        self.new_ids += count

    def _review(self, now: float) -> None:
        """Start a refill if none runs, and the lease is due for renewal, or more ids are needed."""
        if self._refill_task:
            return
        if now >= self._renew_at or (self._reserve.is_short(self._lease, now) and self._wanted(now)):
            self._start_refill()
        else:
            self._reserve.skip_refill(self._lease.left, now)
            self._refill_at = min(self._renew_at, self._reserve.review_at)

    def _start_refill(self) -> None:
        if not self._refill_task:
            # In a trace, the refill belongs to the call that waits for it; without one it belongs
            # to no call.
            context = self._waiting[0].context if self._waiting else Context()
            self._refill_task = asyncio.create_task(self._run_refill(), name="refill", context=context)

    async def _run_refill(self) -> None:
        """Run one refill; its error goes to the waiters.

        Callers that wait by then start the next one.
        """
        began = self._clock.boot()
        outcome = FAILED
        self._expects_calls = False
        try:
            outcome = await self._refill()
        except asyncio.CancelledError:
            outcome = ""
            self._fail_refill(ServerDraining())
            raise
        except Exception as error:
            if isinstance(error, StoreWentBackwards):
                self.drop(BurnCause.WENT_BACKWARDS)
                self._behind = _Behind(error, self._clock.boot() + RECHECK_SECONDS)
                _log.error("store_went_backwards", **{"sequence": self.row.sequence, **error.metadata})
            elif isinstance(error, SequenceDeleted):
                self.drop(BurnCause.GENERATION)
            elif not isinstance(error, Refusal):
                _log.exception("refill_failed", sequence=self.row.sequence)
            self._fail_refill(error)
            if isinstance(error, SequenceNotFound | QuotaExceeded):  # there is no sequence
                outcome = ""
        finally:
            if outcome:
                self._has_failed = outcome == FAILED
                self._shared.refills[outcome].observe(self._clock.boot() - began)
            self._refill_task = None
            if self._waiting:
                self._start_refill()
            elif self._expects_calls:
                self._review(self._clock.boot())
            elif not self._writes and self.row.name not in self._shared.high_water_marks and not self._behind:
                self._shared.drop_unknown(self.row.name)

    async def _refill(self) -> str:
        """Request what waiters and reserve need, answer the waiters, and return the outcome."""
        clock = self._clock
        lease_ttl = self._shared.allocation_config.lease_ttl
        waiting = len(self._waiting)
        was_counter = self.row.settings.kind == Kind.COUNTER
        sent_at = clock.boot()
        wanted = self._wanted(sent_at)
        if self._lease.left and self._lease.is_expired(sent_at):
            self.drop(BurnCause.EXPIRED)
        grant = await self.row.grant(wanted, self._reserve.demand_to_write(self._lease.left, sent_at, clock))
        if grant is None:
            sent_at = clock.boot()
            wanted = self._wanted(sent_at)  # more callers may wait by now
            grant = await self.row.create(wanted)
        sequence = grant.sequence
        is_rising = self.row.is_rising
        is_counter = sequence.kind == Kind.COUNTER
        if is_rising or grant.generation != self._lease.generation or sequence.step != self._lease.step:
            self.drop(BurnCause.GENERATION)
        now = clock.boot()
        before = self._lease.left
        # The TTL starts before the store call: the store may have granted at any time since (P4).
        self._lease.add(grant, expires_at=sent_at + lease_ttl)
        self._reserve.record_refill(self._lease, before, now)
        self._renew_at = sent_at + lease_ttl / 3
        self._refilled_at = sent_at
        self._refill_at = min(self._renew_at, self._reserve.review_at)
        self._remaining = grant.remaining
        self._reserve.demand_in_row = grant.demand
        self._writes += 1
        if self._writes == 1 and not is_rising:
            self._expects_calls = self._reserve.adopt_demand(now, clock.wall())
        if wanted and was_counter != is_counter:
            return OK  # Nothing was granted. The next refill knows the kind.
        serve = self._serve if grant.granted >= wanted else self._serve_at_bound
        now = clock.boot()
        self._count_issued(serve(waiting if is_rising else len(self._waiting), now), now)
        if is_rising and self._lease.left:
            await self._return_tail()
        return EXHAUSTED if grant.granted < wanted and not grant.remaining and is_counter else OK

    def _wanted(self, now: float) -> int:
        """Return how many ids to request in the next write, and end a deferral of waiters."""
        settings = self.row.settings
        if self.row.has_reset:
            return 0
        if settings.kind != Kind.COUNTER:
            limit = int(self._shared.allocation_config.max_clock_skew * settings.kind.per_second) + 1
            for waiter in self._waiting:
                if waiter.id_count > limit and not waiter.answer.done():
                    which = f"for sequence {self.row.sequence!r}, as max_clock_skew allows"
                    rule = f"must be at most {limit} {which}; is {waiter.id_count}"
                    waiter.answer.set_exception(InvalidRequest("id_count", rule))
        requested = 0
        for waiter in islice(self._waiting, self._next_write):
            if not waiter.answer.done():
                requested += waiter.id_count
        self._next_write = None
        if self.row.is_rising or self.row.outcome_unknown:  # else a failing store burns one reserve after another
            return requested
        return requested + self._reserve.prefetch(
            self._lease, settings, requested=requested, remaining=self._remaining, now=now
        )

    def _serve(self, most: int, now: float) -> int:
        """Answer up to ``most`` waiters in FIFO order, as far as the lease lasts.

        Returns:
            The number of ids issued.
        """
        issued_ids = 0
        for _ in range(most):
            waiter = self._waiting[0]
            if not waiter.answer.done():
                count = 0 if self.row.has_reset else waiter.id_count
                if self._remaining and self._lease.later_ranges:  # the last ids are not skipped
                    self._skip_to(count)
                issued = self._lease.issue(count, now)
                if issued is None:
                    break  # It arrived during the write, or the lease has expired: the next refill serves it.
                if self.row.created:
                    issued = issued._replace(created=True)
                    self.row.created = False
                waiter.answer.set_result(issued)
                issued_ids += count
            self._waiting.popleft()
        return issued_ids

    def _serve_at_bound(self, most: int, now: float) -> int:
        """Answer up to ``most`` waiters after a write that granted too few ids.

        Near the bound of a counter nothing is granted. Waiters that want more than the store has
        left fail; the others wait for a write that requests at most that.

        Returns:
            The number of ids issued.
        """
        row = self.row
        lease = self._lease
        remaining = self._remaining
        issued_ids = 0
        deferred: list[_Waiter] = []
        for _ in range(most):
            waiter = self._waiting[0]
            count = 0 if row.has_reset else waiter.id_count
            if not waiter.answer.done():
                issued = lease.issue(count, now)
                if issued is not None:
                    waiter.answer.set_result(issued)
                    issued_ids += count
                elif lease.is_expired(now):
                    break  # The next refill serves it.
                elif count <= remaining and row.settings.kind == Kind.COUNTER:
                    remaining -= count
                    deferred.append(waiter)
                else:
                    largest = lease.next_range_size or remaining
                    waiter.answer.set_exception(row.insufficient_ids_error(count, lease.left + remaining, largest))
            self._waiting.popleft()
        # If there are any, the next write is only for these.
        self._waiting.extendleft(reversed(deferred))
        self._next_write = len(deferred) or None
        return issued_ids

    def _fail_refill(self, error: Exception) -> None:
        """Fail the waiters with a refill's error; from now on only time starts the next one."""
        self._refill_at = self._renew_at = self._clock.boot() + RENEW_RETRY_SECONDS
        self._reserve.record_failure()
        # The quota is that of the caller that started the refill.
        most = 1 if isinstance(error, QuotaExceeded) else None
        if not self._fail_waiting(error, most=most):  # else each caller that still waits reports it
            self._shared.store_health.record_failure(error)

    def _fail_waiting(self, error: Exception, *, most: int | None = None) -> bool:
        """Remove all waiters, or the ``most`` oldest, and fail them; return if any still waited."""
        has_failed = False
        for _ in range(len(self._waiting) if most is None else min(most, len(self._waiting))):
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(error)
                has_failed = True
        return has_failed

    async def _recheck(self, behind: _Behind) -> None:
        """Read the row at most every ``RECHECK_SECONDS``; raise until the sequence is advanced."""
        now = self._clock.boot()
        if now >= behind.recheck_at:
            behind.recheck_at = now + RECHECK_SECONDS
            if behind.read is None or behind.read.done():
                behind.read = asyncio.create_task(self._is_advanced(behind), name="recheck")
            await asyncio.wait({behind.read})
        if behind.read is not None and behind.read.done() and not behind.read.cancelled() and behind.read.result():
            return
        raise behind.error.with_traceback(None)

    async def _is_advanced(self, behind: _Behind) -> bool:
        marks = self._shared.high_water_marks
        try:
            if self.row.name not in marks:
                await self.row.grant(0)  # the witness, which refused the row, compares it again
                return True
            return marks.accept(await self.row.read())
        except StoreWentBackwards as error:
            behind.error = error
        except Refusal as refusal:
            _log.warning("recheck_failed", sequence=self.row.sequence, error=str(refusal))
        return False

    async def _return_tail(self) -> None:
        """Give the unused tail back to the store, and burn the rest of the lease."""
        row = self.row
        lease = self._detach()
        returned = 0
        value, count, version = lease.tail()
        self._returning = lease.left
        try:
            if count:
                end = value + count * lease.step
                self._shared.high_water_marks.move_back(row.name, lease.generation, end, value)
                if await row.give_back(count, version):
                    returned = count
        except Refusal as error:
            _log.warning("cleanup_failed", resource="ids", sequence=row.sequence, ids=count, error=str(error))
        finally:
            self._returning = 0
            if not row.abandoned:
                row.burn(BurnCause.NOT_RETURNED, lease.left - returned)
