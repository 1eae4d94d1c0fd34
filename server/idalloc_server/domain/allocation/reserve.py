"""How many ids a sequence holds in memory, to serve calls without waiting for the store (P10)."""

import math
from dataclasses import dataclass, field

from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.sequences.model import Sequence
from idalloc_server.domain.store.records import Demand

# The ids are fetched in parts that last at least this long.
PART_SECONDS = 1.0
# A rate is measured over at least this long, so that a few calls do not look like a huge rate. Before, the reserve is
# at most so many times the ids issued.
MIN_RATE_SECONDS, MAX_PER_ISSUED = 2.0, 2
# A measurement that is shorter than this counts one more call than it saw.
YOUNG_SECONDS = 30.0
# The ids left are compared with the rate at least this often.
REVIEW_SECONDS = 2.5
# A demand in the row counts as the rate for this long. A node writes what it measured for as long, in so many calls of
# the largest size.
DEMAND_SECONDS, DEMAND_CALLS = 10.0, 5
# No node prefetches more than one part in this many of the ids that a sequence has left.
PREFETCH_SHARE = 100
# A refill starts when the ids last this many times the duration of the reserve, and makes them last that many times.
REFILL_AT, REFILL_TO = 1.05, 1.3
# A refill starts at this share of the ids that the last one left, at the latest.
REFILL_SHARE = 0.8
# The half-life of past use is the duration of the reserve, but at least this.
HALF_LIFE_SECONDS = 10.0
# Why a reserve is shorter than ``outage_reserve``: the ids that the sequence has left, or the name of a setting.
LIMITS = REMAINING_IDS, MAX_RESERVED_IDS, MAX_LEASE_SIZE = "remaining_ids", "max_reserved_ids", "max_lease_size"


