"""The allocator of one counter: its lease, and the refill that all waiting callers share."""

import asyncio

import structlog

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import SharedState
from idalloc_server.domain.allocation.errors import insufficient_ids_error, oversized_request_error
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.allocation.reserve import Reserve
from idalloc_server.domain.allocation.store_calls import StoreCalls
from idalloc_server.domain.allocation.waiter_queue import Waiter, WaiterQueue
from idalloc_server.domain.errors import Refusal, SequenceDeleted, ServerDraining, StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.sequences.model import Kind, Reset, Sequence
from idalloc_server.domain.store.records import Grant, Row

# No node prefetches more than one part in this many of the ids that a sequence has left.
PREFETCH_SHARE = 1000
# A failed renewal is retried after this time.
RENEW_RETRY_SECONDS = 1.0
# How often a sequence whose store went backwards is read, to see whether it was advanced.
RECHECK_SECONDS = 1.0

_log = structlog.get_logger("idalloc.allocation")


class SequenceHasReset(Exception):
    """The sequence has a reset: its ids come from the counters of its periods (``ResettingSequenceAllocator``)."""


class SequenceAllocator:
    """Issues the ids of one counter: of a sequence, or of one period of a sequence.

    All methods must be called on one event loop. One refill at a time writes to the store, in a task of its own that
    no caller's cancellation ends.

    Ids that rise over all nodes (``Ordering.RISING``, and timestamps) go only to callers that waited when the write
    began; the rest is given back. Later callers wait for a later write.

    Args:
        name: The name of the counter's row.
        shared: The state shared by all sequence allocators.
        sequence: The sequence's name; ``name`` if empty.
        period: The period of the counter; empty if the sequence has no reset.
    """

    def __init__(self, name: str, shared: SharedState, sequence: str = "", period: str = "") -> None:
        self._name = name
        self._sequence_name = sequence or name
        self._period = period
        self._store = shared.store
        self._clock = shared.clock
        self._config = shared.allocation_config
        self._high_water_marks = shared.high_water_marks
        self._burned = shared.burned
        self._rates = shared.rates
        self._store_health = shared.store_health
        self._drop_unknown = shared.drop_unknown
        self._lease = Lease(period)
        self._renew_at = 0.0
        self._waiters = WaiterQueue()
        self._refill: asyncio.Task[None] | None = None
        self._went_backwards: StoreWentBackwards | None = None
        self._recheck_at = 0.0
        # The result of the last write: the settings, the ids that the sequence has left, the number of writes.
        self._sequence = Sequence()
        self._remaining = 0
        self._writes = 0
        self._reserve = Reserve(self._config.outage_reserve, self._config.max_reserved_ids, self._clock.boot())
        self._store_calls = StoreCalls(name, shared, self._sequence_name, period)
        # The ids of the lease that is being given back.
        self._returning = 0
        self._last_activity: object = None

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        return self._lease.left > 0 and not self._lease.is_expired(self._clock.boot())

    @property
    def allocators(self) -> "list[SequenceAllocator]":
        """This allocator, as the list that ``ResettingSequenceAllocator`` has."""
        return [self]

    @property
    def generation(self) -> int:
        """The generation of the lease; 0 before the first one."""
        return self._lease.generation

    def issue_from_lease(self, count: int) -> IdRange | None:
        """Takes ids from the lease; None if ``issue_after_refill`` must wait for the store.

        Starts a refill if few ids are left, or if the lease is due for renewal.
        """
        now, lease, reserve = self._clock.boot(), self._lease, self._reserve
        taken = lease.issue(count, now) or self._take_from_later_range(count, now)
        if taken is not None:
            if count > reserve.largest_call:
                reserve.largest_call = count
            if now >= self._renew_at or lease.left < reserve.refill_below:
                self._start_refill()
        return taken

    async def issue_after_refill(self, count: int) -> IdRange:
        """Takes ids, waiting for the refill in progress or a new one.

        Raises:
            Refusal: See ``Allocator.allocate``.
            SequenceHasReset: The sequence has a reset; only lease metadata (``count`` 0) is available.
        """
        if self._went_backwards:
            await self._recheck(self._went_backwards)
        if self._store_calls.abandoned:
            raise ServerDraining
        waiter = self._waiters.add(count)
        self._start_refill()
        try:
            taken = await waiter.answer
        except asyncio.CancelledError:
            if waiter.is_served and not self._store_calls.abandoned:
                self._burn(BurnCause.CANCELLED, count)
            raise
        finally:
            self._waiters.mark_resumed(waiter)
        if self._store_calls.abandoned:
            raise ServerDraining
        if self._clock.boot() >= taken.expires_at:  # the process was paused after the ids were taken
            self._burn(BurnCause.EXPIRED, count)
            raise StoreUnavailable(f"the lease of sequence {self._sequence_name!r} expired before the reply")
        self._reserve.largest_call = max(self._reserve.largest_call, count)
        return taken

    def proof(self) -> IdRange | None:
        """Returns lease metadata, as an empty range, or None if the lease has expired."""
        return self.issue_from_lease(0)

    async def renew_proof(self) -> IdRange:
        """Returns lease metadata after a renewal in the store."""
        return await self.issue_after_refill(0)

    def pop_created(self) -> bool:
        """Returns, once, whether this node created the sequence."""
        created, self._store_calls.created = self._store_calls.created, False
        return created

    def is_idle(self) -> bool:
        """Returns whether nothing is in progress, and nothing was taken since the last call."""
        last, self._last_activity = self._last_activity, (self._writes, self._lease.left)
        return not self._refill and not self._waiters and not self._went_backwards and last == self._last_activity

    async def drop_after_change(self) -> None:
        """Drops the lease after a change of the sequence, and that of a refill in progress."""
        if self._refill:
            await asyncio.wait([self._refill])
        self.drop(BurnCause.GENERATION)
        self._went_backwards = None

    async def return_lease(self) -> None:
        """Waits for the refill, then gives the unused tail back to the store."""
        try:
            while self._refill:
                await self._refill
            await self._give_back()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Burns all ids held or in flight without waiting. Nothing is issued or counted afterwards."""
        if self._store_calls.abandoned:
            return
        self.drop(BurnCause.NOT_RETURNED)
        self._burn(BurnCause.NOT_RETURNED, self._returning)
        self._burn(BurnCause.UNKNOWN_OUTCOME, self._store_calls.requested)
        self._burn(BurnCause.CANCELLED, self._waiters.served_ids)
        self._store_calls.abandoned = True
        if self._refill:
            self._refill.cancel()

    def drop(self, cause: BurnCause) -> None:
        """Burns the rest of the lease."""
        self._burn(cause, self._lease.left)
        self._lease = Lease(self._period)
        self._reserve.record_drop()

    def _burn(self, cause: BurnCause, count: int) -> None:
        self._burned.add(self._sequence_name, self._period, cause, count)

    def _take_from_later_range(self, count: int, now: float) -> IdRange | None:
        """Takes ids from a later range of the lease if one has ``count``, and burns the ranges before it.

        Near the bound it takes none: the last ids are kept for smaller calls.
        """
        if self._remaining < PREFETCH_SHARE or now >= self._lease.expires_at:
            return None
        self._skip_to(count)
        return self._lease.issue(count, now)

    def _skip_to(self, count: int) -> None:
        skipped = self._lease.skip_to(count)
        self._burned.add(self._sequence_name, self._period, BurnCause.LEFTOVER, skipped)
        self._reserve.record_skipped(skipped)

    def _start_refill(self) -> None:
        if not self._refill:
            self._refill = asyncio.get_running_loop().create_task(self._run_refill())

    async def _run_refill(self) -> None:
        try:
            await self._refill_once()
        except StoreWentBackwards as error:
            self._went_backwards = error
            self._recheck_at = self._clock.boot() + RECHECK_SECONDS
            self.drop(BurnCause.WENT_BACKWARDS)
            _log.error("store_went_backwards", **error.metadata)
            self._fail_waiters(error)
        except Refusal as refusal:
            if isinstance(refusal, SequenceDeleted):
                self.drop(BurnCause.GENERATION)
            self._fail_waiters(refusal)
        except asyncio.CancelledError:
            self._fail_waiters(ServerDraining())
            raise
        except Exception as error:
            _log.exception("refill_failed", sequence=self._sequence_name)
            self._fail_waiters(error)
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
            self._reserve.skip_refill(self._lease.left)
            return
        if self._lease.left and self._lease.is_expired(self._clock.boot()):
            self.drop(BurnCause.EXPIRED)
        was_counter = self._sequence.kind == Kind.COUNTER
        grant = await self._grant(wanted)
        if grant is None:
            await self._create_row()
            wanted = self._wanted()  # more callers may wait by now
            grant = await self._grant(wanted)
        if grant is None:
            raise StoreUnavailable(f"the row of sequence {self._sequence_name!r} disappeared after its creation")
        if wanted and was_counter != (grant.sequence.kind == Kind.COUNTER):
            return  # Nothing was granted. The next refill knows the kind.
        at_bound = grant.granted < wanted
        rising = grant.sequence.is_rising
        self._serve(at_bound, grant.remaining, waiting if rising else len(self._waiters))
        if self._lease.left and rising:
            await self._give_back()

    def _wanted(self) -> int:
        """Returns how many ids to request in the next write."""
        sequence = self._sequence
        if self._has_reset():
            return 0
        if sequence.kind != Kind.COUNTER:
            name, skew = self._sequence_name, self._config.max_clock_skew
            self._waiters.reject(lambda count: oversized_request_error(name, sequence.kind, count, skew))
        requested = self._waiters.requested_ids()
        return requested if sequence.is_rising else requested + self._prefetch(requested)

    def _prefetch(self, requested: int) -> int:
        """Returns how many ids to request in addition to those that callers wait for."""
        if self._store_calls.outcome_unknown:  # else a failing store burns one reserve after another
            return 0
        left, usable = self._lease.left, self._lease.usable(self._reserve.largest_recent_call)
        prefetch = self._reserve.target(left, usable, self._clock.boot()) - left
        if requested or prefetch > 0:  # not if the lease is only renewed
            prefetch = max(prefetch, self._sequence.min_lease_size - requested)
        if self._sequence.max_lease_size:
            prefetch = min(prefetch, self._sequence.max_lease_size - left)
        return max(0, min(prefetch, self._remaining // PREFETCH_SHARE - left, self._remaining - requested))

    def _has_reset(self) -> bool:
        return self._sequence.reset != Reset.NEVER and not self._period

    async def _recheck(self, error: StoreWentBackwards) -> None:
        """Reads the row at most every ``RECHECK_SECONDS``; raises ``error`` until the sequence was advanced."""
        now = self._clock.boot()
        if now >= self._recheck_at:
            self._recheck_at = now + RECHECK_SECONDS
            try:
                row = await self._store_calls.within_timeout(self._read_row())
            except Refusal as refusal:
                _log.warning("recheck_failed", sequence=self._sequence_name, error=str(refusal))
            else:
                if self._high_water_marks.accept(row):
                    self._went_backwards = None
                    return
        raise error.with_traceback(None)

    async def _create_row(self) -> None:
        await self._store_calls.create()

    async def _read_row(self) -> Row | None:
        return await self._store.get(self._name)

    async def _grant(self, wanted: int) -> Grant | None:
        """Advances the counter in the store and adds the ids to the lease. Returns None if there is no row yet."""
        sent_at = self._clock.boot()
        grant = await self._store_calls.grant(wanted, self._sequence)
        self._store_calls.outcome_unknown = False
        self._store_health.record_success()
        if grant is None:
            if self._name in self._high_water_marks:
                raise self._high_water_marks.missing_row_error(self._name)
            return None
        try:
            self._high_water_marks.update(self._name, grant)
        except StoreWentBackwards:
            self._burn(BurnCause.WENT_BACKWARDS, grant.granted)
            raise
        self._sequence = grant.sequence
        self._rates.record(self._name, grant.last_value, grant.step)
        if (grant.generation, grant.step) != (self._lease.generation, self._lease.step) or grant.sequence.is_rising:
            self.drop(BurnCause.GENERATION)
        before = self._lease.left
        # The TTL starts before the store call: the store may have granted at any time since (P4).
        self._lease.add(grant, expires_at=sent_at + self._config.lease_ttl)
        self._renew_at = sent_at + self._config.lease_ttl / 3
        usable = self._lease.usable(self._reserve.largest_recent_call)
        self._reserve.record_refill(before, self._lease.left, usable, sent_at, self._clock.boot())
        self._remaining = grant.remaining
        self._writes += 1
        return grant

    def _serve(self, at_bound: bool, remaining: int, most: int) -> None:
        """Answers the waiters in FIFO order.

        At the bound of a counter nothing was granted: waiters that want more than the store has left fail, the others
        wait for a write that requests no more than that.

        Args:
            at_bound: Whether fewer ids were granted than requested.
            remaining: The number of ids that the sequence has left in the store.
            most: The most waiters to answer.
        """
        now = self._clock.boot()
        deferred: list[Waiter] = []
        for _ in range(most):
            count, answer = waiter = self._waiters[0]
            if answer.done():
                pass
            elif count and self._has_reset():
                answer.set_exception(SequenceHasReset())
            else:
                if remaining and not at_bound:  # the last ids of a sequence are not skipped
                    self._skip_to(count)
                taken = self._lease.issue(count, now)
                if taken is not None:
                    answer.set_result(taken)
                elif not at_bound or self._lease.is_expired(now):
                    break  # It arrived during the write, or the lease has expired: the next refill serves it.
                elif count <= remaining and self._sequence.kind == Kind.COUNTER:
                    remaining -= count
                    deferred.append(waiter)
                else:
                    name, wall, skew = self._sequence_name, self._clock.wall(), self._config.max_clock_skew
                    error = insufficient_ids_error(name, self._sequence, count, self._lease, remaining, wall, skew)
                    answer.set_exception(error)
            self._waiters.popleft()
        self._waiters.defer(deferred)

    def _fail_waiters(self, error: Exception) -> None:
        self._renew_at = self._clock.boot() + RENEW_RETRY_SECONDS
        self._reserve.record_failure()
        if not self._waiters:
            self._store_health.record_failure(error)  # else each caller reports it
        self._waiters.fail_all(error)

    async def _give_back(self) -> None:
        """Gives the unused tail back to the store, and burns the rest of the lease."""
        lease, self._lease = self._lease, Lease(self._period)
        self._reserve.record_drop()
        value, count, version = lease.tail()
        returned = 0
        self._returning = lease.left
        try:
            if count:
                self._high_water_marks.move_back(self._name, lease.generation, value + count * lease.step, value)
                if await self._store_calls.within_timeout(self._store.give_back(self._name, count, version)):
                    returned = count
        except Refusal as error:
            _log.warning("tail_not_returned", sequence=self._sequence_name, ids=count, error=str(error))
        finally:
            self._returning = 0
            if not self._store_calls.abandoned:
                self._burn(BurnCause.NOT_RETURNED, lease.left - returned)
