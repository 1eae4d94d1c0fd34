"""Coalescing of concurrent allocate_range calls for one sequence, in the client for asyncio."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from inspect import CORO_SUSPENDED, getcoroutinestate
from typing import Any, TypeAlias

from idalloc._core.calls import Call, allocate_range
from idalloc._core.errors import (
    ClientClosed,
    DeadlineExceeded,
    IdallocError,
    InvalidRequest,
    SequenceAheadOfClock,
    SequenceExhausted,
)
from idalloc._core.pool import MAX_RANGE_SIZE
from idalloc._core.types import Range
from idalloc.aio._base import BaseClient
from idalloc.aio._single_request_stream import SingleRequestStream

# Errors after which a smaller request may succeed.
_COUNT_ERRORS = (SequenceExhausted, SequenceAheadOfClock, InvalidRequest)

# The result of a waiter: ids, an error (of the log: OSError), or None if it must call by itself.
_Result: TypeAlias = Range | IdallocError | OSError | None
# The waiters in order of arrival, and how many ids each requests.
_Waiters: TypeAlias = "dict[asyncio.Future[_Result], int]"


@dataclass(eq=False, slots=True)
class _Queue:
    """The callers of one sequence while a call for it is in flight."""

    waiting: _Waiters = field(default_factory=dict)  # those whose call has not been sent
    in_flight: _Waiters = field(default_factory=dict)  # those whose call has been sent
    first_call: Coroutine[Any, Any, Range] | None = None  # the first caller's
    task: asyncio.Task[None] | None = None  # makes the calls after that

    def is_busy(self) -> bool:
        """Return whether a call is in flight, unless a signal handler's exception ended it."""
        if self.task is not None and not self.task.done():
            return True
        return self.first_call is not None and getcoroutinestate(self.first_call) == CORO_SUSPENDED


class CallCoalescer:
    """Makes one call for all callers that arrive during another call for the same sequence.

    If no call is in flight, a caller calls at once. Otherwise it waits for the end of that call,
    and shares the next one with all other waiters. The next call is sent after they arrived. So a
    caller that starts after another one was answered is served by a later call, as if each had made
    its own.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._stream = SingleRequestStream(client)
        self._max_counts: dict[str, int] = {}  # by sequence, if the server's limit is below MAX_RANGE_SIZE
        self._queues: dict[str, _Queue] = {}  # of the sequences with a call in flight

    async def allocate(self, sequence: str, n: int, call: Call[Range]) -> Range:
        """Allocate n ids by a separate call, or by another caller's call."""
        # Raises if the client is closed, in another event loop, and in the child of a fork.
        self._client._connection.stubs()
        queue = self._queues.get(sequence)
        if queue is None:
            queue = self._queues[sequence] = _Queue()
        elif queue.is_busy():
            return await self._wait(queue, n, call)
        queue.first_call = first_call = self._stream.call(call)
        try:
            return await first_call
        finally:
            if any(not waiter.done() for waiter in queue.waiting):
                queue.task = self._client._start_task(self._drain(sequence, queue))
                queue.task.add_done_callback(lambda _: self._remove(sequence, queue))
            else:
                self._remove(sequence, queue)

    async def _wait(self, queue: _Queue, n: int, call: Call[Range]) -> Range:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._client.timeout
        waiter: asyncio.Future[_Result] = loop.create_future()
        queue.waiting[waiter] = n
        try:
            async with asyncio.timeout_at(deadline):
                result = await waiter
        except TimeoutError:
            raise DeadlineExceeded(f"no answer from {self._client.target} within {self._client.timeout:g} s") from None
        finally:
            queue.waiting.pop(waiter, None)
        if isinstance(result, Range):
            return result
        if result is None:
            return await self._client._call(call, timeout=max(0.0, deadline - loop.time()))
        raise copy(result) from result  # a copy for each waiter, because raising an error extends its traceback

    async def _drain(self, sequence: str, queue: _Queue) -> None:
        """Make calls until no waiter is left."""
        with suppress(ClientClosed):  # the client was closed: see _remove
            while queue.waiting:
                queue.in_flight = queue.waiting
                queue.waiting = {}
                batches = _batches(queue.in_flight, self._max_counts.get(sequence, MAX_RANGE_SIZE))
                await asyncio.gather(*(self._allocate_batch(sequence, batch) for batch in batches))

    def _remove(self, sequence: str, queue: _Queue) -> None:
        """Remove a queue.

        Waiters that are left, because the client is closed, call by themselves and get its error.
        """
        if self._queues.get(sequence) is queue:
            del self._queues[sequence]
        for waiters in (queue.in_flight, queue.waiting):
            _resolve(waiters, [None] * len(waiters))

    async def _allocate_batch(self, sequence: str, batch: _Waiters) -> None:
        """Make one call for a batch of waiters."""
        total = sum(batch.values())
        results: list[_Result]
        try:
            allocated = await self._stream.call(allocate_range(sequence, total))
            results = list(_split(allocated, batch.values()))
        except ClientClosed:
            raise
        except IdallocError as error:
            call_singly = len(batch) > 1 and isinstance(error, _COUNT_ERRORS)
            results = [None if call_singly else error] * len(batch)
            if call_singly and isinstance(error, InvalidRequest) and error.field == "id_count":
                # The limit depends on the sequence: a timestamp sequence has a far lower one.
                self._max_counts[sequence] = min(self._max_counts.get(sequence, MAX_RANGE_SIZE), total // 2)
        except OSError as error:  # the log could not be written
            results = [error] * len(batch)
        _resolve(batch, results)


def _batches(waiters: _Waiters, max_count: int) -> list[_Waiters]:
    """Batch waiters in FIFO order, at most ``max_count`` ids each.

    An oversized request forms its own batch.
    """
    batches: list[_Waiters] = []
    left = 0
    for waiter, count in waiters.items():
        if count > left:
            batches.append({})
            left = max_count
        batches[-1][waiter] = count
        left -= count
    return batches


def _split(allocated: Range, counts: Iterable[int]) -> Iterator[Range]:
    """Yield parts of a range. If its call created the sequence, the first part's did."""
    start = 0
    for count in counts:
        last_id = allocated[start + count - 1]
        created = allocated.created and start == 0
        yield replace(allocated, first_id=allocated[start], last_id=last_id, id_count=count, created=created)
        start += count


def _resolve(waiters: _Waiters, results: list[_Result]) -> None:
    for waiter, result in zip(waiters, results, strict=True):
        if not waiter.done():  # otherwise it was cancelled or timed out, and its ids are a gap
            waiter.set_result(result)
