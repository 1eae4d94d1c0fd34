"""Measure calls while the store is away soon after the first call, or after a restart.

`make bench-faults` runs it.

python -m bench.first_seconds [--stores sqlite stand-in] [--outage-reserve 10] [--used 5 15]

Each node has a caller of each kind, which makes a call each 0.1 s and shares the kind's sequence
with the other nodes. After some time of use the store is away for outage_reserve.
IDALLOC_TEST_CRATEDB_URL with three hosts adds CrateDB behind the tests' proxy.
"""

import argparse
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import document, first_seconds_table, machine
from bench.faults import HOSTS, figures, is_whole, new_scenario, proxied, range_calls
from bench.hangs import locked
from bench.servers import running
from tests.support.cratedb import cluster
from tests.support.faults import steady_callers
from tests.support.faults.issued_ranges import ReservedPort, boot_time_ns
from tests.support.faults.scenario import Scenario, wait_until_serving
from tests.support.processes import Server
from tests.support.waiting import hold_for

DEFAULT_RESERVE = 90.0
# Before the outage that follows a restart, the sequences are used for this long.
RESTART_AFTER = 60.0
# The second write of a node that starts gets its reserve. It follows the first answer at once.
RESERVE_AFTER = 1.0
SQLITE, STAND_IN, CRATEDB = "sqlite", "stand-in", "cratedb"
_NAMES = {SQLITE: "SQLite", STAND_IN: "CrateDB, stand-in", CRATEDB: "CrateDB"}


class Nodes(NamedTuple):
    """Running nodes."""

    servers: list[Server]
    restart: Callable[[int], None]  # kills a node, and starts it again at the same address
    # Makes the store unavailable within its block.
    outage: Callable[[], AbstractContextManager[None]]


def settings(reserve: float) -> dict[str, Any]:
    """Return a node's settings: the defaults, or short ones in proportion to a shorter reserve."""
    if reserve == DEFAULT_RESERVE:
        return {}
    return {"outage_reserve": f"{reserve:g}s", "store_timeout": f"{reserve / 4:g}s", "lease_ttl": f"{reserve * 2:g}s"}


@contextmanager
def started(scenario: Scenario, store: str, reserve: float) -> Iterator[Nodes]:
    """Start one node on SQLite, or three on CrateDB."""
    with ExitStack() as stack:
        if store == SQLITE:
            urls, is_ready = [scenario.store], None
            outage = partial(locked, Path(scenario.store.removeprefix("sqlite://")))
        else:
            proxy = stack.enter_context(cluster.ProxiedCrate(HOSTS, real=store == CRATEDB))
            scenario.store = proxy.crate.store
            urls = [proxy.crate.url_preferring(first) for first in range(HOSTS)]
            outage = partial(proxied, proxy, "refused")
            is_ready = partial(is_whole, proxy.crate) if store == CRATEDB else None
        stack.callback(scenario.close)
        ports = [ReservedPort() for _ in urls]
        for port in ports:
            stack.callback(port.close)

        def start(number: int) -> Server:
            [node] = scenario.launch_nodes(
                1, addresses=[ports[number].address], store=urls[number], **settings(reserve)
            )
            assert wait_until_serving(node), f"the node did not start: {node.log.read_text()}"
            return node

        servers = [start(number) for number in range(len(urls))]

        def restart(number: int) -> None:
            servers[number].stop(signal.SIGKILL)
            servers[number] = start(number)

        if is_ready:
            scenario.wait_until(is_ready, "a copy on each node", 180)
        yield Nodes(servers, restart, outage)


def measure(store: str, used: float, restarted: bool, reserve: float) -> dict[str, Any]:
    """Measure the calls during one outage of ``reserve`` seconds, after ``used`` seconds of use."""
    with ExitStack() as stack:
        scenario, beside = new_scenario(stack), new_scenario(stack)
        nodes = stack.enter_context(started(scenario, store, reserve))
        noop = stack.enter_context(running("bench.noop"))
        options: dict[str, Any] = {"log": "noop.jsonl", "pause": steady_callers.PAUSE, "id_count": 1}
        noop_caller = beside.start_client(noop.address, **options)
        beside.wait_for_records([noop_caller], 1)
        steady_callers.create_sequences(nodes.servers[0])
        callers = steady_callers.start(scenario, nodes.servers)
        hold_for(used, "the sequences are used")
        if restarted:
            nodes.restart(0)
            steady_callers.wait_for_answers(scenario, callers[:1], 1)
            hold_for(RESERVE_AFTER, "the node gets its reserve")
        with nodes.outage():
            began = boot_time_ns()
            hold_for(reserve, "the store is away")
            ended = boot_time_ns()
        steady_callers.wait_for_answers(scenario, callers)
        for caller in [*callers, noop_caller]:
            caller.stop(steady_callers.TIMEOUT)
        calls = steady_callers.calls_between(callers, began, ended)
        verdict = scenario.verify()
        return {
            "store": _NAMES[store],
            "nodes": len(nodes.servers),
            "used": used,
            "restarted": restarted,
            "kinds": {
                kind: {
                    "calls": len(found),
                    "errors": sum(bool(call.error) for call in found),
                    "longest": max((call.seconds for call in found), default=None),
                }
                for kind, found in calls.items()
            },
            "noop_longest": figures(range_calls([noop_caller]), [(began, ended)])["longest"],
            "ids": verdict.ids,
            "findings": sum(verdict.findings.values()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--used", type=float, nargs="+", default=[5, 15, 60, 200], help="seconds before the outage")
    parser.add_argument("--outage-reserve", type=float, default=DEFAULT_RESERVE, help="and how long the store is away")
    parser.add_argument("--stores", nargs="+", choices=_NAMES, default=[*_NAMES])
    parser.add_argument("--output", type=Path, default=document.FIRST_SECONDS)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its servers are stopped
    skipped = []
    if CRATEDB in chosen.stores and not cluster.URL:
        chosen.stores.remove(CRATEDB)
        skipped = ["CrateDB: IDALLOC_TEST_CRATEDB_URL is not set"]
    result: dict[str, Any] = {
        "machine": machine.describe(),
        "reserve": chosen.outage_reserve,
        "rows": [],
        "skipped": skipped,
    }
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    for store in chosen.stores:
        for used, restarted in [*((used, False) for used in chosen.used), (RESTART_AFTER, True)]:
            print(f"{_NAMES[store]}, used for {used:g} s{', then restarted' * restarted}", flush=True)
            result["rows"].append(measure(store, used, restarted, chosen.outage_reserve))
            chosen.output.write_text(json.dumps(result, indent=2) + "\n")
    print(first_seconds_table.section(result))
    document.write()


if __name__ == "__main__":
    main()
