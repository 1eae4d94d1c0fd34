"""How many ids a sequence holds in memory, to serve calls without waiting for the store (P10)."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.sequences.model import Sequence
from idalloc_server.domain.store.records import Demand

# The ids are fetched in parts that last at least this long.
PART_SECONDS = 1.0
# A rate is measured over at least this long, so that a few calls do not look like a huge rate.
# Before that, the reserve is at most this many times the ids issued.
MIN_RATE_SECONDS, MAX_PER_ISSUED = 2.0, 2
# A measurement that is shorter than this counts one more call than it saw.
YOUNG_SECONDS = 30.0
# The ids left are compared with the rate at least this often.
REVIEW_SECONDS = 2.5
# A demand in the row counts as the rate for this long. A node writes its own demand once it has
# measured for as long, and issued as many ids as this many calls of the largest size have.
DEMAND_SECONDS, DEMAND_CALLS = 10.0, 5
# No node prefetches more than one part in this many of the ids that a sequence has left.
PREFETCH_SHARE = 100
# A refill starts when the ids last the first number times the duration of the reserve, and makes
# them last the second number times.
REFILL_AT, REFILL_TO = 1.05, 1.3
# A refill starts at this share of the ids that the last one left, at the latest.
REFILL_SHARE = 0.8
# The half-life of past use is the duration of the reserve, but at least this.
HALF_LIFE_SECONDS = 10.0
# Why a reserve is shorter than ``outage_reserve``: the ids that the sequence has left, or the name
# of a setting.
LIMITS = REMAINING_IDS, MAX_RESERVED_IDS, MAX_LEASE_SIZE = "remaining_ids", "max_reserved_ids", "max_lease_size"


class _Measured(NamedTuple):
    """The recent use of a counter; rates are in ids a second."""

    issued: float
    seconds: float
    largest_call: int
    rate: float
    cautious_rate: float

    @property
    def is_long_enough(self) -> bool:
        """Whether other nodes may rely on it."""
        return self.seconds >= DEMAND_SECONDS and self.issued >= DEMAND_CALLS * self.largest_call


@dataclass(slots=True, eq=False)
class Reserve:
    """Measures how fast the ids of a sequence are used, and decides how many to hold.

    They last ``outage_reserve`` at the measured rate, or twice the store's latency if that is
    longer. A rising rate counts within ``REVIEW_SECONDS``. After the rate falls, the reserve halves
    in each half-life: its duration, but at least ``HALF_LIFE_SECONDS``.

    Only usable ids count as held (``Lease.usable``), because a call needs a contiguous range. All
    times are in ``Clock.boot`` seconds.
    """

    _config: AllocationConfig
    # The start of the current measurement, and the largest call of the previous one.
    _measured_since: float
    _largest_call_before: int = 1
    refill_below: int = 0  # with fewer ids left than this, a refill is due
    largest_call: int = 1  # the largest call in the current measurement, in ids
    review_at: float = math.inf  # when to compare the ids left with the rate again
    demand_in_row: Demand | None = None  # what the row had after the last write
    limited_by: str = ""  # one of ``LIMITS`` if the last prefetch was limited, else empty
    # The last write or review: when it was, and the ids left after it; the latency of writes.
    _rolled_at: float = field(init=False)
    _left: int = 0
    _latency: float = 0.0
    _duration: float = field(init=False)
    # The ids issued recently, and the seconds that this took.
    _issued: float = 0.0
    _seconds: float = 0.0
    # Since when calls are seen or expected; the rate of a demand, and until when it counts.
    _began_at: float = field(init=False)
    _expected_rate: float = 0.0
    _expected_until: float = -math.inf
    # Whether the last write had a demand, and whether any write had one.
    _has_written: bool = False
    _is_shared: bool = False

    def __post_init__(self) -> None:
        self._rolled_at = self._began_at = self._measured_since
        self._duration = self._config.outage_reserve

    def prefetch(self, lease: Lease, settings: Sequence, requested: int, remaining: int, now: float) -> int:
        """Return how many ids to request beyond the ``requested`` ones of the callers.

        ``remaining`` is how many ids the store had left after the last write.
        """
        left = lease.left
        prefetch = self._target(lease, now) - left
        if requested or prefetch > 0:  # not if the lease is only renewed
            prefetch = max(prefetch, settings.min_lease_size - requested)
        limits = [(remaining // PREFETCH_SHARE, REMAINING_IDS), (self._config.max_reserved_ids, MAX_RESERVED_IDS)]
        if settings.max_lease_size:
            limits.append((settings.max_lease_size, MAX_LEASE_SIZE))
        most, limit = min(limits)
        self.limited_by = limit if remaining and most - left < prefetch else ""
        return max(0, min(prefetch, most - left, remaining - requested))

    def record_refill(self, lease: Lease, before: int, sent_at: float, now: float) -> None:
        """Record a successful write that was sent at ``sent_at``, and answered at ``now``.

        ``before`` is the number of ids that were left then; ``lease`` also has those granted.
        """
        measured, after = self._measure(before, now), lease.left
        self._latency = max(now - sent_at, self._latency / 2)
        self._duration = max(self._config.outage_reserve, 2 * self._latency)
        unusable = after - lease.usable(measured.largest_call)
        self._begin_part(measured, after, now)
        needed = unusable + measured.rate * self._duration * REFILL_AT
        self.refill_below = int(min(needed, after * REFILL_SHARE))
        if now - self._measured_since >= self._duration:
            self._largest_call_before, self.largest_call, self._measured_since = self.largest_call, 1, now

    def seconds_left(self, left: int, now: float) -> float | None:
        """Return how long the ids left last at the present rate; None without a rate."""
        rate = self._measure(left, now).rate
        return left / rate if rate > 0 else None

    def is_short(self, lease: Lease, now: float) -> bool:
        """Return whether a refill is due: too few ids are left, or the row lacks the demand."""
        if lease.left < self.refill_below:
            return True
        measured = self._measure(lease.left, now)
        if not self._is_shared and measured.is_long_enough:
            return True
        return lease.usable(measured.largest_call) < measured.cautious_rate * self._duration * REFILL_AT

    def demand(self, left: int, now: float, wall: float) -> Demand | None:
        """Return what the callers need, or None until it is measured well.

        Calls that are only expected do not count. ``wall`` is ``Clock.wall`` in seconds.
        """
        measured = self._measure(left, now)
        if not measured.is_long_enough:
            return None
        return Demand(measured.issued / measured.seconds, measured.largest_call, wall)

    def demand_to_write(self, left: int, now: float, clock: Clock) -> Demand | None:
        """Return the mean of this node's demand and the row's, for nodes that start.

        None before it is measured, and in every second write, to read the row. The mean is
        geometric: one busy node among quiet ones counts little, as each node that starts asks for
        it.
        """
        was_written, self._has_written = self._has_written, False
        if was_written or now - self._began_at < DEMAND_SECONDS:
            return None
        own, stored = self.demand(left, now, clock.wall()), self.demand_in_row
        if own is None:
            return None
        self._has_written = self._is_shared = True
        if stored is None or not stored.is_current(own.at, self._config.lease_ttl):
            return own
        return own._replace(rate=math.sqrt(stored.rate * own.rate))

    def adopt_demand(self, left: int, now: float, wall: float) -> bool:
        """Expect the row's demand, unless it is too old or another is expected already.

        Returns:
            Whether calls are expected.
        """
        stored = self.demand_in_row
        if now < self._expected_until:
            return True
        if stored and stored.is_current(wall, self._config.lease_ttl):
            self.expect(stored, left, now)
            return True
        return False

    def expect(self, demand: Demand, left: int, now: float) -> None:
        """Start the measurement again.

        For ``DEMAND_SECONDS`` the rate is at least that of the demand.
        """
        self._issued = self._seconds = 0.0
        self._rolled_at = self._began_at = now
        self._left = left
        self._expected_rate, self._expected_until = demand.rate, now + DEMAND_SECONDS
        self.largest_call = max(self.largest_call, demand.largest_call)

    def skip_refill(self, left: int, now: float) -> None:
        """Record a review after which no ids were requested."""
        self._begin_part(self._measure(left, now), left, now)
        if left < self.refill_below:
            self.refill_below = int(left * REFILL_SHARE)

    def record_skipped(self, count: int) -> None:
        """Record burned ids, which do not count as issued."""
        self._left -= count

    def record_failure(self) -> None:
        """Record a failed write: from now on only time starts the next refill."""
        self.refill_below = 0

    def record_drop(self) -> None:
        """Record that no ids are held any more."""
        self.refill_below = self._left = 0

    def _target(self, lease: Lease, now: float) -> int:
        """Return how many ids to hold after the next write."""
        measured, duration = self._measure(lease.left, now), self._duration
        usable = lease.usable(measured.largest_call)
        target = int(measured.cautious_rate * max(duration * REFILL_TO, duration + PART_SECONDS))
        if now - self._began_at < MIN_RATE_SECONDS and now >= self._expected_until:
            target = min(target, int(MAX_PER_ISSUED * measured.issued))
        if target > usable:
            # ``refill_below`` counts unusable ids, too, and the end of a further range may be
            # unusable.
            target += (lease.left - usable) // 4 + measured.largest_call - 1
        return target + lease.left - usable

    def _begin_part(self, measured: _Measured, left: int, now: float) -> None:
        """End one part of the measurement, and begin the next one with ``left`` ids."""
        self._issued, self._seconds = measured.issued, measured.seconds
        self._rolled_at, self._left = now, left
        self.review_at = now + min(max(now - self._began_at, PART_SECONDS), REVIEW_SECONDS)

    def _measure(self, left: int, now: float) -> _Measured:
        """Return the recent use.

        The rate is the recent one, the expected one, or the one since the last part began. The last
        one leaves out the largest call: one call is no rate. While the measurement is young, the
        cautious rate has one more call than was seen.
        """
        used, elapsed = self._left - left, now - self._rolled_at
        counted = max(elapsed, 1e-3)
        fade = math.exp2(-counted / max(self._duration, HALF_LIFE_SECONDS))
        issued, seconds = used + fade * self._issued, counted + fade * self._seconds
        largest = max(self.largest_call, self._largest_call_before)
        over = max(seconds, MIN_RATE_SECONDS)
        expected = self._expected_rate if now < self._expected_until else 0.0
        rate = max(issued / over, expected, (used - largest) / max(elapsed, MIN_RATE_SECONDS))
        is_young = issued > 0 and seconds < YOUNG_SECONDS and not expected
        return _Measured(issued, seconds, largest, rate, rate + largest / over if is_young else rate)
