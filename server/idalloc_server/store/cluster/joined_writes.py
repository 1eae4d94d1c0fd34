"""Sends writes of rows: each alone while few are under way, then those that wait in one request.

The first ``MAX_REQUESTS`` requests are sent at once, each with one row. Later writes wait, and
share the request that is sent when one ends. A request that hangs does not hold the others: if none
ended for ``STALL_SECONDS``, one more is sent.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from idalloc_server.domain.errors import StoreFailure
from idalloc_server.domain.store.store_calls import settle

MAX_REQUESTS = 8
MAX_JOINED = 64  # the most writes of a request
STALL_SECONDS = 0.1


class RowWrite(Protocol):
    """A write of one row."""

    @property
    def name(self) -> str:
        """The key of the row."""
        ...


_Write = TypeVar("_Write", bound=RowWrite)
_Answer = TypeVar("_Answer")


@dataclass(eq=False, slots=True)
class _Waiting(Generic[_Write, _Answer]):
    """A write that waits for its request, or for the answer."""

    write: _Write
    answer: asyncio.Future[_Answer]  # done also if the caller has left
    joined: "_Joined[_Write, _Answer] | None" = None  # the request, once it is sent


@dataclass(eq=False, slots=True)
class _Joined(Generic[_Write, _Answer]):
    """A request of writes that waited."""

    writes: list[_Waiting[_Write, _Answer]]
    task: asyncio.Task[Sequence[_Answer | StoreFailure]]


class JoinedWrites(Generic[_Write, _Answer]):
    """Sends writes of rows of sequences; each has its own outcome.

    A write whose caller is cancelled before it is sent is not sent. A request never has two writes
    of one row.

    Args:
        send: Sends one write.
        send_many: Sends several in one request, and returns the outcome of each, in order.
    """

    def __init__(
        self,
        send: Callable[[_Write], Awaitable[_Answer]],
        send_many: Callable[[Sequence[_Write]], Awaitable[Sequence[_Answer | StoreFailure]]],
    ) -> None:
        self._send = send
        self._send_many = send_many
        self._running = 0  # the number of requests under way
        self._waiting: deque[_Waiting[_Write, _Answer]] = deque()  # empty unless MAX_REQUESTS are under way
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, write: _Write) -> _Answer:
        """Return the answer to a write.

        Raises:
            StoreFailure: The request failed, or this write alone.
        """
        if self._running >= MAX_REQUESTS:
            return await self._join(write)
        self._running += 1
        try:
            return await self._send(write)
        finally:
            self._go_on()

    async def _join(self, write: _Write) -> _Answer:
        waiting = _Waiting[_Write, _Answer](write, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._timer is None:
            self._watch()
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            # The request ends, which closes its connection, once all callers have left.
            if waiting.joined and all(each.answer.done() for each in waiting.joined.writes):
                waiting.joined.task.cancel()
            raise

    def _go_on(self) -> None:
        """Send what waits, after the end of a request."""
        self._running -= 1
        self._begin()
        while self._waiting and self._running < MAX_REQUESTS:  # such as a second write of a row
            self._begin()

    def _watch(self) -> None:
        """Send one more request if none ends for a while."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(STALL_SECONDS, self._begin)

    def _begin(self) -> None:
        """Send a request of the oldest writes that wait."""
        chosen: dict[str, _Waiting[_Write, _Answer]] = {}
        left: list[_Waiting[_Write, _Answer]] = []
        while self._waiting and len(chosen) < MAX_JOINED:
            waiting = self._waiting.popleft()
            if waiting.write.name in chosen:
                left.append(waiting)
            elif not waiting.answer.done():
                chosen[waiting.write.name] = waiting
        self._waiting.extendleft(reversed(left))
        if chosen:
            sending = self._send_chosen([waiting.write for waiting in chosen.values()])
            joined = _Joined([*chosen.values()], asyncio.get_running_loop().create_task(sending, name="write rows"))
            for waiting in joined.writes:
                waiting.joined = joined
            self._running += 1
            # Not in the task itself, which may be cancelled before it begins.
            joined.task.add_done_callback(partial(self._end, joined))
        self._watch()

    def _end(self, joined: _Joined[_Write, _Answer], _: object) -> None:
        """Give each write of a request its outcome."""
        task = joined.task
        if task.cancelled():
            for each in joined.writes:
                each.answer.cancel()
        else:
            failure = task.exception()
            outcomes = [failure] * len(joined.writes) if failure else task.result()
            for each, outcome in zip(joined.writes, outcomes, strict=True):
                settle(each.answer, outcome)
        self._go_on()

    async def _send_chosen(self, writes: Sequence[_Write]) -> Sequence[_Answer | StoreFailure]:
        if len(writes) == 1:
            return [await self._send(writes[0])]
        return await self._send_many(writes)
