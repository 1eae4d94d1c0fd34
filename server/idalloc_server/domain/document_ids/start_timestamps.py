"""Start timestamps of document ids, claimed in the store (P6), and the lock of a node's prefix.

MySQL takes the start timestamp from the clock, so a restart within one second, or a clock that is
set back, repeats ids. The store of idalloc issues each (prefix, timestamp) once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, NamedTuple

import structlog

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import DocIdTimestampRefused, PrefixInUse, Refusal, StartRefused, StoreRetired
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Claim

# The first timestamp (in 2106) that does not fit in 8 hexadecimal characters.
TIMESTAMP_END = 2**32

# Interval of the heartbeats that keep the prefix, and the age at which its holder is stale; in
# seconds.
HEARTBEAT_SECONDS = 10.0
STALE_AFTER = 30.0

_log = structlog.get_logger("idalloc.start_timestamps")


class StartTimestamp(NamedTuple):
    """A prefix and start timestamp; no two processes ever share both."""

    prefix: int  # 0 to 65535
    timestamp: int  # seconds since 1970, below 2^32

    @property
    def node(self) -> int:
        """Both as one number: the node id in replies, which identifies the process."""
        return self.prefix << 32 | self.timestamp


@dataclass(eq=False)
class StartTimestamps:
    """Claims start timestamps for this process, and keeps its node the holder of the prefix."""

    store: Store
    clock: Clock
    _: KW_ONLY
    prefix: int  # the node prefix, 0 to 65535
    holder: str  # the name of this node in another node's warning; unique among live nodes
    # The largest allowed difference between the clocks of this machine and the store, in seconds.
    max_clock_skew: float
    # Whether to warn or refuse if another live node holds the prefix. Ids are unique either way.
    prefix_conflict: Literal["warn", "refuse"] = "warn"
    is_shared: bool = False  # whether other processes hold prefixes under the same name
    # Whether another live node held the prefix at the last claim.
    has_conflict: bool = field(default=False, init=False)
    # The last claim by prefix, in case a restored store repeats it.
    _claimed: dict[int, int] = field(default_factory=dict, init=False)

    async def start(self) -> StartTimestamp:
        """Claim this process's first start timestamp: the clock's, or the next unclaimed one.

        Raises:
            StartRefused: The clock is wrong (one claim from the year 2500 would use up the prefix),
                or no timestamp below 2^32 is left. Or another node holds the prefix and
                ``prefix_conflict`` is refuse, or the store is retired.
            StoreUnavailable: The claim may or may not have been made; claiming again is safe.
        """
        try:
            return await self.claim(self.prefix)
        except _WrongClock as refusal:
            raise StartRefused("max_clock_skew", str(refusal)) from None
        except _Retired as refusal:
            command = "idalloc store import --unretire --new-store URL FILE"
            raise StartRefused("store", f"{refusal}; `{command}` undoes that") from None
        except DocIdTimestampRefused as refusal:
            raise StartRefused("node_prefix", str(refusal)) from None
        except PrefixInUse as refusal:
            raise StartRefused("node_prefix", f"{refusal}, or set prefix_conflict to warn") from None

    async def claim(self, prefix: int) -> StartTimestamp:
        """Claim a start timestamp under any prefix: the clock's, or the next unclaimed one.

        The current ``prefix`` stays until the caller sets it; ``release`` gives the new one up.

        Raises:
            DocIdTimestampRefused: The clock is wrong, no timestamp below 2^32 is left, or the store
                is retired.
            PrefixInUse: Another node holds the prefix, and ``prefix_conflict`` is refuse.
            StoreUnavailable: The claim may or may not have been made; claiming again is safe.
        """
        at_least = max(0, int(await self._checked_wall_clock()), self._claimed.get(prefix, -1) + 1)
        claim = await self._claim(prefix, at_least)
        self.has_conflict = claim.holder != self.holder
        if self.has_conflict and self.prefix_conflict == "refuse":
            raise PrefixInUse(prefix, claim.holder)
        if self.has_conflict:
            # Ids stay unique, but the ids of the two nodes are not in one rising order.
            _log.warning(
                "prefix_conflict",
                prefix=prefix,
                holder=claim.holder,
                seen_at=claim.seen_at,
                next_step="give this node or the other one another node_prefix",
            )
        return StartTimestamp(prefix, claim.start_timestamp)

    async def claim_next(self, after: int) -> StartTimestamp:
        """Claim a start timestamp later than ``after`` under the current prefix.

        Raises:
            DocIdTimestampRefused: No timestamp below 2^32 is left, or the store is retired.
            StoreUnavailable: The claim may or may not have been made; claiming again is safe.
        """
        prefix = self.prefix
        claim = await self._claim(prefix, after + 1)
        return StartTimestamp(prefix, claim.start_timestamp)

    async def keep_prefix(self, record_success: Callable[[], None] = lambda: None) -> None:
        """Send heartbeats for the prefix to the store until cancelled.

        Args:
            record_success: Called after each success. From it a server without callers learns that
                the store is back.
        """
        failing = False
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self.store.keep_prefix(self.prefix, self.holder, STALE_AFTER)
            except Refusal as refusal:
                if not failing:  # log once per outage
                    _log.warning("prefix_heartbeat_failed", prefix=self.prefix, error=str(refusal))
                failing = True
            else:
                record_success()
                if failing:
                    _log.info("prefix_heartbeat_recovered", prefix=self.prefix)
                failing = False

    async def release(self, prefix: int | None = None) -> None:
        """Release a prefix (by default the current one) in the store.

        If that fails, it becomes stale later.
        """
        if self.is_shared and prefix is not None:
            return  # Others may use the old prefix until they have changed, too. It becomes stale.
        prefix = self.prefix if prefix is None else prefix
        try:
            await self.store.release_prefix(prefix, self.holder)
        except Refusal as refusal:
            _log.warning("cleanup_failed", resource="prefix", prefix=prefix, error=str(refusal))

    async def _claim(self, prefix: int, at_least: int) -> Claim:
        if at_least < TIMESTAMP_END:
            try:
                claim = await self.store.claim_start(prefix, at_least, self.holder, STALE_AFTER)
            except StoreRetired as refusal:
                raise _Retired(str(refusal), prefix=prefix) from None
            if claim.start_timestamp < TIMESTAMP_END:
                self._claimed[prefix] = claim.start_timestamp
                return claim
        why = f"prefix {prefix} has no start timestamp below 2^32 left: set a different node_prefix"
        raise DocIdTimestampRefused(why, prefix=prefix)

    async def _checked_wall_clock(self) -> float:
        before = self.clock.wall()
        if before >= TIMESTAMP_END:
            raise _WrongClock("this machine's clock is past the year 2106: correct the clock")
        store_clock = await self.store.now()
        after = self.clock.wall()
        if store_clock is None:
            return after
        # The store read its clock between these two times.
        skew = max(before - store_clock, store_clock - after)
        if skew > self.max_clock_skew:
            side = "ahead of" if before > store_clock else "behind"
            raise _WrongClock(
                f"this machine's clock is {side} the store's by more than max_clock_skew = {self.max_clock_skew:g} s: "
                "correct the clock, or raise max_clock_skew"
            )
        return after


class _WrongClock(DocIdTimestampRefused):
    """The clock is wrong: a claim by it could use up the prefix."""


class _Retired(DocIdTimestampRefused):
    """The store is retired: its start timestamps continue in another store."""
