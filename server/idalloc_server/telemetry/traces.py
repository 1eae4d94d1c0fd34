"""OpenTelemetry traces: a span for each call and for each write to the store.

The variables OTEL_* configure their export. The packages are those of ``idalloc[otel]``. They are
imported only if traces are requested.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

import structlog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

# The longest wait of a stop for the export of the last spans.
FLUSH_SECONDS = 3.0
# The codes that are faults of the server, by OpenTelemetry's conventions for server spans.
_SERVER_FAULTS = frozenset(
    ("DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED", "UNKNOWN"),
)
_PROTOCOLS = {"grpc": "grpc", "http/protobuf": "http"}

_Handler = Callable[[Any, Any], Awaitable[Any]]
_Method = Callable[..., Awaitable[Any]]
_log = structlog.get_logger("idalloc.traces")


def is_requested(environ: Mapping[str, str]) -> bool:
    """Return whether the variables OTEL_* request traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    names = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(environ.get(name) for name in names)


def open_traces(environ: Mapping[str, str]) -> "Traces | None":
    """Return the traces that the variables OTEL_* request; None without a request.

    If the server cannot trace, log a warning and return None.
    """
    if not is_requested(environ):
        return None
    try:
        return Traces(_otlp_exporter(environ))
    except ImportError as error:
        problem = f"{error.name or error} is not installed"
        is_http = ".http" in (error.name or "")
        package = "opentelemetry-exporter-otlp-proto-http" if is_http else "'idalloc[otel]'"
        next_step = f"pip install {package}"
    except Exception as error:  # The exporter parses its variables, and raises what it likes.
        problem = str(error)
        next_step = "correct the variables OTEL_*"
    _log.warning("traces_off", error=problem, next_step=next_step)
    return None


def _otlp_exporter(environ: Mapping[str, str]) -> "SpanExporter":
    kind = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if kind != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER must be otlp or none, not {kind!r}")
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next(filter(None, map(environ.get, names)), "grpc")
    if protocol not in _PROTOCOLS:
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be grpc or http/protobuf, not {protocol!r}")
    module = import_module(f"opentelemetry.exporter.otlp.proto.{_PROTOCOLS[protocol]}.trace_exporter")
    return cast("SpanExporter", module.OTLPSpanExporter())


class Traces:
    """The spans of a process. Spans are exported in a thread of their own.

    Args:
        exporter: Exports the spans.
    """

    def __init__(self, exporter: "SpanExporter") -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context, attach, detach
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        own: dict[str, str | int] = {"service.version": version("idalloc"), "process.pid": os.getpid()}
        found = Resource.create()
        if str(found.attributes["service.name"]).startswith("unknown_service"):
            own["service.name"] = "idalloc"
        self._provider = TracerProvider(resource=found.merge(Resource(own)), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("idalloc", version("idalloc"))
        self._trace = trace
        self._attach = attach
        self._detach = detach
        self._root = Context()
        self._extract = TraceContextTextMapPropagator().extract

    def trace_call(
        self,
        method: str,
        handler: _Handler,
        fields_of: Callable[[Any], dict[str, Any]],
        metadata_of: Callable[[Any], Iterable[tuple[str, Any]]],
    ) -> _Handler:
        """Return a handler that runs ``handler`` in a span.

        Its parent is the caller's span, if the metadata names one.

        Args:
            method: The full name of the method, such as ``/idalloc.v1.NodeService/GetNode``.
            handler: The handler; it calls ``end_call``.
            fields_of: Returns the fields of a request that the span has.
            metadata_of: Reads the metadata of a call.
        """
        name = method.removeprefix("/")
        system = {"rpc.system.name": "grpc", "rpc.method": name}
        kind = self._trace.SpanKind.SERVER

        async def call(request: Any, context: Any) -> Any:
            carrier = {key: value for key, value in metadata_of(context) if key in ("traceparent", "tracestate")}
            parent = self._extract(carrier, self._root) if carrier else self._root
            fields = {f"idalloc.{key}": value for key, value in fields_of(request).items()}
            span = self._tracer.start_span(name, parent, kind, system | fields)
            token = self._attach(self._trace.set_span_in_context(span, parent))
            try:
                return await handler(request, context)
            finally:
                self._detach(token)
                span.end()

        return call

    def end_call(self, code: str) -> None:
        """Set the status of the current call's span."""
        span = self._trace.get_current_span()
        span.set_attribute("rpc.response.status_code", code)
        if code in _SERVER_FAULTS:
            span.set_attribute("error.type", code)
            span.set_status(self._trace.StatusCode.ERROR)

    def trace_write(self, method: _Method, name: str, address: str) -> _Method:
        """Return a method of a store in a span below that of the call that waits for the store."""
        system = {"sqlite": "sqlite", "crate": "cratedb"}.get(address.partition(":")[0], "other")
        attributes = {"db.system.name": system, "idalloc.store": address, "db.operation.name": name}

        async def write(*arguments: Any, **named: Any) -> Any:
            row = {"idalloc.row": arguments[0]} if arguments and isinstance(arguments[0], str) else {}
            with self._tracer.start_as_current_span(
                name,
                kind=self._trace.SpanKind.CLIENT,
                attributes=attributes | row,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    return await method(*arguments, **named)
                except BaseException as error:
                    span.set_attribute("error.type", type(error).__name__)
                    span.set_status(self._trace.StatusCode.ERROR, str(error))
                    raise

        return write

    async def close(self) -> None:
        """Export the last spans, for ``FLUSH_SECONDS`` at most."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # The loop is closed: nothing waits.
                loop.call_soon_threadsafe(ended.set)

        # A daemon: an exporter that hangs delays neither the stop nor the exit.
        Thread(target=shut_down, name="traces", daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), FLUSH_SECONDS)
        except TimeoutError:
            _log.warning("cleanup_failed", resource="spans", timeout=FLUSH_SECONDS)
