"""Recorded answers stay for their window, whatever clocks and other nodes say (P7)."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import idalloc
from tests.faults.control import Control, harmed
from tests.faults.cratedb import Proxied
from tests.faults.near import Logs
from tests.faults.scenario import Scenario

NODE = "tests.faults.node"
YEAR = 365 * 86400.0
# What a node does to find answers that it may remove; each is logged as harmed, though nothing becomes of it.
LOOKS = ("newest_recorded", "forget_recorded")


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    made = Scenario(tmp_path, full=False)
    yield made
    made.close()


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@pytest.fixture(params=["sqlite", "crate"])
def each_store(request: pytest.FixtureRequest, scenario: Scenario) -> Iterator[None]:
    if request.param == "sqlite":
        yield
        return
    with Proxied() as proxied:
        scenario.store = proxied.crate.store
        yield
        scenario.close()


class Node:
    """A node whose looks for old answers are counted."""

    def __init__(self, scenario: Scenario, name: str, window: str) -> None:
        self._scenario = scenario
        self.control = Control(scenario.folder / f"{name}.json")
        self.control.harm("slow", *LOOKS)
        [self.server] = scenario.start_nodes(
            1, module=NODE, arguments=self.control.arguments, request_id_window=window, prefix_conflict="warn"
        )

    def wait_for_looks(self, count: int = 4) -> None:
        """Waits until it looked so many times more."""
        before = harmed(self.server.log).total()
        self._scenario.wait_until(lambda: harmed(self.server.log).total() >= before + count, "looks for old answers")


def take(client: idalloc.Client, request_id: uuid.UUID) -> int:
    return client.allocate_range("orders", 10, request_id=request_id)[0]


class TestClocks:
    def test_one_set_forward_by_a_year_removes_nothing(self, scenario: Scenario, logs: Logs) -> None:
        """P7: a wall clock that is set does not shorten the window."""
        node, request_id = Node(scenario, "node", "20s"), uuid.uuid4()
        node.control.move_boot(3600)  # whatever was there at the start may go
        with logs.client(node.server) as client:
            taken = take(client, request_id)
            take(client, uuid.uuid4())
            node.control.set_wall(offset=YEAR)
            node.wait_for_looks(2)
            assert take(client, request_id) == taken

    def test_one_set_back_removes_no_later_answer(self, scenario: Scenario, logs: Logs) -> None:
        """P7: answers written after the clock was set back stay for their window."""
        node, request_id = Node(scenario, "node", "1h"), uuid.uuid4()
        short = Node(scenario, "short", "1s")
        with logs.client(node.server) as client:
            node.control.set_wall(offset=YEAR)
            take(client, uuid.uuid4())
            short.wait_for_looks()
            node.control.set_wall()
            short.control.move_boot(3700)  # it saw the first answer over an hour ago
            taken = take(client, request_id)
            take(client, uuid.uuid4())
            short.wait_for_looks()
            assert take(client, request_id) == taken


@pytest.mark.usefixtures("each_store")
class TestTwoWindows:
    def test_a_shorter_one_of_another_node_removes_nothing(self, scenario: Scenario, logs: Logs) -> None:
        """P7: an answer stays for the window of the node that recorded it."""
        long, short, request_id = Node(scenario, "long", "1h"), Node(scenario, "short", "1s"), uuid.uuid4()
        with logs.client(long.server) as client:
            taken = take(client, request_id)
            take(client, uuid.uuid4())
            short.wait_for_looks()
            short.control.move_boot(3000)
            short.wait_for_looks()
            assert take(client, request_id) == taken

    def test_its_own_answers_are_removed(self, scenario: Scenario, logs: Logs) -> None:
        """P7: after its window an answer goes, though the wall clock stands still."""
        node, request_id = Node(scenario, "node", "1s"), uuid.uuid4()
        node.control.set_wall(1_700_000_000)
        with logs.client(node.server) as client:
            taken = take(client, request_id)
            take(client, uuid.uuid4())
            node.wait_for_looks()
            node.control.move_boot(2)
            node.wait_for_looks()
            assert take(client, request_id) > taken

    def test_a_restart_begins_anew(self, scenario: Scenario, logs: Logs) -> None:
        """P7: a node that started again keeps what it finds for a whole window."""
        node, request_id = Node(scenario, "node", "30s"), uuid.uuid4()
        with logs.client(node.server) as client:
            taken = take(client, request_id)
            take(client, uuid.uuid4())
        assert node.server.stop() == 0
        again = Node(scenario, "again", "30s")
        again.control.set_wall(offset=3600)  # the machine was off for an hour
        again.wait_for_looks(1)
        with logs.client(again.server) as client:
            assert take(client, request_id) == taken
