"""What is counted of calls, in memory."""

from bisect import bisect_left
from collections import Counter

# Upper bounds in seconds, those of Prometheus' own default histogram.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class MethodCalls:
    """The calls of one RPC.

    Attributes:
        started: How many began.
        handled: How many ended, by status code.
        seconds: How long those took in all.
        buckets: How many took at most ``BUCKETS[i]`` and more than the bound before; the last one took longer.
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
    def in_flight(self) -> int:
        """How many calls began and have not ended."""
        return sum(calls.started - calls.handled.total() for calls in self.methods.values())
