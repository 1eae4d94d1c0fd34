"""A collector of OpenTelemetry traces: receives OTLP over gRPC, as a real one does."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc


class Span(NamedTuple):
    """A received span; its ids are hexadecimal."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Receives spans on a free port of loopback, and keeps them unless ``keep`` is false."""

    def __init__(self, *, keep: bool = True) -> None:
        self.spans: list[Span] = []
        self._keep = keep
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(self, request: Any, context: Any) -> Any:
        for each in request.resource_spans if self._keep else ():
            resource = _values(each.resource.attributes)
            for span in (span for scope in each.scope_spans for span in scope.spans):
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                self.spans.append(Span(span.name, span.kind, *ids, _values(span.attributes), resource))
        return pb.ExportTraceServiceResponse()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop(None).wait()


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
