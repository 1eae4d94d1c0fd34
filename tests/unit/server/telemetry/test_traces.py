"""Spans of calls and of writes to the store."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from idalloc_server.telemetry import traces
from idalloc_server.telemetry.traces import Traces, is_requested, open_traces

METHOD = "/idalloc.v1.IdAllocatorService/AllocateRange"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


async def grant(name: str, wanted: int) -> None:
    """Fail if nothing is wanted."""
    if not wanted:
        raise ValueError("nothing is wanted")


async def spans_of(recorded: Traces, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """Close the traces, and return the spans by name."""
    await recorded.close()
    return {span.name: span for span in exporter.get_finished_spans()}


async def call(recorded: Traces, code: str, metadata: dict[str, str], write: Any = None) -> None:
    """Make a call that writes to a store and ends with a code."""

    async def handler(request: Any, context: Any) -> None:
        if write is not None:
            await write("orders", 5)
        recorded.end_call(code)

    traced = recorded.trace_call(METHOD, handler, lambda request: {"sequence": request}, lambda _: metadata.items())
    await traced("orders", None)


async def test_a_call_is_a_span_below_the_callers() -> None:
    """The span has the caller's trace and the conventional attributes; the write is its child."""
    exporter = InMemorySpanExporter()
    recorded = Traces(exporter)
    traced = recorded.trace_write(grant, "grant", "sqlite:///ids.db")
    await call(recorded, "OK", {"traceparent": CALLER, "other": "x"}, traced)
    found = await spans_of(recorded, exporter)
    span, write = found[METHOD[1:]], found["grant"]
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == tuple(CALLER.split("-")[1:3])
    assert (span.kind, span.status.status_code) == (SpanKind.SERVER, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD[1:],
        "rpc.response.status_code": "OK",
        "idalloc.sequence": "orders",
    }
    assert write.parent == span.get_span_context()
    assert write.kind == SpanKind.CLIENT
    assert dict(write.attributes or {}) == {
        "db.system.name": "sqlite",
        "db.operation.name": "grant",
        "idalloc.store": "sqlite:///ids.db",
        "idalloc.row": "orders",
    }


@pytest.mark.parametrize("traceparent", [None, "", "00-zz-1-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 8000])
async def test_an_invalid_trace_context_starts_a_trace(traceparent: str | None) -> None:
    """Without a valid trace context the call starts a trace of its own."""
    exporter = InMemorySpanExporter()
    recorded = Traces(exporter)
    await call(recorded, "OK", {} if traceparent is None else {"traceparent": traceparent})
    [span] = (await spans_of(recorded, exporter)).values()
    assert span.parent is None


@pytest.mark.parametrize(("code", "is_error"), [("UNAVAILABLE", True), ("INTERNAL", True), ("NOT_FOUND", False)])
async def test_faults_of_the_server_are_errors(code: str, is_error: bool) -> None:
    """A span is an error if the server is at fault, and not if the caller is."""
    exporter = InMemorySpanExporter()
    recorded = Traces(exporter)
    await call(recorded, code, {})
    [span] = (await spans_of(recorded, exporter)).values()
    assert (span.status.status_code == StatusCode.ERROR) is is_error
    assert (span.attributes or {}).get("error.type") == (code if is_error else None)


async def test_a_failed_write_is_an_error() -> None:
    """A failed write is an error with its type, and a root without a call."""
    exporter = InMemorySpanExporter()
    recorded = Traces(exporter)
    traced = recorded.trace_write(grant, "grant", "crate://db:4200/")
    with pytest.raises(ValueError, match="nothing"):
        await traced("orders", 0)
    [span] = (await spans_of(recorded, exporter)).values()
    assert (span.parent, span.status.status_code) == (None, StatusCode.ERROR)
    attributes = span.attributes or {}
    assert (attributes["error.type"], attributes["db.system.name"]) == ("ValueError", "cratedb")


@pytest.mark.parametrize(
    ("environ", "requested"),
    [
        ({}, False),
        (OTLP, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (OTLP | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (OTLP | {"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SERVICE_NAME": "ids"}, False),
    ],
)
def test_traces_are_off_unless_requested(environ: dict[str, str], requested: bool) -> None:
    """Traces are on only if a variable names an endpoint or an exporter."""
    assert is_requested(environ) is requested
    assert requested or open_traces(environ) is None


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER must be otlp or none, not 'zipkin'"),
        (OTLP | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "must be grpc or http/protobuf, not 'http/json'"),
    ],
)
def test_traces_that_are_not_possible_are_off(environ: dict[str, str], error: str) -> None:
    """The server serves without traces that it cannot export, and one warning says why."""
    with capture_logs() as lines:
        assert open_traces(environ) is None
    [line] = lines
    assert (line["event"], line["log_level"]) == ("traces_off", "warning")
    assert error in line["error"]


def test_traces_without_the_extra_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its packages the server has no traces, and names the command to install them."""

    def missing(name: str, *arguments: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(traces, "import_module", missing)
    with capture_logs() as lines:
        assert open_traces(OTLP) is None
    [line] = lines
    assert line["next_step"] == "pip install 'idalloc[otel]'"
    assert line["error"] == "opentelemetry.exporter.otlp.proto.grpc.trace_exporter is not installed"


async def test_close_does_not_wait_for_an_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that hangs delays a stop by a fixed time, and is logged."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Hanging(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
            return super().export(spans)

    monkeypatch.setattr(traces, "FLUSH_SECONDS", 0.05)
    recorded = Traces(Hanging())
    await call(recorded, "OK", {})
    with capture_logs() as lines:
        await recorded.close()
    assert [(line["event"], line["resource"]) for line in lines] == [("cleanup_failed", "spans")]
    release.set()
