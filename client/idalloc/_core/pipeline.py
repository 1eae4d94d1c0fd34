"""Attempts of a request, and the requests of one call of AllocateStream in the order of answers."""

import math
import random
import time
from collections import deque
from copy import copy
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from idalloc._core.calls import Call
from idalloc._core.errors import (
    DeadlineExceeded,
    IdallocError,
    ProtocolError,
    QuotaExceeded,
    ServerUnreachable,
    Unavailable,
)
from idalloc._core.reply_checks import protocol_error, unparsable
from idalloc._core.rpc_errors import from_status
from idalloc.v1 import id_allocator_pb2 as pb

T = TypeVar("T")

STREAM_BROKE = "the stream broke"
# In errors that do not say why a stream ended; the second is grpc.aio's, after a write.
_NO_CAUSE = (STREAM_BROKE, "Internal error from Core")

# The most requests without an answer; the server's limit is 1,000.
MAX_IN_FLIGHT = 500
# The rounds of attempts of a call, and the backoff before the second one, in seconds, which then
# doubles: docs/explanation/client-calls.md.
MAX_ROUNDS = 5
INITIAL_BACKOFF = 0.1
MAX_BACKOFF = 2.0
# The longest delay that a server may request, in seconds.
MAX_RETRY_AFTER = 5.0
# The longest time that a caller waits, in seconds: more than a wire or a lock accepts is no limit.
_MAX_TIMEOUT = 1e9


class Pending(Generic[T]):
    """A request of a caller, until its last answer.

    It is a unary call, or sent on a stream. If its connection breaks, it is sent again: it gets
    other ids, and those of a lost answer are a gap; with a request id it gets the same ids.

    Args:
        call: The unary call, or the one that it stands for.
        timeout: How long the caller waits, in seconds.
        is_refill: Whether it is a refill of a pool, whose callers wait for times of their own. The
            timeout is that of each attempt.
    """

    __slots__ = ("_deadline", "_failures", "_is_refill", "asked", "call", "failure", "is_answered", "timeout", "waiter")

    def __init__(self, call: Call[T], timeout: float, *, is_refill: bool = False) -> None:
        self.call = call
        self.timeout = timeout
        self.asked = 0  # when it was last sent, on the clock of the log
        self.waiter: Any = None  # where its caller waits
        self.is_answered = False  # whether the waiter has its outcome
        self.failure: IdallocError | None = None  # of the last attempt
        self._is_refill = is_refill
        self._deadline = time.monotonic() + min(math.inf if is_refill else timeout, _MAX_TIMEOUT)
        self._failures = 0

    def time_left(self) -> float:
        """Return the timeout of an attempt that begins now, in seconds."""
        return max(0.0, min(self.timeout, self._deadline - time.monotonic()))

    def retry_delay(self, error: IdallocError, *, has_other: bool = False) -> float:
        """Return the seconds until the request may be sent again.

        Args:
            error: The error of the last attempt.
            has_other: Whether it can be sent at once to another server.

        Raises:
            IdallocError: The error itself, if a retry cannot succeed in time.
        """
        self.failure = error
        # The stream's limit of ids without an answer is no failure: other callers use it up.
        is_full = error.metadata.get("subject") == "stream"
        is_retryable = is_full or (isinstance(error, Unavailable) and not isinstance(error, QuotaExceeded))
        if self._is_refill:
            is_retryable |= isinstance(error, DeadlineExceeded)
        # Jitter: callers that the same restart broke must not retry at the same moment.
        backoff = min(MAX_BACKOFF, INITIAL_BACKOFF * 2.0 ** min(self._failures, 5)) * random.uniform(1.0, 1.2)  # noqa: S311
        delay = error.retry_after or backoff if is_full else max(error.retry_after or 0.0, backoff)
        if has_other:
            delay = 0.0
        else:
            self._failures += not is_full
        is_over = self._failures >= MAX_ROUNDS and not self._is_refill
        if not is_retryable or is_over or delay > min(self._deadline - time.monotonic(), MAX_RETRY_AFTER):
            raise error
        return delay

    def record_failure(self, error: IdallocError) -> None:
        """Record why the stream that it was sent on ended, if that is known."""
        if self.failure is None or not any(text in str(error) for text in _NO_CAUSE):
            self.failure = error

    def deadline_error(self, target: str, timeout: float) -> IdallocError:
        """Return the error of a caller that has waited for its timeout."""
        if isinstance(self.failure, ServerUnreachable):
            return copy(self.failure)
        failure = f"; the last attempt: {self.failure}" if self.failure else ""
        return DeadlineExceeded(f"no answer from {target} within {timeout:g} s{failure}")


class Pipeline:
    """The requests that were sent on a stream and have no answer, in order."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, Pending[Any]]] = deque()
        self._number = 0

    def send(self, pending: Pending[Any], asked: int) -> pb.AllocateStreamRequest:
        """Return the message of a request that is sent now; ``asked`` is the log's time."""
        self._number += 1
        message = pb.AllocateStreamRequest(number=self._number)
        request = pending.call.request
        if isinstance(request, pb.AllocateRangeRequest):
            message.allocate_range.CopyFrom(request)
        elif isinstance(request, pb.GenerateDocIdRequest):
            message.generate_doc_id.CopyFrom(request)
        message.timeout.FromMilliseconds(int(pending.time_left() * 1e3))
        pending.asked = asked
        self._sent.append((self._number, pending))
        return message

    def answered(self, answer: Any) -> tuple[Pending[Any], Message | IdallocError]:
        """Return the request that an answer belongs to, and its reply or error.

        Raises:
            ProtocolError: The answer belongs to no request, or is none.
        """
        if not isinstance(answer, pb.AllocateStreamResponse):
            raise unparsable(pb.AllocateStreamRequest())
        if not self._sent:
            raise ProtocolError("an AllocateStreamResponse answers no request")
        number, pending = self._sent[0]
        if answer.number != number:
            raise protocol_error(answer, "number", f"is {answer.number}", f"{number}, the oldest without an answer")
        kind = answer.WhichOneof("response")
        if kind == "error":
            outcome: Message | IdallocError = from_status(answer.error)
        elif kind is not None and type(getattr(answer, kind)).__name__.removesuffix("Response") == type(
            pending.call.request
        ).__name__.removesuffix("Request"):
            outcome = getattr(answer, kind)
        else:
            raise protocol_error(answer, "response", f"is {kind}", "the reply of the request")
        self._sent.popleft()
        return pending, outcome
