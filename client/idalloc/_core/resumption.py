"""Resumption of broken streams: when to request the missing ids again."""

import random
import time
from collections.abc import Callable
from operator import index
from typing import Any, Generic, TypeVar

from idalloc._core.errors import IdallocError, ProtocolError, ServerUnreachable, Unavailable, invalid
from idalloc._core.reply_checks import StreamReply, StreamRequest, check_chunk, check_order

T = TypeVar("T")

# How many attempts a stream makes without progress before it raises its error. With the delays
# below they take more than half a minute, in which a server restarts.
MAX_ATTEMPTS = 12
# The same before the first message, when there may be no server: they take 3 to 5 seconds.
MAX_FIRST_ATTEMPTS = 6
INITIAL_BACKOFF = 0.1
MAX_BACKOFF = 5.0
# The longest retry_after, in seconds, that a stream waits for. A quota may take hours; then the
# caller must know.
MAX_RETRY_AFTER = 30.0
# The client cancels a stream that does not end within this many seconds after its total arrived.
END_TIMEOUT = 5.0


class Retries:
    """Decides when a broken stream is attempted again.

    Args:
        deadline: When the attempts end, on ``time.monotonic``; None for no limit.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self._deadline = deadline
        self.has_progressed = False
        self._failures = 0

    def progressed(self) -> None:
        self._failures = 0
        self.has_progressed = True

    def time_left(self) -> float | None:
        """Return the timeout of the next attempt in seconds; None if there is no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def delay(self, error: IdallocError) -> float:
        """Return how many seconds to wait before the next attempt.

        Raises:
            IdallocError: The error itself, if a retry cannot succeed, or the attempts or the time
                are used up.
        """
        self._failures += 1
        no_answer = isinstance(error, ServerUnreachable)
        attempts = MAX_FIRST_ATTEMPTS if no_answer and not self.has_progressed else MAX_ATTEMPTS
        retry_after = error.retry_after or 0.0
        if not isinstance(error, Unavailable) or self._failures >= attempts or retry_after > MAX_RETRY_AFTER:
            raise error
        backoff: float = min(MAX_BACKOFF, INITIAL_BACKOFF * 2.0 ** (self._failures - 1))
        # Jitter: streams that the same restart broke must not retry at the same moment.
        delay = max(backoff, retry_after) * random.uniform(1.0, 1.5)  # noqa: S311
        if self._deadline is not None and time.monotonic() + delay >= self._deadline:
            raise error
        return delay


class Stream(Retries, Generic[T]):
    """A call whose reply is a stream of ids.

    If it breaks, another attempt requests the missing ids.

    Args:
        request: The request for the total.
        convert: Returns what the caller gets for a message.
        timeout: Limit of all attempts in seconds; None for no limit.
    """

    def __init__(self, request: StreamRequest, convert: Callable[[Any], T], timeout: float | None) -> None:
        super().__init__(None if timeout is None else time.monotonic() + timeout)
        self.convert = convert
        self.missing = at_least_one("total", request.total_id_count)  # how many ids have not arrived
        self._request = request
        self._last: tuple[str, Any] | None = None  # of the latest message of this attempt: see `check_order`

    def start_attempt(self) -> StreamRequest:
        """Return the request for the missing ids."""
        self._request.total_id_count = self.missing
        self._last = None
        return self._request

    def check(self, reply: StreamReply) -> None:
        """Check the next message of an attempt, and count its ids as received."""
        count = check_chunk(self._request, reply, self.missing)
        self._last = check_order(reply, self._last)
        self.received(count)

    def check_end(self) -> None:
        """Raise ProtocolError if ids are missing when an attempt ends."""
        if self.missing:
            missing = f"{self.missing} of {self._request.total_id_count} ids missing"
            raise ProtocolError(f"the reply to {type(self._request).__name__} ended with {missing}")

    def received(self, count: int) -> None:
        self.missing -= count
        self.progressed()

    def retry_delay(self, error: IdallocError) -> float:
        """As ``delay``; 0 if no ids are missing."""
        if self.missing <= 0 and not isinstance(error, ProtocolError):
            return 0.0
        return self.delay(error)


def at_least_one(name: str, count: int) -> int:
    """Return the count if it is at least 1. On the wire, 0 stands for the default."""
    try:
        number = index(count)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(count).__name__}") from None
    if number < 1:
        raise invalid(name, f"must be at least 1, not {count}")
    return count
