"""The rate at which all nodes together use a sequence, from its counter at each refill."""

from typing import NamedTuple

from idalloc_server.domain.clock import Clock

# A rate covers the last one to two windows.
WINDOW_SECONDS = 60.0
# A shorter span gives no rate: the first ids after a pause would look like a burst.
MIN_SECONDS = 10.0
# The most names with a rate. Rates are only displayed.
MAX_RATES = 100_000


class _Observation(NamedTuple):
    at: float
    value: int


class UsageRates:
    """Keeps three observations of each counter: the last one, and the first ones of the last two windows.

    At ``MAX_RATES`` names, the one with the oldest refill is evicted.

    Args:
        clock: Measures the windows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[_Observation, _Observation, int, int]] = {}

    def record(self, name: str, value: int, step: int) -> None:
        """Records the value of a counter after a refill, less the ids that this node holds.

        A new step, or a counter that moved back, discards the earlier observations.
        """
        now = _Observation(self._clock.boot(), value)
        older, newer, _, old_step = self._seen.get(name, (now, now, value, step))
        if old_step != step or (value - newer.value) * step < 0:
            older = newer = now
        elif now.at - newer.at >= WINDOW_SECONDS:
            older, newer = newer, now
        self._seen.pop(name, None)  # keeps the dict in the order of refills
        self._seen[name] = (older, newer, value, step)
        if len(self._seen) > MAX_RATES:
            del self._seen[next(iter(self._seen))]

    def discard(self, name: str) -> None:
        """Discards the observations of a counter that an operator moved."""
        self._seen.pop(name, None)

    def per_second(self, name: str) -> float | None:
        """Returns the recent rate in ids a second, or None before ``MIN_SECONDS`` of observation."""
        seen = self._seen.get(name)
        if seen is None:
            return None
        older, _, value, step = seen
        elapsed = self._clock.boot() - older.at
        # Ids are counted first: 0 divided by a negative step is -0.0.
        return (value - older.value) // step / elapsed if elapsed >= MIN_SECONDS else None
