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

    Args:
        outage_reserve: How long the store may be away without a caller noticing, in seconds.
        most: The most ids to hold.
        now: The time, in seconds on ``Clock.boot``, as in all methods.

    Attributes:
        low: Where fewer ids than this are left, more are to be asked for.
    """

    __slots__ = ("_at", "_issued", "_latency", "_left", "_most", "_outage_reserve", "_seconds", "low")

    def __init__(self, outage_reserve: float, most: int, now: float) -> None:
        self.low = 0
        self._outage_reserve = outage_reserve
        self._most = most
        # When the last write was answered, how many ids it left, and how long it took.
        self._at = now
        self._left = 0
        self._latency = 0.0
        # What was issued of late, and in what time.
        self._issued = 0.0
        self._seconds = 0.0

    def wanted(self, left: int, now: float) -> int:
        """Returns how many ids to hold after the next write, of which ``left`` are held already."""
        issued, _, rate = self._seen(left, now)
        span = self._span
        return int(min(rate * (span + max(span / 4, PART_SECONDS)), PER_ISSUED * issued, self._most))

    def refilled(self, before: int, after: int, asked_at: float, now: float) -> None:
        """Notes a write.

        Args:
            before: How many ids were left when it was answered.
            after: How many there are with those that it granted.
            asked_at: When it was sent.
            now: When it was answered.
        """
        self._issued, self._seconds, rate = self._seen(before, now)
        self._latency = max(now - asked_at, self._latency / 2)
        self._at, self._left = now, after
        self.low = int(min(rate * self._span, after * LOW_SHARE))

    def suffices(self, left: int) -> None:
        """Notes that no write was needed, since fewer ids are wanted than before."""
        self.low = int(left * LOW_SHARE)

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
