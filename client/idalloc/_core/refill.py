"""The refills of a pool: one at a time, which all callers wait for, each for its own time."""

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from idalloc._core.attempts import Attempts
from idalloc._core.errors import DeadlineExceeded, IdallocError
from idalloc._core.pipeline import Pending
from idalloc._core.pool import Pool, PoolRequest

# How long a caller waits for a range by default, in seconds: docs/explanation/client-calls.md.
OUTAGE_LIMIT = 10.0


@dataclass(eq=False)
class Refill:
    """A request for a range. ``Refills`` completes it."""

    request: PoolRequest
    is_prefetch: bool  # whether no caller waited when it began
    attempts: Attempts[Any, Any] = field(init=False)
    error: Exception | None = field(default=None, init=False)  # that ended it
    wakes: dict[Callable[[], object], None] = field(default_factory=dict, init=False)  # each wakes a caller

    def wake(self) -> None:
        for each in list(self.wakes):
            each()


class Refills:
    """Refills a pool. It does no I/O of its own; one thread or task at a time may use it."""

    def __init__(self, client: Any, pool: Pool) -> None:
        self.current: Refill | None = None  # the only one under way
        self._client = client
        self._pool = pool
        self._resume_at = 0.0  # when a quota admits the next request
        self._failure: IdallocError | None = None  # since the last range

    def poll(self, deadline: float, wake: Callable[[], object], waited: Refill | None) -> float | None:
        """Return the seconds to wait, unless ``wake`` is called before; None if the pool has ids.

        Args:
            deadline: When the caller's time ends, on ``time.monotonic``.
            wake: Wakes the caller.
            waited: The refill that the caller has waited for.

        Raises:
            IdallocError: The refill failed, or the caller's time is over.
            OSError: The log of issued ids cannot be written.
        """
        if waited is not None and waited.error is not None:
            raise copy(waited.error) from waited.error.__cause__
        while not self._pool.advance():
            now = time.monotonic()
            if self.current is None and now < self._resume_at:
                seconds = self._resume_at - now
            elif not (seconds := self._step(wake)):
                continue
            is_idle = self.current is None or not self.current.attempts.open
            if now >= deadline or (is_idle and now + seconds >= deadline):
                late = self._failure or DeadlineExceeded(f"no range of {self._client.target} in time")
                raise copy(late) from late.__cause__
            return min(seconds, deadline - now)
        if self.current is None and self._pool.should_prefetch():
            self._begin(is_prefetch=True).attempts.send()  # no outcome of it is this caller's
        return None

    def clear(self) -> Refill | None:
        """Forget the current refill, and return it."""
        refill = self.current
        self.current = None
        return refill

    def _begin(self, *, is_prefetch: bool) -> Refill:
        refill = Refill(self._pool.next_request(), is_prefetch)
        pending = Pending(refill.request.call, self._client.timeout, is_refill=True)
        refill.attempts = Attempts(self._client, pending, refill.wake)
        self.current = refill  # last, as a signal handler may raise before
        return refill

    def _step(self, wake: Callable[[], object]) -> float:
        """Do what is due; return the seconds until more is due, or 0 if a refill ended."""
        refill = self.current or self._begin(is_prefetch=False)
        refill.wakes[wake] = None  # first, as an answer may come at any moment
        attempts = refill.attempts
        try:
            seconds = attempts.step()
            self._failure = attempts.pending.failure or self._failure
            if not seconds:
                self.current = self._failure = None
                if next(refill.request.process):  # unless a signal handler forked
                    allocated = self._client._receive(refill.request.call, attempts.reply, attempts.asked)
                    self._pool.add(refill.request, allocated)
                refill.wake()
        except BaseException as error:
            self.current = None
            delay = self._pool.retry_delay(error, was_prefetched=refill.is_prefetch)
            if delay is None:
                refill.error = error if isinstance(error, Exception) else None
                refill.wake()
                raise
            self._failure = error  # type: ignore[assignment] # only these have a delay
            self._resume_at = time.monotonic() + delay
            refill.wake()
            return 0.0
        return seconds
