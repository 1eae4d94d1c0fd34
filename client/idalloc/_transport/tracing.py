"""W3C trace context: the server's spans belong to the caller's trace."""

import sys

_Metadata = tuple[tuple[str, str], ...]


def with_trace_context(metadata: _Metadata | None) -> _Metadata | None:
    """Return a call's metadata with the trace context of the active OpenTelemetry span, if any.

    OpenTelemetry is not imported: without the program's own import no span is active.
    """
    if "opentelemetry.trace" not in sys.modules:
        return metadata
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not get_current_span().get_span_context().is_valid:
        return metadata
    context: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(context)
    return (*(metadata or ()), *context.items())
