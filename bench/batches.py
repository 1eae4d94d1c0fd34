"""Allocations per second of BatchAllocateRanges, beside single calls, on SQLite.

python -m bench.batches [--transport native] [--seconds 5] [--requests 1000]

It prints both figures in one line.
"""

import argparse
import asyncio
import json
import tempfile
import time

import grpc

from bench.servers import running
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

SEQUENCES = 50
IN_FLIGHT = 4


async def _measure(address: str, size: int, seconds: float) -> dict[str, float]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        single = [pb.AllocateRangeRequest(sequence=f"s{n % SEQUENCES}", id_count=1) for n in range(size)]
        batch = pb.BatchAllocateRangesRequest(requests=single)
        counts = {"batches": 0, "single": 0, "failed": 0}

        async def call_many(until: float) -> None:
            while time.perf_counter() < until:
                reply = await stub.BatchAllocateRanges(batch)
                got = sum(each.HasField("response") for each in reply.results)
                counts["batches"] += got
                counts["failed"] += size - got

        async def call_one(until: float) -> None:
            while time.perf_counter() < until:
                await stub.AllocateRange(single[counts["single"] % size])
                counts["single"] += 1

        rates: dict[str, float] = {}
        for name, call in (("batches", call_many), ("single", call_one)):
            await asyncio.gather(*(call(time.perf_counter() + 1) for _ in range(IN_FLIGHT)))  # fills the leases
            counts[name], began = 0, time.perf_counter()
            await asyncio.gather(*(call(began + seconds) for _ in range(IN_FLIGHT)))
            rates[f"{name}_per_second"] = round(counts[name] / (time.perf_counter() - began))
        return rates | {"failed": counts["failed"]}


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", default="grpcio")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--listen=127.0.0.1:0", f"--store=sqlite://{folder}/ids.db", f"--transport={options.transport}"]
        with running("idalloc_server", *flags) as server:
            rates = asyncio.run(_measure(server.address, options.requests, options.seconds))
    print(json.dumps({"transport": options.transport, "requests": options.requests} | rates))


if __name__ == "__main__":
    _main()
