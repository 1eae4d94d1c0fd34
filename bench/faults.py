"""Measure how long calls take while the store fails: `make bench-faults`.

Each node has three steady callers, of 1, 10 and 1 to 100 ids a call; all use one sequence. In each
of several rounds, each fault has a window before it, one during it and one after it. Three callers
of a no-op server show what the machine's other load does to calls in the same windows.
IDALLOC_TEST_CRATEDB_URL with three hosts adds CrateDB behind the tests' proxy, and
IDALLOC_TEST_CRATEDB_HARM pauses and kills its nodes (see tests/support/cratedb/cluster.py).
"""

import argparse
import json
import random
import re
import signal
import tempfile
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import document, faults_table, machine
from bench.hangs import locked
from bench.servers import running
from bench.turns import percentile
from tests.support.cratedb import cluster
from tests.support.faults.issued_ranges import boot_time_ns, read_ranges
from tests.support.faults.node_control import NodeControl
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server
from tests.support.waiting import hold_for

SEQUENCE = "shared"
SIZES: dict[str, int | list[int]] = {"1": 1, "10": 10, "1-100": random.Random(1).sample(range(1, 101), 100)}
# The pause of a caller after each answer.
_PAUSE = 0.02
# A call outlasts every fault, so that a fault shows as a long call and not as an error.
_TIMEOUT = 120.0
_SLOW_SECONDS = 2.0
HOSTS = 3
# A reserve that nodes refill every few seconds, so that each fault meets calls of the store.
_SETTINGS = {"outage_reserve": "20s", "store_timeout": "6s", "lease_ttl": "40s", "http_listen": "127.0.0.1:0"}
_MAX_SECONDS = 10.0

# When a window began and ended, in nanoseconds.
Window = tuple[int, int]


@dataclass
class Fault:
    """A fault of the store."""

    name: str  # the name in the document
    during: Callable[[], Any]  # causes the fault for the time of its block
    # Waits until the store is whole again; this time is a window of its own.
    recovered: Callable[[], None] | None = None