@dataclass(slots=True, eq=False)
class Reserve:
    """Measures how fast the ids of a sequence are used, and decides how many to hold.

    They last ``outage_reserve`` at the measured rate, or twice the store's latency if that is longer. A rising rate
    counts within ``REVIEW_SECONDS``. After the rate falls, the reserve halves in each half-life: its duration, but at
    least ``HALF_LIFE_SECONDS``.

    Only usable ids count as held (``Lease.usable``), because a call needs a contiguous range.

    Args:
        config: The settings.
        now: ``Clock.boot`` in seconds, as in all methods.

    Attributes:
        refill_below: With fewer ids left than this, a refill is due.
        largest_call: The largest call in the current measurement, in ids.
        review_at: When to compare the ids left with the rate again.
        demand_in_row: What the row had after the last write.
        limited_by: One of ``LIMITS`` if the last prefetch was limited, else empty.
    """

    _config: AllocationConfig
    # The start of the current measurement, and the largest call of the previous one.
    _measured_since: float
    _largest_call_before: int = 1
    refill_below: int = 0
    largest_call: int = 1
    review_at: float = math.inf
    demand_in_row: Demand | None = None
    limited_by: str = ""
    # The last write or review: when it was, and the ids left after it; the latency of writes.
    _rolled_at: float = field(init=False)
    _left: int = 0
    _latency: float = 0.0
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

    @property
    def largest_recent_call(self) -> int:
        """The largest call of the current and the previous measurement, in ids."""
        return max(self.largest_call, self._largest_call_before)

    def prefetch(self, lease: Lease, settings: Sequence, requested: int, remaining: int, now: float) -> int:
        """Returns how many ids to request beyond the ``requested`` ones of the callers.

        Args:
            lease: The ids held.
            settings: The settings of the sequence.
            requested: What the callers request.
            remaining: How many ids the store had left after the last write.
            now: The time.
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

    def record_refill(self, before: int, after: int, usable: int, sent_at: float, now: float) -> None:
        """Records a successful write.

        Args:
            before: The ids left when it was answered.
            after: The ids left with those granted.
            usable: How many of these are usable.
            sent_at: When it was sent.
            now: When it was answered.
        """
        rate = self._rate(before, now)
        self._latency = max(now - sent_at, self._latency / 2)
        self._roll(before, now)
        self._left = after
        self.refill_below = int(min(after - usable + rate * self._duration * REFILL_AT, after * REFILL_SHARE))
        if now - self._measured_since >= self._duration:
            self._largest_call_before, self.largest_call, self._measured_since = self.largest_call, 1, now

    def seconds_left(self, left: int, now: float) -> float | None:
        """Returns how long the ids left last at the present rate; None without a rate."""
        rate = self._rate(left, now)
        return left / rate if rate > 0 else None

    def is_short(self, lease: Lease, now: float) -> bool:
        """Returns whether a refill is due: the ids left do not last, or the row lacks this node's demand."""
        if lease.left < self.refill_below or (not self._is_shared and self._is_measured(lease.left, now)):
            return True
        needed = self._cautious_rate(lease.left, now) * self._duration * REFILL_AT
        return lease.usable(self.largest_recent_call) < needed

    def demand(self, left: int, now: float, wall: float) -> Demand | None:
        """Returns what the callers need, or None until it is measured well; what is only expected does not count.

        ``wall`` is ``Clock.wall`` in seconds.
        """
        if not self._is_measured(left, now):
            return None
        issued, seconds = self._usage(left, now)
        return Demand(issued / seconds, self.largest_recent_call, wall)

    def demand_to_write(self, own: Demand | None) -> Demand | None:
        """Returns the mean of ``own`` and the row's, for nodes that start; None in every second write, to read the row.

        The mean is geometric: one busy node among quiet ones counts little, as each node that starts asks for it.
        """
        stored = self.demand_in_row
        self._has_written = own is not None and not self._has_written
        if own is None or not self._has_written:
            return None
        self._is_shared = True
        if stored is None or not stored.is_current(own.at, self._config.lease_ttl):
            return own
        return own._replace(rate=math.sqrt(stored.rate * own.rate))

    def adopt_demand(self, left: int, now: float, wall: float) -> bool:
        """Expects the row's demand after the first write, unless something else is expected, or it is too old.

        Returns:
            Whether calls are expected.
        """
        stored = self.demand_in_row
        if not self._expected(now) and stored and stored.is_current(wall, self._config.lease_ttl):
            self.expect(stored, left, now)
        return self._expected(now) > 0

    def expect(self, demand: Demand, left: int, now: float) -> None:
        """Starts the measurement again. For ``DEMAND_SECONDS`` the rate is at least that of the demand."""
        self._issued = self._seconds = 0.0
        self._rolled_at = self._began_at = now
        self._left = left
        self._expected_rate, self._expected_until = demand.rate, now + DEMAND_SECONDS
        self.largest_call = max(self.largest_call, demand.largest_call)

    def skip_refill(self, left: int, now: float) -> None:
        """Records a review after which no ids were requested."""
        self._roll(left, now)
        if left < self.refill_below:
            self.refill_below = int(left * REFILL_SHARE)

    def record_skipped(self, count: int) -> None:
        """Records burned ids, which do not count as issued."""
        self._left -= count

    def record_failure(self) -> None:
        """Records a failed write: from now on only time starts the next refill."""
        self.refill_below = 0

    def record_drop(self) -> None:
        """Records that no ids are held any more."""
        self.refill_below = self._left = 0

    def _target(self, lease: Lease, now: float) -> int:
        """Returns how many ids to hold after the next write."""
        usable, duration = lease.usable(self.largest_recent_call), self._duration
        rate = self._cautious_rate(lease.left, now)
        target = int(rate * max(duration * REFILL_TO, duration + PART_SECONDS))
        if now - self._began_at < MIN_RATE_SECONDS and not self._expected(now):
            issued, _ = self._usage(lease.left, now)
            target = min(target, int(MAX_PER_ISSUED * issued))
        if target > usable:
            # ``refill_below`` counts unusable ids, too, and the end of a further range may be unusable.
            target += (lease.left - usable) // 4 + self.largest_recent_call - 1
        return target + lease.left - usable

    @property
    def _duration(self) -> float:
        return max(self._config.outage_reserve, 2 * self._latency)

    def _is_measured(self, left: int, now: float) -> bool:
        issued, seconds = self._usage(left, now)
        return seconds >= DEMAND_SECONDS and issued >= DEMAND_CALLS * self.largest_recent_call

    def _expected(self, now: float) -> float:
        return self._expected_rate if now < self._expected_until else 0.0

    def _roll(self, left: int, now: float) -> None:
        """Ends one part of the measurement, and begins the next one."""
        self._issued, self._seconds = self._usage(left, now)
        self._rolled_at, self._left = now, left
        self.review_at = now + min(max(now - self._began_at, PART_SECONDS), REVIEW_SECONDS)

    def _usage(self, left: int, now: float) -> tuple[float, float]:
        """Returns the recently issued ids, and the seconds that this took."""
        used, elapsed = self._left - left, max(now - self._rolled_at, 1e-3)
        fade = math.exp2(-elapsed / max(self._duration, HALF_LIFE_SECONDS))
        return used + fade * self._issued, elapsed + fade * self._seconds

    def _cautious_rate(self, left: int, now: float) -> float:
        """Returns the rate; while it is young, with one more call than was seen."""
        issued, seconds = self._usage(left, now)
        is_young = issued > 0 and seconds < YOUNG_SECONDS and not self._expected(now)
        return self._rate(left, now) + is_young * self.largest_recent_call / max(seconds, MIN_RATE_SECONDS)

    def _rate(self, left: int, now: float) -> float:
        """Returns the recent rate, the expected one, or the rate since the last review, whichever is larger.

        The last one leaves out the largest call: one call is no rate.
        """
        issued, seconds = self._usage(left, now)
        used = self._left - left - self.largest_recent_call
        latest = used / max(now - self._rolled_at, MIN_RATE_SECONDS)
        return max(issued / max(seconds, MIN_RATE_SECONDS), self._expected(now), latest)
