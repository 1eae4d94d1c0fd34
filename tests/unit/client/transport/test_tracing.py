"""Both clients send the trace context of the active span."""

import subprocess
import sys

from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import idalloc
from tests.support.fake_server import FakeServer

SPAN = NonRecordingSpan(SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, False, TraceFlags(1)))
SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RPCS = ("AllocateRange", "StreamRanges", "StreamDocIds", "GetNode")


def test_the_client_sends_the_trace_context(server: FakeServer) -> None:
    """Unary calls, prefetches and streams send the active span's context, besides the token."""
    with idalloc.Client(server.target, token="secret", insecure=True) as client, use_span(SPAN):
        client.allocate_range("orders")
        next(iter(client.ids("others")))
        assert len([*client.stream_ranges("orders", 5, 2)]) == 3
        assert len([*client.stream_doc_ids(5, 2)]) == 3
        client.node()
    assert {name: {*server.traceparents[name]} for name in RPCS} == {name: {SENT} for name in RPCS}
    assert {*server.authorizations["AllocateRange"]} == {"Bearer secret"}


async def test_the_asyncio_client_sends_the_trace_context(server: FakeServer) -> None:
    """Unary calls, coalesced ones and streams send the active span's context."""
    async with idalloc.aio.Client(server.target) as client:
        with use_span(SPAN):
            await client.allocate_range("orders")
            await anext(client.ids("others"))
            assert len([each async for each in client.stream_ranges("orders", 5, 2)]) == 3
            assert len([each async for each in client.stream_doc_ids(5, 2)]) == 3
            await client.node()
    assert {name: {*server.traceparents[name]} for name in RPCS} == {name: {SENT} for name in RPCS}


def test_no_span_sends_no_trace_context(server: FakeServer) -> None:
    """Without an active span the metadata is unchanged."""
    with idalloc.Client(server.target) as client:
        client.allocate_range("orders")
    assert server.traceparents["AllocateRange"] == [None]


def test_the_client_does_not_import_opentelemetry(server: FakeServer) -> None:
    """A program that does not use OpenTelemetry does not load it."""
    program = (
        "import sys, idalloc\n"
        f"with idalloc.Client({server.target!r}) as client: client.allocate_range('orders')\n"
        "sys.exit('opentelemetry' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
