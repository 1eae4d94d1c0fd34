"""The text of /metrics."""

import math
import os
import re

from prometheus_client.parser import text_string_to_metric_families

from idalloc_server.telemetry import families
from idalloc_server.telemetry.exposition import Exposition, code_name
from idalloc_server.telemetry.metrics import Counts, Timings

# Larger than the largest process id of Linux.
NO_PROCESS = 2**22 + 1
METHOD, STREAM = "/idalloc.v1.NodeService/GetNode", "/idalloc.v1.IdAllocatorService/StreamRanges"


def samples(counts: Counts, debug: bool = False) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all values by name and labels."""
    types, pids = {METHOD: "unary", STREAM: "server_stream"}, {"server": os.getpid(), "gone": NO_PROCESS}
    text = Exposition(lambda: counts, types, lambda: pids, debug).text().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, values: dict[tuple[str, frozenset[tuple[str, str]]], float], **labels: str) -> float | None:
    """Return a value; None if there is none."""
    return values.get((name, frozenset(labels.items())))


def test_methods_have_series_before_their_first_call() -> None:
    """Every method has its metrics from the start, with its type, so that a rate has no gap."""
    values = samples(Counts())
    labels = {"grpc_service": "idalloc.v1.IdAllocatorService", "grpc_method": "StreamRanges"}
    labels["grpc_type"] = "server_stream"
    assert of("grpc_server_started_total", values, **labels) == 0
    assert of("grpc_server_handled_total", values, **labels, grpc_code="OK") == 0
    assert of("grpc_server_handling_seconds_count", values, **labels) == 0


def test_calls_are_counted_by_code_and_duration() -> None:
    """Calls have the code as Go prints it; buckets are cumulative."""
    counts = Counts()
    calls = counts.calls.method(METHOD)
    for code, seconds in (("OK", 0.0001), ("OK", 0.004), ("DEADLINE_EXCEEDED", 20.0)):
        calls.started += 1
        calls.end(code, seconds)
    values = samples(counts)
    labels = {"grpc_service": "idalloc.v1.NodeService", "grpc_method": "GetNode", "grpc_type": "unary"}
    assert of("grpc_server_handled_total", values, **labels, grpc_code="OK") == 2
    assert of("grpc_server_handled_total", values, **labels, grpc_code="DeadlineExceeded") == 1
    assert of("grpc_server_handling_seconds_bucket", values, **labels, le="0.005") == 2
    assert of("grpc_server_handling_seconds_bucket", values, **labels, le="+Inf") == 3
    assert of("grpc_server_handling_seconds_sum", values, **labels) == 20.0041


def test_processes_have_their_own_series() -> None:
    """The metrics of each process have its name; one that has exited has none."""
    values = samples(Counts())
    resident = of("process_resident_memory_bytes", values, process="server")
    assert resident is not None
    assert resident > 1e6
    assert of("process_resident_memory_bytes", values, process="gone") is None


def test_no_value_is_nan() -> None:
    """A value that is not known has no series."""
    assert not [name for (name, _), value in samples(Counts()).items() if math.isnan(value)]


def test_forecasts_of_processes_add_up_by_their_rates() -> None:
    """Two processes that would each use up the ids in 100 s do so together in 50 s."""
    counts = Counts()
    for exhausts in ({"orders": 100.0, "empty": 0.0}, {"orders": 100.0, "empty": 10.0, "bills": 7.0}):
        part = Counts()
        part.gauges[families.EXHAUSTS_IN] = exhausts
        counts.add(part.to_json())
    assert counts.gauges[families.EXHAUSTS_IN] == {"orders": 50.0, "empty": 0.0, "bills": 7.0}


def test_codes_are_named_as_in_go() -> None:
    """grpc_code has the names of go-grpc-middleware."""
    assert [code_name(each) for each in ("OK", "CANCELLED", "UNAVAILABLE", "INVALID_ARGUMENT")] == [
        "OK",
        "Canceled",
        "Unavailable",
        "InvalidArgument",
    ]


def test_labels_of_any_sequence_parse() -> None:
    """The name of a sequence may have spaces, quotes, backslashes and any letter."""
    name = 'a "b" \\ c {x="y"} \N{SNOWMAN}'
    counts = Counts()
    counts.counters[families.IDS_ISSUED][name] = 7
    counts.gauges[families.RESERVE_LIMITED][f"max_lease_size {name}"] = 1
    values = samples(counts)
    assert of("idalloc_ids_issued_total", values, sequence=name) == 7
    assert of("idalloc_reserve_limited", values, reason="max_lease_size", sequence=name) == 1


def test_metrics_for_developers_need_a_setting() -> None:
    """Without debug_metrics the metrics for developers have no series; all others are the same."""
    plain, debug = ({name for name, _ in samples(Counts(), debug)} for debug in (False, True))
    assert debug - plain == {"idalloc_generations_ended_total", "idalloc_sequences_in_memory"}
    assert plain < debug


def test_only_optional_metrics_may_have_no_series() -> None:
    """Without a witness its metric has no series: 0 would raise an alert. Others begin with 0."""
    counts = Counts()
    assert of("idalloc_witness_up", samples(counts)) is None
    assert of("idalloc_leases", samples(counts)) == 0
    for is_up in (0, 1):
        counts.gauges[families.WITNESS_UP][""] = is_up
        assert of("idalloc_witness_up", samples(counts)) == is_up


def test_refills_are_counted_once() -> None:
    """The histogram counts refills, so no counter repeats it; store calls have two labels."""
    counts = Counts()
    counts.timings[families.REFILL_DURATION]["ok"] = Timings()
    counts.timings[families.REFILL_DURATION]["ok"].observe(0.01)
    counts.counters[families.STORE_CALLS]["grant ok"] = 3
    values = samples(counts)
    assert of("idalloc_refills_total", values, outcome="ok") is None
    assert of("idalloc_refill_duration_seconds_count", values, outcome="ok") == 1
    assert of("idalloc_store_calls_total", values, call="grant", outcome="ok") == 3


def test_each_metric_has_help_and_a_unit() -> None:
    """Every metric has a sentence of help; what is measured in seconds says so."""
    for name, family in (families.COUNTERS | families.GAUGES | families.HISTOGRAMS).items():
        assert re.fullmatch(r"[A-Z0-9].{15,}\.", family.help), name
        assert "seconds" in family.help.lower() or "_seconds" not in name, name
