"""One sequence on this node: its lease, and the one refill that all who wait share."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import structlog

from idalloc_server.domain.burned import Burned, Cause
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    Refusal,
    SequenceExhausted,
    SequenceNotFound,
    ServerDraining,
    StoreOutcomeUnknown,
    StoreUnavailable,
    StoreWentBackwards,
)
from idalloc_server.domain.lease import Lease
from idalloc_server.domain.mark import Marks
from idalloc_server.domain.range import Range
from idalloc_server.domain.sequence import Sequence
from idalloc_server.domain.store import Grant, Store

# A lease is made to last this long at the observed rate, and grows to that by doubling.
AHEAD_SECONDS = 10.0
MAX_AHEAD = 1_000_000
# Of what a sequence has left, no node takes more than one part in this many beyond what was asked for.
AHEAD_SHARE = 1000
# How soon a renewal that failed is tried again.
RENEW_AGAIN_SECONDS = 1.0

_log = structlog.get_logger("idalloc.lane")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Terms:
    """What all lanes of a process are run by.

    Attributes:
        lease_ttl: How long a lease lives unless it is renewed, in seconds.
        store_timeout: When a store call is given up, in seconds.
        auto_create_sequences: Whether a sequence is created on first use.
    """

    lease_ttl: float
    store_timeout: float
    auto_create_sequences: bool


class _Waiter(NamedTuple):
    id_count: int
    answer: asyncio.Future[Range]


class Lane:
    """Issues the ids of one sequence.

    All methods must be called on one event loop. The store is written by one refill at a time: a task of the lane's
    own, which no caller's cancellation ends.
    """

    def __init__(self, name: str, store: Store, clock: Clock, terms: Terms, marks: Marks, burned: Burned) -> None:
        self._name = name
        self._store = store
        self._clock = clock
        self._terms = terms
        self._marks = marks
        self._burned = burned
        self._lease = Lease()
        self._renew_at = 0.0
        self._waiters: deque[_Waiter] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._went_backwards: StoreWentBackwards | None = None
        # For the rate: when the last refill came, what was left after it, and how many ids the sequence had left.
        self._refilled_at = clock.boot()
        self._refilled_left = 0
        self._remaining = 0
        self._idle_mark: object = None

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory now."""
        return self._lease.left > 0 and self._clock.boot() < self._lease.expires_at

    def take(self, count: int) -> Range | None:
        """Takes ids from memory; None where the store is needed first. Starts the renewal of a lease in use."""
        now = self._clock.boot()
        taken = self._lease.take(count, now)
        if taken is not None and now >= self._renew_at:
            self._start_refill()
        return taken

    async def allocate(self, count: int) -> Range:
        """Takes ids, waiting for the refill that is under way, or for a new one.

        Cancelled before the ids were taken, it takes none; after that they are burned.

        Raises:
            Refusal: See ``Allocator.allocate``.
        """
        if self._went_backwards:
            raise self._went_backwards.with_traceback(None)
        waiter = _Waiter(count, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._start_refill()
        try:
            taken = await waiter.answer
        except asyncio.CancelledError:
            if not waiter.answer.cancelled() and waiter.answer.exception() is None:
                self._burned.add(Cause.CANCELLED, count)
            raise
        if self._clock.boot() >= taken.expires_at:
            # The process was paused between the taking and this line.
            self._burned.add(Cause.EXPIRED, count)
            raise StoreUnavailable(f"the lease of sequence {self._name!r} ended before the answer")
        return taken

    def is_idle(self) -> bool:
        """Whether nothing was taken since the last call, and nothing is under way."""
        last, self._idle_mark = self._idle_mark, (self._refilled_at, self._lease.left)
        return not self._refill and not self._waiters and not self._went_backwards and last == self._idle_mark

    async def close(self) -> None:
        """Ends the lane: waits for its refill, then gives the unused tail back to the store."""
        try:
            if self._refill:
                await self._refill
            await self._give_back()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Burns what is left, where there is no time to give it back."""
        self._drop_lease(Cause.NOT_RETURNED)

    def _start_refill(self) -> None:
        if not self._refill:
            self._refill = asyncio.get_running_loop().create_task(self._run_refill())

    async def _run_refill(self) -> None:
        try:
            while True:
                wanted = sum(waiter.id_count for waiter in self._waiters if not waiter.answer.done())
                wanted += self._ahead()
                self._drop_ended_lease()
                grant = await self._grant(wanted)
                at_bound = grant.granted < wanted
                self._serve(at_bound, grant.remaining)
                if at_bound and not self._waiters and self._lease.left == self._lease.tail()[1]:
                    # What nobody here could use must not be kept from the other nodes.
                    await self._give_back()
                if not self._waiters:
                    return
        except StoreWentBackwards as error:
            self._went_backwards = error
            self._drop_lease(Cause.WENT_BACKWARDS)
            _log.error("store_went_backwards", **error.metadata)
            self._refuse_all(error)
        except Refusal as refusal:
            self._refuse_all(refusal)
        except asyncio.CancelledError:
            self._refuse_all(ServerDraining())
            raise
        except Exception as error:
            _log.exception("refill_failed", sequence=self._name)
            self._refuse_all(error)
        finally:
            self._refill = None

    def _ahead(self) -> int:
        """How many ids to take beyond what is waited for: none when cold, then what the observed rate asks for."""
        elapsed = max(self._clock.boot() - self._refilled_at, 1e-3)
        left = self._lease.left
        used = self._refilled_left - left
        target = min(int(used / elapsed * AHEAD_SECONDS), 2 * used, MAX_AHEAD, self._remaining // AHEAD_SHARE)
        return max(0, target - left)

    def _drop_ended_lease(self) -> None:
        if self._lease.left and self._clock.boot() >= self._lease.expires_at:
            self._drop_lease(Cause.EXPIRED)

    def _drop_lease(self, cause: Cause) -> None:
        self._burned.add(cause, self._lease.left)
        self._lease = Lease()
        self._refilled_left = 0

    async def _grant(self, wanted: int) -> Grant:
        """Has the store move the counter, and puts what it returned into the lease."""
        asked_at = self._clock.boot()
        grant = await self._ask_store(wanted)
        try:
            self._marks.advance(self._name, grant)
        except StoreWentBackwards:
            self._burned.add(Cause.WENT_BACKWARDS, grant.granted)
            raise
        if (grant.generation, grant.step) != (self._lease.generation, self._lease.step):
            self._drop_lease(Cause.GENERATION)
        self._lease.add(grant, asked_at + self._terms.lease_ttl)
        self._renew_at = asked_at + self._terms.lease_ttl / 3
        self._refilled_at = self._clock.boot()
        self._refilled_left = self._lease.left
        self._remaining = grant.remaining
        return grant

    async def _ask_store(self, wanted: int) -> Grant:
        lease_ms = int(self._terms.lease_ttl * 1000)
        grant = await self._within_timeout(self._store.grant(self._name, wanted, lease_ms), at_stake=wanted)
        if grant is not None:
            return grant
        if self._name in self._marks:
            raise self._marks.missing(self._name)
        if not self._terms.auto_create_sequences:
            raise SequenceNotFound(self._name)
        await self._within_timeout(self._store.create(self._name, Sequence()), at_stake=0)
        grant = await self._within_timeout(self._store.grant(self._name, wanted, lease_ms), at_stake=wanted)
        if grant is None:
            raise StoreUnavailable(f"sequence {self._name!r} vanished while it was created")
        return grant

    async def _within_timeout(self, call: Awaitable[_T], at_stake: int) -> _T:
        """Awaits a store call; where its outcome stays unknown, the ids at stake are burned."""
        timeout = self._terms.store_timeout
        try:
            async with asyncio.timeout(timeout):
                return await call
        except TimeoutError:
            self._burned.add(Cause.UNKNOWN_OUTCOME, at_stake)
            raise StoreOutcomeUnknown(f"the store did not answer within {timeout:g} s") from None
        except (StoreOutcomeUnknown, asyncio.CancelledError):
            self._burned.add(Cause.UNKNOWN_OUTCOME, at_stake)
            raise

    def _serve(self, at_bound: bool, remaining: int) -> None:
        """Gives the waiters their ranges, first come first served. At the bound, who cannot have all is refused."""
        now = self._clock.boot()
        while self._waiters:
            count, answer = self._waiters[0]
            if not answer.done():
                if not at_bound:
                    self._burned.add(Cause.LEFTOVER, self._lease.skip_to(count))
                taken = self._lease.take(count, now)
                if taken is not None:
                    answer.set_result(taken)
                elif at_bound and now < self._lease.expires_at:
                    left = self._lease.left + remaining
                    answer.set_exception(SequenceExhausted(self._name, count, left, self._lease.next_range))
                else:
                    return  # It came while the store was asked, or the lease has ended since: for the next round.
            self._waiters.popleft()

    def _refuse_all(self, error: Exception) -> None:
        self._renew_at = self._clock.boot() + RENEW_AGAIN_SECONDS
        if not self._waiters:
            _log.warning("renewal_failed", sequence=self._name, error=str(error))
        while self._waiters:
            answer = self._waiters.popleft().answer
            if not answer.done():
                answer.set_exception(error)

    async def _give_back(self) -> None:
        """Gives the unused tail of the last grant back, and burns what else is left."""
        lease, self._lease = self._lease, Lease()
        self._refilled_left = 0
        value, count, version = lease.tail()
        returned = 0
        try:
            if count:
                self._marks.give_back(self._name, lease.generation, value + count * lease.step, value)
                if await self._within_timeout(self._store.give_back(self._name, count, version), at_stake=0):
                    returned = count
        except Refusal as error:
            _log.warning("tail_not_returned", sequence=self._name, ids=count, error=str(error))
        finally:
            self._burned.add(Cause.NOT_RETURNED, lease.left - returned)