class Windows:
    """Runs the windows of faults under steady callers, and reads their calls from the logs."""

    def __init__(self, scenario: Scenario, nodes: list[Server], seconds: float) -> None:
        self._scenario = scenario
        self._nodes = nodes
        self._seconds = seconds
        self._callers: list[ClientProcess] = []
        self._noop: list[ClientProcess] = []
        self._store_calls_during: Counter[str] = Counter()
        self._bounds: dict[str, dict[str, list[Window]]] = defaultdict(lambda: defaultdict(list))
        for node in nodes:
            for what, size in SIZES.items():
                log = f"{what}-{len(self._callers)}.jsonl"
                options: dict[str, Any] = {"sequence": SEQUENCE, "id_count": size, "pause": _PAUSE, "timeout": _TIMEOUT}
                self._callers.append(scenario.start_client(node, log=log, **options))
        scenario.wait_until(lambda: all(each.records for each in self._callers), "a call of each caller", 120)

    def compare_with(self, scenario: Scenario, noop: str) -> None:
        """Start the same number of callers of a no-op server.

        Args:
            scenario: A scenario of their own: the ids of a no-op server repeat.
            noop: The server's address.
        """
        options: dict[str, Any] = {"sequence": SEQUENCE, "id_count": 1, "pause": _PAUSE, "timeout": _TIMEOUT}
        self._noop = [scenario.start_client(noop, log=f"noop-{each}.jsonl", **options) for each in SIZES]
        scenario.wait_until(lambda: all(each.records for each in self._noop), "a call of each caller", 120)

    def run(self, fault: Fault) -> None:
        """Run windows before, during and after the fault. Those of repeated runs are merged."""
        bounds = self._bounds[fault.name]
        enough = 1.5 * self._seconds + 2
        self._scenario.wait_until(lambda: min(map(reserve, self._nodes)) >= enough, f"a reserve of {enough} s", 240)
        bounds["before"].append(self._window())
        store_calls = self._store_calls()
        with fault.during():
            bounds["during"].append(self._window())
            self._store_calls_during[fault.name] += self._store_calls() - store_calls
        if fault.recovered:
            began = boot_time_ns()
            fault.recovered()
            bounds["recovering"].append((began, boot_time_ns()))
        bounds["after"].append(self._window())

    def stop(self) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Stop the callers; return a row for each fault, and the errors by reason."""
        errors: dict[str, int] = {}
        for each in self._callers:
            for reason, count in each.stop(_TIMEOUT).errors.items():
                errors[reason] = errors.get(reason, 0) + count
        for each in self._noop:
            each.stop(_TIMEOUT)
        calls, noop = range_calls(self._callers), range_calls(self._noop)
        rows: list[dict[str, Any]] = []
        for name, bounds in self._bounds.items():
            both = {what: (figures(calls, windows), figures(noop, windows)) for what, windows in bounds.items()}
            row = {"fault": name, "store_calls": self._store_calls_during[name]}
            rows.append(row | {what: _beside(*found) for what, found in both.items()})
        return rows, errors

    def _store_calls(self) -> int:
        return int(sum(metric(node, "idalloc_store_calls_total") for node in self._nodes))

    def _window(self) -> Window:
        began = boot_time_ns()
        hold_for(self._seconds, "calls are measured")
        return began, boot_time_ns()


def range_calls(callers: list[ClientProcess]) -> list[tuple[int, int]]:
    """Return when each call was sent, and how long it took, in nanoseconds."""
    return [(record.asked, record.answered - record.asked) for each in callers for record in read_ranges(each.log)]


def figures(calls: list[tuple[int, int]], windows: list[Window]) -> dict[str, Any]:
    """Return the figures of the calls that were sent in one of the windows."""
    latencies = [latency / 1e9 for asked, latency in calls if any(began <= asked < ended for began, ended in windows)]
    found = {"calls": len(latencies), "seconds": sum(ended - began for began, ended in windows) / 1e9}
    return found | {"longest": max(latencies, default=None), "p999": percentile(latencies, 99.9)}


def _beside(found: dict[str, Any], noop: dict[str, Any]) -> dict[str, Any]:
    return found | {f"noop_{figure}": noop[figure] for figure in ("longest", "p999")}


def reserve(node: Server) -> float:
    """Return how many seconds a node's ids in memory last at the present rate; 0 without one."""
    return metric(node, "idalloc_reserve_seconds")


def metric(node: Server, name: str) -> float:
    """Return the sum of a node's values of a metric; 0 without one."""
    with urllib.request.urlopen(node.http + "metrics", timeout=10) as answer:
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    return sum(map(float, found))


@contextmanager
def _controlled(control: NodeControl, kind: Any, seconds: float = 0.0) -> Iterator[None]:
    control.inject(kind, seconds=seconds)
    yield
    control.clear_faults()


@contextmanager
def proxied(proxy: cluster.ProxiedCrate, kind: str, late: float = 0.0) -> Iterator[None]:
    proxy.inject(kind, late=late)
    yield
    proxy.inject()


@contextmanager
def _paused(crate: cluster.CrateCluster, names: list[str]) -> Iterator[None]:
    try:
        for name in names:
            crate.disrupt("pause", name)
        yield
    finally:
        for name in names:
            crate.disrupt("resume", name)


class _Killed:
    """Kills the node with the primary, and starts it again."""

    def __init__(self, crate: cluster.CrateCluster, scenario: Scenario) -> None:
        self._crate, self._scenario, self._name = crate, scenario, ""

    def during(self) -> Any:
        """Kill the node."""
        self._name = self._crate.primary()
        self._crate.disrupt("kill", self._name)
        return nullcontext()

    def recovered(self) -> None:
        """Start the node, and wait until it has its copies again."""
        self._crate.disrupt("start", self._name)
        whole = partial(is_whole, self._crate)
        self._scenario.wait_until(whole, "a copy on each node", 180)


def is_whole(crate: cluster.CrateCluster) -> bool:
    return crate.started_copies() == HOSTS


