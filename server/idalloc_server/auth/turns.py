"""Turns: how the streams of all callers share one process.

Each message of a stream is an event of the transport. With a write of every stream under way,
grpcio accepts too few new calls: unary calls of others then wait for seconds.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

# The most streams of a process that write at a time, and the most of their requests that wait for
# the store, and that are unanswered. One caller alone has at most half of each.
MAX_TURNS, MAX_STORE_WAITS, MAX_UNANSWERED = 4, 64, 20_000
# How long a turn lasts if the stream waits: for the store, or for a client that does not read.
MAX_TURN_SECONDS = 0.01


class FairShare:
    """Shares places between callers: each caller may hold as many as are free.

    So one caller alone gets half of the places, and a new one finds free places at once (dynamic
    thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, caller: str) -> None:
        """Take a place; those of a caller are in the order of these calls."""
        if caller not in self._waiting and self._held[caller] < self._free:
            self._grant(caller)
            return
        waiting = self._waiting.setdefault(caller, deque())
        granted = asyncio.get_running_loop().create_future()
        waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self.give_back(caller)
            raise
        finally:
            # Only now: a later call must not get its place first.
            waiting.remove(granted)
            if waiting:
                self._serve(caller)
            else:
                del self._waiting[caller]

    def give_back(self, caller: str) -> None:
        """Give a place back, and grant it to a caller that waits, first to one with few places."""
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        for each in sorted(self._waiting, key=self._held.__getitem__):
            self._serve(each)

    def _serve(self, caller: str) -> None:
        """Grant a place to a caller that waits, if it may have more."""
        first = self._waiting[caller][0]
        if not first.done() and self._held[caller] < self._free:
            first.set_result(None)
            self._grant(caller)

    def _grant(self, caller: str) -> None:
        self._held[caller] += 1
        self._free -= 1


class Shares:
    """What the streams of all callers of a process share."""

    def __init__(self) -> None:
        self.turns = FairShare(MAX_TURNS)
        self.store_waits = FairShare(MAX_STORE_WAITS)
        self.unanswered = FairShare(MAX_UNANSWERED)


@dataclass(eq=False, slots=True)
class StreamShare:
    """The share of one stream. One of its tasks at a time uses its turn."""

    shares: Shares
    caller: str  # the caller's identity, or else its connection
    _turn: asyncio.TimerHandle | None = None  # ends the turn

    async def begin_turn(self) -> None:
        """Wait for a turn, unless the stream has one. It ends by itself if a write takes long."""
        if self._turn is None:
            await self.shares.turns.take(self.caller)
            self._turn = asyncio.get_running_loop().call_later(MAX_TURN_SECONDS, self.end_turn)

    def end_turn(self) -> None:
        """End the turn, if the stream has one."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            self.shares.turns.give_back(self.caller)
