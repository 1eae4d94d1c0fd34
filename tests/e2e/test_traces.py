"""Traces of a real server, exported to a collector."""

import json
import subprocess
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id

import idalloc
from tests.support.processes import environment, running, serve_command
from tests.support.trace_collector import Collector
from tests.support.waiting import wait_until

pytestmark = pytest.mark.test_long

ALLOCATE = "idalloc.v1.IdAllocatorService/AllocateRange"
STREAM = "idalloc.v1.IdAllocatorService/StreamRanges"


@pytest.mark.parametrize(("transport", "workers"), [("grpcio", 1), ("native", 1), ("grpcio", 2)])
def test_spans_of_the_server_belong_to_the_callers_trace(tmp_path: Path, transport: str, workers: int) -> None:
    """Each call is a child of the caller's span; the write that it waits for is its child."""
    tracer = TracerProvider().get_tracer("test")
    with Collector() as collector:
        environ = environment() | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_SERVICE_NAME": "ids"}
        with running(tmp_path, environ, transport=transport, workers=workers) as server:
            with idalloc.Client(server.address) as client, tracer.start_as_current_span("caller") as caller:
                client.allocate_range("orders", 3)
                assert sum(len(each) for each in client.stream_ranges("orders", 20, 10)) == 20
            assert server.stop() == 0
        spans = {(span.name, span.parent): span for span in collector.spans}
    context = caller.get_span_context()
    trace, parent = format_trace_id(context.trace_id), format_span_id(context.span_id)
    call, stream = spans[ALLOCATE, parent], spans[STREAM, parent]
    assert {call.trace, stream.trace} == {trace}
    assert (call.attributes["idalloc.sequence"], call.attributes["idalloc.id_count"]) == ("orders", 3)
    assert stream.attributes["idalloc.total_id_count"] == 20
    assert {each.attributes["rpc.response.status_code"] for each in (call, stream)} == {"OK"}
    write = spans["grant", call.id]
    assert (write.trace, write.attributes["db.system.name"]) == (trace, "sqlite")
    assert spans["claim_start", ""].trace != trace
    assert {span.resource["service.name"] for span in collector.spans} == {"ids"}
    assert len({span.resource["process.pid"] for span in collector.spans}) == workers


def test_a_collector_that_is_away_delays_nothing(tmp_path: Path) -> None:
    """Without a collector calls and stops are in time; the log has its errors as JSON."""
    environ = environment() | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with running(tmp_path, environ) as server:
        with idalloc.Client(server.address) as client:
            assert client.allocate_range("orders", 3).ids == range(1, 4)
            wait_until(lambda: "opentelemetry" in server.log.read_text(), "the exporter did not report its error")
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {line["event"] for line in lines if line["logger"].startswith("opentelemetry")} == {"library"}


@pytest.mark.parametrize("workers", [1, 2])
def test_each_line_without_a_terminal_is_json(tmp_path: Path, workers: int) -> None:
    """Both streams have JSON lines of one schema: start, libraries, Python's warnings, stop."""
    environ = environment() | {"OTEL_TRACES_EXPORTER": "zipkin", "PYTHONWARNINGS": "always"}
    with running(tmp_path, environ, workers=workers, log_level="debug") as server:
        with idalloc.Client(server.address) as client:
            client.allocate_range("orders", 3)
        assert server.stop() == 0
        assert server.process.stdout
        assert server.process.stdout.read() == ""
        lines = [json.loads(line) for line in [server.serving, *server.log.read_text().splitlines()]]
    assert all({"timestamp", "level", "event", "logger"} <= line.keys() for line in lines)
    assert {"serving", "call", "traces_off", "draining", "stopped"} <= {line["event"] for line in lines}
    [call] = [line for line in lines if line["event"] == "call"]
    assert (call["sequence"], call["id_count"], call["identity"]) == ("orders", 3, "anonymous")
    assert call["peer"].startswith("ipv4:127.0.0.1:")
    assert {line.get("worker") for line in lines if line["event"] == "traces_off"} == (
        {None} if workers == 1 else {1, 2}
    )


def test_a_refused_start_is_json(tmp_path: Path) -> None:
    """A start that is refused has one JSON line and the exit code 2."""
    done = subprocess.run(
        serve_command(store=f"sqlite://{tmp_path}/ids.db", node_prefix=70_000),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    [line] = map(json.loads, done.stderr.splitlines())
    assert (line["event"], line["level"], line["exit_code"]) == ("not_started", "error", 2)
    assert line["error"].startswith("--node-prefix: ")
