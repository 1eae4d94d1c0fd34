"""A stop while the store hangs: the log counts every granted id that was not issued (P9)."""

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
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR
from tests.support.faults.local_clients import LoggedClients
from tests.support.faults.node_control import FaultKind, NodeControl, injected_faults
from tests.support.faults.scenario import Scenario
from tests.support.processes import Server

NODE = "tests.support.faults.faulty_node"
MANY = 500_000  # more than a node holds


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    made = Scenario(tmp_path, full=False)
    yield made
    made.close()


class Node:
    """A node with issued counts, and with calls that wait for a hanging store."""

    def __init__(self, scenario: Scenario, stack: ExitStack, workers: int = 1) -> None:
        self.scenario = scenario
        self.control = NodeControl(scenario.folder / "node.json")
        [self.server] = scenario.start_nodes(
            1, module=NODE, arguments=self.control.arguments, drain_timeout="1s", workers=workers
        )
        self.issued: Counter[str] = Counter()
        self._threads = stack.enter_context(ThreadPoolExecutor(64))
        self._client = stack.enter_context(LoggedClients(scenario.folder).client(self.server))

    def warm(self, sequence: str) -> None:
        """Allocate from a sequence until the node holds ids of it."""
        for _ in range(4):
            self.issued[sequence] += len(self._client.allocate_range(sequence, 100))

    def stall(self, kind: FaultKind, method: str, calls: "list[Callable[[idalloc.Client], object]]") -> None:
        """Start calls that wait for a faulty method of the store."""
        self.control.inject(kind, method)
        for call in calls:
            self._threads.submit(self._try, call)
        self.scenario.wait_until(
            lambda: injected_faults(self.server.log)[kind, method] >= len(calls), f"{method} is stalled"
        )

    def change(self, client: idalloc.Client) -> None:
        client.sequences.update("orders", description="new")

    def _try(self, call: "Callable[[idalloc.Client], object]") -> None:
        with suppress(idalloc.IdallocError):
            call(self._client)

    def burned(self) -> Counter[str]:
        """Return the burned ids in the log, by the name of the row."""
        counts: Counter[str] = Counter()
        for text in self.server.log.read_text().splitlines():
            line = json.loads(text)
            if line["event"] == "burned":
                counts[line["sequence"] + (PERIOD_SEPARATOR + line["period"] if "period" in line else "")] += line[
                    "ids"
                ]
        return counts

    def missing(self) -> Counter[str]:
        """Return the granted ids that were not issued, by the name of the row."""
        with closing(sqlite3.connect(self.scenario.folder / "ids.db")) as db:
            rows = db.execute("SELECT name, last_value FROM sequences").fetchall()
        counts: Counter[str] = Counter()
        for name, value in rows:
            counts[name] += value - (self.issued[name.split(PERIOD_SEPARATOR)[0]] if value else 0)
        return +counts


def stopped(server: Server) -> bool:
    return server.stop(signal.SIGTERM, 60) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("workers", [1, 2])
class TestStalledWorkers:
    def test_a_refill_behind_a_hanging_change_is_counted(self, scenario: Scenario, workers: int) -> None:
        """P9: a grant without an answer counts as burned, even if a change hangs till the end."""
        with ExitStack() as stack:
            node = Node(scenario, stack, workers)
            node.warm("orders")
            node.stall("hang", "revise", [node.change])
            node.stall("mute", "grant", [lambda client: client.allocate_range("orders", MANY)])
            assert stopped(node.server)
            assert node.burned() == node.missing()
            assert node.burned()["orders"] >= MANY


class TestStalledNode:
    def test_refills_beyond_the_close_concurrency_are_counted(self, scenario: Scenario) -> None:
        """P9: unanswered refills of any number of sequences and periods are counted."""
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

    def test_unrecorded_answers_behind_a_change_are_counted(self, scenario: Scenario) -> None:
        """P9: ids under a request_id whose answer is not recorded in time are counted."""
        with ExitStack() as stack:
            node = Node(scenario, stack)
            node.warm("orders")
            node.stall("hang", "revise", [node.change])
            node.stall("hang", "record", [lambda client: client.allocate_range("orders", 7, request_id=uuid.uuid4())])
            assert stopped(node.server)
            assert node.burned() == node.missing()

    def test_a_tail_returned_without_an_answer_is_counted(self, scenario: Scenario) -> None:
        """P9: a tail whose return has no answer counts as not returned."""
        with ExitStack() as stack:
            node = Node(scenario, stack)
            node.warm("orders")
            node.control.inject("hang", "give_back")
            node.server.send(signal.SIGTERM)
            node.scenario.wait_until(
                lambda: injected_faults(node.server.log)["hang", "give_back"] >= 1, "the tail goes back"
            )
            assert stopped(node.server)  # the second SIGTERM
            assert node.burned() == node.missing()
