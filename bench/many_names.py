"""Many sequences, called in batches: part of `make bench-growth`.

10,000 sequences at one id a second each, and a million that are used once.
"""

import argparse
import asyncio
import gc
import json
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc

from bench import document, machine, many_names_table
from bench.growth import MEMORY, make_sequences
from bench.many_names_table import BATCH, MILLION, STEADY
from bench.servers import Server, prepare_to_drive, running
from bench.turns import percentile
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

# The store is locked for this long, again and again, with as long a pause; less than the server
# waits for a lock.
LOCKED_SECONDS = 3.0
# Names that are used once become idle, and their ids go back, while others are served.
_SHORT_LEASES = ("--lease-ttl=15s", "--outage-reserve=5s", "--store-timeout=5s")
_IDLE_SECONDS = 20.0


def batches(names: int) -> list[pb.BatchAllocateRangesRequest]:
    """Return requests for one id of each name."""
    single = [pb.AllocateRangeRequest(sequence=f"name-{number}") for number in range(names)]
    return [pb.BatchAllocateRangesRequest(requests=single[at : at + BATCH]) for at in range(0, names, BATCH)]


class Callers:
    """Makes the calls of a second, evenly spread, again and again."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.latencies: list[float] = []
        self.failed = 0  # requests without ids

    @asynccontextmanager
    async def calling(self, requests: Sequence[pb.BatchAllocateRangesRequest]) -> AsyncIterator[None]:
        """Make the calls until the end of the block."""
        async with grpc.aio.insecure_channel(self._address) as channel, asyncio.TaskGroup() as tasks:
            stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)

            async def call(request: pb.BatchAllocateRangesRequest) -> None:
                began = time.perf_counter()
                reply = await stub.BatchAllocateRanges(request, timeout=60)
                self.latencies.append(time.perf_counter() - began)
                self.failed += sum(each.HasField("error") for each in reply.results)

            async def call_again_and_again() -> None:
                due = time.perf_counter()
                while True:
                    for request in requests:
                        await asyncio.sleep(max(0.0, due - time.perf_counter()))
                        tasks.create_task(call(request))
                        due += 1 / len(requests)

            calls = tasks.create_task(call_again_and_again())
            yield
            calls.cancel()


async def lock_again_and_again(path: Path) -> None:
    """Hold the write lock of a SQLite file for half of the time, until cancelled."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)) as db:
        while True:
            await asyncio.to_thread(db.execute, "BEGIN IMMEDIATE")
            try:
                await asyncio.sleep(LOCKED_SECONDS)
            finally:
                db.execute("ROLLBACK")
            await asyncio.sleep(LOCKED_SECONDS)


def writes(path: Path) -> int:
    """Return how often idalloc has written rows of sequences."""
    with closing(sqlite3.connect(path, timeout=30)) as db:
        return int(db.execute("SELECT sum(writes) FROM sequences").fetchone()[0])


async def measure_steady(server: Server, path: Path, warm_up: float, seconds: float, locked: float) -> dict[str, Any]:
    """Return what the sequences at a steady rate cost."""
    callers, requests = Callers(server.address), batches(STEADY)
    gc.collect()
    gc.freeze()  # or a collection here would look like a long call
    async with callers.calling(requests):
        await asyncio.sleep(warm_up)
        first = max(callers.latencies)
        callers.latencies, cpu, began = [], server.cpu_seconds, time.perf_counter()
        before = await asyncio.to_thread(writes, path)
        await asyncio.sleep(seconds)
        elapsed, refills = time.perf_counter() - began, await asyncio.to_thread(writes, path) - before
        found: dict[str, Any] = {
            "cpu": (server.cpu_seconds - cpu) / elapsed * 100,
            "refills": refills / elapsed,
            "first": first,
        }
        found |= {"longest": max(callers.latencies), "p99": percentile(callers.latencies, 99)}
        callers.latencies = []
        lock = asyncio.create_task(lock_again_and_again(path))
        await asyncio.sleep(locked)
        lock.cancel()
        await asyncio.wait([lock])
        found["locked"] = max(callers.latencies)
    return found | {"failed": callers.failed, "memory": server.resident_mb}


async def use_once(address: str, names: int, until: float) -> int:
    """Take an id of each name, at most until the time is over; return how many were served."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        served = 0
        for request in batches(names):
            if time.monotonic() > until:
                break
            reply = await stub.BatchAllocateRanges(request, timeout=60)
            served += sum(each.HasField("response") for each in reply.results)
        await asyncio.sleep(_IDLE_SECONDS)
    return served


@contextmanager
def _serving(path: Path, *flags: str) -> Iterator[Server]:
    with running("idalloc_server", "--listen=127.0.0.1:0", f"--store=sqlite://{path}", *flags) as server:
        yield server


def measure(warm_up: float, seconds: float, locked: float, names: int, name_seconds: float) -> dict[str, Any]:
    """Measure both, one after the other."""
    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK)), "ids.db")
        with _serving(disk) as server:
            found = asyncio.run(measure_steady(server, disk, warm_up, seconds, locked))
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)), "ids.db")
        make_sequences(memory, MILLION)
        began = time.perf_counter()
        with _serving(memory, *_SHORT_LEASES) as server:
            found["start"] = time.perf_counter() - began
            found["served"] = asyncio.run(use_once(server.address, names, time.monotonic() + name_seconds))
            found["idle_memory"] = server.resident_mb
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--warm-up", type=float, default=125.0, help="from 122 s on each name has a refill in 24 s")
    parser.add_argument("--seconds", type=float, default=48.0, help="how long CPU and calls are measured")
    parser.add_argument("--locked", type=float, default=30.0, help="how long calls are measured beside the lock")
    parser.add_argument("--names", type=int, default=MILLION, help="maximum number of names to use once")
    parser.add_argument("--name-seconds", type=float, default=300.0, help="maximum time for that")
    parser.add_argument("--output", type=Path, default=document.MANY_NAMES)
    chosen = parser.parse_args()
    options = {"warm_up": chosen.warm_up, "seconds": chosen.seconds, "locked": chosen.locked}
    result: dict[str, Any] = {"machine": machine.describe(), **options}
    prepare_to_drive()
    result["found"] = measure(**options, names=chosen.names, name_seconds=chosen.name_seconds)
    print(many_names_table.section(result))
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(result, indent=2) + "\n")
    document.write()


if __name__ == "__main__":
    main()
