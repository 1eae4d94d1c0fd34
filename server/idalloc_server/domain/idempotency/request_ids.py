"""Ranges for requests with a request id: a repetition gets the same ids (P7)."""

import asyncio
import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    Refusal,
    RequestIdBurned,
    RequestIdReused,
    SequenceAheadOfClock,
    SequenceDeleted,
    SequenceExhausted,
    ServerDraining,
    StoreOutcomeUnknown,
    StoreUnavailable,
)
from idalloc_server.domain.records import RecordedAllocation
from idalloc_server.domain.retention import SeenRecords
from idalloc_server.domain.sequences.calendar import date_at
from idalloc_server.domain.sequences.formats import compile_format
from idalloc_server.domain.sequences.model import Reset, Sequence
from idalloc_server.domain.store import Store, within_timeout

# How many answers one statement writes down at most.
MOST_ROWS = 200
# How many old ones one statement removes at most, and how often they are looked for.
PRUNE_ROWS = 1000
PRUNE_SECONDS = 60.0
PRUNES_PER_WINDOW = 10
# How many recorded answers are worth a warning, and how often they are counted.
MANY_ROWS = 1_000_000
COUNT_SECONDS = 60.0

_log = structlog.get_logger("idalloc.request_ids")


def with_date(taken: IdRange, wall: float) -> IdRange:
    """Returns the range with the date for its texts, where they have one that no period of the sequence tells."""
    if taken.period or not taken.sequence.format or not compile_format(taken.sequence.format).has_date:
        return taken
    return taken._replace(period=date_at(taken.sequence, wall))


class _Request(NamedTuple):
    request_id: str
    sequence: str
    id_count: int
    prefix: int


class _GenerationProof(NamedTuple):
    """That a generation stood: ids of it, or of a newer one, may be given until ``expires_at``.

    A change that ends it was made after the store said so, and so takes effect after that time.
    """

    generation: int
    sequence: Sequence
    expires_at: float


class _Call:
    """One request that is under way, for all who sent it to this node."""

    def __init__(self, request: _Request) -> None:
        self.request = request
        self.callers = 0
        # The ids that it took.
        self.taken: IdRange | None = None
        self.task: asyncio.Task[tuple[IdRange, int]]


