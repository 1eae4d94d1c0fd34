"""Forks of a client with ids and of a server with leases issue none of the parent's ids (P8)."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import forking_client
from tests.support.faults.local_clients import CallLoop, LoggedClients, wait_for_answers
from tests.support.faults.node_control import NodeControl, fork_exit_codes, fork_results
from tests.support.faults.scenario import Scenario
from tests.support.processes import Server, environment

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

# Most forks of a server until one child survives gRPC.
MOST_FORKS = 100


class Program:
    """A running ``tests.support.faults.forking_client``."""

    def __init__(self, scenario: Scenario, node: Server, fork_support: bool, options: dict[str, Any]) -> None:
        self.log = scenario.folder / "issued.jsonl"  # of its client; its children log to files beside it
        self._received = scenario.folder / "received"
        command_options = {"target": node.address, "log": str(self.log), "received": str(self._received)} | options
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore::DeprecationWarning",
                "-m",
                "tests.support.faults.forking_client",
                json.dumps(command_options),
            ],
            env=environment() | {"GRPC_ENABLE_FORK_SUPPORT": str(int(fork_support)), "GRPC_VERBOSITY": "NONE"},
        )

    @property
    def received(self) -> dict[int, list[Any]]:
        """The records of all processes so far, by process id; the first one is the parent."""
        found = forking_client.read_received(self._received)
        return {pid: found.pop(pid, []) for pid in [self.process.pid]} | found

    def has_children(self, children: int) -> bool:
        """Whether this many children have received ids."""
        return len(self.sizes()) > children

    def sizes(self) -> dict[int, int]:
        """Return the size of each process's records, in bytes."""
        files = self._received.parent.glob(f"{self._received.name}.*")
        return {int(file.name.rpartition(".")[2]): file.stat().st_size for file in files}

    def have_grown(self, pids: list[int], sizes: dict[int, int]) -> bool:
        """Whether each of these processes has received ids by several methods since then."""
        now = self.sizes()
        return all(now[pid] >= sizes[pid] + 2000 for pid in pids)

    def ids(self, pid: int) -> set[Any]:
        """Return the ids that a process received, and assert that none is repeated."""
        each = Counter(chain.from_iterable(line for line in self.received[pid] if isinstance(line, list)))
        assert not each or each.most_common(1)[0][1] == 1
        return set(each)

    def logged(self, pid: int) -> set[Any]:
        """Return the ids of sequences in a process's log."""
        names = self.log.name if pid == self.process.pid else f"{self.log.name}.{pid}*"
        lines = [line for log in self.log.parent.glob(names) for line in log.read_text().splitlines()[1:]]
        records = [json.loads(line) for line in lines]
        ranges = [(each["first"], each["step"], each["count"]) for each in records if "first" in each]
        return {value for first, step, count in ranges for value in range(first, first + step * count, step)}


@contextmanager
def program(scenario: Scenario, node: Server, *, fork_support: bool = True, **options: Any) -> Iterator[Program]:
    """Run the program, which must have ended at the end of the block."""
    running = Program(scenario, node, fork_support, options)
    try:
        yield running
        assert running.process.wait(300) == 0
    finally:
        running.process.kill()
        running.process.wait()


def prove_distinct(scenario: Scenario, ran: Program, what: str, *, killed: bool = False) -> None:
    """Assert that no two processes received one id, and that each one's log has its ids."""
    pids = list(ran.received)
    ids = {pid: ran.ids(pid) for pid in pids}
    assert len(set().union(*ids.values())) == sum(map(len, ids.values()))
    for pid in pids:
        assert {each for each in ids[pid] if isinstance(each, int)} <= ran.logged(pid)
        assert killed or ran.received[pid][-1] == "end"
    scenario.count_faults()
    scenario.prove(what, logs=[ran.log], at_least=forking_client.WARM_UP_IDS)


WAYS = ["os.fork", "fork", "forkserver", "spawn"]
LONG = pytest.mark.long


