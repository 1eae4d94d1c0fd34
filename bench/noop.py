"""The upper limit: a server on uvloop that answers AllocateRange and AllocateStream with constants.

python -m bench.noop [--transport native]    prints its address and serves until it is stopped.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import uvloop

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from idalloc_server.listen.transport import make_server

# It has the fields of a first reply and the size of a later one.
_REPLY = pb.AllocateRangeResponse(
    range=pb.IdRange(first_id=2_000_000, last_id=2_000_000, step=1, id_count=1),
    generation=1,
    ordering=pb.ORDERING_RISING_PER_NODE,
)
_REPLY.ttl.FromMicroseconds(179_123_456)
_ANSWER = pb.AllocateStreamResponse(number=1, allocate_range=_REPLY)


class _Noop(id_allocator_pb2_grpc.IdAllocatorServiceServicer):
    async def AllocateRange(
        self, request: pb.AllocateRangeRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.AllocateRangeResponse:
        return _REPLY

    async def AllocateStream(  # type: ignore[override]  # writes, as the server's handler does
        self,
        requests: AsyncIterator[pb.AllocateStreamRequest],
        context: grpc.aio.ServicerContext[object, object],
    ) -> None:
        async for _ in requests:
            await context.write(_ANSWER)


async def _serve(transport: str) -> None:
    server = make_server(transport, reuse_port=False)
    id_allocator_pb2_grpc.add_IdAllocatorServiceServicer_to_server(_Noop(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"address": f"127.0.0.1:{port}"}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", default="grpcio")
    uvloop.run(_serve(parser.parse_args().transport))
