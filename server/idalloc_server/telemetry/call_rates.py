"""How many calls a second each RPC has, and how long they take, over the last seconds."""

from collections import deque
from copy import deepcopy
from typing import Any

from idalloc_server.telemetry.metrics import CallMetrics, MethodCalls

# The rates are those of this many seconds.
WINDOW_SECONDS = 10


class CallRates:
    """Keeps a sample of the counts for each of the last ``WINDOW_SECONDS`` seconds."""

    def __init__(self) -> None:
        # The time of each, in seconds, and the calls by RPC.
        self._samples: deque[tuple[float, dict[str, MethodCalls]]] = deque(maxlen=WINDOW_SECONDS + 1)

    def add(self, calls: CallMetrics, at: float) -> None:
        """Add a sample: a copy of the present counts, and the time in seconds."""
        self._samples.append((at, deepcopy(calls.methods)))

    def by_method(self) -> list[dict[str, Any]]:
        """Return the rates of the RPCs called since the start, by name, as JSON values."""
        if not self._samples:
            return []
        began, first = self._samples[0]
        now, last = self._samples[-1]
        seconds = now - began or 1.0
        rates = []
        for name, calls in sorted(last.items()):
            if not calls.handled.total():
                continue
            ended = calls.ended_since(first.get(name, MethodCalls()))
            count = ended.handled.total()
            rates.append(
                {
                    "method": name.removeprefix("/"),
                    "per_second": round(count / seconds, 3),
                    "failed_per_second": round(ended.failed.total() / seconds, 3),
                    "p50_ms": ended.percentile_ms(0.5) if count else None,
                    "p99_ms": ended.percentile_ms(0.99) if count else None,
                }
            )
        return rates