@pytest.mark.scenario(8, "a fork of a warm client")
class TestClient:
    @pytest.mark.parametrize(
        "how", ["os.fork", *(pytest.param(way, marks=pytest.mark.long) for way in WAYS if way != "os.fork")]
    )
    def test_parent_and_children_allocate_distinct_ids(self, scenario: Scenario, how: str) -> None:
        """P8: after a fork of a warm client, parent and children issue distinct ids."""
        children, turns = scenario.pick((2, 5), (10, 100))
        with program(scenario, scenario.start_node(), how=how, children=children, turns=turns) as ran:
            pass
        parent, *others = ran.received
        assert len(others) == children
        for child in others:
            assert len(ran.ids(child)) >= turns * 100
        assert len(ran.ids(parent)) >= forking_client.WARM_UP_IDS + 2 * turns * 100
        prove_distinct(scenario, ran, f"by {how}")

    @pytest.mark.parametrize("how", ["os.fork", pytest.param("fork", marks=pytest.mark.long)])
    def test_a_child_without_grpc_fork_support_gets_an_error(self, scenario: Scenario, how: str) -> None:
        """P8: without gRPC's fork support, every call in a child fails with the variable to set."""
        with program(scenario, scenario.start_node(), how=how, fork_support=False) as ran:
            pass
        _, *others = ran.received
        assert len(others) == 2
        for child in others:
            *lines, end = ran.received[child]
            assert end == "end"
            assert all(line.startswith("RuntimeError: ") and "GRPC_ENABLE_FORK_SUPPORT=1" in line for line in lines)
            assert len(lines) == 5 * 6
        prove_distinct(scenario, ran, f"by {how}, where gRPC has no fork support")

    def test_prefork_workers_are_killed_and_replaced(self, scenario: Scenario) -> None:
        """P8: workers forked from a warm parent, killed and replaced under load, share no id."""
        children, kills = scenario.pick((2, 2), (4, 30))
        chance = random.Random(8)
        with program(scenario, scenario.start_node(), how="prefork", children=children) as ran:
            for turn in range(kills):
                # All living processes allocate, including the parent.
                scenario.wait_until(partial(ran.has_children, children + turn), "a new child")
                alive = [pid for pid in ran.sizes() if _is_alive(pid)]
                assert ran.process.pid in alive
                scenario.wait_until(partial(ran.have_grown, alive, ran.sizes()), "more ids for all")
                os.kill(chance.choice([pid for pid in alive if pid != ran.process.pid]), signal.SIGKILL)
                scenario.count_faults()
            scenario.wait_until(partial(ran.has_children, children + kills), "a new child")
            ran.process.terminate()
        prove_distinct(scenario, ran, f"{children} workers of a warm parent, killed and replaced", killed=True)

    @pytest.mark.long
    def test_a_fork_during_other_threads_calls_shares_no_id(self, scenario: Scenario) -> None:
        """P8: a child forked during other threads' calls, which may hang, issues no parent's id."""
        children, patience = scenario.pick((1, 5), (10, 20))
        options = {"how": "os.fork", "children": children, "threads": 2, "patience": patience}
        with program(scenario, scenario.start_node(), **options) as ran:
            pass
        parent, *_ = ran.received
        assert ran.received[parent][-1] == "end"
        prove_distinct(scenario, ran, "while other threads call", killed=True)


def _have_ended(log: Path, children: int) -> bool:
    return len(fork_exit_codes(log)) == children


def _is_alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.scenario(8, "a fork of a warm server")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_forked_server_issues_no_ids(scenario: Scenario, tmp_path: Path, workers: int) -> None:
    """P8: the forked child of a busy server issues no ids of sequences or documents."""
    control, logs = NodeControl(tmp_path / "control.json"), LoggedClients(tmp_path)
    [node] = scenario.start_nodes(
        1, module="tests.support.faults.faulty_node", arguments=control.arguments, workers=workers
    )
    forked = tmp_path / "fork.ids"
    uuids: list[str] = []
    with logs.clients([node] * 4) as clients:
        calls = [
            lambda: clients[0].allocate_range("orders", 5),
            lambda: [*clients[1].stream_ranges("orders", 200, 10)],
            lambda: clients[2].doc_ids(10),
            lambda: uuids.extend(map(str, clients[3].uuids(10))),
        ]
        callers = [CallLoop(call) for call in calls]
        # gRPC does not support this fork, which crashes some children: fork until one tried.
        turns = 0
        while turns < scenario.pick(3, 100) or (turns < MOST_FORKS and not fork_results(forked)):
            turns += 1
            wait_for_answers(scenario, callers, 10)
            control.fork(forked, "orders")
            scenario.count_faults(workers)
            scenario.wait_until(partial(_have_ended, node.log, turns * workers), "the end of the children")
        wait_for_answers(scenario, callers, 10)
        for caller in callers:
            caller.stop()
            assert not caller.errors
    # A crashed child issued nothing either.
    children = fork_results(forked)
    crashed = [code for code in fork_exit_codes(node.log) if code]
    assert children
    assert len(children) + len(crashed) == len(fork_exit_codes(node.log))
    for child in children:
        assert child.ids == 0
        assert all("is a fork" in refusal for refusal in child.refusals)
        assert sum(child.refusals.values()) > 100
        uuids += child.uuids
    # A child may generate UUIDs of its own.
    assert len(set(uuids)) == len(uuids) > len(children) * 100
    children_logs = [log for log in sorted(tmp_path.glob("fork.ids.*")) if log.stat().st_size]
    note = f"{len(crashed)} children crashed in gRPC" if crashed else ""
    scenario.prove(f"{workers} workers" if workers > 1 else "", logs=logs.files + children_logs, note=note)