def on_sqlite(nodes: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure the faults of SQLite."""
    with ExitStack() as stack:
        scenario = new_scenario(stack)
        control = NodeControl(scenario.folder / "control")
        started = scenario.start_nodes(
            nodes, module="tests.support.faults.faulty_node", arguments=control.arguments, **_SETTINGS
        )
        path = Path(scenario.store.removeprefix("sqlite://"))
        faults = [
            Fault("away: each call of the store fails", partial(_controlled, control, "unreachable")),
            Fault("slow: each answer is 2 s late", partial(_controlled, control, "slow", _SLOW_SECONDS)),
            Fault("hangs: no call is answered", partial(_controlled, control, "late", seconds)),
            Fault("locked: another process holds the write lock", partial(locked, path)),
        ]
        return _measure(scenario, started, faults * rounds, seconds)


def on_crate(nodes: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure the faults of CrateDB with three nodes."""
    with ExitStack() as stack:
        scenario = new_scenario(stack)
        proxy = stack.enter_context(cluster.ProxiedCrate(HOSTS))
        crate = proxy.crate
        scenario.store = crate.store
        started = [scenario.start_node(store=crate.url_preferring(first), **_SETTINGS) for first in range(nodes)]
        scenario.wait_until(partial(is_whole, crate), "a copy on each node", 180)
        killed = _Killed(crate, scenario)
        faults = [
            Fault("away: connections are refused", partial(proxied, proxy, "refused")),
            Fault("slow: each answer is up to 2 s late", partial(proxied, proxy, "late", _SLOW_SECONDS)),
            Fault("hangs: all nodes are paused", lambda: _paused(crate, crate.nodes())),
            Fault("fails over: the primary's node is paused", lambda: _paused(crate, [crate.primary()])),
            Fault("fails over: the primary's node is killed, then started", killed.during, killed.recovered),
        ]
        return _measure(scenario, started, faults * rounds, seconds)


def new_scenario(stack: ExitStack) -> Scenario:
    scenario = Scenario(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=machine.DISK))), full=True)
    stack.callback(scenario.close)
    return scenario


def _measure(scenario: Scenario, nodes: list[Server], faults: list[Fault], seconds: float) -> dict[str, Any]:
    with ExitStack() as stack:
        beside = new_scenario(stack)
        noop = stack.enter_context(running("bench.noop"))
        windows = Windows(scenario, nodes, seconds)
        windows.compare_with(beside, noop.address)
        for fault in faults:
            print(f"{scenario.store_name}, nodes: {len(nodes)}; {fault.name}", flush=True)
            windows.run(fault)
        rows, errors = windows.stop()
    for node in nodes:
        node.stop(timeout=60)
    verdict = scenario.verify()
    return {
        "store": scenario.store_name,
        "nodes": len(nodes),
        "rows": rows,
        "errors": errors,
        "findings": sum(verdict.findings.values()),
        "ids": verdict.ids,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help=f"how long a window is, at most {_MAX_SECONDS:g}")
    parser.add_argument("--rounds", type=int, default=4, help="how often each fault has its windows")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--stores", nargs="+", choices=("sqlite", "cratedb"), default=["sqlite", "cratedb"])
    parser.add_argument("--output", type=Path, default=document.FAULTS)
    chosen = parser.parse_args()
    if chosen.seconds > _MAX_SECONDS:
        parser.error(f"--seconds is {chosen.seconds:g}; the reserve is for at most {_MAX_SECONDS:g}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its servers are stopped
    skipped = []
    if "cratedb" in chosen.stores and not (cluster.URL and cluster.HARM_COMMAND):
        chosen.stores.remove("cratedb")
        skipped = ["CrateDB: IDALLOC_TEST_CRATEDB_URL and IDALLOC_TEST_CRATEDB_HARM are not both set"]
    result = {
        "machine": machine.describe(),
        "seconds": chosen.seconds,
        "rounds": chosen.rounds,
        "parts": [],
        "skipped": skipped,
    }
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    for store in chosen.stores:
        for nodes in chosen.nodes:
            measure = {"sqlite": on_sqlite, "cratedb": on_crate}[store]
            result["parts"].append(measure(nodes, chosen.seconds, chosen.rounds))
            chosen.output.write_text(json.dumps(result, indent=2) + "\n")
    print(faults_table.section(result))
    document.write()


if __name__ == "__main__":
    main()
