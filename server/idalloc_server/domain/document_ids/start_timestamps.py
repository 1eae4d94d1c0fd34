"""This process's start timestamps, and who else uses its prefix.

MySQL takes the start timestamp of its document ids from the clock: a kill and a restart within one second, or a
clock that was set back, bring ids back that were issued before. Here the store gives each (prefix, timestamp) out
once.
"""

import asyncio
from typing import Literal, NamedTuple

import structlog

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import DocIdTimestampRefused, PrefixInUse, Refusal, StartRefused, StoreRetired
from idalloc_server.domain.records import Claim
from idalloc_server.domain.store import Store, within_timeout

# A timestamp has 8 hexadecimal characters; from here on (in 2106) MySQL's ids grow longer.
TIMESTAMP_END = 2**32

# How often the store is told that this node lives, and how long it counts as alive without; in seconds.
KEEP_SECONDS = 10.0
STALE_AFTER = 30.0

_log = structlog.get_logger("idalloc.epoch")


class StartTimestamp(NamedTuple):
    """What no two processes ever share.

    Attributes:
        prefix: 0 to 65535.
        timestamp: Seconds since 1970, below 2^32.
    """

    prefix: int
    timestamp: int

    @property
    def node(self) -> int:
        """Both in one number, as replies name the process that took their ids."""
        return self.prefix << 32 | self.timestamp


