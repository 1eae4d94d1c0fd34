"""What both kinds of ``ids()`` share: the ids at hand, until when they may be used, and how many to ask for next."""

import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress, repeat
from operator import gt, length_hint
from typing import NamedTuple

from idalloc._core.errors import DeadlineExceeded, IdallocError, InvalidRequest, QuotaExceeded, SequenceExhausted
from idalloc._core.fork import this_process, wiped_on_fork
from idalloc._core.requests import range_request, to_range
from idalloc.v1 import id_allocator_pb2 as pb

# A range that lasts less than this many seconds is followed by one twice as large.
SHORT = 1.0
# The largest range that is ever asked for: a server's limit, unless it was set otherwise.
LARGEST = 1_000_000
# So many ranges in a row may arrive too late to be used before that is an error.
MAX_LATE = 3
# Where a quota is used up, more is asked for after so many seconds at the earliest.
SHORTEST_PAUSE = 0.01


def boot_clock() -> Iterator[float]:
    """Gives the time, in seconds, without end: on a clock that no one sets and that goes on while the machine sleeps.

    An iterator, so that a reading for every id can be had without running any Python code for it.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return map(time.clock_gettime, repeat(time.CLOCK_BOOTTIME))
    if hasattr(time, "CLOCK_MONOTONIC"):  # macOS: unlike time.monotonic() it counts sleep
        return map(time.clock_gettime, repeat(time.CLOCK_MONOTONIC))
    return iter(time.monotonic, None)  # Windows: counts sleep


class Asked(NamedTuple):
    """A request, the moment before it was sent, and the mark of the process that sends it."""

    request: pb.AllocateRangeRequest
    at: float
    process: Iterator[float]


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids that are used one after the other.

    Attributes:
        ids: Gives them as long as they may be used. It reads the clock and ``until`` for each id, in C, and drops an
            id that is too old, or the parent's in the child of a fork. Several threads may take from it.
        numbers: What ``ids`` takes from.
        until: Gives their deadline; 0.0 in the child of a fork. All pieces of a range share it.
    """

    ids: Iterator[int]
    numbers: Iterator[int]
    until: Iterator[float]


_NOTHING = Piece(iter(()), iter(()), repeat(float("inf")))


class Pool:
    """The ids that one ``ids()`` has at hand. Does no I/O and has no lock.

    A range is used in two halves; at the second one, the next range is to be asked for. So what a slow caller has in
    stock stays small, and a quick one does not wait.

    A handler of a signal may raise an exception in any method. Then ids can be lost, but none is given twice: a range
    comes in by one ``extend``, a piece leaves by one ``popleft``, and is put to use by one assignment.

    Attributes:
        piece: The piece in use. Its ``ids`` end when it is used up or too old; ``advance`` replaces it.
    """

    def __init__(self, sequence: str, clock: Iterator[float] | None = None) -> None:
        self.piece = _NOTHING
        self._sequence = sequence
        self._clock = boot_clock() if clock is None else clock
        self._ahead: deque[Piece] = deque()
        self._started = 0.0  # when the range in use was first taken from
        self._size = 1
        self._largest = LARGEST
        self._in_demand = True  # whether ranges are used up before they are too old
        self._late = 0

    def advance(self) -> bool:
        """Puts the next piece at hand to use. Returns False if there is none, or it is too old.

        Raises:
            DeadlineExceeded: Range after range was already too old when it came.
        """
        used = self.piece
        if length_hint(used.numbers):  # another caller was quicker
            return True
        now = next(self._clock)
        if now >= next(used.until):
            self._slow_down()
        elif self._started and not self._ahead:
            self._in_demand = True
        self.piece = _NOTHING
        while self._ahead:
            piece = self._ahead.popleft()
            begins = piece.until is not used.until
            if now < next(piece.until):
                if begins:
                    self._started, self._late = now, 0
                self.piece = piece
                return True
            if begins:
                self._came_late()
        self._started = 0.0
        return False

    def wants_more(self) -> bool:
        """Whether the next range is to be asked for while the present one is used."""
        return self._in_demand and not self._ahead

    def ask(self) -> Asked:
        """Makes the request for the next range. It is to be sent at once."""
        now = next(self._clock)
        if self._started and now - self._started < SHORT / 2:
            self._size *= 2
        self._size = min(self._size, self._largest)
        return Asked(range_request(self._sequence, self._size), now, this_process())

    def accept(self, asked: Asked, response: pb.AllocateRangeResponse) -> None:
        """Takes the range that was asked for in. One that the parent of this process asked for is dropped.

        Raises:
            InvalidRequest: The sequence starts over in each period.
        """
        if response.period:
            raise InvalidRequest(
                f"sequence {self._sequence!r} starts over in each period, so its numbers alone come again: "
                "use allocate_texts",
                metadata={"field": "sequence"},
            )
        ids = to_range(response)
        half = len(ids) // 2
        until = wiped_on_fork(asked.at + response.ttl.ToTimedelta().total_seconds())
        pieces = [self._piece(part, until) for part in (ids[:half], ids[half:]) if part]
        if next(asked.process):  # looked at last: a fork after it wipes `until`
            self._ahead.extend(pieces)

    def refused(self, error: IdallocError) -> bool:
        """Learns from an error how much to ask for. Returns whether that is less than was asked for."""
        if isinstance(error, SequenceExhausted) and 0 < error.largest_range < self._size:
            self._size = error.largest_range
            return True
        if isinstance(error, InvalidRequest) and error.field == "id_count" and self._size > 1:
            self._size = self._largest = self._size // 2
            return True
        if isinstance(error, QuotaExceeded) and (error.retry_after or 0.0) > SHORT / 2:
            # The server lets a call take more than there is, and then refuses all until that is made up for: smaller
            # ranges make for shorter waits.
            self._size = max(1, self._size // 2)
        return False

    def pause(self, error: IdallocError, deadline: float) -> float:
        """Says how many seconds to wait after an error before more is asked for.

        Args:
            error: The error.
            deadline: Until when whoever wants an id waits, on ``time.monotonic()``.

        Raises:
            IdallocError: The error itself, where it is none of a quota's, or the wait would be too long.
        """
        if not isinstance(error, QuotaExceeded) or error.retry_after is None:
            raise error
        # A little longer, so that what waits for one quota does not all come back at one moment.
        pause = max(SHORTEST_PAUSE, error.retry_after) * random.uniform(1.0, 1.2)  # noqa: S311
        if time.monotonic() + pause >= deadline:
            raise error
        return pause

    def drop(self) -> None:
        """Drops all that is at hand; also iterators that were taken from ``piece`` before end."""
        self._ahead.clear()
        deque(self.piece.numbers, maxlen=0)
        self._started = 0.0
        self._size = 1

    def _piece(self, ids: range, until: Iterator[float]) -> Piece:
        numbers = iter(ids)
        return Piece(compress(numbers, map(gt, until, self._clock)), numbers, until)

    def _slow_down(self) -> None:
        """A range grew too old before it was used up."""
        self._in_demand = False
        self._size = max(1, self._size // 2)

    def _came_late(self) -> None:
        self._ahead.clear()
        self._slow_down()
        self._late += 1
        if self._late >= MAX_LATE:
            self._late = 0
            raise DeadlineExceeded(f"ranges of sequence {self._sequence!r} come later than they may be used")
