"""Measure speed and memory: `make load`.

Ratios are medians over rounds in which the contenders take turns, since single figures of a shared
machine vary. Each server is a process. ghz makes the unary calls if it is on the PATH. Otherwise
Python clients do, which are slower than the servers and so improve the ratio; the report names the
driver.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import grpc

import idalloc
from bench.refill_costs import measure_refills
from bench.servers import Server, running
from bench.streams import measure_streams
from bench.witness import measure_witness
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

CONCURRENCY = 64
CONNECTIONS = 4
TRANSPORTS = ("grpcio", "native")
# The minimum share of the no-op server's calls, and the maximum of its latency.
TARGETS = {"grpcio": 0.90, "native": 0.80}
LATENCY_TARGET = 1.15


class Unary(NamedTuple):
    """The result of unary calls."""

    rate: float  # calls a second
    median: float  # median latency, in seconds


def unary_with_ghz(address: str, calls: int, concurrency: int) -> Unary:
    """Make unary calls with ghz, which uses less CPU than the servers."""
    flags = {
        "config": "examples/ghz/allocate_range_flat.json",
        "proto": "protos/idalloc/v1/id_allocator.proto",  # the no-op server has no reflection
        "import-paths": "protos,third_party/googleapis",
        "connections": min(CONNECTIONS, concurrency),
        "concurrency": concurrency,
        "total": calls,
        "format": "json",
    }
    command = ["ghz", *(f"--{name}={value}" for name, value in flags.items()), address]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["statusCodeDistribution"] == {"OK": calls}, report["statusCodeDistribution"]
    [median] = [each["latency"] for each in report["latencyDistribution"] if each["percentage"] == 50]
    return Unary(float(report["rps"]), median / 1e9)


def unary_with_python(address: str, calls: int, concurrency: int) -> Unary:
    """Make unary calls with grpc.aio, which uses more CPU than the servers."""

    async def drive() -> Unary:
        channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(min(CONNECTIONS, concurrency))
        ]
        stubs = [id_allocator_pb2_grpc.IdAllocatorServiceStub(channel) for channel in channels]
        request = pb.AllocateRangeRequest(sequence="load")
        latencies: list[float] = []

        async def call_in_turn(n: int) -> None:
            for _ in range(calls // concurrency):
                before = time.perf_counter()
                await stubs[n % len(stubs)].AllocateRange(request)
                latencies.append(time.perf_counter() - before)

        began = time.perf_counter()
        await asyncio.gather(*(call_in_turn(n) for n in range(concurrency)))
        seconds = time.perf_counter() - began
        for channel in channels:
            await channel.close()
        return Unary(calls / seconds, statistics.median(latencies))

    return asyncio.run(drive())


def leased_rate(address: str, calls: int) -> float:
    """Return how many unary calls a second are served from leases."""
    drive = unary_with_ghz if shutil.which("ghz") else unary_with_python
    return drive(address, calls, CONCURRENCY).rate


class Contender:
    """A server that takes turns with others, and its results."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.results: list[Unary] = []
        self.costs: list[float] = []

    def take_turn(self, drive: Callable[[str, int, int], Unary], calls: int, concurrency: int) -> None:
        """Serve some calls."""
        before = self._server.cpu_seconds
        self.results.append(drive(self._server.address, calls, concurrency))
        self.costs.append((self._server.cpu_seconds - before) / calls)

    def forget(self) -> None:
        """Discard the results of the first turn, in which leases grow and caches fill."""
        self.results.clear()
        self.costs.clear()


