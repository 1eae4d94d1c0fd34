"""How many calls a second each RPC has, and how long they take, over the last seconds."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from idalloc_server.telemetry.latencies import percentile
from idalloc_server.telemetry.metrics import CallMetrics

# The rates are those of this many seconds.
WINDOW_SECONDS = 10


class _Sample(NamedTuple):
    at: float
    handled: dict[str, Counter[str]]
    latencies: dict[str, list[int]]


@dataclass(eq=False)
class CallRates:
    """Keeps a sample of the counts for each of the last ``WINDOW_SECONDS`` seconds."""

    _samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=WINDOW_SECONDS + 1), init=False)

    def add(self, calls: CallMetrics, at: float) -> None:
        """Add a sample: a copy of the present counts, and the time in seconds."""
        handled = {name: each.handled for name, each in calls.methods.items()}
        latencies = {name: list(each.latencies) for name, each in calls.methods.items()}
        self._samples.append(_Sample(at, handled, latencies))

    def by_method(self) -> list[dict[str, Any]]:
        """Return the rates of the RPCs called since the start, by name, as JSON values."""
        if not self._samples:
            return []
        first = self._samples[0]
        last = self._samples[-1]
        seconds = last.at - first.at or 1.0
        rates = []
        for name in sorted(name for name, handled in last.handled.items() if handled):
            handled = last.handled[name] - first.handled.get(name, Counter())
            before = first.latencies.get(name) or [0] * len(last.latencies[name])
            latencies = [now - then for now, then in zip(last.latencies[name], before, strict=True)]
            count = handled.total()
            p50, p99 = (round(percentile(latencies, share) * 1000, 3) if count else None for share in (0.5, 0.99))
            rates.append(
                {
                    "method": name.removeprefix("/"),
                    "per_second": round(count / seconds, 3),
                    "failed_per_second": round((count - handled["OK"]) / seconds, 3),
                    "p50_ms": p50,
                    "p99_ms": p99,
                }
            )
        return rates
