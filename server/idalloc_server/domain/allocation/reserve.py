"""How many ids a sequence holds in memory, to serve calls without waiting for the store (P10)."""

import math
from dataclasses import dataclass, field

# The ids are fetched in parts that last at least this long.
PART_SECONDS = 1.0
# The reserve is at most this many times the ids issued recently.
MAX_PER_ISSUED = 2
# A refill starts at this share of the ids that the last one left, at the latest.
REFILL_SHARE = 0.8
# The half-life of past use is the duration of the reserve, but at least this.
HALF_LIFE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class Reserve:
    """Measures how fast the ids of a sequence are used, and decides how many to hold.

    They last ``outage_reserve`` at the measured rate, or twice the store's latency if that is longer. A rising rate
    counts at once, limited by the ids issued recently. After the rate falls, the reserve halves in each half-life: its
    duration, but at least ``HALF_LIFE_SECONDS``.

    Only usable ids count as held (``Lease.usable``), because a call needs a contiguous range.

    Args:
        outage_reserve: How long the store may be unavailable without a caller noticing, in seconds.
        max_ids: The most ids to hold.
        now: ``Clock.boot`` in seconds, as in all methods.

    Attributes:
        refill_below: With fewer ids left than this, a refill is due.
        largest_call: The largest call in the current measurement, in ids.
    """

    _outage_reserve: float
    _max_ids: int
    # The start of the current measurement, and the largest call of the previous one.
    _measured_since: float
    _largest_call_before: int = 1
    refill_below: int = 0
    largest_call: int = 1
    # The last write: when it was answered, the ids left after it, and its latency.
    _refilled_at: float = field(init=False)
    _left: int = 0
    _latency: float = 0.0
    # The ids issued recently, and the seconds that this took.
    _issued: float = 0.0
    _seconds: float = 0.0

    def __post_init__(self) -> None:
        self._refilled_at = self._measured_since

    @property
    def largest_recent_call(self) -> int:
        """The largest call of the current and the previous measurement, in ids."""
        return max(self.largest_call, self._largest_call_before)

    def target(self, left: int, usable: int, now: float) -> int:
        """Returns how many ids to hold after the next write, while ``left`` are held, ``usable`` of them usable."""
        issued, _, rate = self._usage(left, now)
        duration = self._duration
        target = int(min(rate * (duration + max(duration / 4, PART_SECONDS)), MAX_PER_ISSUED * issued))
        if target > usable:
            # ``refill_below`` counts unusable ids, too, and the end of a further range may be unusable.
            target += (left - usable) // 4 + self.largest_recent_call - 1
        return min(target + left - usable, self._max_ids)

    def record_refill(self, before: int, after: int, usable: int, sent_at: float, now: float) -> None:
        """Records a successful write.

        Args:
            before: The ids left when it was answered.
            after: The ids left with those granted.
            usable: How many of these are usable.
            sent_at: When it was sent.
            now: When it was answered.
        """
        self._issued, self._seconds, rate = self._usage(before, now)
        self._latency = max(now - sent_at, self._latency / 2)
        self._refilled_at, self._left = now, after
        self.refill_below = int(min(after - usable + rate * self._duration, after * REFILL_SHARE))
        if now - self._measured_since >= self._duration:
            self._largest_call_before, self.largest_call, self._measured_since = self.largest_call, 1, now

    def seconds_left(self, left: int, now: float) -> float | None:
        """Returns how long the ids left last at the present rate; None without a rate."""
        _, _, rate = self._usage(left, now)
        return left / rate if rate > 0 else None

    def skip_refill(self, left: int) -> None:
        """Lowers ``refill_below`` when a refill was due but no more ids are needed."""
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

    @property
    def _duration(self) -> float:
        return max(self._outage_reserve, 2 * self._latency)

    def _usage(self, left: int, now: float) -> tuple[float, float, float]:
        """Returns the recently issued ids, the seconds that this took, and the rate.

        The rate is the recent rate, or the rate since the last write if that is larger.
        """
        used, elapsed = self._left - left, max(now - self._refilled_at, 1e-3)
        fade = math.exp2(-elapsed / max(self._duration, HALF_LIFE_SECONDS))
        issued, seconds = used + fade * self._issued, elapsed + fade * self._seconds
        return issued, seconds, max(used / elapsed, issued / seconds)