def ratio(above: Iterable[float], below: Iterable[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def measure_unary(servers: Mapping[str, tuple[Server, Server]], rounds: int, calls: int) -> None:
    """Compare AllocateRange of a whole server with a no-op server on the same transport."""
    drive = unary_with_ghz if shutil.which("ghz") else unary_with_python
    contenders = {
        name: Contender(server)
        for transport, pair in servers.items()
        for name, server in zip((transport, f"no-op {transport}"), pair, strict=True)
    }
    for concurrency, each_calls in ((CONCURRENCY, calls), (1, calls // 10)):
        for turn in range(rounds + 1):
            for contender in contenders.values():
                contender.take_turn(drive, each_calls, concurrency)
                if turn == 0:
                    contender.forget()
        print(f"unary AllocateRange, {concurrency} in flight, driven by {drive.__name__.rpartition('_')[2]}:")
        for name, contender in contenders.items():
            rate = statistics.median(result.rate for result in contender.results)
            median = statistics.median(result.median for result in contender.results)
            cost = statistics.median(contender.costs)
            print(f"  {name:12} {rate:8,.0f} calls/s  p50 {median * 1e3:6.2f} ms  {cost * 1e6:5.0f} us of CPU a call")
        for transport in servers:
            report_unary(transport, contenders[transport], contenders[f"no-op {transport}"], concurrency)
        if concurrency > 1 and len(servers) > 1:
            grpcio, native = (contenders[transport] for transport in TRANSPORTS)
            rates = ratio(*([result.rate for result in one.results] for one in (native, grpcio)))
            report("unary calls/s native / grpcio", rates, 4)
        for contender in contenders.values():
            contender.forget()


def report_unary(transport: str, ours: Contender, noop: Contender, concurrency: int) -> None:
    """Print the figures of a server relative to the no-op server."""
    if concurrency == 1:
        latency = ratio(*([result.median for result in one.results] for one in (ours, noop)))
        report(f"{transport}: p50 / no-op server's", latency, LATENCY_TARGET, most=True)
        return
    target = TARGETS[transport]
    rate = ratio(*([result.rate for result in one.results] for one in (ours, noop)))
    report(f"{transport}: calls/s / no-op server's", rate, target)
    report(f"{transport}: no-op server's CPU / ours", ratio(noop.costs, ours.costs), target)


def measure_doc_ids(server: Server, rounds: int, total: int) -> None:
    """Measure StreamDocIds with texts, decoded by a Python client."""
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
    """Measure Client.ids(), one by one."""
    rates = []
    with idalloc.Client(server.address) as client:
        for _ in range(rounds):
            began = time.perf_counter()
            received = sum(1 for _ in islice(client.ids("client"), total))
            rates.append(received / (time.perf_counter() - began))
    print("Client.ids(), one thread:")
    report("ids/s", statistics.median(rates), 5e6)


def report(what: str, value: float, target: float, most: bool = False) -> None:
    """Print a figure beside its target."""
    met = value <= target if most else value >= target
    digits = f"{value:,.2f}" if value < 1_000 else f"{value:,.0f}"
    print(f"  {what:36} {digits:>12}   target {'<=' if most else '>='} {target:,g}  {'met' if met else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20_000, help="unary calls a round")
    parser.add_argument("--transport", choices=TRANSPORTS, help="measure only this transport; default: both")
    parser.add_argument("--only", choices=("unary", "streams"), help="measure only these calls")
    parser.add_argument("--total", type=int, default=10_000_000, help="ids a round of the other scenarios")
    parser.add_argument("--against", type=Path, help="compare the CPU time of refills with this other checkout")
    arguments = parser.parse_args()
    if not arguments.only:
        measure_refills(3 * arguments.rounds, arguments.against)
    transports = [arguments.transport] if arguments.transport else TRANSPORTS
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:

        def pair(transport: str) -> tuple[Server, Server]:
            chosen = f"--transport={transport}"
            store = f"--store=sqlite://{folder}/{transport}.db"
            ours = running("idalloc_server", "--listen=127.0.0.1:0", store, "--log-level=info", chosen)
            return stack.enter_context(ours), stack.enter_context(running("bench.noop", chosen))

        servers = {transport: pair(transport) for transport in transports}
        if arguments.only != "streams":
            for transport, (server, _) in servers.items():
                report(f"resident memory when idle, MB, {transport}", server.resident_mb, 90, most=True)
            measure_unary(servers, arguments.rounds, arguments.calls)
            chosen = f"--transport={transports[0]}"
            witness, store = f"--witness=sqlite://{folder}/witness.db", f"--store=sqlite://{folder}/witnessed.db"
            witnessed = stack.enter_context(running("idalloc_server", "--listen=127.0.0.1:0", store, witness, chosen))
            by_name = {"without": servers[transports[0]][0], "SQLite, same disk": witnessed}
            measure_witness(by_name, leased_rate, arguments.rounds, arguments.calls)
        if arguments.only != "unary":
            for figure in measure_streams(*servers[transports[0]], arguments.rounds, arguments.calls):
                report(*figure)
        if not arguments.only:
            for transport, (server, _) in servers.items():
                print(f"On {transport}:")
                measure_doc_ids(server, arguments.rounds, arguments.total)
                measure_client_ids(server, arguments.rounds, arguments.total)


if __name__ == "__main__":
    main()
