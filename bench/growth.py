"""Measure what grows with work: `make bench-growth`.

Memory and start time by sequences, store calls by nodes on one sequence, store writes of up to
1,000 nodes in simulated time, calls by open connections.
"""

import argparse
import asyncio
import json
import resource
import socket
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import uvloop

from bench import document, drivers, machine
from bench.markdown import number
from bench.scale import simulate
from bench.servers import Server, prepare_to_drive, running
from bench.turns import Contender, median, take_turns
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.sequences.sequence import Sequence as Settings
from idalloc_server.domain.store.records import Grant, Row
from idalloc_server.store.sqlite.store import SqliteStore

SEQUENCES = (1, 10_000, 1_000_000)
NODES = (1, 2, 5, 10, 20, 50)
CONNECTIONS = (1, 10, 100, 1_000)
STARTS = 3
IN_FLIGHT = 64
# Calls a second of each simulated node, for one id each.
CALLS_A_NODE = 100
# For the memory of served names: without a disk, a thousand times as many fit into the time.
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else machine.DISK


def make_sequences(path: Path, count: int) -> None:
    """Create a store with ``count`` copies of a sequence that idalloc wrote."""

    async def first() -> None:
        store = SqliteStore(path, SystemClock())
        await store.open()
        await store.create(Row("name-0", 0, Settings(), revised_by="bench", created_at=time.time()))
        await store.close()

    asyncio.run(first())
    db = sqlite3.connect(path)
    db.row_factory = sqlite3.Row
    columns = db.execute("SELECT * FROM sequences").fetchone().keys()
    others = ", ".join(column for column in columns if column != "name")
    db.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count})"
        f" INSERT INTO sequences (name, {others}) SELECT 'name-' || i, {others} FROM n, sequences"
        f" WHERE sequences.name = 'name-0' AND {count} > 1"
    )
    db.commit()
    db.close()


def serve_names(address: str, count: int, until: float) -> int:
    """Take an id of each sequence until the time is over; return the number of sequences."""

    async def drive() -> int:
        numbers = iter(range(count))
        served = 0
        async with grpc.aio.insecure_channel(address) as channel:
            stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)

            async def work() -> None:
                nonlocal served
                for number in numbers:
                    if time.monotonic() > until:
                        return
                    await stub.AllocateRange(pb.AllocateRangeRequest(sequence=f"name-{number}"), timeout=30)
                    served += 1

            await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        return served

    return asyncio.run(drive())


def measure_sequences(names: int, seconds: float) -> Iterator[Sequence[str]]:
    """Yield start time and memory for each number of stored sequences, before and after serving."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK)))
        # The server of many names has its store in memory, and keeps its leases.
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        for count in SEQUENCES:
            times, resident = [], 0.0
            make_sequences(folder / f"{count}.db", count)
            for _ in range(STARTS):
                began = time.perf_counter()
                with _serving(folder / f"{count}.db") as server:
                    times.append(time.perf_counter() - began)
                    resident = server.resident_mb
            wanted = min(count, names)
            make_sequences(memory / f"{count}.db", wanted)
            with _serving(memory / f"{count}.db", "--lease-ttl=1h") as server:
                served = serve_names(server.address, wanted, time.monotonic() + seconds)
                after = server.resident_mb
            yield (
                f"{count:,}",
                f"{statistics.median(times):.2f}",
                f"{resident:.0f}",
                f"{served:,}",
                f"{after:.0f}",
                f"{max(after - resident, 0) * 1e3 / served:.1f}" if served >= 1_000 else "-",
            )


class _Counted:
    """A store that counts its grants, by sequence."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.grants: dict[str, int] = {}

    async def grant(self, name: str, wanted: int, lease_ms: int, *floor: Any) -> Grant | None:
        self.grants[name] = self.grants.get(name, 0) + 1
        return await self._store.grant(name, wanted, lease_ms, *floor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def count_store_calls(path: Path, warm_up: float, seconds: float) -> list[Sequence[str]]:
    """Run all numbers of nodes concurrently, each on its own sequence."""
    clock, counted = SystemClock(), _Counted(SqliteStore(path, SystemClock()))
    await counted.open()
    allocation_config = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
    waited: dict[int, int] = dict.fromkeys(NODES, 0)
    issued: dict[int, int] = dict.fromkeys(NODES, 0)

    async def node(count: int, allocator: Allocator, until: float) -> None:
        begin = due = clock.boot()
        while due < until:
            taken = allocator.issue_now(f"nodes-{count}", 1)
            if taken is None:
                await allocator.issue(f"nodes-{count}", 1)
            if due >= begin + warm_up:
                issued[count] += 1
                waited[count] += taken is None
            due += 1 / CALLS_A_NODE
            await asyncio.sleep(max(0.0, due - clock.boot()))

    allocators = {count: [Allocator(counted, clock, allocation_config) for _ in range(count)] for count in NODES}
    until = clock.boot() + warm_up + seconds
    running_nodes = asyncio.gather(
        *(node(count, one, until) for count, several in allocators.items() for one in several)
    )
    await asyncio.sleep(warm_up)
    before = dict(counted.grants)
    await running_nodes
    rows: list[Sequence[str]] = []
    for count, several in allocators.items():
        writes = counted.grants[f"nodes-{count}"] - before.get(f"nodes-{count}", 0)
        row = (writes / seconds, writes / seconds / count, issued[count] / seconds)
        rows.append((f"{count}", *(number(value) for value in row), f"{waited[count]:,}"))
        await asyncio.gather(*(one.return_leases() for one in several))
    await counted.close()
    return rows


@contextmanager
def idle_connections(address: str, count: int) -> Iterator[None]:
    """Open connections that have exchanged HTTP/2 settings, as before a first call."""
    host, _, port = address.rpartition(":")
    settings, acknowledged = (bytes((0, 0, 0, 4, flags, 0, 0, 0, 0)) for flags in (0, 1))
    with ExitStack() as stack:
        every = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection((host, int(port)), 10))
            one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
            every.append(one)
        for one in every:
            if not one.recv(4096):
                raise RuntimeError("the server closed a connection")
            one.sendall(acknowledged)
        yield


