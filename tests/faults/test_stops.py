"""A stop while the store stalls: every id that was taken and not issued is in the log (P9)."""

import json
import signal
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import idalloc
from idalloc_server.domain.allocation.allocator import CLOSE_CONCURRENCY
from idalloc_server.domain.sequences.model import PERIOD_MARK
from tests.faults.control import Control, Kind, harmed
from tests.faults.near import Logs
from tests.faults.scenario import Scenario
from tests.support.processes import Server

NODE = "tests.faults.node"
MANY = 5000


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    made = Scenario(tmp_path, full=False)
    yield made
    made.close()


class Node:
    """A node, what was issued of each sequence, and calls that wait for a store that stalls."""

    def __init__(self, scenario: Scenario, stack: ExitStack, workers: int = 1) -> None:
        self.scenario = scenario
        self.control = Control(scenario.folder / "node.json")
        [self.server] = scenario.start_nodes(
            1, module=NODE, arguments=self.control.arguments, drain_timeout="1s", workers=workers
        )
        self.issued: Counter[str] = Counter()
        self._threads = stack.enter_context(ThreadPoolExecutor(64))
        self._client = stack.enter_context(Logs(scenario.folder).client(self.server))

    def warm(self, sequence: str) -> None:
        """Uses a sequence until the node holds ids of it."""
        for _ in range(4):
            self.issued[sequence] += len(self._client.allocate_range(sequence, 100))

    def stall(self, what: Kind, method: str, calls: "list[Callable[[idalloc.Client], object]]") -> None:
        """Makes calls that a stalled method of the store keeps waiting."""
        self.control.harm(what, method)
        for call in calls:
            self._threads.submit(self._try, call)
        self.scenario.wait_until(lambda: harmed(self.server.log)[what, method] >= len(calls), f"{method} is stalled")

    def change(self, client: idalloc.Client) -> None:
        client.sequences.update("orders", description="new")

    def _try(self, call: "Callable[[idalloc.Client], object]") -> None:
        with suppress(idalloc.IdallocError):
            call(self._client)

    def burned(self) -> Counter[str]:
        """What the log says that was burned, by the name of the row."""
        counts: Counter[str] = Counter()
        for text in self.server.log.read_text().splitlines():
            line = json.loads(text)
            if line["event"] == "burned":
                counts[line["sequence"] + (PERIOD_MARK + line["period"] if "period" in line else "")] += line["ids"]
        return counts

    def missing(self) -> Counter[str]:
        """How many ids each counter is past that nobody got."""
        with closing(sqlite3.connect(self.scenario.folder / "ids.db")) as db:
            rows = db.execute("SELECT name, last_value FROM sequences").fetchall()
        counts: Counter[str] = Counter()
        for name, value in rows:
            counts[name] += value - (self.issued[name.split(PERIOD_MARK)[0]] if value else 0)
        return +counts


def stopped(server: Server) -> bool:
    return server.stop(signal.SIGTERM, 60) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("workers", [1, 2])
class TestEverythingStalls:
    def test_a_refill_behind_a_change_that_hangs(self, scenario: Scenario, workers: int) -> None:
        """P9: ids of a write whose answer does not come are counted, though a change uses up the time."""
        with ExitStack() as stack:
            node = Node(scenario, stack, workers)
            node.warm("orders")
            node.stall("hang", "revise", [node.change])
            node.stall("mute", "grant", [lambda client: client.allocate_range("orders", MANY)])
            assert stopped(node.server)
            assert node.burned() == node.missing()
            assert node.burned()["orders"] >= MANY


class TestTheRest:
    def test_more_refills_than_are_closed_at_a_time(self, scenario: Scenario) -> None:
        """P9: refills of any number of sequences, and of periods, are counted."""
        with ExitStack() as stack:
            node = Node(scenario, stack)
            node._client.sequences.create("invoices", reset="yearly", format="{year}-{value}")
            names = ["invoices", *(f"orders-{number}" for number in range(CLOSE_CONCURRENCY + 8))]
            for name in names:
                node.warm(name)
            stalled = [lambda client, name=name: client.allocate_range(name, MANY) for name in names]
            node.stall("mute", "grant", stalled)  # type: ignore[arg-type]
            assert stopped(node.server)
            assert node.burned() == node.missing()
            assert len(node.burned()) == len(names)

    def test_answers_that_are_written_down_behind_a_change(self, scenario: Scenario) -> None:
        """P9: ids under a request_id whose answer is not recorded in time are counted."""
        with ExitStack() as stack:
            node = Node(scenario, stack)
            node.warm("orders")
            node.stall("hang", "revise", [node.change])
            node.stall("hang", "record", [lambda client: client.allocate_range("orders", 7, request_id=uuid.uuid4())])
            assert stopped(node.server)
            assert node.burned() == node.missing()

    def test_a_tail_that_is_given_back_when_time_is_up(self, scenario: Scenario) -> None:
        """P9: a tail whose return has no answer counts as not returned."""
        with ExitStack() as stack:
            node = Node(scenario, stack)
            node.warm("orders")
            node.control.harm("hang", "give_back")
            node.server.send(signal.SIGTERM)
            node.scenario.wait_until(lambda: harmed(node.server.log)["hang", "give_back"] >= 1, "the tail goes back")
            assert stopped(node.server)  # a second SIGTERM changes nothing
            assert node.burned() == node.missing()
