"""A fork of a warm client, or of a warm server, issues none of its parent's ids (P8)."""

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

from tests.faults import forking
from tests.faults.control import Control, ended_forks, forks
from tests.faults.near import Caller, Logs, wait_for_answers
from tests.faults.scenario import Scenario
from tests.support.processes import Server, environment

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

# So many forks of a server are tried at most, until one child survives.
MOST_FORKS = 100


class Program:
    """A running ``tests.faults.forking``.

    Attributes:
        process: The process.
        log: The log of its client; its children have their own ones beside it.
    """

    def __init__(self, scenario: Scenario, node: Server, fork_support: bool, wishes: dict[str, Any]) -> None:
        self.log = scenario.folder / "issued.jsonl"
        self._given = scenario.folder / "given"
        told = {"target": node.address, "log": str(self.log), "given": str(self._given)} | wishes
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.faults.forking", json.dumps(told)],
            env=environment() | {"GRPC_ENABLE_FORK_SUPPORT": str(int(fork_support)), "GRPC_VERBOSITY": "NONE"},
        )

    @property
    def given(self) -> dict[int, list[Any]]:
        """What its processes were given by now; the first one is the parent."""
        found = forking.read(self._given)
        return {pid: found.pop(pid, []) for pid in [self.process.pid]} | found

    def had(self, children: int) -> bool:
        """Whether so many children were given something by now."""
        return len(self.sizes()) > children

    def sizes(self) -> dict[int, int]:
        """How much each process wrote down of what it was given, in bytes."""
        files = self._given.parent.glob(f"{self._given.name}.*")
        return {int(file.name.rpartition(".")[2]): file.stat().st_size for file in files}

    def gave_more(self, pids: list[int], sizes: dict[int, int]) -> bool:
        """Whether each of these was given something since, in several ways."""
        now = self.sizes()
        return all(now[pid] >= sizes[pid] + 2000 for pid in pids)

    def ids(self, pid: int) -> set[Any]:
        """The ids that a process was given; one that it was given twice is an error."""
        each = Counter(chain.from_iterable(line for line in self.given[pid] if isinstance(line, list)))
        assert not each or each.most_common(1)[0][1] == 1
        return set(each)

    def logged(self, pid: int) -> set[Any]:
        """The ids of sequences in a process's log."""
        names = self.log.name if pid == self.process.pid else f"{self.log.name}.{pid}*"
        lines = [line for log in self.log.parent.glob(names) for line in log.read_text().splitlines()[1:]]
        records = [json.loads(line) for line in lines]
        ranges = [(each["first"], each["step"], each["count"]) for each in records if "first" in each]
        return {value for first, step, count in ranges for value in range(first, first + step * count, step)}


@contextmanager
def program(scenario: Scenario, node: Server, *, fork_support: bool = True, **wishes: Any) -> Iterator[Program]:
    """Runs the program, until the end of the block, by which it must have ended."""
    running = Program(scenario, node, fork_support, wishes)
    try:
        yield running
        assert running.process.wait(300) == 0
    finally:
        running.process.kill()
        running.process.wait()


def prove_apart(scenario: Scenario, ran: Program, what: str, *, killed: bool = False) -> None:
    """Proves that no two of the processes were given one id, and that each was given what its own log has."""
    pids = list(ran.given)
    ids = {pid: ran.ids(pid) for pid in pids}
    assert len(set().union(*ids.values())) == sum(map(len, ids.values()))
    for pid in pids:
        assert {each for each in ids[pid] if isinstance(each, int)} <= ran.logged(pid)
        assert killed or ran.given[pid][-1] == "end"
    scenario.fault()
    scenario.prove(what, logs=[ran.log], at_least=forking.WARM)


WAYS = ["os.fork", "fork", "forkserver", "spawn"]
LONG = pytest.mark.long


