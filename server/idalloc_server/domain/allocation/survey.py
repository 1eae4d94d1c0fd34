"""A survey of all sequences in use, in steps that delay no call noticeably."""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.sequences.calendar import period_end
from idalloc_server.domain.sequences.sequence import Kind, Reset, Sequence

# How many sequences are visited at once, and the pause before the next ones: at most a fiftieth of
# the time is used.
BATCH = 250
PAUSE_SECONDS = 0.02
# How many of the sequences that are exhausted next are kept.
NEAREST = 20


class CounterState(NamedTuple):
    """The state of a counter at one moment; times are in ``Clock.boot`` seconds."""

    period: str  # the period; empty if the sequence has no reset
    settings: Sequence  # the settings of the sequence
    ids_in_memory: int  # how many ids could be issued from memory
    # The ids that were granted and neither issued, burned nor given back, also of an expired lease.
    held_ids: int
    expires_at: float  # when the lease expires
    # How many ids the store had left after the last write; None before the first one.
    remaining: int | None
    refilled_at: float  # when that write was sent
    has_failed: bool  # whether the last refill failed
    # Why the reserve is shorter than ``outage_reserve`` (``reserve.LIMITS``); empty if it is not.
    reserve_limit: str
    is_behind: bool  # whether ids are refused because the store went backwards
    ids_per_second: float  # how fast this process issues ids, see ``RecentUse``

    @property
    def has_lease(self) -> bool:
        """Whether ids could be issued from memory."""
        return self.ids_in_memory > 0

    def is_renewal_late(self, now: float, lease_ttl: float) -> bool:
        """Return whether the lease is in its last third because its renewal failed."""
        return self.has_failed and self.has_lease and self.expires_at - now < lease_ttl / 3

    def exhausts_in(self, clock: Clock) -> float | None:
        """Return the seconds until this process has used all ids of the store; None if unknown."""
        settings = self.settings
        if self.remaining is None or settings.kind != Kind.COUNTER:
            return None
        if settings.reset != Reset.NEVER and not self.period:
            return None  # The counters of the periods have the ids.
        if not self.remaining:
            return 0.0
        if not self.ids_per_second:
            return None
        seconds = max(0.0, self.remaining / self.ids_per_second - (clock.boot() - self.refilled_at))
        if self.period:
            wall = clock.wall()
            if wall + seconds >= period_end(settings, wall):
                return None  # The next period begins before.
        return seconds


class Survey(NamedTuple):
    """What was found."""

    lease_count: int = 0  # how many sequences have ids in memory
    behind: int = 0  # how many sequences are refused because the store went backwards
    late_renewals: int = 0  # how many leases are near their end after a failed renewal
    # The seconds until no ids are left, by sequence, of the ``NEAREST`` ones.
    exhausts_in: dict[str, float] = {}  # noqa: RUF012 - never changed


async def survey(
    names: Iterable[str],
    states_of: Callable[[str], list[CounterState]],
    clock: Clock,
    lease_ttl: float,
) -> Survey:
    """Return a survey of the sequences with these names; ``lease_ttl`` is in seconds.

    ``states_of`` returns the states of a sequence's counters, none if it is no longer in use.
    """
    leases = behind = late = 0
    nearest: list[tuple[float, str]] = []  # a heap, with the longest time first
    for number, name in enumerate(names, start=1):
        states = states_of(name)
        now = clock.boot()
        leases += any(each.has_lease for each in states)
        behind += any(each.is_behind for each in states)
        late += any(each.is_renewal_late(now, lease_ttl) for each in states)
        forecasts = [each.exhausts_in(clock) for each in states]
        if known := [each for each in forecasts if each is not None]:
            heapq.heappush(nearest, (-min(known), name))
            if len(nearest) > NEAREST:
                heapq.heappop(nearest)
        if number % BATCH == 0:
            await asyncio.sleep(PAUSE_SECONDS)
    return Survey(leases, behind, late, {name: -seconds for seconds, name in nearest})
