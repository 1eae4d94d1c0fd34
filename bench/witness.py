"""What a witness costs: calls from leases, and first uses of sequences."""

import asyncio
import time
from collections.abc import Callable
from itertools import count
from statistics import median

import grpc

from bench.servers import Server
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

_numbers = count()


def first_uses(address: str, calls: int, concurrency: int) -> float:
    """Return the first uses of sequences a second, with this many calls in flight."""

    async def drive() -> float:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)

            async def call_in_turn() -> None:
                for _ in range(calls // concurrency):
                    await stub.AllocateRange(pb.AllocateRangeRequest(sequence=f"first-{next(_numbers)}"))

            began = time.perf_counter()
            await asyncio.gather(*(call_in_turn() for _ in range(concurrency)))
            return calls / (time.perf_counter() - began)

    return asyncio.run(drive())


def measure_witness(servers: dict[str, Server], leased: Callable[[str, int], float], rounds: int, calls: int) -> None:
    """Compare a server without a witness, the first one, with servers that have one.

    Args:
        servers: The servers by their names in the report.
        leased: Returns the calls a second that a server serves from leases, by its address and a
            number of calls.
        rounds: How often the servers take turns.
        calls: Calls a turn.
    """
    drivers: dict[str, Callable[[str, int], float]] = {
        "calls from leases, a second": leased,
        "first uses, 1 in flight": lambda address, calls: first_uses(address, calls // 20, 1),
        "first uses, 64 in flight": lambda address, calls: first_uses(address, calls // 5, 64),
    }
    print("with a witness, and without:")
    for what, drive in drivers.items():
        rates: dict[str, list[float]] = {name: [] for name in servers}
        for turn in range(rounds + 1):
            for name, server in servers.items():
                rate = drive(server.address, calls)
                if turn:  # leases grow in the first one
                    rates[name].append(rate)
        plain = next(iter(rates.values()))
        for name, each in rates.items():
            share = median(one / other for one, other in zip(each, plain, strict=True))
            print(f"  {what:28} {name:22} {median(each):9,.0f}   {share:5.2f} of without")
