"""Recorded answers stay for their window, whatever clocks and other nodes do (P7)."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import idalloc
from tests.faults.conftest import REAL_OPENSEARCH, SHORT_SECONDS
from tests.support.cratedb.cluster import ProxiedCrate
from tests.support.faults.local_clients import LoggedClients
from tests.support.faults.node_control import NodeControl, injected_faults
from tests.support.faults.scenario import Scenario

# The first of them may start OpenSearch.
pytestmark = pytest.mark.timeout(SHORT_SECONDS)
NODE = "tests.support.faults.faulty_node"
YEAR = 365 * 86400.0
# Methods that search and remove old answers; a fault without a delay logs each call.
PRUNING = ("newest_recorded", "forget_recorded")


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    made = Scenario(tmp_path, full=False)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "crate", REAL_OPENSEARCH])
def each_store(request: pytest.FixtureRequest, scenario: Scenario) -> Iterator[None]:
    if request.param != "crate":
        if request.param == "opensearch":
            scenario.store = request.getfixturevalue("opensearch_url")
        yield
        return
    with ProxiedCrate() as proxied:
        scenario.store = proxied.crate.store
        yield
        scenario.close()


class Node:
    """A node whose searches for old answers are counted."""

    def __init__(self, scenario: Scenario, name: str, window: str) -> None:
        self._scenario = scenario
        self.control = NodeControl(scenario.folder / f"{name}.json")
        self.control.inject("slow", *PRUNING)
        [self.server] = scenario.start_nodes(
            1, module=NODE, arguments=self.control.arguments, request_id_window=window, prefix_conflict="warn"
        )

    def wait_for_pruning(self, count: int = 4) -> None:
        """Wait until the node has searched ``count`` more times."""
        before = injected_faults(self.server.log).total()
        self._scenario.wait_until(
            lambda: injected_faults(self.server.log).total() >= before + count, "searches for old answers"
        )


def take(client: idalloc.Client, request_id: uuid.UUID) -> int:
    return client.allocate_range("orders", 10, request_id=request_id)[0]


class TestWallClock:
    def test_a_clock_set_forward_removes_no_answer(self, scenario: Scenario, logs: LoggedClients) -> None:
        """P7: a wall clock that is set forward does not shorten the window."""
        node, request_id = Node(scenario, "node", "20s"), uuid.uuid4()
        node.control.advance_boot_clock(3600)  # answers found at the start may be removed
        with logs.client(node.server) as client:
            taken = take(client, request_id)
            take(client, uuid.uuid4())
            node.control.set_wall_clock(offset=YEAR)
            node.wait_for_pruning(2)
            assert take(client, request_id) == taken

    def test_a_clock_set_back_removes_no_later_answer(self, scenario: Scenario, logs: LoggedClients) -> None:
        """P7: answers recorded after the clock was set back stay for their window."""
        node, request_id = Node(scenario, "node", "1h"), uuid.uuid4()
        short = Node(scenario, "short", "1s")
        with logs.client(node.server) as client:
            node.control.set_wall_clock(offset=YEAR)
            take(client, uuid.uuid4())
            short.wait_for_pruning()
            node.control.set_wall_clock()
            short.control.advance_boot_clock(3700)  # over an hour after it saw the first answer
            taken = take(client, request_id)
            take(client, uuid.uuid4())
            short.wait_for_pruning()
            assert take(client, request_id) == taken


@pytest.mark.usefixtures("each_store")
class TestWindowOfEachNode:
    def test_a_shorter_window_of_another_node_removes_nothing(self, scenario: Scenario, logs: LoggedClients) -> None:
        """P7: an answer stays for the window of the node that recorded it."""
        long, short, request_id = Node(scenario, "long", "1h"), Node(scenario, "short", "1s"), uuid.uuid4()
        with logs.client(long.server) as client:
            taken = take(client, request_id)
            take(client, uuid.uuid4())
            short.wait_for_pruning()
            short.control.advance_boot_clock(3000)
            short.wait_for_pruning()
            assert take(client, request_id) == taken

    def test_an_answer_is_removed_after_its_window(self, scenario: Scenario, logs: LoggedClients) -> None:
        """P7: a node removes an answer after its window, also while the wall clock is stopped."""
        node, request_id = Node(scenario, "node", "1s"), uuid.uuid4()
        node.control.set_wall_clock(1_700_000_000)
        with logs.client(node.server) as client:
            taken = take(client, request_id)
            take(client, uuid.uuid4())
            node.wait_for_pruning()
            node.control.advance_boot_clock(2)
            node.wait_for_pruning()
            assert take(client, request_id) > taken

    def test_a_restarted_node_keeps_answers_for_a_whole_window(self, scenario: Scenario, logs: LoggedClients) -> None:
        """P7: a restarted node keeps the answers that it finds for a whole window."""
        node, request_id = Node(scenario, "node", "30s"), uuid.uuid4()
        with logs.client(node.server) as client:
            taken = take(client, request_id)
            take(client, uuid.uuid4())
        assert node.server.stop() == 0
        again = Node(scenario, "again", "30s")
        again.control.set_wall_clock(offset=3600)  # the machine was off for an hour
        again.wait_for_pruning(1)
        with logs.client(again.server) as client:
            assert take(client, request_id) == taken
