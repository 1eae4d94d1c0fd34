"""Allocates ids for requests with a request id; a retry gets the same ids (P7)."""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from operator import attrgetter

import structlog

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    LeaseExpired,
    Refusal,
    RequestIdBurned,
    RequestIdReused,
    SequenceAheadOfClock,
    SequenceDeleted,
    SequenceExhausted,
    ServerDraining,
    StoreOutcomeUnknown,
)
from idalloc_server.domain.sequences.calendar import date_at
from idalloc_server.domain.sequences.formats import compile_format
from idalloc_server.domain.sequences.sequence import Reset
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation
from idalloc_server.domain.store.retention import SeenRecords
from idalloc_server.domain.store.store_calls import Batches

# The most answers that one statement records.
MAX_BATCH_ROWS = 200
# The most answers that one statement removes, and how often old answers are removed.
PRUNE_BATCH_ROWS = 1000
MAX_PRUNE_INTERVAL = 60.0
PRUNES_PER_WINDOW = 10
# The number of recorded answers that logs a warning, and how often they are counted.
WARNING_ROWS = 1_000_000
COUNT_INTERVAL = 60.0

# The key of recorded ids: numbers repeat in each period.
_identity = attrgetter("sequence", "generation", "period", "first_id")
_log = structlog.get_logger("idalloc.request_ids")


def with_date(taken: IdRange, wall: float) -> IdRange:
    """Return the range, with its date as period if its format has a date and it has no period."""
    if taken.period or not taken.sequence.format or not compile_format(taken.sequence.format).has_date:
        return taken
    return taken._replace(period=date_at(taken.sequence, wall))


@dataclass(eq=False)
class _Call:
    """A call in progress, shared by all callers that sent its request id to this node."""

    request_id: str
    sequence: str
    id_count: int
    prefix: int
    callers: int = 0
    # The allocated ids.
    taken: IdRange | None = None
    task: asyncio.Task[tuple[IdRange, int]] = field(init=False)

    def check_same(self, recorded: RecordedAllocation) -> None:
        """Raise RequestIdReused if the answer recorded for the request id is of another call."""
        if (recorded.sequence, recorded.id_count) != (self.sequence, self.id_count):
            # The caller may have no access to the other sequence, so the error does not name it.
            ids = "1 id" if recorded.id_count == 1 else f"{recorded.id_count} ids"
            same = recorded.sequence == self.sequence
            raise RequestIdReused(self.request_id, f"{ids} of this sequence" if same else "another sequence")