class StartTimestamps:
    """Claims start timestamps for this process, and keeps the prefix for its node.

    Attributes:
        prefix: The node's prefix, 0 to 65535: the one that is kept, and that ``claim_next`` claims under.

    Args:
        holder: Who this node is, as people will read it in another node's warning; no two live nodes share it.
        max_clock_skew: How far this machine's clock may be from the store's, in seconds.
        prefix_conflict: What to do where another live node holds the prefix. Ids are unique in either case.
        store_timeout: When a store call is given up, in seconds.
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
        store_timeout: float = 40.0,
    ) -> None:
        self.prefix = prefix
        self._store = store
        self._clock = clock
        self._holder = holder
        self._max_clock_skew = max_clock_skew
        self._prefix_conflict = prefix_conflict
        self._store_timeout = store_timeout
        self._claimed: dict[int, int] = {}  # by prefix, so that no restored store brings one back to this process

    async def start(self) -> StartTimestamp:
        """Claims this process's first start timestamp: the clock's, or a later one where that was claimed.

        Raises:
            StartRefused: The clock is wrong (a single claim from the year 2500 would spoil the prefix for ever),
                no timestamp below 2^32 is left, another node uses this prefix and that is refused, or the store is
                retired.
            StoreUnavailable: The claim may or may not have been made; a further one does no harm.
        """
        try:
            return await self.claim(self.prefix)
        except _WrongClock as refusal:
            raise StartRefused("max_clock_skew", str(refusal)) from None
        except _Retired as refusal:
            raise StartRefused("store", f"{refusal}; `idalloc import --unretire FILE` undoes that") from None
        except DocIdTimestampRefused as refusal:
            raise StartRefused("node_prefix", str(refusal)) from None
        except PrefixInUse as refusal:
            raise StartRefused("node_prefix", f"{refusal}, or set prefix_conflict to warn") from None

    async def claim(self, prefix: int) -> StartTimestamp:
        """Claims a start timestamp under any prefix, as at a start: the clock's, or a later one where that was claimed.

        The present prefix stays: ``use`` goes over to the new one, or ``release`` gives it up.

        Raises:
            DocIdTimestampRefused: The clock is wrong, no timestamp below 2^32 is left, or the store is retired.
            PrefixInUse: Another node uses this prefix, and that is refused.
            StoreUnavailable: The claim may or may not have been made; a further one does no harm.
        """
        at_least = max(0, int(await self._believable_wall()), self._claimed.get(prefix, -1) + 1)
        claim = await self._claim(StartTimestamp(prefix, at_least))
        if claim.start_timestamp >= TIMESTAMP_END:
            raise DocIdTimestampRefused(_used_up(prefix), prefix=prefix)
        if claim.holder != self._holder:
            self._conflict(prefix, claim)
        self._claimed[prefix] = claim.start_timestamp
        return StartTimestamp(prefix, claim.start_timestamp)

    def use(self, start: StartTimestamp) -> None:
        """Goes over to the prefix of a claim: it is kept from now on. The one before is left to ``release``."""
        self.prefix = start.prefix

    async def claim_next(self, after: int) -> StartTimestamp:
        """Claims a start timestamp later than ``after``, under the present prefix.

        Raises:
            DocIdTimestampRefused: There is none below 2^32, or the store is retired.
            StoreUnavailable: The claim may or may not have been made; a further one does no harm.
        """
        start = StartTimestamp(self.prefix, after + 1)
        if start.timestamp < TIMESTAMP_END:
            claim = await self._claim(start)
            start = StartTimestamp(start.prefix, claim.start_timestamp)
        if start.timestamp >= TIMESTAMP_END:
            raise DocIdTimestampRefused(_used_up(start.prefix), prefix=start.prefix)
        self._claimed[start.prefix] = start.timestamp
        return start

    async def run(self) -> None:
        """Notes in the store, again and again, that this node lives. Ends only by being cancelled."""
        away = False
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            try:
                await within_timeout(
                    self._store_timeout, self._store.keep_prefix(self.prefix, self._holder, STALE_AFTER)
                )
            except Refusal as refusal:
                if not away:  # once for each outage
                    _log.warning("prefix_not_kept", prefix=self.prefix, error=str(refusal))
                away = True
            else:
                if away:
                    _log.info("prefix_kept_again", prefix=self.prefix)
                away = False

    async def release(self, prefix: int | None = None) -> None:
        """Notes in the store that this node uses a prefix, or its own, no more. Where that fails, it is stale soon."""
        prefix = self.prefix if prefix is None else prefix
        try:
            await within_timeout(self._store_timeout, self._store.release_prefix(prefix, self._holder))
        except Refusal as refusal:
            _log.warning("prefix_not_released", prefix=prefix, error=str(refusal))

    async def _claim(self, least: StartTimestamp) -> Claim:
        call = self._store.claim_start(least.prefix, least.timestamp, self._holder, STALE_AFTER)
        try:
            return await within_timeout(self._store_timeout, call)
        except StoreRetired as refusal:
            raise _Retired(str(refusal), prefix=least.prefix) from None

    async def _believable_wall(self) -> float:
        before = self._clock.wall()
        if before >= TIMESTAMP_END:
            raise _WrongClock("this machine's clock is past the year 2106: set it right")
        store = await within_timeout(self._store_timeout, self._store.now())
        after = self._clock.wall()
        if store is None:
            return after
        # The store read its clock at some time in between.
        skew = max(before - store, store - after)
        if skew > self._max_clock_skew:
            side = "ahead of" if before > store else "behind"
            raise _WrongClock(
                f"this machine's clock is {skew:.1f} s {side} the store's, more than {self._max_clock_skew:g} s: "
                "set it right, or allow more"
            )
        return after

    def _conflict(self, prefix: int, claim: Claim) -> None:
        if self._prefix_conflict == "refuse":
            raise PrefixInUse(prefix, claim.holder)
        # The ids of both are unique all the same; but those of the one do not rise past those of the other.
        _log.warning("prefix_conflict", prefix=prefix, holder=claim.holder, seen_at=claim.seen_at)


class _WrongClock(DocIdTimestampRefused):
    """A claim by this clock could spoil the prefix for ever."""


class _Retired(DocIdTimestampRefused):
    """The store is retired. Another one goes on with its start timestamps."""


def _used_up(prefix: int) -> str:
    return f"prefix {prefix} has no start timestamp below 2^32 left: set another node_prefix"
