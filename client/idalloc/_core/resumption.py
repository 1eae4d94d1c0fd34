"""What a stream remembers, so that it can go on where it broke."""

import random
import time

import grpc

from idalloc._core.errors import IdallocError, ProtocolError, ServerUnreachable, Unavailable
from idalloc._core.requests import at_least_one

# A stream that breaks and receives nothing more is tried again this often before its error is its caller's: with
# the pauses below, half a minute and more, in which a server restarts.
MAX_ATTEMPTS = 12
# Before the first message there may be no server at all: the error comes after three to five seconds.
MAX_FIRST_ATTEMPTS = 6
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
# Who has used up a quota may be told of a wait of hours; nothing should stand still for so long and not say why.
LONGEST_WAIT = 30.0
# A stream that has brought its total and does not end is cancelled after so many seconds.
LONGEST_END = 5.0


class Resumption:
    """How much of a stream's total is still missing, and whether and when to ask for it again.

    Attributes:
        missing: How many ids have not been received.
    """

    def __init__(self, total: int, timeout: float | None) -> None:
        self.missing = at_least_one("total", total)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._failures = 0
        self._begun = False

    def time_left(self) -> float | None:
        """The timeout, in seconds, of the next attempt."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def received(self, count: int) -> None:
        """Counts ids in."""
        self.missing -= count
        self._failures = 0
        self._begun = True

    def pause(self, error: IdallocError) -> float:
        """Says how many seconds to wait after an error before what is missing is asked for.

        Raises:
            IdallocError: The error itself, where asking again does not help, did not help, or would be too late.
        """
        if self.missing <= 0 and not isinstance(error, ProtocolError):
            return 0.0
        # A server that stops answers CANCELLED to streams that it has not begun: they have brought nothing.
        brought_nothing = not self._begun or self._failures > 0
        not_begun = brought_nothing and error.code is grpc.StatusCode.CANCELLED
        self._failures += 1
        no_answer = not_begun or isinstance(error, ServerUnreachable)
        attempts = MAX_FIRST_ATTEMPTS if no_answer and not self._begun else MAX_ATTEMPTS
        wait = error.retry_after or 0.0
        again = not_begun or isinstance(error, Unavailable)
        if not again or self._failures >= attempts or wait > LONGEST_WAIT:
            raise error
        backoff: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self._failures - 1))
        # Jitter, so that the streams which a server's restart broke do not all come back at one moment.
        pause = max(backoff, wait) * random.uniform(1.0, 1.5)  # noqa: S311
        if self._deadline is not None and time.monotonic() + pause >= self._deadline:
            raise error
        return pause
