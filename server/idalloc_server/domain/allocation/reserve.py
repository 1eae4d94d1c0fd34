"""How many ids a sequence holds in memory, to serve calls without waiting for the store (P10)."""

import math
from bisect import bisect
from dataclasses import dataclass

from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import Demand

# A counter in use holds the use of this many ``outage_reserve``, and this many largest calls.
GENEROSITY = 3
LARGEST_CALLS = 2
# A refill is due when less than this share is left. A demand replaces a current one in the row from
# this share of its rate on.
SHARE = 2 / 3
# The rate is the larger of those of the last ``outage_reserve`` and of this many last seconds. A
# counter that is younger than the second number counts as that old.
RECENT_SECONDS = 5.0
MIN_SECONDS = 2.0
# The ids left are compared with the rate at least this often, while calls come.
REVIEW_SECONDS = 1.0
# No node prefetches more than one part in this many of the ids that a sequence has left.
PREFETCH_SHARE = 100
# Why a reserve is shorter than ``outage_reserve``: the ids that the sequence has left, or the name
# of a setting.
LIMITS = REMAINING_IDS, MAX_RESERVED_IDS, MAX_LEASE_SIZE = "remaining_ids", "max_reserved_ids", "max_lease_size"


@dataclass(slots=True, eq=False)
class Reserve:
    """Measures how fast the ids of a counter are used, and decides how many to hold.

    Only usable ids count as held (``Lease.usable``), because a call needs a contiguous range. All
    times are in ``Clock.boot`` seconds.
    """

    _config: AllocationConfig
    _began_at: float  # since when calls are counted
    refill_below: int = 0  # with fewer ids left than this, a refill is due
    largest_call: int = 1  # the largest call so far, in ids
    review_at: float = math.inf  # when to compare the ids left with the rate again
    demand_in_row: Demand | None = None  # what the row had after the last write
    limited_by: str = ""  # one of ``LIMITS`` if the last prefetch was limited, else empty
    _left: int = 0  # the ids left after the last write or review
    _issued: int = 0  # the ids issued until then
    _waiting: int = 0  # the ids that callers wait for, who get them right after the write
    # The ids issued until moments of the last ``outage_reserve``, most in ``RECENT_SECONDS``.
    _samples: tuple[tuple[float, int], ...] = ()  # takes less memory than a list
    _expected: Demand | None = None  # what callers are expected to need, and until when
    _expected_until: float = -math.inf

    def prefetch(self, lease: Lease, settings: Sequence, requested: int, remaining: int, now: float) -> int:
        """Return how many ids to request beyond the ``requested`` ones of the callers.

        ``remaining`` is how many ids the store had left after the last write.
        """
        left = lease.left
        self._waiting = requested
        target = self._target(left, now, requested)
        missing = target - lease.usable(self.largest_call)
        # The end of a further range may be unusable.
        prefetch = missing + self.largest_call - 1 if target and missing > 0 else 0
        if requested or prefetch:  # not if the lease is only renewed
            prefetch = max(prefetch, settings.min_lease_size - requested)
        limits = [(remaining // PREFETCH_SHARE, REMAINING_IDS), (self._config.max_reserved_ids, MAX_RESERVED_IDS)]
        if settings.max_lease_size:
            limits.append((settings.max_lease_size, MAX_LEASE_SIZE))
        most, limit = min(limits)
        self.limited_by = limit if remaining and most - left < prefetch else ""
        return max(0, min(prefetch, most - left, remaining - requested))

    def record_refill(self, lease: Lease, before: int, now: float) -> None:
        """Record a write, whose ids ``lease`` has; before them ``before`` ids were left."""
        self._record(before, lease.left, now)
        unusable = lease.left - lease.usable(self.largest_call)
        self.refill_below = int(min(unusable + SHARE * self._target(lease.left, now), SHARE * lease.left))

    def seconds_left(self, left: int, now: float) -> float | None:
        """Return how long the ids left last at the present rate; None without a rate."""
        rate = self._rate(left, now)
        return left / rate if rate else None

    def is_short(self, lease: Lease, now: float) -> bool:
        """Return whether a refill is due."""
        return lease.left < self.refill_below or lease.usable(self.largest_call) < SHARE * self._target(lease.left, now)

    def demand(self, left: int, now: float, wall: float) -> Demand | None:
        """Return what the callers need, or are expected to need; None before the first call.

        ``wall`` is ``Clock.wall`` in seconds.
        """
        rate = self._rate(left, now, self._waiting)
        if self._expected and now < self._expected_until and self._expected.rate == rate:
            return self._expected  # as old as it is: restarts with few calls do not keep a peak's demand
        return Demand(rate, self.largest_call, wall) if rate else None

    def demand_to_write(self, left: int, now: float, clock: Clock) -> Demand | None:
        """Return the demand for nodes that start; None if the row keeps a larger one."""
        own = self.demand(left, now, clock.wall())
        if own and (stored := self.demand_in_row) and own.rate < SHARE * stored.rate:
            return None if stored.is_current(clock.wall(), SHARE * self._config.lease_ttl) else own
        return own

    def adopt_demand(self, now: float, wall: float) -> bool:
        """Expect the row's demand if it is current, and no other one is; return whether one is."""
        stored = self.demand_in_row
        if now >= self._expected_until and stored and stored.is_current(wall, self._config.lease_ttl):
            self.expect(stored, now)
        return now < self._expected_until

    def expect(self, demand: Demand, now: float) -> None:
        """Hold what ``demand`` needs for half of ``outage_reserve``, before it is measured."""
        self._expected = demand
        self._expected_until = now + self._config.outage_reserve / 2
        self.largest_call = max(self.largest_call, demand.largest_call)

    def skip_refill(self, left: int, now: float) -> None:
        """Record a review after which no ids were requested."""
        self._record(left, left, now)
        self.refill_below = min(self.refill_below, int(SHARE * left))

    def record_skipped(self, count: int) -> None:
        """Record burned ids, which do not count as issued."""
        self._left -= count

    def record_failure(self) -> None:
        """Record a failed write: from now on only time starts the next refill."""
        self.refill_below = self._waiting = 0

    def record_drop(self) -> None:
        """Record that no ids are held any more."""
        self.refill_below = self._left = 0

    def _record(self, before: int, left: int, now: float) -> None:
        """Record a write or a review: ``before`` ids were left before it, and ``left`` now."""
        self._issued += self._left - before
        self._left = left
        self.review_at = now + REVIEW_SECONDS
        samples = list(self._samples)
        if len(samples) > 1 and now - samples[-2][0] < REVIEW_SECONDS:
            del samples[-1]
        samples.append((now, self._issued + self._waiting))
        self._waiting = 0
        while len(samples) > 2 and samples[1][0] <= now - max(self._config.outage_reserve, RECENT_SECONDS):
            del samples[0]
        older = bisect(samples, (now - RECENT_SECONDS, math.inf))
        if older > 2 and samples[older - 1][0] - samples[older - 3][0] <= RECENT_SECONDS:
            del samples[older - 2]
        self._samples = tuple(samples)

    def _target(self, left: int, now: float, requested: int = 0) -> int:
        """Return how many usable ids to hold; 0 before the second call."""
        if rate := self._rate(left, now, requested):
            seconds = max(self._config.outage_reserve, REVIEW_SECONDS)
            return int(GENEROSITY * seconds * rate) + LARGEST_CALLS * max(self.largest_call, requested)
        return 0

    def _rate(self, left: int, now: float, requested: int = 0) -> float:
        """Return the ids a second of calls that were made, are ``requested``, or are expected."""
        rate = self._expected.rate if self._expected and now < self._expected_until else 0.0
        issued = self._issued + self._left - left
        for window in (RECENT_SECONDS, self._config.outage_reserve) if issued else ():
            since = max(now - window, self._began_at)
            before = max((issued for at, issued in self._samples if at < since), default=0)
            if issued + requested > before:
                rate = max(rate, (issued - before + requested) / max(now - since, MIN_SECONDS))
        return rate
