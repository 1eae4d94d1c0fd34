"""How many calls a second each RPC has, and how long they take, over the last seconds."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from idalloc_server.telemetry.latencies import percentile
from idalloc_server.telemetry.metrics import CallMetrics

# The rates are those of this many seconds.
WINDOW_SECONDS = 10


class _Sample(NamedTuple):
    at: float
    handled: dict[str, Counter[str]]
    latencies: dict[str, list[int]]


class CallRates:
    """Keeps a sample of the counts for each of the last ``WINDOW_SECONDS`` seconds."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=WINDOW_SECONDS + 1)

    def add(self, calls: CallMetrics, at: float) -> None:
        """Add a sample.

        Args:
            calls: The present counts; they are copied.
            at: The time in seconds.
        """
        handled = {name: each.handled for name, each in calls.methods.items()}
        latencies = {name: list(each.latencies) for name, each in calls.methods.items()}
        self._samples.append(_Sample(at, handled, latencies))

    def by_method(self) -> list[Mapping[str, Any]]:
        """Return the rates of the RPCs called since the start, by name, as JSON values."""
        if not self._samples:
            return []
        first, last = self._samples[0], self._samples[-1]
        called = sorted(name for name, handled in last.handled.items() if handled)
        return [_rates(name, first, last) for name in called]


def _rates(name: str, first: _Sample, last: _Sample) -> Mapping[str, Any]:
    seconds = last.at - first.at or 1.0
    handled = last.handled[name] - first.handled.get(name, Counter())
    before = first.latencies.get(name) or [0] * len(last.latencies[name])
    latencies = [now - then for now, then in zip(last.latencies[name], before, strict=True)]
    count = handled.total()
    p50, p99 = (round(percentile(latencies, share) * 1000, 3) if count else None for share in (0.5, 0.99))
    return {
        "method": name.removeprefix("/"),
        "per_second": round(count / seconds, 3),
        "failed_per_second": round((count - handled["OK"]) / seconds, 3),
        "p50_ms": p50,
        "p99_ms": p99,
    }
