"""Measures what the README says of speed and memory: `make load`.

Ratios are medians over rounds in which the contenders take turns, since single figures of a shared machine mean
little. Servers are processes of their own; unary calls are made by ghz where it is on the PATH, else by
Python clients, which are slower than the servers and so flatter the ratio: the report says which.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import grpc

import idalloc
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

CONCURRENCY = 64
CONNECTIONS = 4


class Server:
    """A server process under load."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_mb(self) -> float:
        """Resident memory in megabytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


@contextmanager
def running(*command: str) -> Iterator[Server]:
    """Starts a server that prints its address, and ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout
        address = process.stdout.readline().split("serves on ")[1].split(",")[0].strip()
        yield Server(process, address)
    finally:
        process.terminate()
        process.wait(timeout=30)


def unary_with_ghz(address: str, calls: int) -> float:
    """Returns calls a second."""
    flags = {
        "config": "examples/ghz/allocate_range_flat.json",
        "proto": "protos/idalloc/v1/id_allocator.proto",  # the no-op server has no reflection
        "import-paths": "protos,.venv/googleapis",
        "connections": CONNECTIONS,
        "concurrency": CONCURRENCY,
        "total": calls,
        "format": "json",
    }
    command = ["ghz", *(f"--{name}={value}" for name, value in flags.items()), address]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["statusCodeDistribution"] == {"OK": calls}, report["statusCodeDistribution"]
    return float(report["rps"])


def unary_with_python(address: str, calls: int) -> float:
    """Returns calls a second."""

    async def drive() -> float:
        channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CONNECTIONS)
        ]
        stubs = [id_allocator_pb2_grpc.IdAllocatorServiceStub(channel) for channel in channels]
        request = pb.AllocateRangeRequest(sequence="load")

        async def call_in_turn(n: int) -> None:
            for _ in range(calls // CONCURRENCY):
                await stubs[n % CONNECTIONS].AllocateRange(request)

        began = time.perf_counter()
        await asyncio.gather(*(call_in_turn(n) for n in range(CONCURRENCY)))
        seconds = time.perf_counter() - began
        for channel in channels:
            await channel.close()
        return calls / seconds

    return asyncio.run(drive())


def measure_unary(idalloc_server: Server, noop: Server, rounds: int, calls: int) -> None:
    """AllocateRange with all layers on, against a server that does nothing."""
    drive: Callable[[str, int], float] = unary_with_ghz if shutil.which("ghz") else unary_with_python
    results: dict[str, list[float]] = {"idalloc": [], "noop": []}
    costs: dict[str, list[float]] = {"idalloc": [], "noop": []}
    for _ in range(rounds + 1):
        for name, server in (("idalloc", idalloc_server), ("noop", noop)):
            cpu = server.cpu_seconds
            results[name].append(drive(server.address, calls))
            costs[name].append((server.cpu_seconds - cpu) / calls)
    # The first round warms up: leases grow, caches fill.
    rate, cost = ({name: statistics.median(each[1:]) for name, each in of.items()} for of in (results, costs))
    rates, cpus = (
        statistics.median(a / b for a, b in list(zip(over, under, strict=True))[1:])
        for over, under in ((results["idalloc"], results["noop"]), (costs["noop"], costs["idalloc"]))
    )
    print(f"unary AllocateRange, {CONCURRENCY} in flight, driven by {drive.__name__.rpartition('_')[2]}:")
    for name in rate:
        print(f"  {name:8} {rate[name]:8,.0f} calls/s  {cost[name] * 1e6:6.0f} us of the server's CPU a call")
    report("unary calls/s / no-op server's", rates, 0.85)
    report("no-op server's CPU a call / ours", cpus, 0.85)


def measure_doc_ids(server: Server, rounds: int, total: int) -> None:
    """StreamDocIds as strings, decoded by a Python client."""
    walls, cpus = [], []
    with grpc.insecure_channel(server.address) as channel:
        stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        for _ in range(rounds):
            cpu, began, received = server.cpu_seconds, time.perf_counter(), 0
            request = pb.StreamDocIdsRequest(total_id_count=total, view=pb.DOC_ID_VIEW_IDS)
            for reply in stub.StreamDocIds(request):
                received += len(reply.doc_ids)
            assert received == total
            walls.append(total / (time.perf_counter() - began))
            cpus.append(total / (server.cpu_seconds - cpu))
    print("StreamDocIds as strings:")
    report("ids/s that the client received", statistics.median(walls), 3e6)
    report("ids a second of the server's CPU", statistics.median(cpus), 3e6)


def measure_client_ids(server: Server, rounds: int, total: int) -> None:
    """One by one through Client.ids()."""
    rates = []
    with idalloc.Client(server.address) as client:
        for _ in range(rounds):
            began = time.perf_counter()
            received = sum(1 for _ in islice(client.ids("client"), total))
            rates.append(received / (time.perf_counter() - began))
    print("Client.ids(), one thread:")
    report("ids/s", statistics.median(rates), 5e6)


def report(what: str, value: float, target: float, most: bool = False) -> None:
    """Prints a figure beside its target."""
    met = value <= target if most else value >= target
    digits = f"{value:,.2f}" if value < 1_000 else f"{value:,.0f}"
    print(f"  {what:36} {digits:>12}   target {'<=' if most else '>='} {target:,g}  {'met' if met else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20_000, help="unary calls a round")
    parser.add_argument("--total", type=int, default=10_000_000, help="ids a round of the other scenarios")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        serve = ("idalloc_server", "--listen=127.0.0.1:0", f"--store=sqlite://{folder}/load.db", "--log-level=info")
        with running(*serve) as server, running("tests.load.noop") as noop:
            print("An idle server:")
            report("resident memory, MB", server.resident_mb, 90, most=True)
            measure_unary(server, noop, arguments.rounds, arguments.calls)
            measure_doc_ids(server, arguments.rounds, arguments.total)
            measure_client_ids(server, arguments.rounds, arguments.total)


if __name__ == "__main__":
    main()
