"""How fast sequences are used, by all nodes together: seen from how far their counters went between refills."""

from typing import NamedTuple

from idalloc_server.domain.clock import Clock

# A rate is that of the last one to two windows.
WINDOW_SECONDS = 60.0
# What happened within less than this tells no rate: the first ids after a pause would pass for a flood.
LEAST_SECONDS = 10.0
# The most names with a rate. Nothing but what people are shown depends on one.
MAX_RATES = 100_000


class _Seen(NamedTuple):
    at: float
    value: int


class UsageRates:
    """Remembers, by name, three points of a counter's way: the last one, and where two windows began.

    Beyond ``MAX_RATES`` names, the one whose last refill is longest ago is evicted.

    Args:
        clock: Tells how long it took.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[_Seen, _Seen, int, int]] = {}

    def note(self, name: str, value: int, step: int) -> None:
        """Notes where the counter is; called once a refill.

        A counter that is behind where a window began (it started over, or was lowered) is watched from there.
        """
        now = _Seen(self._clock.boot(), value)
        older, newer, _, old_step = self._seen.get(name, (now, now, value, step))
        if old_step != step or (value - newer.value) * step < 0:
            older = newer = now
        elif now.at - newer.at >= WINDOW_SECONDS:
            older, newer = newer, now
        self._seen.pop(name, None)  # the dict stays in the order of refills
        self._seen[name] = (older, newer, value, step)
        if len(self._seen) > MAX_RATES:
            del self._seen[next(iter(self._seen))]

    def forget(self, name: str) -> None:
        """Watches anew from the next note on, after a counter was moved without being used."""
        self._seen.pop(name, None)

    def per_second(self, name: str) -> float | None:
        """Returns how many ids a second the sequence lately moved by; None where that cannot be told yet."""
        seen = self._seen.get(name)
        if seen is None:
            return None
        older, _, value, step = seen
        elapsed = self._clock.boot() - older.at
        return (value - older.value) / step / elapsed if elapsed >= LEAST_SECONDS else None
