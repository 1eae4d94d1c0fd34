"""Counters in memory, of one process or summed over several."""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import structlog

from idalloc_server.telemetry.families import COUNTERS, GAUGES, HISTOGRAMS
from idalloc_server.telemetry.latencies import BOUNDS, BUCKETS, percentile
from idalloc_server.telemetry.logs import failed_log

# The most causes of a reason that are logged a second; all others share one line.
MAX_CAUSES = 5

_log = structlog.get_logger("idalloc.rpc")


@dataclass(eq=False, slots=True)
class Timings:
    """A histogram of durations.

    prometheus_client's Histogram costs several times as much per call, see docs/adr/0009.
    """

    seconds: float = 0.0  # the sum of all durations
    # How many durations were at most ``BUCKETS[i]`` and more than the bound before; the last
    # bucket has the longer ones.
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS, seconds)] += 1


@dataclass(eq=False, slots=True)
class MethodCalls:
    """The calls of one RPC.

    Calls that ended with their process have no duration, see ``Counts.end``.
    """

    started: int = 0  # how many calls began
    ok: int = 0  # how many ended with OK
    failed: Counter[str] = field(default_factory=Counter)  # how many ended otherwise, by status code
    seconds: float = 0.0  # the sum of all durations
    # The timed calls, by ``BOUNDS``; the last bucket has the longer ones.
    latencies: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    @property
    def handled(self) -> Counter[str]:
        """How many calls ended, by status code."""
        return Counter(OK=self.ok) + self.failed

    @property
    def in_flight(self) -> int:
        """How many calls are running."""
        return self.started - self.ok - self.failed.total()

    def end(self, code: str, seconds: float) -> None:
        """Count a call that ended."""
        if code == "OK":
            self.ok += 1
        else:
            self.failed[code] += 1
        self.seconds += seconds
        self.latencies[bisect_left(BOUNDS, seconds)] += 1

    def add(self, calls: "MethodCalls") -> None:
        """Add the counts of another process or RPC."""
        self.started += calls.started
        self.ok += calls.ok
        self.failed.update(calls.failed)
        self.seconds += calls.seconds
        self.latencies = [mine + more for mine, more in zip(self.latencies, calls.latencies, strict=True)]

    def ended_since(self, before: "MethodCalls") -> "MethodCalls":
        """Return the calls that ended since earlier counts."""
        latencies = [now - then for now, then in zip(self.latencies, before.latencies, strict=True)]
        ok = self.ok - before.ok
        failed = self.failed - before.failed
        return MethodCalls(ok=ok, failed=failed, seconds=self.seconds - before.seconds, latencies=latencies)

    def percentile_ms(self, share: float) -> float:
        """Return the duration, in milliseconds, that this share of the calls does not exceed."""
        return round(percentile(self.latencies, share) * 1000, 3)


@dataclass(eq=False)
class CallMetrics:
    """The calls of all RPCs, by full method name such as ``/idalloc.v1.NodeService/GetNode``."""

    methods: dict[str, MethodCalls] = field(default_factory=dict)
    # Answers to requests of AllocateStream, by status code.
    stream_answers: Counter[str] = field(default_factory=Counter)

    def method(self, name: str) -> MethodCalls:
        """Return the counts of an RPC; create them at the first use."""
        return self.methods.setdefault(name, MethodCalls())

    @property
    def started(self) -> int:
        """How many calls began."""
        return sum(calls.started for calls in self.methods.values())

    @property
    def in_flight(self) -> int:
        """How many calls are running."""
        return sum(calls.in_flight for calls in self.methods.values())


@dataclass(eq=False)
class FailedCalls:
    """Failed calls by cause, since the last log line."""

    _sums: Counter[tuple[str, str, str, str]] = field(default_factory=Counter, init=False)
    _causes: Counter[str] = field(default_factory=Counter, init=False)

    def add(self, method: str, code: str, reason: str, why: str) -> bool:
        """Count a failed call; the reason may be empty.

        Returns:
            Whether it is the first of its kind since the last log line.
        """
        key = (method, code, reason, why)
        if key not in self._sums:
            # The limit is per reason: many mistakes of callers must not hide errors of the store.
            if self._causes[reason] >= MAX_CAUSES:
                key = (method, code, reason, "others")
            self._causes[reason] += 1
        self._sums[key] += 1
        return self._sums[key] == 1

    def log(self) -> None:
        """Log the counts and reset them."""
        sums = self._sums
        self._sums = Counter()
        self._causes.clear()
        for (method, code, reason, why), count in sums.items():
            named = {"reason": reason} if reason else {}
            failed_log.warning("calls_failed", method=method, code=code, **named, count=count, why=why)


@dataclass
class Counts:
    """All metrics of a server or process, without those that describe the server.

    ``families`` names them.
    """

    calls: CallMetrics = field(default_factory=CallMetrics)
    # The counters, by family and labels.
    counters: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in COUNTERS})
    # The histograms, by family and labels.
    timings: dict[str, dict[str, Timings]] = field(default_factory=lambda: {name: {} for name in HISTOGRAMS})
    # The gauges, by family and labels.
    gauges: dict[str, dict[str, float]] = field(default_factory=lambda: {name: {} for name in GAUGES})

    def to_json(self) -> dict[str, Any]:
        """Return all metrics as JSON values."""
        return {
            "methods": {
                name: {each.name: getattr(calls, each.name) for each in fields(calls)}
                for name, calls in self.calls.methods.items()
            },
            "counters": {name: dict(values) for name, values in self.counters.items()},
            "timings": {
                name: {key: [each.seconds, each.buckets] for key, each in values.items()}
                for name, values in self.timings.items()
            },
            "gauges": {name: dict(values) for name, values in self.gauges.items()},
        }

    def add(self, counts: Mapping[str, Any]) -> None:
        """Add the metrics of another process, as ``to_json`` returns them."""
        for name, method in counts["methods"].items():
            self.calls.method(name).add(MethodCalls(**method))
        for name, values in counts["counters"].items():
            self.counters[name].update(values)
        for name, values in counts["timings"].items():
            for key, (seconds, buckets) in values.items():
                timings = self.timings[name].setdefault(key, Timings())
                timings.seconds += seconds
                timings.buckets = [mine + more for mine, more in zip(timings.buckets, buckets, strict=True)]
        for name, values in counts["gauges"].items():
            gauges = self.gauges[name]
            for key, value in values.items():
                gauges[key] = GAUGES[name].merge((gauges[key], value)) if key in gauges else value

    def end(self) -> None:
        """Record that the process exited.

        Its gauges are gone, and its running calls count as UNAVAILABLE, as their callers see them.
        Their duration is unknown, so no bucket has them.
        """
        for calls in self.calls.methods.values():
            if interrupted := calls.in_flight:
                calls.failed["UNAVAILABLE"] += interrupted
        for gauges in self.gauges.values():
            gauges.clear()


async def log_calls(metrics: Callable[[], CallMetrics]) -> None:
    """Log the sum of each second's calls until cancelled; ``metrics`` returns the present ones."""
    before = MethodCalls()
    while True:
        await asyncio.sleep(1)
        current = metrics()
        now = MethodCalls()
        for calls in current.methods.values():
            now.add(calls)
        ended = now.ended_since(before)
        if count := ended.handled.total():
            _log.info(
                "calls",
                count=count,
                failed=ended.failed.total(),
                codes=dict(ended.handled),
                mean_ms=round(ended.seconds / count * 1000, 3),
                p50_ms=ended.percentile_ms(0.5),
                p99_ms=ended.percentile_ms(0.99),
                in_flight=current.in_flight,
            )
        before = now
