"""The callers that wait for the refill of one sequence."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from idalloc_server.domain.allocation.id_range import IdRange


class Waiter(NamedTuple):
    """A caller that waits for ids.

    Attributes:
        id_count: The number of ids requested.
        answer: Receives the range or the error.
    """

    id_count: int
    answer: asyncio.Future[IdRange]

    @property
    def is_served(self) -> bool:
        """Whether the caller got its ids."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None


class WaiterQueue:
    """Waiters in FIFO order, and those that were served but have not resumed yet."""

    def __init__(self) -> None:
        self._waiters: deque[Waiter] = deque()
        self._active: set[Waiter] = set()
        # The next write is for this many waiters at the front; None for all.
        self._deferred: int | None = None

    def __len__(self) -> int:
        """Returns the number of waiters in the queue."""
        return len(self._waiters)

    @property
    def first(self) -> Waiter:
        """The waiter at the front."""
        return self._waiters[0]

    @property
    def served_ids(self) -> int:
        """The number of ids whose callers have not resumed yet."""
        return sum(waiter.id_count for waiter in self._active if waiter.is_served)

    def append(self, count: int) -> Waiter:
        """Adds a waiter, which must call ``discard`` after its answer."""
        waiter = Waiter(count, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._active.add(waiter)
        return waiter

    def discard(self, waiter: Waiter) -> None:
        """Marks that the caller has resumed."""
        self._active.discard(waiter)

    def popleft(self) -> Waiter:
        """Removes the waiter at the front."""
        return self._waiters.popleft()

    def defer(self, waiters: list[Waiter]) -> None:
        """Puts waiters back to the front. If there are any, the next write is for these alone."""
        self._waiters.extendleft(reversed(waiters))
        self._deferred = len(waiters) or None

    def requested_ids(self) -> int:
        """Returns the number of ids for the next write, and ends a deferral."""
        waiters, self._deferred = islice(self._waiters, self._deferred), None
        return sum(waiter.id_count for waiter in waiters if not waiter.answer.done())

    def reject(self, error_for: Callable[[int], Exception | None]) -> None:
        """Fails each waiter that ``error_for``, called with its number of ids, returns an error for."""
        for count, answer in self._waiters:
            error = error_for(count)
            if error and not answer.done():
                answer.set_exception(error)

    def fail_all(self, error: Exception) -> None:
        """Removes all waiters and fails them."""
        while self._waiters:
            answer = self._waiters.popleft().answer
            if not answer.done():
                answer.set_exception(error)
