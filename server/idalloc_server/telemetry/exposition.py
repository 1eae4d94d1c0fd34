"""Prometheus' text format of a server's metrics, by prometheus_client."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from idalloc_server.telemetry.families import COUNTERS, DEBUG_METRICS, GAUGES, HISTOGRAMS, Family
from idalloc_server.telemetry.latencies import BUCKETS, histogram
from idalloc_server.telemetry.metrics import Counts

# The labels of a call, as go-grpc-middleware names them.
CALL_LABELS = ("grpc_type", "grpc_service", "grpc_method")
CALL_COUNTERS = {
    "grpc_server_started": "Calls that began, by method.",
    "grpc_server_handled": "Calls that ended, by method and status code.",
}
CALL_SECONDS = ("grpc_server_handling_seconds", "Duration of calls that ended, in seconds, by method.")
_BOUNDS = (*map(str, BUCKETS), "+Inf")


@dataclass(eq=False)
class Exposition(Collector):
    """The text of ``/metrics``."""

    counts: Callable[[], Counts]  # returns the present metrics
    # The type of each RPC by its full name: unary, server_stream, client_stream or bidi_stream.
    types: Mapping[str, str]
    pids: Callable[[], Mapping[str, int]]  # returns the process ids of the server's processes, by name
    debug: bool = False  # whether to show the metrics for developers

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        counts = self.counts()
        yield from self._calls(counts)
        for kind, families, values in (
            (CounterMetricFamily, COUNTERS, counts.counters),
            (GaugeMetricFamily, GAUGES, counts.gauges),
        ):
            for name, family in families.items():
                if name in DEBUG_METRICS and not self.debug:
                    continue
                metric = kind(name, family.help, labels=family.labels)
                # A metric without labels always has a value, unless it is optional.
                missing = {} if family.labels or family.is_optional else {"": 0.0}
                for key, value in (values[name] or missing).items():
                    metric.add_metric(_labels(family, key), value)
                yield metric
        for name, family in HISTOGRAMS.items():
            durations = HistogramMetricFamily(name, family.help, labels=family.labels)
            for key, timings in counts.timings[name].items():
                durations.add_metric(_labels(family, key), _cumulative(timings.buckets), timings.seconds)
            yield durations
        yield from self._processes()

    def _calls(self, counts: Counts) -> Iterator[Metric]:
        (started_name, started_help), (handled_name, handled_help) = CALL_COUNTERS.items()
        started = CounterMetricFamily(started_name, started_help, labels=CALL_LABELS)
        handled = CounterMetricFamily(handled_name, handled_help, labels=(*CALL_LABELS, "grpc_code"))
        seconds = HistogramMetricFamily(*CALL_SECONDS, labels=CALL_LABELS)
        for name in self.types.keys() | counts.calls.methods.keys():
            calls = counts.calls.method(name)
            service, _, method = name.lstrip("/").rpartition("/")
            labels = [self.types.get(name, "unary"), service, method]
            started.add_metric(labels, calls.started)
            for code, count in (calls.handled or {"OK": 0}).items():
                handled.add_metric([*labels, code_name(code)], count)
            seconds.add_metric(labels, _cumulative(histogram(calls.latencies)), calls.seconds)
        yield from (started, handled, seconds)

    def _processes(self) -> Iterator[Metric]:
        """Yield the metrics ``process_…`` of prometheus_client, of each process."""
        families: dict[str, Metric] = {}
        for process, pid in self.pids().items():
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for name, labels, value, *_ in metric.samples:
                    family.add_sample(name, {**labels, "process": process}, value)
        yield from families.values()


def code_name(code: str) -> str:
    """Return a status code as Go prints it: ``DeadlineExceeded`` for ``DEADLINE_EXCEEDED``."""
    if code == "CANCELLED":
        return "Canceled"
    return code if code == "OK" else "".join(word.capitalize() for word in code.split("_"))


def _labels(family: Family, key: str) -> list[str]:
    return key.split(" ", len(family.labels) - 1) if family.labels else []


def _cumulative(counts: Sequence[int]) -> list[tuple[str, float]]:
    return list(zip(_BOUNDS, map(float, accumulate(counts)), strict=True))