@pytest.mark.scenario(8, "a fork of a warm client")
class TestClient:
    @pytest.mark.parametrize(
        "how", ["os.fork", *(pytest.param(way, marks=pytest.mark.long) for way in WAYS if way != "os.fork")]
    )
    def test_each_process_goes_on_with_ids_of_its_own(self, scenario: Scenario, how: str) -> None:
        children, turns = scenario.pick((2, 5), (10, 100))
        with program(scenario, scenario.start_node(), how=how, children=children, turns=turns) as ran:
            pass
        parent, *others = ran.given
        assert len(others) == children
        for child in others:
            assert len(ran.ids(child)) >= turns * 100
        assert len(ran.ids(parent)) >= forking.WARM + 2 * turns * 100
        prove_apart(scenario, ran, f"by {how}")

    @pytest.mark.parametrize("how", ["os.fork", pytest.param("fork", marks=pytest.mark.long)])
    def test_where_grpc_does_not_survive_it_the_child_is_refused(self, scenario: Scenario, how: str) -> None:
        with program(scenario, scenario.start_node(), how=how, fork_support=False) as ran:
            pass
        _, *others = ran.given
        assert len(others) == 2
        for child in others:
            *lines, end = ran.given[child]
            assert end == "end"
            assert all(line.startswith("RuntimeError: ") and "GRPC_ENABLE_FORK_SUPPORT=1" in line for line in lines)
            assert len(lines) == 5 * 5
        prove_apart(scenario, ran, f"by {how}, where gRPC has no fork support")

    def test_workers_forked_from_a_warm_parent_are_killed_and_replaced(self, scenario: Scenario) -> None:
        children, kills = scenario.pick((2, 2), (4, 30))
        chance = random.Random(8)
        with program(scenario, scenario.start_node(), how="prefork", children=children) as ran:
            for turn in range(kills):
                # Each of those that live goes on, the parent, too.
                scenario.wait_until(partial(ran.had, children + turn), "a new child")
                alive = [pid for pid in ran.sizes() if _is_alive(pid)]
                assert ran.process.pid in alive
                scenario.wait_until(partial(ran.gave_more, alive, ran.sizes()), "more ids for all")
                os.kill(chance.choice([pid for pid in alive if pid != ran.process.pid]), signal.SIGKILL)
                scenario.fault()
            scenario.wait_until(partial(ran.had, children + kills), "a new child")
            ran.process.terminate()
        prove_apart(scenario, ran, f"{children} workers of a warm parent, killed and replaced", killed=True)

    @pytest.mark.long
    def test_threads_that_are_in_the_middle_of_a_call_do_no_harm(self, scenario: Scenario) -> None:
        """gRPC survives this by chance only: the child may hang. But it never has ids of its parent's."""
        children, patience = scenario.pick((1, 5), (10, 20))
        wishes = {"how": "os.fork", "children": children, "threads": 2, "patience": patience}
        with program(scenario, scenario.start_node(), **wishes) as ran:
            pass
        parent, *_ = ran.given
        assert ran.given[parent][-1] == "end"
        prove_apart(scenario, ran, "while other threads call", killed=True)


def _have_ended(log: Path, children: int) -> bool:
    return len(ended_forks(log)) == children


def _is_alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.scenario(8, "a fork of a warm server")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_fork_of_a_server_under_load_issues_nothing(scenario: Scenario, tmp_path: Path, workers: int) -> None:
    control, logs = Control(tmp_path / "control.json"), Logs(tmp_path)
    [node] = scenario.start_nodes(1, module="tests.faults.node", arguments=control.arguments, workers=workers)
    forked = tmp_path / "fork.ids"
    uuids: list[str] = []
    with logs.clients([node] * 4) as clients:
        calls = [
            lambda: clients[0].allocate_range("orders", 5),
            lambda: [*clients[1].stream_ranges("orders", 200, 10)],
            lambda: clients[2].doc_ids(10),
            lambda: uuids.extend(map(str, clients[3].uuids(10))),
        ]
        callers = [Caller(call) for call in calls]
        # gRPC does not survive a fork, and some children crash in it: fork on until one child has tried to issue ids.
        turns = 0
        while turns < scenario.pick(3, 100) or (turns < MOST_FORKS and not forks(forked)):
            turns += 1
            wait_for_answers(scenario, callers, 10)
            control.fork(forked, "orders")
            scenario.fault(workers)
            scenario.wait_until(partial(_have_ended, node.log, turns * workers), "the end of the children")
        wait_for_answers(scenario, callers, 10)
        for caller in callers:
            caller.stop()
            assert not caller.errors
    # A child that crashed issued nothing either.
    children = forks(forked)
    crashed = [code for code in ended_forks(node.log) if code]
    assert children
    assert len(children) + len(crashed) == len(ended_forks(node.log))
    for child in children:
        assert child.ids == 0
        assert all("is a fork" in refusal for refusal in child.refusals)
        assert sum(child.refusals.values()) > 100
        uuids += child.uuids
    # Of these a child may make its own.
    assert len(set(uuids)) == len(uuids) > len(children) * 100
    children_logs = [log for log in sorted(tmp_path.glob("fork.ids.*")) if log.stat().st_size]
    note = f"{len(crashed)} children crashed in gRPC" if crashed else ""
    scenario.prove(f"{workers} workers" if workers > 1 else "", logs=logs.files + children_logs, note=note)
