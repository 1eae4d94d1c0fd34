"""How many ids a lane holds ahead of its callers, so that they need not wait for the store (P10)."""

import math

# What is held ahead is taken in parts, each of which lasts at least this long.
PART_SECONDS = 1.0
# Nothing is held ahead that was not seen to be used: no more than this many times what was issued of late.
PER_ISSUED = 2
# More is asked for when this share of what a write left is left, if not before.
LOW_SHARE = 0.8
# "Of late" is a time that halves in weight with each reserve, and at least with each of these.
HALF_LIFE_SECONDS = 10.0


class Reserve:
    """Watches how fast a lane's ids are used, and says how many to hold.

    What is held lasts ``outage_reserve`` at the rate seen, or two answers of the store where that is longer. A rate
    that grows is believed at once, as far as the ids were really used; one that falls lets the reserve shrink by half
    in each reserve's time.

    A call gets contiguous ids. So only ids that calls of the sizes seen can really get count as held
    (``Lease.usable``): the end of each piece of a lease may be too short for the next call.

    Args:
        outage_reserve: How long the store may be away without a caller noticing, in seconds.
        most: The most ids to hold.
        now: The time, in seconds on ``Clock.boot``, as in all methods.

    Attributes:
        low: Where fewer ids than this are left, more are to be asked for.
        largest: The largest call that was served since the sizes of calls were last looked at, in ids.
    """

    __slots__ = (
        "_at",
        "_issued",
        "_largest_before",
        "_latency",
        "_left",
        "_most",
        "_outage_reserve",
        "_seconds",
        "_sizes_at",
        "largest",
        "low",
    )

    def __init__(self, outage_reserve: float, most: int, now: float) -> None:
        self.low = 0
        self.largest = 1
        # The largest call of the span before, and when the present one began.
        self._largest_before = 1
        self._sizes_at = now
        self._outage_reserve = outage_reserve
        self._most = most
        # When the last write was answered, how many ids it left, and how long it took.
        self._at = now
        self._left = 0
        self._latency = 0.0
        # What was issued of late, and in what time.
        self._issued = 0.0
        self._seconds = 0.0

    @property
    def largest_seen(self) -> int:
        """The largest call of late, in ids: of the last one to two reserves' time."""
        return max(self.largest, self._largest_before)

    def wanted(self, left: int, usable: int, now: float) -> int:
        """Returns how many ids to hold after the next write; ``left`` are held, calls can get ``usable`` of them."""
        issued, _, rate = self._seen(left, now)
        span = self._span
        target = int(min(rate * (span + max(span / 4, PART_SECONDS)), PER_ISSUED * issued))
        if target > usable:
            # More is asked for at a share of all ids, also of those that calls cannot get; and the end of a further
            # piece may be too short for a call.
            target += (left - usable) // 4 + self.largest_seen - 1
        return min(target + left - usable, self._most)

    def refilled(self, before: int, after: int, usable: int, asked_at: float, now: float) -> None:
        """Notes a write.

        Args:
            before: How many ids were left when it was answered.
            after: How many there are with those that it granted.
            usable: How many of these calls can get.
            asked_at: When it was sent.
            now: When it was answered.
        """
        self._issued, self._seconds, rate = self._seen(before, now)
        self._latency = max(now - asked_at, self._latency / 2)
        self._at, self._left = now, after
        self.low = int(min(after - usable + rate * self._span, after * LOW_SHARE))
        if now - self._sizes_at >= self._span:
            self._largest_before, self.largest, self._sizes_at = self.largest, 1, now

    def suffices(self, left: int) -> None:
        """Notes that no write was needed, since fewer ids are wanted than before."""
        self.low = int(left * LOW_SHARE)

    def skipped(self, count: int) -> None:
        """Notes that so many ids were left behind: nobody was issued them."""
        self._left -= count

    def failed(self) -> None:
        """Notes that a write failed: time alone tells when to ask again."""
        self.low = 0

    def dropped(self) -> None:
        """Notes that nothing is held any more."""
        self.low = self._left = 0

    @property
    def _span(self) -> float:
        return max(self._outage_reserve, 2 * self._latency)

    def _seen(self, left: int, now: float) -> tuple[float, float, float]:
        """Returns what was issued of late, in how many seconds, and the larger rate: of late, since then."""
        used, elapsed = self._left - left, max(now - self._at, 1e-3)
        fade = math.exp2(-elapsed / max(self._span, HALF_LIFE_SECONDS))
        issued, seconds = used + fade * self._issued, elapsed + fade * self._seconds
        return issued, seconds, max(used / elapsed, issued / seconds)