def measure_connections(rounds: int, seconds: float) -> Iterator[Sequence[str]]:
    """Yield calls a second and memory for each number of connections, by transport."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK)))
        contenders: dict[tuple[str, int], Contender] = {}
        memory: dict[tuple[str, int], float] = {}

        def drive(transport: str, count: int, server: Server, seconds: float) -> Any:
            used = min(count, IN_FLIGHT)
            with idle_connections(server.address, count - used):
                turn = drivers.unary(server.address, seconds, IN_FLIGHT, connections=used)
                memory[transport, count] = server.resident_mb
            return turn

        for transport in ("grpcio", "native"):
            server = stack.enter_context(_serving(folder / f"{transport}.db", f"--transport={transport}"))
            for count in CONNECTIONS:
                turn = partial(drive, transport, count, server)
                contenders[transport, count] = Contender(transport, turn, IN_FLIGHT, drivers.UNARY_DRIVER)
        take_turns(list(contenders.values()), rounds, seconds, time.monotonic() + 90)
        for (transport, count), each in contenders.items():
            figures = (("rate", 1), ("p50", 1e3), ("p99", 1e3))
            if not each.turns:
                yield transport, f"{count:,}", f"did not run: {each.failures[-1]}", "-", "-", "-"
                continue
            rate, p50, p99 = (number(median(each.turns.values(), name), times) for name, times in figures)
            yield transport, f"{count:,}", rate, p50, p99, f"{memory[transport, count]:.0f}"


@contextmanager
def _serving(path: Path, *flags: str) -> Iterator[Server]:
    with running("idalloc_server", "--listen=127.0.0.1:0", f"--store=sqlite://{path}", *flags) as server:
        yield server


def _part(title: str, about: str, head: Sequence[str], measure: Callable[[], Any]) -> dict[str, Any]:
    """Measure a part; keep the rows before a failure."""
    rows: list[Sequence[str]] = []
    failure = ""
    try:
        rows.extend(measure())
    except Exception as error:  # The document shows it.
        failure = f"{type(error).__name__}: {error}"
    part = {"title": title, "about": about, "head": head, "rows": rows, "failure": failure}
    print(document.growth({"parts": [part]}), flush=True)
    return part


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--names", type=int, default=100_000, help="maximum number of names to serve")
    parser.add_argument("--name-seconds", type=float, default=75.0, help="maximum time to serve names")
    parser.add_argument("--warm-up", type=float, default=40.0, help="how long nodes run before store calls count")
    parser.add_argument("--node-seconds", type=float, default=60.0, help="how long store calls are counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a turn is")
    parser.add_argument("--output", type=Path, default=document.GROWTH)
    chosen = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    began, found = time.monotonic(), machine.describe()
    prepare_to_drive()
    with tempfile.TemporaryDirectory(dir=machine.DISK) as folder:
        nodes = partial(count_store_calls, Path(folder, "nodes.db"), chosen.warm_up, chosen.node_seconds)
        parts = [
            _part(
                "Sequences in the store",
                f"Time from process start to the line with the address (median of {STARTS}), and memory then. The\n"
                f"last columns have the memory after serving one id of each name: at most {chosen.names:,} names,\n"
                f"for at most {chosen.name_seconds:g} s. That store is in memory, so the disk is no limit.",
                ("In the store", "Start, s", "Memory, MB", "Names served", "Memory then, MB", "kB a name"),
                lambda: measure_sequences(chosen.names, chosen.name_seconds),
            ),
            _part(
                "Nodes on one sequence",
                "Nodes are simulated in one process with the default settings of a server; their store is one SQLite "
                f"file.\nThe callers of each node take {CALLS_A_NODE} ids a second, one by one. Counted for "
                f"{chosen.node_seconds:g} s, after {chosen.warm_up:g} s in which leases grow.",
                ("Nodes", "Store calls/s", "A node", "Ids/s in all", "Callers that waited for the store"),
                lambda: uvloop.run(nodes()),
            ),
            _part(
                "Nodes and sequences in simulated time",
                "Real allocators with the default settings of a server, a store in memory, and a clock that skips the "
                "time\nin which nothing happens. Each node uses each sequence once in the interval. Writes are counted "
                "in the first\n5 minutes, and from minute 30 on.",
                ("Nodes", "Sequences", "Interval", "Writes/s at first", "Later", "Writes/min of a node's sequence"),
                simulate,
            ),
            _part(
                "Open connections",
                f"Unary calls, {IN_FLIGHT} in flight over the connections, or over {IN_FLIGHT} of them: the "
                f"others are open and idle.\nDriven by {drivers.UNARY_DRIVER}; medians of up to {chosen.rounds} "
                f"rounds of {chosen.seconds:g} s.",
                ("Transport", "Connections", "Calls/s", "p50, ms", "p99, ms", "Memory, MB"),
                lambda: measure_connections(chosen.rounds, chosen.seconds),
            ),
        ]
    result = {"machine": found, "took": time.monotonic() - began, "parts": parts}
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(result, indent=2) + "\n")
    document.write()


if __name__ == "__main__":
    main()
