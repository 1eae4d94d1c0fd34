"""The pool of prefetched ids behind ``ids()`` of both clients."""

import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress, repeat
from operator import gt, length_hint
from typing import NamedTuple

from idalloc._core.calls import Call, allocate_range
from idalloc._core.errors import (
    ClientClosed,
    DeadlineExceeded,
    IdallocError,
    InvalidRequest,
    ProtocolError,
    QuotaExceeded,
    SequenceExhausted,
)
from idalloc._core.fork import process_marker, wiped_on_fork
from idalloc._core.reply_checks import protocol_error
from idalloc._core.types import Range, to_range
from idalloc.v1 import id_allocator_pb2 as pb

# A range that is used up in fewer seconds is followed by one twice as large.
MIN_RANGE_SECONDS = 1.0
# The largest range that the pool requests: the default of the server's limit max_ids_per_call.
MAX_RANGE_SIZE = 1_000_000
# The number of consecutive ranges that may have expired on arrival before that is an error.
MAX_LATE_RANGES = 3
# The shortest wait, in seconds, after a quota is exceeded.
MIN_RETRY_DELAY = 0.01


def boot_clock() -> Iterator[float]:
    """Return an endless iterator of seconds on a clock that counts suspended time.

    The clock cannot be set. An iterator can be read for every id without running Python code.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return map(time.clock_gettime, repeat(time.CLOCK_BOOTTIME))
    if hasattr(time, "CLOCK_MONOTONIC"):  # macOS: counts sleep, unlike time.monotonic()
        return map(time.clock_gettime, repeat(time.CLOCK_MONOTONIC))
    return iter(time.monotonic, None)  # Windows: counts sleep


class PoolRequest(NamedTuple):
    """A call for a range."""

    call: Call[Range]
    sent_at: float  # the time before it was sent
    process: Iterator[float]  # the marker of the process that sends it


@dataclass(frozen=True, slots=True)
class RangePart:
    """A part of a range."""

    # Yields the ids until they expire. For each id it compares the clock with ``deadline``, in C,
    # and discards an id that has expired, or that belongs to the parent of a forked process.
    # Threads may share it.
    ids: Iterator[int]
    unchecked: Iterator[int]  # the iterator that ``ids`` takes from
    # Yields the time when the ids expire; 0.0 in the child of a fork. Parts of a range share it.
    deadline: Iterator[float]


_EMPTY = RangePart(iter(()), iter(()), repeat(float("inf")))


class Pool:
    """The prefetched ids of one ``ids()``. It does no I/O and has no lock.

    A range is used in two halves. When the second half begins, the client prefetches the next
    range. So a slow caller holds few ids, and a fast caller does not wait.

    A signal handler may raise in any method. Then ids can be lost, but no id is returned twice: one
    ``extend`` adds a range, one ``popleft`` removes a part, and one assignment makes it current.
    """

    def __init__(self, sequence: str, clock: Iterator[float] | None = None) -> None:
        # The part in use. Its ids end when they are used up or expired; `advance` replaces it.
        self.current = _EMPTY
        self._sequence = sequence
        self._clock = boot_clock() if clock is None else clock
        self._parts: deque[RangePart] = deque()
        self._known: deque[tuple[int, int]] = deque(maxlen=8)  # the bounds of the last ranges
        self._started = 0.0  # when the first id of the current range was taken
        self._size = 1
        self._max_size = MAX_RANGE_SIZE
        self._in_demand = True  # whether ranges are used up before they expire
        self._late_ranges = 0
        self._is_closed = False

    def advance(self) -> bool:
        """Make the next part current. Return False if there is no other part, or all have expired.

        Raises:
            DeadlineExceeded: Several ranges in a row had expired on arrival.
        """
        used = self.current
        if length_hint(used.unchecked):  # another caller has advanced
            return True
        now = next(self._clock)
        if now >= next(used.deadline):
            self._reduce_demand()
        elif self._started and not self._parts:
            self._in_demand = True
        self.current = _EMPTY
        while self._parts:
            part = self._parts.popleft()
            is_new_range = part.deadline is not used.deadline
            if now < next(part.deadline):
                if is_new_range:
                    self._started = now
                    self._late_ranges = 0
                self.current = part
                return not self._is_closed or self.clear()  # checked last, as `close` clears last
            if is_new_range:
                self._drop_late_range()
        self._started = 0.0
        return False

    def should_prefetch(self) -> bool:
        """Return whether to request the next range while the current one is used."""
        return self._in_demand and not self._parts

    def next_request(self) -> PoolRequest:
        """Return the request for the next range, to be sent at once."""
        now = next(self._clock)
        if self._started and now - self._started < MIN_RANGE_SECONDS / 2:
            self._size *= 2
        self._size = min(self._size, self._max_size)
        call = allocate_range(self._sequence, self._size)._replace(convert=self._to_new_range, is_repeatable=True)
        return PoolRequest(call, now, process_marker())

    def add(self, request: PoolRequest, allocated: Range) -> None:
        """Add the requested range, unless the parent of this process requested it.

        Raises:
            InvalidRequest: The sequence has a reset.
        """
        if allocated.period:
            raise InvalidRequest(
                f"sequence {self._sequence!r} has a reset, so its numbers repeat: use allocate_range(…, texts=True)",
                metadata={"field": "sequence"},
            )
        ids = allocated.ids
        middle = len(ids) // 2
        deadline = wiped_on_fork(request.sent_at + allocated.ttl.total_seconds())
        parts = []
        for half in filter(None, (ids[:middle], ids[middle:])):
            unchecked = iter(half)
            parts.append(RangePart(compress(unchecked, map(gt, deadline, self._clock)), unchecked, deadline))
        if next(request.process):  # checked last: a later fork wipes `deadline`
            self._parts.extend(parts)

    def adapt_size(self, error: IdallocError) -> bool:
        """Adapt the size of the next range to an error.

        Return whether a smaller range may succeed at once.
        """
        if isinstance(error, SequenceExhausted) and 0 < error.largest_range < self._size:
            self._size = error.largest_range
            return True
        if isinstance(error, InvalidRequest) and error.field == "id_count" and self._size > 1:
            self._size = self._max_size = self._size // 2
            return True
        if isinstance(error, QuotaExceeded) and (error.retry_after or 0.0) > MIN_RANGE_SECONDS / 2:
            # A call may overdraw the quota, and the server rejects all calls until it is refilled:
            # smaller ranges make for shorter waits.
            self._size = max(1, self._size // 2)
        return False

    def retry_delay(self, error: BaseException, *, was_prefetched: bool) -> float | None:
        """Adapt the next range's size to the error of a request.

        Return the seconds to wait before the next request, or None if the error is the callers'. A
        request for which no caller waited when it was sent is followed by another one.
        """
        if not isinstance(error, IdallocError) or isinstance(error, ClientClosed):
            return None
        if self.adapt_size(error) or (was_prefetched and not isinstance(error, ProtocolError)):
            return 0.0
        if not isinstance(error, QuotaExceeded) or error.retry_after is None:
            return None
        # Jitter: clients that wait for the same quota must not retry at the same moment.
        return max(MIN_RETRY_DELAY, error.retry_after) * random.uniform(1.0, 1.2)  # noqa: S311

    def close(self) -> None:
        """Discard all ids, also those that arrive later."""
        self._is_closed = True
        self.clear()

    def clear(self) -> bool:
        """Discard all ids, also those of iterators that were taken from ``current`` before.

        Return False: there are none.
        """
        self._parts.clear()
        deque(self.current.unchecked, maxlen=0)
        self._started = 0.0
        self._size = 1
        return False

    def _to_new_range(self, reply: pb.AllocateRangeResponse) -> Range:
        low, high = sorted((reply.range.first_id, reply.range.last_id))
        if reply.period:  # `add` rejects a sequence with a reset, whose numbers repeat
            return to_range(reply)
        if any(low <= highest and lowest <= high for lowest, highest in self._known):
            raise protocol_error(reply, "range", f"has ids of {low} to {high} twice", "each id once")
        self._known.append((low, high))
        return to_range(reply)

    def _reduce_demand(self) -> None:
        """Stop prefetching and halve the size, because a range expired before it was used up."""
        self._in_demand = False
        self._size = max(1, self._size // 2)

    def _drop_late_range(self) -> None:
        self._parts.clear()
        self._reduce_demand()
        self._late_ranges += 1
        if self._late_ranges >= MAX_LATE_RANGES:
            self._late_ranges = 0
            raise DeadlineExceeded(
                f"{MAX_LATE_RANGES} ranges of sequence {self._sequence!r} in a row had expired on arrival; "
                "check the latency to the server, or raise its lease_ttl"
            )
