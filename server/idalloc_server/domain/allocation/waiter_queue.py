"""The callers that wait for the refill of one sequence."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass
from itertools import islice

from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.errors import InvalidRequest


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A caller that waits for ids.

    Attributes:
        id_count: The number of ids requested.
        answer: Receives the range or the error.
        context: The context of its call.
    """

    id_count: int
    answer: asyncio.Future[IdRange]
    context: Context

    @property
    def served_ids(self) -> int:
        """The number of ids that the caller got; 0 before its answer, and without one."""
        answer = self.answer
        return answer.result().id_count if answer.done() and not answer.cancelled() and not answer.exception() else 0


# Shared by all queues without waiters: a deque of its own would be most of the memory of an idle sequence.
_NO_WAITERS: deque[Waiter] = deque()
_NONE_ACTIVE: set[Waiter] = set()


class WaiterQueue:
    """The waiters in FIFO order, and those that were served but have not resumed yet."""

    __slots__ = ("_active", "_next_write", "_waiting")

    def __init__(self) -> None:
        self._waiting = _NO_WAITERS
        self._active = _NONE_ACTIVE
        # The next write is for this many waiters at the front; None for all.
        self._next_write: int | None = None

    def __len__(self) -> int:
        """Returns the number of waiters."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiter]:
        """Yields the waiters in FIFO order."""
        return iter(self._waiting)

    @property
    def first(self) -> Waiter:
        """The waiter that is served next; there must be one."""
        return self._waiting[0]

    @property
    def served_ids(self) -> int:
        """The number of ids whose callers have not resumed yet."""
        return sum(waiter.served_ids for waiter in self._active)

    def add(self, count: int) -> Waiter:
        """Appends a waiter. Its caller calls ``mark_resumed`` when it resumes."""
        waiter = Waiter(count, asyncio.get_running_loop().create_future(), copy_context())
        if self._active is _NONE_ACTIVE:
            self._waiting, self._active = deque(), set()
        self._waiting.append(waiter)
        self._active.add(waiter)
        return waiter

    def pop_first(self) -> Waiter:
        """Removes and returns the waiter that is served next; there must be one."""
        return self._waiting.popleft()

    def mark_resumed(self, waiter: Waiter) -> None:
        """Records that a waiter has resumed: its ids no longer count as served."""
        self._active.discard(waiter)
        if not self._active and not self._waiting:
            self._waiting, self._active = _NO_WAITERS, _NONE_ACTIVE

    def defer(self, waiters: list[Waiter]) -> None:
        """Puts waiters back to the front. If there are any, the next write is only for these."""
        self._waiting.extendleft(reversed(waiters))
        self._next_write = len(waiters) or None

    def first_context(self) -> Context:
        """Returns the context of the first waiter's call, or an empty one."""
        return self.first.context if self else Context()

    def requested_ids(self) -> int:
        """Returns the number of ids that the next write is for, and ends a deferral."""
        waiters, self._next_write = islice(self._waiting, self._next_write), None
        return sum(waiter.id_count for waiter in waiters if not waiter.answer.done())

    def reject_above(self, limit: int, which: str) -> None:
        """Fails the waiters for more ids than ``limit``; ``which`` names the limit for people."""
        for waiter in self:
            if waiter.id_count > limit and not waiter.answer.done():
                rule = f"must be at most {limit} {which}; is {waiter.id_count}"
                waiter.answer.set_exception(InvalidRequest("id_count", rule))

    def fail_all(self, error: Exception) -> None:
        """Removes all waiters and fails them."""
        while self:
            answer = self.pop_first().answer
            if not answer.done():
                answer.set_exception(error)
