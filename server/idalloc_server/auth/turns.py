"""Turns: how the streams of all callers share one process.

Each message of a stream is an event of the transport. With a write of every stream under way,
grpcio accepts too few new calls: unary calls of others then wait for seconds.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

# The most streams of a process that write at a time, and the most of their requests that wait for
# the store, and that are unanswered. One caller alone has at most half of each.
MAX_TURNS = 4
MAX_STORE_WAITS = 64
MAX_UNANSWERED = 20_000
# How long a turn lasts if the stream waits: for the store, or for a client that does not read.
MAX_TURN_SECONDS = 0.01


@dataclass(eq=False)
class FairShare:
    """Shares places between callers: each caller may hold as many as are free.

    So one caller alone gets half of the places, and a new one finds free places at once (dynamic
    thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
    """

    free: int  # the places that nobody holds; at first, all
    _held: Counter[str] = field(default_factory=Counter, init=False)
    # By caller, in their order.
    _waiting: dict[str, dict[asyncio.Future[None], None]] = field(default_factory=dict, init=False)

    async def take(self, caller: str) -> None:
        """Take a place for a caller."""
        waiting = self._waiting.setdefault(caller, {})
        granted = asyncio.get_running_loop().create_future()
        waiting[granted] = None
        self._serve(caller)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                waiting.pop(granted, None)
            else:
                self.give_back(caller)
            raise

    def give_back(self, caller: str) -> None:
        """Give a place back, and grant it to a caller that waits, first to one with few places."""
        self.free += 1
        self._held[caller] -= 1
        for each in sorted(self._waiting, key=self._held.__getitem__):
            self._serve(each)
        if not self._held[caller]:
            del self._held[caller]

    def _serve(self, caller: str) -> None:
        """Grant places to a caller that waits, as many as it may have."""
        waiting = self._waiting[caller]
        while waiting and self._held[caller] < self.free:
            granted = next(iter(waiting))
            del waiting[granted]
            if not granted.cancelled():
                granted.set_result(None)
                self._held[caller] += 1
                self.free -= 1
        if not waiting:
            del self._waiting[caller]


@dataclass(eq=False)
class Shares:
    """What the streams of all callers of a process share."""

    turns: FairShare = field(default_factory=lambda: FairShare(MAX_TURNS))
    store_waits: FairShare = field(default_factory=lambda: FairShare(MAX_STORE_WAITS))
    unanswered: FairShare = field(default_factory=lambda: FairShare(MAX_UNANSWERED))


@dataclass(eq=False)
class StreamShare:
    """The share of one stream. One of its tasks at a time uses its turn."""

    shares: Shares
    find_caller: Callable[[], str]  # called once, when the share is used
    _turn: asyncio.TimerHandle | None = None  # ends the turn

    @cached_property
    def caller(self) -> str:
        """The caller's identity, or else its connection."""
        return self.find_caller()

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
