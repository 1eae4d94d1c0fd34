"""Prometheus' text format of a server's metrics, by prometheus_client."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from idalloc_server.telemetry.families import COUNTERS, GAUGES, HISTOGRAMS, Family
from idalloc_server.telemetry.latencies import BUCKETS
from idalloc_server.telemetry.metrics import Counts

CONTENT_TYPE = CONTENT_TYPE_LATEST
# The labels of a call, as go-grpc-middleware names them.
CALL_LABELS = ("grpc_type", "grpc_service", "grpc_method")
CALL_COUNTERS = {
    "grpc_server_started": "Calls that began, by method.",
    "grpc_server_handled": "Calls that ended, by method and status code.",
}
CALL_SECONDS = ("grpc_server_handling_seconds", "Duration of calls that ended, in seconds, by method.")
_BOUNDS = (*map(str, BUCKETS), "+Inf")


class Exposition:
    """The text of ``/metrics``.

    Args:
        counts: Returns the present metrics.
        types: The type of each RPC by its full name: unary, server_stream, client_stream or
            bidi_stream.
        pids: Returns the process ids of the server's processes, by name.
    """

    def __init__(
        self, counts: Callable[[], Counts], types: Mapping[str, str], pids: Callable[[], Mapping[str, int]]
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(counts, types))
        self._registry.register(_Processes(pids))

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Collector(Collector):
    def __init__(self, counts: Callable[[], Counts], types: Mapping[str, str]) -> None:
        self._counts = counts
        self._types = types

    def describe(self) -> Iterable[Metric]:
        return ()  # Otherwise the registry would collect once to learn the names.

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        yield from self._calls(counts)
        for name, family in COUNTERS.items():
            yield _filled(CounterMetricFamily(name, family.help, labels=family.labels), family, counts.counters[name])
        for name, family in GAUGES.items():
            yield _filled(GaugeMetricFamily(name, family.help, labels=family.labels), family, counts.gauges[name])
        for name, family in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
            for key, timings in counts.timings[name].items():
                histogram.add_metric(_labels(family, key), _buckets(timings.buckets), timings.seconds)
            yield histogram

    def _calls(self, counts: Counts) -> Iterator[Metric]:
        started, handled = (
            CounterMetricFamily(name, text, labels=labels)
            for (name, text), labels in zip(
                CALL_COUNTERS.items(), (CALL_LABELS, (*CALL_LABELS, "grpc_code")), strict=True
            )
        )
        seconds = HistogramMetricFamily(*CALL_SECONDS, labels=CALL_LABELS)
        for name in self._types.keys() | counts.calls.methods.keys():
            calls = counts.calls.method(name)
            service, _, method = name.lstrip("/").rpartition("/")
            labels = [self._types.get(name, "unary"), service, method]
            started.add_metric(labels, calls.started)
            for code, count in (calls.handled or {"OK": 0}).items():
                handled.add_metric([*labels, code_name(code)], count)
            seconds.add_metric(labels, _buckets(calls.buckets), calls.seconds)
        yield from (started, handled, seconds)


class _Processes(Collector):
    """The metrics ``process_…`` of prometheus_client, of each process."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for process, pid in self._pids().items():
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


def _filled(metric: Metric, family: Family, values: Mapping[str, float]) -> Metric:
    """Add the values; a metric without labels always has one, unless it is optional."""
    for key, value in (values or ({} if family.labels or family.is_optional else {"": 0})).items():
        metric.add_metric(_labels(family, key), value)  # type: ignore[attr-defined]
    return metric


def _labels(family: Family, key: str) -> list[str]:
    return key.split(" ", len(family.labels) - 1) if family.labels else []


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip(_BOUNDS, counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