@dataclass(eq=False)
class IdempotentAllocator:
    """Allocates ids for requests with a request id.

    Each answer is recorded in the store before it is returned. The first recorded answer wins: if
    the store has an earlier one, its ids are returned and the new ones burned. Not thread-safe:
    call all methods on one event loop.
    """

    _allocator: Allocator  # issues the ids
    _store: Store  # records the answers
    _clock: Clock  # the clock of leases, and of dates in texts
    _: KW_ONLY
    node: str  # the name of this node in the recorded answers
    window: float  # how long answers are kept, in seconds
    _calls: dict[str, _Call] = field(default_factory=dict, init=False)  # by request id
    # Calls whose ids no caller has received yet.
    _undelivered: set[_Call] = field(default_factory=set, init=False)
    _abandoned: bool = field(default=False, init=False)
    _seen_records: SeenRecords = field(default_factory=SeenRecords, init=False)
    _next_count_at: float = field(default=-math.inf, init=False)
    _has_warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._answers = Batches("record answers", self._record, MAX_BATCH_ROWS)

    async def allocate_once(self, sequence: str, count: int, request_id: str, prefix: int) -> tuple[IdRange, int]:
        """Allocate ids, or return those of an earlier call with the same request id.

        A call that is cancelled before it has ids takes none. If it is cancelled after that, its
        answer is recorded for a retry.

        Args:
            sequence: The sequence's name.
            count: Number of ids, at least 1.
            request_id: The request id, in canonical form.
            prefix: The node prefix.

        Returns:
            The ids, with the period or date of their texts, and the prefix of their texts.

        Raises:
            RequestIdReused: The request id was used for another sequence or count.
            RequestIdBurned: The ids of an earlier call may not be issued any more.
            Refusal: See ``Allocator.allocate``.
        """
        call = self._calls.get(request_id)
        while call is not None and (call.sequence, call.id_count) != (sequence, count):
            # The answer that it records decides this one.
            await asyncio.wait({call.task})
            call = self._calls.get(request_id)
        if call is None:
            call = self._calls[request_id] = _Call(request_id, sequence, count, prefix)
            call.task = asyncio.create_task(self._answer(call), name=f"request {request_id}")
            call.task.add_done_callback(partial(self._finish, call))
        await self._wait_as_caller(call)
        if call.task.cancelled():
            raise ServerDraining
        if error := call.task.exception():
            raise error.with_traceback(None)  # each raise by a waiting caller would extend it
        taken, recorded_prefix = call.task.result()
        if self._abandoned:
            raise ServerDraining  # the ids are counted as burned
        if self._clock.boot() >= taken.expires_at:
            # The store was slow, or the process was paused: the lease has expired for all callers.
            self._burn(call, BurnCause.EXPIRED)
            raise LeaseExpired(sequence)
        self._undelivered.discard(call)
        return taken, recorded_prefix

    async def _wait_as_caller(self, call: _Call) -> None:
        """Wait for the end of a call.

        The last caller that is cancelled also cancels the call, unless it has ids: these are
        recorded for a retry.
        """
        call.callers += 1
        try:
            await asyncio.wait({call.task})
        except asyncio.CancelledError:
            call.callers -= 1
            if not call.callers and call.task.done():
                self._burn(call, BurnCause.CANCELLED)
            elif not call.callers and call.taken is None:
                del self._calls[call.request_id]
                call.task.cancel()
            raise

    async def finish_recording(self) -> None:
        """Wait for answers that are still being recorded for cancelled callers."""
        if self._calls:
            await asyncio.wait([call.task for call in self._calls.values()])

    def abandon(self) -> None:
        """Burn the ids that no caller has received, for a stop that cannot wait.

        Nothing may be allocated later.
        """
        self._abandoned = True
        for call in list(self._undelivered):
            self._burn(call, BurnCause.CANCELLED if call.task.done() else BurnCause.UNKNOWN_OUTCOME)

    async def prune_answers(self) -> None:
        """Remove answers whose window has passed, in batches, until cancelled."""
        while True:
            try:
                await self.prune()
                await self._warn_if_many()
            except Refusal as error:
                _log.warning("cleanup_failed", resource="request_ids", error=str(error))
            await asyncio.sleep(min(self.window / PRUNES_PER_WINDOW, MAX_PRUNE_INTERVAL))

    async def prune(self) -> None:
        """Remove answers that this process saw for at least their window, by its boot clock.

        Raises:
            StoreFailure: The store did not answer.
        """
        newest = await self._store.newest_recorded()
        now = self._clock.boot()
        self._seen_records.note(newest, now)
        retention = self._seen_records.retention(now, self.window)
        while retention is not None and await self._store.forget_recorded(retention, PRUNE_BATCH_ROWS):
            pass  # remove the next batch

    async def _warn_if_many(self) -> None:
        """Log one warning if the store keeps very many answers."""
        now = self._clock.boot()
        if now < self._next_count_at:
            return
        self._next_count_at = now + COUNT_INTERVAL
        rows = await self._store.count_recorded(WARNING_ROWS)
        if rows >= WARNING_ROWS and not self._has_warned:
            _log.warning(
                "request_ids_piling_up",
                rows=rows,
                request_id_window=self.window,
                next_step="lower request_id_window, or send fewer calls with a request_id; "
                "after each start a node keeps all answers for another window",
            )
        self._has_warned = rows >= WARNING_ROWS

    def _finish(self, call: _Call, _: asyncio.Task[tuple[IdRange, int]]) -> None:
        if self._calls.get(call.request_id) is call:
            del self._calls[call.request_id]
        if not call.task.cancelled():
            call.task.exception()  # retrieved: asyncio would log it if all callers are cancelled

    async def _answer(self, call: _Call) -> tuple[IdRange, int]:
        """Allocate and record ids; return them, or the answer that is recorded already."""
        try:
            taken = await self._allocator.issue(call.sequence, call.id_count)
        except (SequenceExhausted, SequenceAheadOfClock, SequenceDeleted) as refusal:
            found = await self._store.recorded(call.request_id)
            if found is None:
                raise
            call.check_same(found)
            if isinstance(refusal, SequenceDeleted):
                raise _burned(found) from None
            return await self._replay(call, found, await self._prove_generation(found))
        call.taken = taken = with_date(taken, self._clock.wall())
        self._undelivered.add(call)
        allocation = RecordedAllocation(
            request_id=call.request_id,
            sequence=call.sequence,
            first_id=taken.first_id,
            id_count=taken.id_count,
            step=taken.step,
            generation=taken.generation,
            period=taken.period,
            prefix=call.prefix,
            node=self.node,
            window_ms=math.ceil(self.window * 1000),
        )
        try:
            recorded = await self._answers.add(allocation)
        except BaseException:
            self._burn(call, BurnCause.UNKNOWN_OUTCOME)
            raise
        if _identity(recorded) != _identity(allocation):
            self._burn(call, BurnCause.REPEATED)
            return await self._replay(call, recorded, taken)
        if not call.callers:
            self._burn(call, BurnCause.CANCELLED)
        return taken, call.prefix

    async def _record(self, batch: list[RecordedAllocation]) -> Iterable[RecordedAllocation | Exception]:
        """Record answers, and return the recorded one of each request id: the first one wins."""
        try:
            stored = await self._store.record(batch)
        except Exception as error:
            if not isinstance(error, Refusal):
                _log.exception("record_failed")
            raise
        unknown = StoreOutcomeUnknown("the store did not return the answer recorded for the request_id; try again")
        return [stored.get(each.request_id, unknown) for each in batch]

    async def _replay(self, call: _Call, recorded: RecordedAllocation, proof: IdRange) -> tuple[IdRange, int]:
        """Return the recorded ids again, if they are of the generation of ``proof``."""
        call.check_same(recorded)
        if recorded.generation > proof.generation:
            # This node has not seen the change that began the generation, so its settings are
            # outdated.
            await self._allocator.drop_lease(recorded.sequence)
            proof = await self._prove_generation(recorded)
        if recorded.generation != proof.generation:
            raise _burned(recorded)
        # They expire with the proof: a change that ends the proven generation is effective after
        # that.
        again = proof._replace(
            first_id=recorded.first_id, id_count=recorded.id_count, step=recorded.step, period=recorded.period
        )
        return again, recorded.prefix

    async def _prove_generation(self, recorded: RecordedAllocation) -> IdRange:
        try:
            return await self._allocator.proof(recorded.sequence)
        except SequenceDeleted:
            raise _burned(recorded) from None

    def _burn(self, call: _Call, cause: BurnCause) -> None:
        """Count the ids of a call as burned, unless they are counted or a caller has them."""
        taken = call.taken
        if taken is not None and call in self._undelivered:
            period = taken.period if taken.sequence.reset != Reset.NEVER else ""  # else it is the date of the texts
            self._allocator.burned.add(call.sequence, period, cause, taken.id_count)
        self._undelivered.discard(call)


def _burned(recorded: RecordedAllocation) -> RequestIdBurned:
    return RequestIdBurned(
        recorded.request_id, recorded.first_id, recorded.first_id + (recorded.id_count - 1) * recorded.step
    )
