"""What is counted, in memory: of one process, or of several in sum."""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from idalloc_server.telemetry.logs import failed_log

# Upper bounds in seconds, those of Prometheus' own default histogram.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# So many causes of a reason are logged each second; what else comes then, is one more.
MAX_CAUSES = 5

_log = structlog.get_logger("idalloc.rpc")


class MethodCalls:
    """The calls of one RPC.

    Attributes:
        started: How many began.
        handled: How many ended, by status code.
        seconds: How long those took in all; without those that broke off with their process, see ``Counts.end``.
        buckets: How many, without the same, took at most ``BUCKETS[i]`` and more than the bound before; the last one
            took longer.
    """

    __slots__ = ("buckets", "handled", "seconds", "started")

    def __init__(self) -> None:
        self.started = 0
        self.handled: Counter[str] = Counter()
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS) + 1)

    def end(self, code: str, seconds: float) -> None:
        """Counts a call that ended."""
        self.handled[code] += 1
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS, seconds)] += 1


class CallMetrics:
    """The calls of all RPCs, by full method name such as ``/idalloc.v1.NodeService/GetNode``."""

    def __init__(self) -> None:
        self.methods: dict[str, MethodCalls] = {}

    def method(self, name: str) -> MethodCalls:
        """Returns the counts of one RPC, from zero on if it is new."""
        return self.methods.setdefault(name, MethodCalls())

    @property
    def started(self) -> int:
        """How many calls began."""
        return sum(calls.started for calls in self.methods.values())

    @property
    def in_flight(self) -> int:
        """How many calls began and have not ended."""
        return sum(calls.started - calls.handled.total() for calls in self.methods.values())


class FailedCalls:
    """Why calls failed since the last line about it."""

    def __init__(self) -> None:
        self._sums: Counter[tuple[str, str, str, str]] = Counter()
        self._causes: Counter[str] = Counter()

    def add(self, method: str, code: str, reason: str, why: str) -> bool:
        """Counts a call that failed.

        Args:
            method: Its full name.
            code: Its status code.
            reason: Its reason in the catalogue; empty for none.
            why: The cause, for people.

        Returns:
            Whether it is the first of its kind.
        """
        key = (method, code, reason, why)
        if key not in self._sums:
            # Of each reason by itself: mistakes of callers, which may be very many, hide nothing of the store.
            if self._causes[reason] >= MAX_CAUSES:
                key = (method, code, reason, "others")
            self._causes[reason] += 1
        self._sums[key] += 1
        return self._sums[key] == 1

    def log(self) -> None:
        """Logs what was counted since the last call, and forgets it."""
        sums, self._sums, self._causes = self._sums, Counter(), Counter()
        for (method, code, reason, why), count in sums.items():
            named = {"reason": reason} if reason else {}
            failed_log.warning("calls_failed", method=method, code=code, **named, count=count, why=why)

    async def run(self) -> None:
        """Logs each second, for ever. Its owner cancels it."""
        while True:
            await asyncio.sleep(1)
            self.log()


@dataclass
class Counts:
    """What is counted of a server.

    Attributes:
        calls: Its calls.
        burned: The ids that it took and did not issue, by cause.
        lease_count: How many leases it holds.
        log_lines_lost: How many lines its log lost, by ``Share``.
    """

    calls: CallMetrics = field(default_factory=CallMetrics)
    burned: Counter[str] = field(default_factory=Counter)
    lease_count: int = 0
    log_lines_lost: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Returns all as JSON can say it."""
        methods = {
            name: [calls.started, dict(calls.handled), calls.seconds, calls.buckets]
            for name, calls in self.calls.methods.items()
        }
        return {
            "methods": methods,
            "burned": dict(self.burned),
            "lease_count": self.lease_count,
            "log_lines_lost": dict(self.log_lines_lost),
        }

    def add(self, counts: Mapping[str, Any]) -> None:
        """Adds what another process counted, as its ``to_json`` returned it."""
        for name, (started, handled, seconds, buckets) in counts["methods"].items():
            calls = self.calls.method(name)
            calls.started += started
            calls.handled.update(handled)
            calls.seconds += seconds
            calls.buckets = [mine + more for mine, more in zip(calls.buckets, buckets, strict=True)]
        self.burned.update(counts["burned"])
        self.lease_count += counts["lease_count"]
        self.log_lines_lost.update(counts["log_lines_lost"])

    def end(self) -> None:
        """Notes that the process ended: calls that ran in it broke off, which callers see as UNAVAILABLE.

        How long these took, nobody knows: they are in ``handled`` alone, neither in ``seconds`` nor in ``buckets``.
        """
        for calls in self.calls.methods.values():
            if broken := calls.started - calls.handled.total():
                calls.handled["UNAVAILABLE"] += broken
        self.lease_count = 0


async def log_calls(metrics: Callable[[], CallMetrics]) -> None:
    """Logs the calls of each second in sum, for ever. Its owner cancels it.

    Args:
        metrics: Returns the counts as they are now.
    """
    before = (0, 0, 0.0)
    while True:
        await asyncio.sleep(1)
        present = metrics()
        methods = present.methods.values()
        now = (
            sum(calls.handled.total() for calls in methods),
            sum(calls.handled["OK"] for calls in methods),
            sum(calls.seconds for calls in methods),
        )
        count, ok, seconds = (a - b for a, b in zip(now, before, strict=True))
        before = now
        if count:
            mean_ms = round(seconds / count * 1000, 3)
            _log.info("calls", count=count, failed=count - ok, mean_ms=mean_ms, in_flight=present.in_flight)
