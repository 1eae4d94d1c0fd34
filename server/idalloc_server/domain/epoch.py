"""This process's start timestamps, and who else uses its prefix.

MySQL takes the start timestamp of its document ids from the clock: a kill and a restart within one second, or a
clock that was set back, bring ids back that were issued before. Here the store gives each (prefix, timestamp) out
once.
"""

import asyncio
from typing import Literal, NamedTuple

import structlog

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import DocIdTimestampRefused, Refusal, StartRefused
from idalloc_server.domain.store import Claim, Store

# A timestamp has 8 hexadecimal characters; from here on (in 2106) MySQL's ids grow longer.
TIMESTAMP_END = 2**32

# How often the store is told that this node lives, and how long it counts as alive without; in seconds.
KEEP_SECONDS = 10.0
STALE_AFTER = 30.0

_log = structlog.get_logger("idalloc.epoch")


class Start(NamedTuple):
    """What no two processes ever share.

    Attributes:
        prefix: 0 to 65535.
        timestamp: Seconds since 1970, below 2^32.
    """

    prefix: int
    timestamp: int


class Epoch:
    """Claims start timestamps for this process, and keeps the prefix for its node.

    Attributes:
        prefix: The node's prefix, 0 to 65535. Where it is set to another one, ``claim_next`` claims under that, and
            it is kept from then on.

    Args:
        holder: Who this node is, as people will read it in another node's warning; no two live nodes share it.
        max_clock_skew: How far this machine's clock may be from the store's, in seconds.
        prefix_conflict: What to do where another live node holds the prefix. Ids are unique in either case.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        prefix: int,
        holder: str,
        max_clock_skew: float,
        prefix_conflict: Literal["warn", "refuse"] = "warn",
    ) -> None:
        self.prefix = prefix
        self._store = store
        self._clock = clock
        self._holder = holder
        self._max_clock_skew = max_clock_skew
        self._prefix_conflict = prefix_conflict

    async def start(self) -> Start:
        """Claims this process's first start timestamp: the clock's, or a later one where that was claimed.

        Raises:
            StartRefused: The clock is wrong (a single claim from the year 2500 would spoil the prefix for ever),
                no timestamp below 2^32 is left, or another node uses this prefix and that is refused.
            StoreUnavailable: The claim may or may not have been made; a further one does no harm.
        """
        at_least = max(0, int(await self._believable_wall()))
        claim = await self._store.claim_start(self.prefix, at_least, self._holder, STALE_AFTER)
        if claim.start_timestamp >= TIMESTAMP_END:
            raise StartRefused("node_prefix", _used_up(self.prefix))
        if claim.holder != self._holder:
            self._conflict(claim)
        return Start(self.prefix, claim.start_timestamp)

    async def claim_next(self, after: int) -> Start:
        """Claims a start timestamp later than ``after``, under the present prefix.

        Raises:
            DocIdTimestampRefused: There is none below 2^32.
            StoreUnavailable: The claim may or may not have been made; a further one does no harm.
        """
        start = Start(self.prefix, after + 1)
        if start.timestamp < TIMESTAMP_END:
            claim = await self._store.claim_start(start.prefix, start.timestamp, self._holder, STALE_AFTER)
            start = Start(start.prefix, claim.start_timestamp)
        if start.timestamp >= TIMESTAMP_END:
            raise DocIdTimestampRefused(_used_up(start.prefix), prefix=start.prefix)
        return start

    async def run(self) -> None:
        """Notes in the store, again and again, that this node lives. Ends only by being cancelled."""
        away = False
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            try:
                await self._store.keep_prefix(self.prefix, self._holder, STALE_AFTER)
            except Refusal as refusal:
                if not away:  # once for each outage
                    _log.warning("prefix_not_kept", prefix=self.prefix, error=str(refusal))
                away = True
            else:
                if away:
                    _log.info("prefix_kept_again", prefix=self.prefix)
                away = False

    async def release(self) -> None:
        """Notes in the store that this node uses its prefix no more. Where that fails, it is stale soon."""
        try:
            await self._store.release_prefix(self.prefix, self._holder)
        except Refusal as refusal:
            _log.warning("prefix_not_released", prefix=self.prefix, error=str(refusal))

    async def _believable_wall(self) -> float:
        before = self._clock.wall()
        if before >= TIMESTAMP_END:
            raise StartRefused("max_clock_skew", "this machine's clock is past the year 2106: set it right")
        store = await self._store.now()
        after = self._clock.wall()
        if store is None:
            return after
        # The store read its clock at some time in between.
        skew = max(before - store, store - after)
        if skew > self._max_clock_skew:
            side = "ahead of" if before > store else "behind"
            raise StartRefused(
                "max_clock_skew",
                f"this machine's clock is {skew:.1f} s {side} the store's, more than {self._max_clock_skew:g} s: "
                "set it right, or allow more",
            )
        return after

    def _conflict(self, claim: Claim) -> None:
        if self._prefix_conflict == "refuse":
            raise StartRefused(
                "node_prefix",
                f"prefix {self.prefix} is in use by {claim.holder}: give each node a prefix of its own, "
                "or set prefix_conflict to warn",
            )
        # The ids of both are unique all the same; but those of the one do not rise past those of the other.
        _log.warning("prefix_conflict", prefix=self.prefix, holder=claim.holder, seen_at=claim.seen_at)


def _used_up(prefix: int) -> str:
    return f"prefix {prefix} has no start timestamp below 2^32 left: set another node_prefix"