class IdempotentAllocator:
    """Takes ids for requests with a request id, and writes each answer to the store before it is given.

    The row that stands in the store decides: whoever finds another one than the own gives the ids of that one, and
    burns the own. All methods must be called on one event loop.

    Args:
        allocator: Issues the ids.
        store: Where answers are written down.
        clock: Checks leases after the write; tells the dates of texts.
        node: What the rows call this node, for people.
        window: How long answers are kept, in seconds.
        store_timeout: When a store call is given up, in seconds.
    """

    def __init__(
        self,
        allocator: Allocator,
        store: Store,
        clock: Clock,
        *,
        node: str,
        window: float,
        store_timeout: float,
    ) -> None:
        self._allocator = allocator
        self._store = store
        self._clock = clock
        self._node = node
        self._window = window
        self._store_timeout = store_timeout
        self._calls: dict[str, _Call] = {}
        # Those with ids that were taken and that no caller has yet.
        self._at_stake: set[_Call] = set()
        self._abandoned = False
        self._seen = SeenRecords()
        self._count_at = -math.inf
        self._many = False
        self._writer = _AnswerLog(store, store_timeout)

    async def allocate(self, sequence: str, count: int, request_id: str, prefix: int) -> tuple[IdRange, int]:
        """Takes ids, or finds those that an earlier call with this request id took.

        A caller who is cancelled before ids were taken takes none. After that they are written down all the same,
        so that a retry gets them.

        Args:
            sequence: The sequence's name.
            count: How many ids, at least 1.
            request_id: The request's own; equal ones must be equal texts.
            prefix: The node's prefix.

        Returns:
            The ids, their period being what their texts show (a date, where the sequence has no periods); and the
            prefix for their texts.

        Raises:
            RequestIdReused: It was used before, for another sequence or another count.
            RequestIdBurned: Ids were taken under it that may not be given any more.
            Refusal: See ``Allocator.allocate``.
        """
        call = self._calls.get(request_id)
        while call is not None and (call.request.sequence, call.request.id_count) != (sequence, count):
            # What it leaves in the store decides on this one.
            await asyncio.wait({call.task})
            call = self._calls.get(request_id)
        if call is None:
            call = self._start(_Request(request_id, sequence, count, prefix))
        call.callers += 1
        try:
            await asyncio.wait({call.task})
        except asyncio.CancelledError:
            call.callers -= 1
            if not call.callers:
                self._leave(call)
            raise
        if call.task.cancelled():
            raise ServerDraining
        if error := call.task.exception():
            raise error.with_traceback(None)  # else it would grow with every caller who waited
        taken, prefix_of = call.task.result()
        if self._abandoned:
            raise ServerDraining  # the ids were counted as burned
        if self._clock.boot() >= taken.expires_at:
            # The process was paused between the answer and this line. For a caller who comes later it is as late.
            self._burn(call, BurnCause.EXPIRED)
            raise _late(call.request)
        self._at_stake.discard(call)
        return taken, prefix_of

    async def close(self) -> None:
        """Waits for the answers that are still being written down for callers who went away."""
        if self._calls:
            await asyncio.wait([call.task for call in self._calls.values()])

    def abandon(self) -> None:
        """Burns what no caller has yet, where there is no time to wait for it. Nothing may be taken after this."""
        self._abandoned = True
        for call in list(self._at_stake):
            self._burn(call, BurnCause.CANCELLED if call.task.done() else BurnCause.UNKNOWN_OUTCOME)

    async def run(self) -> None:
        """Removes answers whose window has passed, for ever, in small batches. Its owner cancels it."""
        while True:
            try:
                await self._prune()
                await self._count()
            except Refusal as error:
                _log.warning("request_ids_not_pruned", error=str(error))
            await asyncio.sleep(min(self._window / PRUNES_PER_WINDOW, PRUNE_SECONDS))

    async def _prune(self) -> None:
        """Removes what this process saw in the store for at least the row's own window, by its boot clock."""
        newest = await within_timeout(self._store_timeout, self._store.newest_recorded())
        now = self._clock.boot()
        self._seen.note(newest, now)
        retention = self._seen.retention(now, self._window)
        if retention is None:
            return
        while await within_timeout(self._store_timeout, self._store.forget_recorded(retention, PRUNE_ROWS)):
            pass  # a batch more

    async def _count(self) -> None:
        """Warns, once, where very many answers are kept."""
        now = self._clock.boot()
        if now < self._count_at:
            return
        self._count_at = now + COUNT_SECONDS
        rows = await within_timeout(self._store_timeout, self._store.count_recorded(MANY_ROWS))
        if rows >= MANY_ROWS and not self._many:
            _log.warning(
                "request_ids_piling_up",
                rows=rows,
                request_id_window=self._window,
                next_step="lower request_id_window, or send fewer calls with a request_id; "
                "every start of a node keeps all answers for one more window",
            )
        self._many = rows >= MANY_ROWS

    def _start(self, request: _Request) -> _Call:
        call = self._calls[request.request_id] = _Call(request)
        call.task = asyncio.get_running_loop().create_task(self._run(call), name=f"request {request.request_id}")
        call.task.add_done_callback(_look_at)
        return call

    def _leave(self, call: _Call) -> None:
        """Ends a call that nobody waits for any more, unless it took ids: these are written down for a retry."""
        if call.task.done():
            self._burn(call, BurnCause.CANCELLED)
        elif call.taken is None:
            self._forget(call)
            call.task.cancel()

    def _forget(self, call: _Call) -> None:
        if self._calls.get(call.request.request_id) is call:
            del self._calls[call.request.request_id]

    async def _run(self, call: _Call) -> tuple[IdRange, int]:
        try:
            return await self._answer(call)
        finally:
            self._forget(call)

    async def _answer(self, call: _Call) -> tuple[IdRange, int]:
        request = call.request
        try:
            taken = self._allocator.take(request.sequence, request.id_count)
            if taken is None:
                taken = await self._allocator.allocate(request.sequence, request.id_count)
        except (SequenceExhausted, SequenceAheadOfClock, SequenceDeleted) as refusal:
            return await self._answered_before(request, refusal)
        call.taken = taken = with_date(taken, self._clock.wall())
        self._at_stake.add(call)
        allocation = RecordedAllocation(
            request_id=request.request_id,
            sequence=request.sequence,
            first_id=taken.first_id,
            id_count=taken.id_count,
            step=taken.step,
            generation=taken.generation,
            period=taken.period,
            prefix=request.prefix,
            node=self._node,
            window_ms=math.ceil(self._window * 1000),
        )
        try:
            stands = await self._writer.write(allocation)
        except BaseException:
            self._burn(call, BurnCause.UNKNOWN_OUTCOME)
            raise
        if _identity(stands) != _identity(allocation):
            self._burn(call, BurnCause.REPEATED)
            return await self._repeat(
                request, stands, _GenerationProof(taken.generation, taken.sequence, taken.expires_at)
            )
        if self._clock.boot() >= taken.expires_at:
            self._burn(call, BurnCause.EXPIRED)
            raise _late(request)
        if not call.callers:
            self._burn(call, BurnCause.CANCELLED)
        return taken, request.prefix

    async def _answered_before(self, request: _Request, refusal: Refusal) -> tuple[IdRange, int]:
        """Gives what an earlier call with the same request id took, such as the last ids, or else refuses."""
        stands = await within_timeout(self._store_timeout, self._store.recorded(request.request_id))
        if stands is None:
            raise refusal
        _check_same(request, stands)
        if isinstance(refusal, SequenceDeleted):
            raise _burned(stands)
        return await self._repeat(request, stands, await self._proof(stands))

    async def _repeat(
        self, request: _Request, stands: RecordedAllocation, proof: _GenerationProof
    ) -> tuple[IdRange, int]:
        """Gives the ids that stand in the store once more, if they still may be given."""
        _check_same(request, stands)
        if stands.generation > proof.generation:
            # Another node knows of a change that this one does not: the settings are not those of these ids.
            await self._allocator.forget(stands.sequence)
            proof = await self._proof(stands)
        if stands.generation != proof.generation:
            raise _burned(stands)
        if self._clock.boot() >= proof.expires_at:
            raise _late(request)
        repeated = IdRange(
            first_id=stands.first_id,
            id_count=stands.id_count,
            step=stands.step,
            generation=stands.generation,
            expires_at=proof.expires_at,
            sequence=proof.sequence,
            period=stands.period,
        )
        return repeated, stands.prefix

    async def _proof(self, stands: RecordedAllocation) -> _GenerationProof:
        try:
            standing = await self._allocator.proof(stands.sequence)
        except SequenceDeleted:
            raise _burned(stands) from None
        return _GenerationProof(standing.generation, standing.sequence, standing.expires_at)

    def _burn(self, call: _Call, cause: BurnCause) -> None:
        """Counts the ids of a call, unless they were counted before or a caller has them."""
        taken = call.taken
        if taken is not None and call in self._at_stake:
            period = taken.period if taken.sequence.reset != Reset.NEVER else ""  # not the date of its texts
            self._allocator.burned.add(call.request.sequence, period, cause, taken.id_count)
        self._at_stake.discard(call)


