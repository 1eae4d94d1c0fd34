"""A survey of all sequences in use, in steps that delay no call noticeably."""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from idalloc_server.domain.allocation.counter_state import CounterState
from idalloc_server.domain.clock import Clock

# How many sequences are visited at once, and the pause before the next ones: at most a fiftieth of
# the time is used.
BATCH = 250
PAUSE_SECONDS = 0.02
# How many of the sequences that are exhausted next are kept.
NEAREST = 20


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
        states, now = states_of(name), clock.boot()
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
