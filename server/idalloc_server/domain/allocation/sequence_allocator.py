"""One sequence on this node: its lease, and the one refill that all who wait share."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from itertools import islice
from typing import TypeVar

import structlog

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import SharedState
from idalloc_server.domain.allocation.errors import never_fits, too_few_left
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.allocation.reserve import Reserve
from idalloc_server.domain.allocation.waiter_queue import Waiter
from idalloc_server.domain.errors import (
    Refusal,
    SequenceDeleted,
    SequenceNotFound,
    ServerDraining,
    StoreOutcomeUnknown,
    StoreUnavailable,
    StoreWentBackwards,
)
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.records import Grant, Row
from idalloc_server.domain.sequences.model import Kind, Reset, Sequence
from idalloc_server.domain.store import within_timeout
from idalloc_server.domain.text import check_text

# Of what a sequence has left, no node takes more than one part in this many beyond what was asked for.
AHEAD_SHARE = 1000
# How soon a renewal that failed is tried again.
RENEW_AGAIN_SECONDS = 1.0
# How often a sequence whose store went backwards is looked at, whether it was advanced since.
LOOK_AGAIN_SECONDS = 1.0

_log = structlog.get_logger("idalloc.lane")
_T = TypeVar("_T")
_NEW = Sequence()


class SequenceHasReset(Exception):
    """The sequence has a reset: its ids come from the counters of its periods (``ResettingSequenceAllocator``)."""


class SequenceAllocator:
    """Issues the ids of one counter: of a sequence, or of one period of a sequence.

    All methods must be called on one event loop. The store is written by one refill at a time: a task of the lane's
    own, which no caller's cancellation ends.

    Ids that rise over all nodes (``Ordering.RISING``, and timestamps) go to those who waited when the write began, and
    none is kept: whoever comes later waits for a later write.

    Args:
        name: The row's name in the store.
        shared: What all lanes share.
        sequence: The sequence's name.
        period: Which period's counter it is; empty where the sequence has no reset.
    """

    def __init__(self, name: str, shared: SharedState, sequence: str = "", period: str = "") -> None:
        self._name = name
        self._title = sequence or name
        self._period = period
        self._store = shared.store
        self._clock = shared.clock
        self._allocation_config = shared.allocation_config
        self._high_water_marks = shared.high_water_marks
        self._burned = shared.burned
        self._rates = shared.rates
        self._store_check = shared.store_check
        self._drop_unknown = shared.drop_unknown
        self._lease = Lease(period)
        self._renew_at = 0.0
        self._waiters: deque[Waiter] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._went_backwards: StoreWentBackwards | None = None
        self._look_at = 0.0
        # The settings, as the last write returned them.
        self._sequence = _NEW
        self._reserve = Reserve(
            shared.allocation_config.outage_reserve, shared.allocation_config.max_reserved_ids, self._clock.boot()
        )
        # Of the waiters only so many are asked for next, at the bound: those for whom there is enough.
        self._ask_for: int | None = None
        # Whether the last store call may have been applied without an answer.
        self._outcome_unknown = False
        # How many ids the sequence had left after the last write, and how often it was written.
        self._remaining = 0
        self._writes = 0
        # For ``abandon``: those who wait or have not yet run since they were served, the ids of a write and of a tail
        # that are under way.
        self._callers: set[Waiter] = set()
        self._at_stake = 0
        self._returning = 0
        self._abandoned = False
        self._idle_mark: object = None
        # Whether this lane created the sequence, and no caller knows it yet.
        self._created = False

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        return self._lease.left > 0 and self._clock.boot() < self._lease.expires_at

    @property
    def parts(self) -> "list[SequenceAllocator]":
        """All that is to be closed."""
        return [self]

    @property
    def generation(self) -> int:
        """The generation of the lease; 0 where there never was one."""
        return self._lease.generation

    def take(self, count: int) -> IdRange | None:
        """Takes ids from memory; None where the store is needed first.

        Starts the next refill where not many are left, or the lease in use is to be renewed.
        """
        now, lease, reserve = self._clock.boot(), self._lease, self._reserve
        taken = lease.take(count, now) or self._take_later(count, now)
        if taken is not None:
            if count > reserve.largest:
                reserve.largest = count
            if now >= self._renew_at or lease.left < reserve.low:
                self._start_refill()
        return taken

    async def allocate(self, count: int) -> IdRange:
        """Takes ids, waiting for the refill that is under way, or for a new one.

        Cancelled before the ids were taken, it takes none; after that they are burned.

        Raises:
            Refusal: See ``Allocator.allocate``.
            SequenceHasReset: The sequence has a reset. Ranges of none can be had of it.
        """
        if self._went_backwards:
            await self._look_again(self._went_backwards)
        if self._abandoned:
            raise ServerDraining
        waiter = Waiter(count, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._callers.add(waiter)
        self._start_refill()
        try:
            taken = await waiter.answer
        except asyncio.CancelledError:
            if waiter.is_served and not self._abandoned:
                self._burned.add(self._title, self._period, BurnCause.CANCELLED, count)
            raise
        finally:
            self._callers.discard(waiter)
        if self._abandoned:
            raise ServerDraining
        if self._clock.boot() >= taken.expires_at:
            # The process was paused between the taking and this line.
            self._burned.add(self._title, self._period, BurnCause.EXPIRED, count)
            raise StoreUnavailable(f"the lease of sequence {self._title!r} ended before the answer")
        self._reserve.largest = max(self._reserve.largest, count)
        return taken

    def proof(self) -> IdRange | None:
        """Returns a range of none, which tells the generation and the settings while the lease lives."""
        return self.take(0)

    async def renew_proof(self) -> IdRange:
        """Returns the same, as the store says it now."""
        return await self.allocate(0)

    def pop_created(self) -> bool:
        """Return, once, whether a call of this lane created the sequence."""
        created, self._created = self._created, False
        return created

    def is_idle(self) -> bool:
        """Whether nothing was taken since the last call, and nothing is under way."""
        last, self._idle_mark = self._idle_mark, (self._writes, self._lease.left)
        return not self._refill and not self._waiters and not self._went_backwards and last == self._idle_mark

    async def forget(self) -> None:
        """Drops the lease, and that of a refill which may have been begun before this call."""
        if self._refill:
            await asyncio.wait([self._refill])
        self.drop(BurnCause.GENERATION)
        self._went_backwards = None

    async def close(self) -> None:
        """Ends the lane: waits for its refill, then gives the unused tail back to the store."""
        try:
            while self._refill:
                await self._refill
            await self._give_back()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Burns what is left or under way, where there is no time to wait for it; nothing is counted after this."""
        if self._abandoned:
            return
        self.drop(BurnCause.NOT_RETURNED)
        self._burned.add(self._title, self._period, BurnCause.NOT_RETURNED, self._returning)
        self._burned.add(self._title, self._period, BurnCause.UNKNOWN_OUTCOME, self._at_stake)
        served = sum(caller.id_count for caller in self._callers if caller.is_served)
        self._burned.add(self._title, self._period, BurnCause.CANCELLED, served)
        self._abandoned = True
        if self._refill:
            self._refill.cancel()

    def drop(self, cause: BurnCause) -> None:
        """Burns what is left."""
        self._burned.add(self._title, self._period, cause, self._lease.left)
        self._lease = Lease(self._period)
        self._reserve.dropped()

    @property
    def _usable(self) -> int:
        """How many of the ids in memory calls of the sizes seen can get."""
        return self._lease.usable(self._reserve.largest_seen)

    def _take_later(self, count: int, now: float) -> IdRange | None:
        """Takes ids from the first piece that has so many; the pieces before it are burned, as ids of a node rise.

        Near the bound none is taken so: the last ids of a sequence are kept for smaller calls.
        """
        if self._remaining < AHEAD_SHARE or now >= self._lease.expires_at:
            return None
        self._skip_to(count)
        return self._lease.take(count, now)

    def _skip_to(self, count: int) -> None:
        """Burns the pieces in front of the first one that has ``count`` ids, if one has."""
        skipped = self._lease.skip_to(count)
        self._burned.add(self._title, self._period, BurnCause.LEFTOVER, skipped)
        self._reserve.skipped(skipped)

    def _start_refill(self) -> None:
        if not self._refill:
            self._refill = asyncio.get_running_loop().create_task(self._run_refill())

    async def _run_refill(self) -> None:
        try:
            await self._refill_once()
        except StoreWentBackwards as error:
            self._went_backwards = error
            self._look_at = self._clock.boot() + LOOK_AGAIN_SECONDS
            self.drop(BurnCause.WENT_BACKWARDS)
            _log.error("store_went_backwards", **error.metadata)
            self._refuse_all(error)
        except Refusal as refusal:
            if isinstance(refusal, SequenceDeleted):
                self.drop(BurnCause.GENERATION)
            self._refuse_all(refusal)
        except asyncio.CancelledError:
            self._refuse_all(ServerDraining())
            raise
        except Exception as error:
            _log.exception("refill_failed", sequence=self._title)
            self._refuse_all(error)
        finally:
            self._refill = None
            if self._waiters:
                self._start_refill()
            elif self._name not in self._high_water_marks:
                self._drop_unknown(self._name)

    async def _refill_once(self) -> None:
        waiting = len(self._waiters)
        wanted = self._wanted()
        if not wanted and not waiting and self._clock.boot() < self._renew_at:
            self._reserve.suffices(self._lease.left)
            return
        self._drop_ended_lease()
        was_counter = self._sequence.kind == Kind.COUNTER
        grant = await self._grant(wanted)
        if grant is None:
            await self._make()
            wanted = self._wanted()  # more callers may wait by now
            grant = await self._grant(wanted)
        if grant is None:
            raise StoreUnavailable(f"sequence {self._title!r} vanished while it was created")
        if wanted and was_counter != (grant.sequence.kind == Kind.COUNTER):
            return  # Nothing was granted; the next refill knows of what kind it is.
        at_bound = grant.granted < wanted
        rising = grant.sequence.is_rising
        self._serve(at_bound, grant.remaining, waiting if rising else len(self._waiters))
        if self._lease.left and rising:
            await self._give_back()

    def _wanted(self) -> int:
        """How many ids the next write should bring."""
        sequence = self._sequence
        if self._starts_over(sequence):
            return 0
        if sequence.kind != Kind.COUNTER:
            self._refuse_what_never_fits(sequence.kind)
        waiters, self._ask_for = islice(self._waiters, self._ask_for), None
        asked = sum(waiter.id_count for waiter in waiters if not waiter.answer.done())
        return asked if sequence.is_rising else asked + self._ahead(asked)

    def _refuse_what_never_fits(self, kind: Kind) -> None:
        for count, answer in self._waiters:
            refusal = never_fits(self._title, kind, count, self._allocation_config.max_clock_skew)
            if refusal and not answer.done():
                answer.set_exception(refusal)

    def _ahead(self, asked: int) -> int:
        """How many ids to take beyond what is waited for.

        None when cold, then what the reserve asks for; none after a write whose outcome is unknown, until a write is
        answered again, so that a store in trouble does not burn one reserve after the other.
        """
        if self._outcome_unknown:
            return 0
        left = self._lease.left
        ahead = self._reserve.wanted(left, self._usable, self._clock.boot()) - left
        if asked or ahead > 0:  # not where the lease is just renewed
            ahead = max(ahead, self._sequence.min_lease_size - asked)
        if self._sequence.max_lease_size:
            ahead = min(ahead, self._sequence.max_lease_size - left)
        return max(0, min(ahead, self._remaining // AHEAD_SHARE - left, self._remaining - asked))

    def _starts_over(self, sequence: Sequence) -> bool:
        return sequence.reset != Reset.NEVER and not self._period

    async def _look_again(self, error: StoreWentBackwards) -> None:
        """Looks, now and then, whether a sequence that was behind has been advanced; raises the error unless it was."""
        now = self._clock.boot()
        if now >= self._look_at:
            self._look_at = now + LOOK_AGAIN_SECONDS
            try:
                row = await self._within_timeout(self._look(), at_stake=0)
            except Refusal as refusal:
                _log.warning("look_failed", sequence=self._title, error=str(refusal))
            else:
                if self._high_water_marks.accept(row):
                    self._went_backwards = None
                    return
        raise error.with_traceback(None)

    async def _look(self) -> Row | None:
        return await self._store.get(self._name)

    def _drop_ended_lease(self) -> None:
        if self._lease.left and self._clock.boot() >= self._lease.expires_at:
            self.drop(BurnCause.EXPIRED)

    async def _grant(self, wanted: int) -> Grant | None:
        """Has the store move the counter, and puts what it returned into the lease. None where there is no row yet."""
        asked_at = self._clock.boot()
        grant = await self._write(wanted)
        self._outcome_unknown = False
        self._store_check.worked()
        if grant is None:
            if self._name in self._high_water_marks:
                raise self._high_water_marks.missing(self._name)
            return None
        try:
            self._high_water_marks.advance(self._name, grant)
        except StoreWentBackwards:
            self._burned.add(self._title, self._period, BurnCause.WENT_BACKWARDS, grant.granted)
            raise
        self._sequence = grant.sequence
        self._rates.note(self._name, grant.last_value, grant.step)
        if (grant.generation, grant.step) != (self._lease.generation, self._lease.step) or grant.sequence.is_rising:
            self.drop(BurnCause.GENERATION)
        before = self._lease.left
        self._lease.add(grant, asked_at + self._allocation_config.lease_ttl)
        self._renew_at = asked_at + self._allocation_config.lease_ttl / 3
        self._reserve.refilled(before, self._lease.left, self._usable, asked_at, self._clock.boot())
        self._remaining = grant.remaining
        self._writes += 1
        return grant

    async def _write(self, wanted: int) -> Grant | None:
        lease_ms = int(self._allocation_config.lease_ttl * 1000)
        seen = self._high_water_marks.seen(self._name)
        if self._sequence.kind == Kind.COUNTER or not wanted:
            call = self._store.grant(self._name, wanted, lease_ms, seen)
        else:
            unit = self._sequence.kind.per_second
            ahead = int(self._allocation_config.max_clock_skew * unit)
            now = int(self._clock.wall() * unit)
            call = self._store.grant_timestamps(self._name, wanted, lease_ms, now, ahead, seen)
        return await self._within_timeout(call, at_stake=wanted)

    async def _make(self) -> None:
        """Sees that there is a row."""
        if not self._allocation_config.auto_create_sequences:
            raise SequenceNotFound(self._title, ", and auto_create_sequences is off")
        check_text("sequence", self._title)
        now = self._clock.wall()
        generation = generation_after(_NEW, 0, self._clock)
        row = Row(self._name, _NEW.before_start, _NEW, generation, created_at=now, changed_at=now)
        made = await self._within_timeout(self._store.create(row), at_stake=0)
        self._created = made.generation == generation  # else another node was faster

    async def _within_timeout(self, call: Awaitable[_T], at_stake: int) -> _T:
        """Awaits a store call; where its outcome stays unknown, the ids at stake are burned."""
        self._at_stake += at_stake
        try:
            answer = await within_timeout(self._allocation_config.store_timeout, call)
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self._outcome_unknown = True
            if not self._abandoned:
                self._burned.add(self._title, self._period, BurnCause.UNKNOWN_OUTCOME, at_stake)
            raise
        finally:
            self._at_stake -= at_stake
        if self._abandoned:
            raise ServerDraining  # what it brought was counted
        return answer

    def _serve(self, at_bound: bool, remaining: int, most: int) -> None:
        """Gives the waiters their ranges, first come first served.

        At the bound, of a counter nothing was granted: who cannot have all of what the store has left is refused, the
        others wait for a write that asks for no more than that.

        Args:
            at_bound: Whether fewer were granted than were wanted.
            remaining: How many ids the store has left.
            most: How many waiters are served.
        """
        now = self._clock.boot()
        next_round: list[Waiter] = []
        for _ in range(most):
            count, answer = waiter = self._waiters[0]
            if answer.done():
                pass
            elif count and self._starts_over(self._sequence):
                answer.set_exception(SequenceHasReset())
            else:
                if remaining and not at_bound:  # of the last ids of all none is left behind
                    self._skip_to(count)
                taken = self._lease.take(count, now)
                if taken is not None:
                    answer.set_result(taken)
                elif not at_bound or now >= self._lease.expires_at:
                    break  # It came while the store was asked, or the lease has ended since: for the next round.
                elif count <= remaining and self._sequence.kind == Kind.COUNTER:
                    remaining -= count
                    next_round.append(waiter)
                else:
                    wall, skew = self._clock.wall(), self._allocation_config.max_clock_skew
                    refusal = too_few_left(self._title, self._sequence, count, self._lease, remaining, wall, skew)
                    answer.set_exception(refusal)
            self._waiters.popleft()
        self._waiters.extendleft(reversed(next_round))
        self._ask_for = len(next_round) or None

    def _refuse_all(self, error: Exception) -> None:
        self._renew_at = self._clock.boot() + RENEW_AGAIN_SECONDS
        self._reserve.failed()
        if not self._waiters:
            self._store_check.failed(error)
        while self._waiters:
            answer = self._waiters.popleft().answer
            if not answer.done():
                answer.set_exception(error)

    async def _give_back(self) -> None:
        """Gives the unused tail of the last grant back, and burns what else is left."""
        lease, self._lease = self._lease, Lease(self._period)
        self._reserve.dropped()
        value, count, version = lease.tail()
        returned = 0
        self._returning = lease.left
        try:
            if count:
                self._high_water_marks.give_back(self._name, lease.generation, value + count * lease.step, value)
                if await self._within_timeout(self._store.give_back(self._name, count, version), at_stake=0):
                    returned = count
        except Refusal as error:
            _log.warning("tail_not_returned", sequence=self._title, ids=count, error=str(error))
        finally:
            self._returning = 0
            if not self._abandoned:
                self._burned.add(self._title, self._period, BurnCause.NOT_RETURNED, lease.left - returned)