class _PendingAnswer(NamedTuple):
    allocation: RecordedAllocation
    stands: asyncio.Future[RecordedAllocation]


class _AnswerLog:
    """Writes answers down. One statement is under way at a time; all who come meanwhile ride on the next."""

    def __init__(self, store: Store, store_timeout: float) -> None:
        self._store = store
        self._store_timeout = store_timeout
        self._waiting: deque[_PendingAnswer] = deque()
        self._task: asyncio.Task[None] | None = None

    async def write(self, allocation: RecordedAllocation) -> RecordedAllocation:
        """Writes one down, unless there is one of its request id, and returns the one that stands."""
        loop = asyncio.get_running_loop()
        rider = _PendingAnswer(allocation, loop.create_future())
        self._waiting.append(rider)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="write answers down")
        return await rider.stands

    async def _run(self) -> None:
        riders: list[_PendingAnswer] = []
        try:
            while self._waiting:
                riders = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_ROWS))]
                await self._write(riders)
        finally:
            # All had their answers, unless the server ends.
            self._task = None
            _refuse([*riders, *self._waiting], ServerDraining())
            self._waiting.clear()

    async def _write(self, riders: list[_PendingAnswer]) -> None:
        try:
            stand = await within_timeout(
                self._store_timeout, self._store.record([rider.allocation for rider in riders])
            )
        except Refusal as refusal:
            _refuse(riders, refusal)
            return
        except Exception as error:
            _log.exception("record_failed")
            _refuse(riders, error)
            return
        for allocation, stands in riders:
            if not stands.done() and allocation.request_id in stand:
                stands.set_result(stand[allocation.request_id])
        _refuse(riders, StoreOutcomeUnknown("the store did not say what is written down under the request_id"))


def _refuse(riders: Iterable[_PendingAnswer], error: Exception) -> None:
    """Answers those who have no answer yet."""
    for rider in riders:
        if not rider.stands.done():
            rider.stands.set_exception(error)


def _look_at(task: asyncio.Task[tuple[IdRange, int]]) -> None:
    """Sees that asyncio does not complain of an error that nobody waited for."""
    if not task.cancelled():
        task.exception()


def _identity(allocation: RecordedAllocation) -> tuple[str, int, str, int]:
    """What tells ids from all others: two periods have the same numbers."""
    return (allocation.sequence, allocation.generation, allocation.period, allocation.first_id)


def _check_same(request: _Request, stands: RecordedAllocation) -> None:
    if (stands.sequence, stands.id_count) != (request.sequence, request.id_count):
        # Of another sequence the caller may not know.
        ids = "1 id" if stands.id_count == 1 else f"{stands.id_count} ids"
        same = stands.sequence == request.sequence
        raise RequestIdReused(request.request_id, f"{ids} of this sequence" if same else "another sequence")


def _burned(stands: RecordedAllocation) -> RequestIdBurned:
    return RequestIdBurned(stands.request_id, stands.first_id, stands.first_id + (stands.id_count - 1) * stands.step)


def _late(request: _Request) -> StoreUnavailable:
    return StoreUnavailable(f"the lease of sequence {request.sequence!r} expired before the reply")
