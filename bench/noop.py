"""The upper limit: a server on uvloop that answers AllocateRange and AllocateStream with constants.

python -m bench.noop [--transport native] [--layer]    prints its address, and serves until stopped

With --layer, the layer of idalloc's server is around the handlers: it decodes, counts and checks a
call. Without it, grpcio and the message classes do all.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.store.store_calls import StoreHealth
from idalloc_server.listen.grpcio import GRPCIO
from idalloc_server.listen.transport import TRANSPORTS, make_server
from idalloc_server.node import garbage
from idalloc_server.rpc.calls import CallLayer
from idalloc_server.rpc.draining import Draining
from idalloc_server.rpc.server import add_service
from idalloc_server.telemetry.metrics import CallMetrics

# It has the fields of a first reply and the size of a later one.
REPLY = pb.AllocateRangeResponse(
    range=pb.IdRange(first_id=2_000_000, last_id=2_000_000, step=1, id_count=1),
    generation=1,
    ordering=pb.ORDERING_RISING_PER_NODE,
)
REPLY.ttl.FromMicroseconds(179_123_456)
_ANSWER = pb.AllocateStreamResponse(number=1, allocate_range=REPLY)


class _Noop(id_allocator_pb2_grpc.IdAllocatorServiceServicer):
    descriptor = pb.DESCRIPTOR.services_by_name["IdAllocatorService"]

    async def AllocateRange(self, request: pb.AllocateRangeRequest, context: Any) -> pb.AllocateRangeResponse:
        return REPLY

    # It writes, as the server's handler does. The layer passes ``admit``.
    async def AllocateStream(  # type: ignore[override]
        self, requests: AsyncIterator[pb.AllocateStreamRequest], context: Any, admit: Any = None
    ) -> None:
        async for _ in requests:
            await context.write(_ANSWER)


def _add_bare(server: grpc.aio.Server, servicer: Any, *, registered: bool) -> None:
    """Add the handlers in the same way as the server does."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "AllocateRange": grpc.unary_unary_rpc_method_handler(
            servicer.AllocateRange, pb.AllocateRangeRequest.FromString, pb.AllocateRangeResponse.SerializeToString
        ),
        "AllocateStream": grpc.stream_stream_rpc_method_handler(
            servicer.AllocateStream, pb.AllocateStreamRequest.FromString, pb.AllocateStreamResponse.SerializeToString
        ),
    }
    name = servicer.descriptor.full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    if registered:
        server.add_registered_method_handlers(name, methods)


def _add_layer(server: grpc.aio.Server, servicer: Any, *, registered: bool) -> None:
    metrics = CallMetrics()
    access_control = AccessControl(SystemClock(), max_ids_per_call=1)
    calls = CallLayer(metrics, Draining(metrics), access_control, StoreHealth(), transport=GRPCIO, log_each=False)
    add_service(server, calls.service(servicer), registered=registered)


async def _serve(transport: str, has_layer: bool) -> None:
    server = make_server(transport, reuse_port=False)
    add = _add_layer if has_layer else _add_bare
    add(server, _Noop(), registered=TRANSPORTS[transport].needs_registered_methods)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    garbage.freeze()  # as the server does
    print(json.dumps({"address": f"127.0.0.1:{port}"}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", default="grpcio")
    parser.add_argument("--layer", action="store_true")
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.transport, arguments.layer))
