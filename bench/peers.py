"""Measure idalloc beside alternatives: `make bench-peers`.

All run on this machine and take turns in rounds; ratios are medians of the turns in the same round.
Each contender writes an allocation to disk before it answers. Missing programs are skipped and
listed. IDALLOC_BENCH_CRATEDB_URL, such as 'crate://crate@127.0.0.1:4200/?schema=bench', adds
CrateDB.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import idalloc
from bench import counter_document, document, drivers, hangs, machine, noop_go, recipe, rivals, sdk, targets
from bench.refills import IN_FLIGHT, RATE, REFILLS, Refills
from bench.servers import Server, prepare_to_drive, running
from bench.turns import Contender, median, ratio, take_turns, to_json

CRATEDB_URL = "IDALLOC_BENCH_CRATEDB_URL"
IN_BULK = 64


class Bench:
    """All contenders."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.contenders: dict[str, Contender] = {}  # by key; `targets` uses the keys
        self.skipped: list[str] = []  # why contenders are missing
        # By the key of a contender, what makes its store hang.
        self.hangs: dict[str, Callable[[], hangs.Hang]] = {}
        self._folder = folder
        self._stack = stack

    def add_gRPC(self) -> dict[str, Server]:
        """Add idalloc servers and no-op servers; return those of idalloc."""
        ours: dict[str, Server] = {}
        for transport in ("grpcio", "native"):
            self._try(f"a no-op server, {transport}", partial(self._add_noop, transport))
            for workers in (1, 2):
                name = f"{transport} {workers}"
                self._try(f"idalloc, {name}", partial(self._add_idalloc, transport, workers, ours))
        self._try("a no-op server, Go", self._add_noop_go)
        return ours

    def add_sdk(self, server: Server, what: str, key: str) -> None:
        """Add contenders that use the Python client."""
        client = self._stack.enter_context(idalloc.Client(server.address, timeout=30))
        cpu = partial(_cpu, server)
        add = self._add
        add(f"ids {key}", f"{what}: `ids()`, one by one", sdk.ids(client), 1, "SDK", cpu)
        if key == "native":
            return
        writers = recipe.WRITERS
        name = f"{what}: `ids()`, {writers} threads"
        add(f"writers {key}", name, sdk.ids(client, writers), writers, "SDK", cpu)
        name = f"{what}: one id a call, {writers} threads"
        add(f"calls {key}", name, sdk.ranges(client, writers), writers, "SDK", cpu)
        if key == "grpcio":
            self.hangs[f"calls {key}"] = partial(hangs.locked, self._folder / "grpcio-1.db")

    def add_doc_ids(self, server: Server, transport: str) -> None:
        """Add document ids as runs and as texts."""
        client = self._stack.enter_context(idalloc.Client(server.address, timeout=30))
        cpu, what = partial(_cpu, server), f"idalloc {transport}, document ids"
        self._add(f"doc_ids {transport}", f"{what}: `stream_doc_ids`", sdk.doc_ids(client), 1, "SDK", cpu)
        texts = sdk.doc_id_texts(server.address)
        self._add(f"doc_id texts {transport}", f"{what}: texts on the wire", texts, 1, "generated stub", cpu)

    def add_shared_calls(self, server: Server) -> None:
        """Add many callers of one asyncio client."""
        for key, how in (("shared", "calls shared"), ("each", "one call each")):
            name, drive = f"idalloc grpcio, asyncio: {how}", sdk.shared_calls(server.address, shared=key == "shared")
            self._add(f"asyncio {key}", name, drive, sdk.AT_ONCE, "SDK", partial(_cpu, server))

    def add_rivals(self) -> None:
        """Add Redis, PostgreSQL, etcd and the recipe for OpenSearch."""
        self._try("Redis", self._add_redis)
        self._try("PostgreSQL", self._add_postgres)
        self._try("etcd", self._add_etcd)
        self._try("OpenSearch", self._add_opensearch)

    def add_recipe(self, url: str | None) -> None:
        """Add the recipe of CrateDB's guide, on SQLite and CrateDB."""
        writers = recipe.WRITERS
        name = f"CrateDB's recipe, but on SQLite, {writers} writers"
        on_sqlite = self._stack.enter_context(recipe.on_sqlite(self._folder / "recipe.db"))
        self._add("recipe sqlite", name, on_sqlite.turn, writers, "Python threads")
        self.hangs["recipe sqlite"] = partial(hangs.locked, self._folder / "recipe.db")
        if url is None:
            self.skipped.append(f"CrateDB: {CRATEDB_URL} is not set")
            return
        name = f"CrateDB's recipe on CrateDB, {writers} writers"
        self._try(name, lambda: self._add_crate_recipe(name, url))
        self._try("idalloc on CrateDB", lambda: self._add_idalloc_on_crate(url))

    def _add_noop(self, transport: str) -> None:
        server = self._stack.enter_context(running("bench.noop", f"--transport={transport}"))
        self._add_unary(f"noop {transport}", f"no-op server, {transport} (the limit)", server)

    def _add_noop_go(self) -> None:
        server = self._stack.enter_context(noop_go.running())
        self._add_unary("noop go", "no-op server, Go (the limit of a service in Go)", server)

    def _add_idalloc(self, transport: str, workers: int, ours: dict[str, Server]) -> None:
        flags = [f"--transport={transport}", f"--workers={workers}"]
        store = f"sqlite://{self._folder}/{transport}-{workers}.db"
        server = self._stack.enter_context(_serving(store, *flags))
        ours[f"{transport} {workers}"] = server
        plural = "s" if workers > 1 else ""
        what = f"idalloc {transport}, {workers} worker{plural}, SQLite"
        self._add_unary(f"ours {transport} {workers}", what, server, alone=workers == 1)
        if transport == "grpcio" and workers == 1:
            with idalloc.Client(server.address) as client:
                client.sequences.create("rising", ordering="rising")
            name = "idalloc grpcio, 1 worker, SQLite, `RISING` over all nodes"
            drive = lambda seconds: drivers.unary(server.address, seconds, IN_BULK, "rising")  # noqa: E731
            self._add("rising", name, drive, IN_BULK, drivers.UNARY_DRIVER, partial(_cpu, server))

    def _add_idalloc_on_crate(self, url: str) -> None:
        server = self._stack.enter_context(_serving(url))
        self._add_unary("crate", "idalloc grpcio, 1 worker, CrateDB", server, alone=False)
        self.add_sdk(server, "idalloc grpcio on CrateDB", "crate")

    def _add_crate_recipe(self, name: str, url: str) -> None:
        writers = self._stack.enter_context(recipe.on_crate(url))
        self._add("recipe crate", name, writers.turn, recipe.WRITERS, "Python threads")

    def _add_redis(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK)))
        server = self._stack.enter_context(rivals.redis(folder))
        cpu, plain, pipelined = partial(_cpu, server), rivals.Redis(server.address), rivals.Redis(server.address, 16)
        self._add("redis", "Redis INCRBY", plain.turn, 1, "Python socket", cpu)
        name = "Redis INCRBY, one by one, pipelined 16 (latency: of all 16)"
        self._add("redis pipelined", name, pipelined.turn, 16, "Python socket", cpu)
        self.hangs["redis"] = partial(hangs.paused, server)
        many = partial(rivals.redis_benchmark, server.address, in_flight=IN_BULK)
        self._add("redis many", "Redis INCRBY", many, IN_BULK, "redis-benchmark", cpu)

    def _add_postgres(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK)))
        server = self._stack.enter_context(rivals.postgres(folder))
        segment = f"PostgreSQL segment table, {rivals.SEGMENT:,} ids each (UPDATE … RETURNING)"
        for name, statement, ids in (
            ("PostgreSQL nextval, cache 1", rivals.NEXTVAL, 1),
            (segment, rivals.NEXT_SEGMENT, rivals.SEGMENT),
        ):
            for in_flight in (1, recipe.WRITERS):
                drive = partial(rivals.pgbench, server.address, in_flight=in_flight, statement=statement, ids=ids)
                key = f"postgres {'segment' if ids > 1 else 'nextval'} {in_flight}"
                self._add(key, name, drive, in_flight, "pgbench", partial(_cpu, server))
        self.hangs["postgres nextval 1"] = partial(hangs.paused, server)

    def _add_etcd(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK)))
        server = self._stack.enter_context(rivals.etcd(folder))
        for ids, what in ((1, "one id"), (rivals.SEGMENT, f"{rivals.SEGMENT:,} ids")):
            for in_flight in (1, recipe.WRITERS):
                drive = partial(rivals.etcd_counter, server.address, in_flight=in_flight, ids=ids)
                name, key = f"etcd, a counter by transaction, {what} each", f"etcd {ids} at {in_flight}"
                self._add(key, name, drive, in_flight, "Python threads", partial(_cpu, server))
        self.hangs["etcd 1 at 1"] = partial(hangs.paused, server)

    def _add_opensearch(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK)))
        host, callers = self._stack.enter_context(counter_document.opensearch(folder)), counter_document.CALLERS
        for ids, what in ((1, "one id a call"), (counter_document.BULK, f"{counter_document.BULK} ids a call")):
            drive = partial(counter_document.recipe, host, ids)
            self._add(f"opensearch {ids}", f"OpenSearch's counter document, {what}", drive, callers, "Python threads")

    def _add_unary(self, key: str, what: str, server: Server, alone: bool = True) -> None:
        for in_flight in (IN_BULK, 1) if alone else (IN_BULK,):
            drive = partial(drivers.unary, server.address, in_flight=in_flight)
            self._add(f"{key} at {in_flight}", what, drive, in_flight, drivers.UNARY_DRIVER, partial(_cpu, server))

    def _add(
        self,
        key: str,
        name: str,
        drive: Callable[[float], Any],
        in_flight: int,
        driver: str,
        cpu: Callable[[], float] | None = None,
    ) -> None:
        self.contenders[key] = Contender(name, drive, in_flight, driver, cpu)

    def _try(self, what: str, add: Callable[[], None]) -> None:
        try:
            add()
        except rivals.Missing as missing:
            self.skipped.append(f"{what}: {missing}")
        except Exception as error:  # The other contenders go on.
            self.skipped.append(f"{what}: {type(error).__name__}: {error}")


