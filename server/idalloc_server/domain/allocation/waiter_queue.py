"""The callers that wait for the refill of one sequence."""

import asyncio
from collections import deque
from contextvars import Context, copy_context
from dataclasses import dataclass
from itertools import islice

from idalloc_server.domain.allocation.held_ids import HeldIds
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.model import Kind


@dataclass(slots=True, eq=False)
class Waiter:
    """A caller that waits for ids."""

    id_count: int  # the number of ids requested
    answer: asyncio.Future[IdRange]  # receives the range or the error
    context: Context  # the context of its call

    @property
    def served_ids(self) -> int:
        """The number of ids that the caller got; 0 before its answer, and without one."""
        answer = self.answer
        return answer.result().id_count if answer.done() and not answer.cancelled() and not answer.exception() else 0


# Shared by all queues without waiters: a deque of its own would be most of the memory of an idle
# sequence.
_NO_WAITERS: deque[Waiter] = deque()
_NONE_ACTIVE: set[Waiter] = set()


class WaiterQueue:
    """The waiters in FIFO order, and those that were served but have not resumed yet."""

    __slots__ = ("_active", "_next_write", "waiting")

    def __init__(self) -> None:
        self.waiting = _NO_WAITERS  # those that were not served; for reading
        self._active = _NONE_ACTIVE
        # The next write is for this many waiters at the front; None for all.
        self._next_write: int | None = None

    @property
    def served_ids(self) -> int:
        """The number of ids whose callers have not resumed yet."""
        return sum(waiter.served_ids for waiter in self._active)

    def add(self, count: int) -> Waiter:
        """Append a waiter. Its caller calls ``mark_resumed`` when it resumes."""
        waiter = Waiter(count, asyncio.get_running_loop().create_future(), copy_context())
        if self._active is _NONE_ACTIVE:
            self.waiting, self._active = deque(), set()
        self.waiting.append(waiter)
        self._active.add(waiter)
        return waiter

    def serve(self, held: HeldIds, most: int, now: float) -> int:
        """Answer up to ``most`` waiters in FIFO order, as far as the lease lasts.

        Returns:
            The number of ids issued.
        """
        waiting, issued_ids, has_reset = self.waiting, 0, held.row.has_reset
        for _ in range(most):
            waiter = waiting[0]
            if not waiter.answer.done():
                count = 0 if has_reset else waiter.id_count
                lease = held.skip_to(count) if held.remaining else held.lease  # the last ids are not skipped
                issued = lease.issue(count, now)
                if issued is None:
                    break  # It arrived during the write, or the lease has expired: the next refill serves it.
                waiter.answer.set_result(issued)
                issued_ids += count
            waiting.popleft()
        return issued_ids

    def serve_at_bound(self, held: HeldIds, most: int, now: float) -> int:
        """Answer up to ``most`` waiters after a write that granted too few ids.

        Near the bound of a counter nothing is granted. Waiters that want more than the store has
        left fail; the others wait for a write that requests at most that.

        Returns:
            The number of ids issued.
        """
        waiting, lease, row, remaining = self.waiting, held.lease, held.row, held.remaining
        issued_ids, deferred = 0, list[Waiter]()
        for _ in range(most):
            waiter = waiting[0]
            count, answer = 0 if row.has_reset else waiter.id_count, waiter.answer
            if not answer.done():
                issued = lease.issue(count, now)
                if issued is not None:
                    answer.set_result(issued)
                    issued_ids += count
                elif lease.is_expired(now):
                    break  # The next refill serves it.
                elif count <= remaining and row.settings.kind == Kind.COUNTER:
                    remaining -= count
                    deferred.append(waiter)
                else:
                    left, largest = lease.left + remaining, lease.next_range_size or remaining
                    answer.set_exception(row.insufficient_ids_error(count, left, largest))
            waiting.popleft()
        # If there are any, the next write is only for these.
        waiting.extendleft(reversed(deferred))
        self._next_write = len(deferred) or None
        return issued_ids

    def mark_resumed(self, waiter: Waiter) -> None:
        """Record that a waiter has resumed: its ids no longer count as served."""
        self._active.discard(waiter)
        if not self._active and not self.waiting:
            self.waiting, self._active = _NO_WAITERS, _NONE_ACTIVE

    def requested_ids(self) -> int:
        """Return the number of ids that the next write is for, and end a deferral."""
        requested = 0
        for waiter in islice(self.waiting, self._next_write):
            if not waiter.answer.done():
                requested += waiter.id_count
        self._next_write = None
        return requested

    def reject_above(self, limit: int, which: str) -> None:
        """Fail the waiters for more ids than ``limit``; ``which`` names the limit for people."""
        for waiter in self.waiting:
            if waiter.id_count > limit and not waiter.answer.done():
                rule = f"must be at most {limit} {which}; is {waiter.id_count}"
                waiter.answer.set_exception(InvalidRequest("id_count", rule))

    def fail(self, error: Exception, *, most: int | None = None) -> bool:
        """Remove all waiters, or the ``most`` oldest, and fail them; return if any still waited."""
        has_failed = False
        for _ in range(len(self.waiting) if most is None else min(most, len(self.waiting))):
            answer = self.waiting.popleft().answer
            if not answer.done():
                answer.set_exception(error)
                has_failed = True
        return has_failed