def _serving(store: str, *flags: str) -> Any:
    return running("idalloc_server", "--listen=127.0.0.1:0", f"--store={store}", *flags)


def _cpu(server: Server) -> float:
    return server.cpu_seconds


def measure_refills(folder: Path, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure p99 at a steady rate with small leases and one large lease, on two stores."""
    results = []
    for what, module, flags in (
        ("SQLite", "idalloc_server", ["--listen=127.0.0.1:0"]),
        ("SQLite with 50 ms more for each grant", "bench.slow", []),
    ):
        path = folder / f"{module}.db"
        store = f"sqlite://{path}"
        try:
            with running(module, *flags, store if module == "bench.slow" else f"--store={store}") as server:
                refills = Refills(server, path)
                pair = [
                    Contender(each, partial(refills.turn, each), IN_FLIGHT, drivers.UNARY_DRIVER)
                    for each in ("small", "large")
                ]
                done = take_turns(pair, rounds, seconds, time.monotonic() + 2 * rounds * seconds)
            failure = "" if all(each.turns for each in pair) else str([each.failures for each in pair])
            results.append(
                {
                    "store": what,
                    "rate": RATE,
                    "rounds": done,
                    "refills": min(refills.counts["small"][1:], default=0),
                    "writes_without": max(refills.counts["large"][1:], default=0),
                    "wanted": REFILLS,
                    "p99_with": median(pair[0].turns.values(), "p99"),
                    "p99_without": median(pair[1].turns.values(), "p99"),
                    "ratio": ratio(pair[0], pair[1], "p99"),
                    "failure": failure,
                }
            )
        except Exception as error:  # The document shows it.
            results.append({"store": what, "failure": f"{type(error).__name__}: {error}"})
    return results


def measure_idle_streams(folder: Path) -> dict[str, Any]:
    """Measure the memory of an open stream whose client does not read, by transport."""
    results: dict[str, Any] = {}
    for transport in ("grpcio", "native"):
        try:
            with _serving(f"sqlite://{folder}/idle-{transport}.db", f"--transport={transport}") as server:
                results[transport] = sdk.idle_stream_kb(server)
        except Exception as error:  # The document shows it.
            results[transport] = f"{type(error).__name__}: {error}"
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.2, help="how long a turn is")
    parser.add_argument("--refill-rounds", type=int, default=3)
    parser.add_argument("--refill-seconds", type=float, default=10.0, help="how long a turn with refills is")
    parser.add_argument("--most", type=float, default=210.0, help="begin no round after this many seconds")
    parser.add_argument("--output", type=Path, default=document.PEERS)
    chosen = parser.parse_args()
    began, found = time.monotonic(), machine.describe()
    prepare_to_drive()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK)))
        with ExitStack() as servers:
            bench = Bench(folder, servers)
            ours = bench.add_gRPC()
            for transport in ("grpcio", "native"):
                if server := ours.get(f"{transport} 1"):
                    bench.add_sdk(server, f"idalloc {transport} on SQLite", transport)
                    bench.add_doc_ids(server, transport)
            if server := ours.get("grpcio 1"):
                bench.add_shared_calls(server)
            bench.add_recipe(os.environ.get(CRATEDB_URL))
            bench.add_rivals()
            rounds = take_turns(list(bench.contenders.values()), chosen.rounds, chosen.seconds, began + chosen.most)
            hung = [hangs.measure(bench.contenders[key], hang) for key, hang in bench.hangs.items()]
        refills = measure_refills(folder, chosen.refill_rounds, chosen.refill_seconds)
        idle = measure_idle_streams(folder)
    result = {
        "machine": found,
        "rounds": rounds,
        "seconds": chosen.seconds,
        "took": time.monotonic() - began,
        "contenders": [to_json(each) | {"key": key} for key, each in bench.contenders.items()],
        "hangs": hung,
        "skipped": bench.skipped,
        "refills": refills,
        "idle_stream_kb": idle,
        "targets": targets.of(bench.contenders, found["own_cores"], refills, idle),
    }
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(result, indent=2) + "\n")
    print(document.targets(result))
    document.write()


if __name__ == "__main__":
    main()
