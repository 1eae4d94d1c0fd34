"""The last ids of a sequence, and changes of one, while several nodes and callers use it."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import idalloc
from tests.faults.issued import Issued, boot_ns, read
from tests.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server

LEASES = {"lease_ttl": "1s", "store_timeout": "400ms", "outage_reserve": "400ms"}
# So many ids a node holds at least, which last over a change.
HELD = 1_000_000
JSON_SAFE = 2**53 - 1
LARGEST = 2**63 - 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "end" in metafunc.fixturenames:
        ends = list(ENDS) if metafunc.config.getoption("--full", False) else ["5, counting down in steps"]
        metafunc.parametrize("end", ends)


@contextmanager
def connected(scenario: Scenario, nodes: list[Server]) -> Iterator[list[idalloc.Client]]:
    """A client of each node in this process; their logs are named last-0.ids, …"""
    with ExitStack() as clients:
        yield [
            clients.enter_context(idalloc.Client(node.address, timeout=30, log=scenario.folder / f"last-{turn}.ids"))
            for turn, node in enumerate(nodes)
        ]


def drain(clients: list[idalloc.Client]) -> None:
    """Takes one id after the other, of all nodes, until none has any left."""
    while True:
        taken = 0
        for client in clients:
            try:
                for _ in range(1_000):
                    taken += len(client.allocate_range("last"))
            except idalloc.SequenceExhausted as refusal:
                assert refusal.remaining == 0  # noqa: PT017
        if not taken:
            return


# The settings of a sequence that has so many ids left, and its last id.
ENDS: dict[str, Callable[[int], tuple[dict[str, Any], int]]] = {
    "2^53-1": lambda ids: ({"json_safe": True, "start": JSON_SAFE - ids + 1}, JSON_SAFE),
    "2^63-2": lambda ids: ({"start": LARGEST - ids + 1}, LARGEST),
    "2^63-2 in steps": lambda ids: ({"start": LARGEST - 3 * (ids - 1), "step": 3}, LARGEST),
    "1, counting down": lambda ids: ({"start": ids, "step": -1, "min_value": 1, "max_value": ids}, 1),
    "5, counting down in steps": lambda ids: (
        {"start": 5 + 7 * (ids - 1), "step": -7, "min_value": 1, "max_value": 7 * ids},
        5,
    ),
    "2^63-2, rising over all nodes": lambda ids: ({"start": LARGEST - ids + 1, "ordering": "rising"}, LARGEST),
}


@pytest.mark.scenario(9, "the end of a sequence with many nodes")
def test_the_last_ids_are_issued_each_once_to_the_very_last(scenario: Scenario, end: str) -> None:
    ids = scenario.pick(20_000, 20_000 if "rising" in end else 300_000)
    settings, last_id = ENDS[end](ids)
    nodes = scenario.start_nodes(scenario.pick(2, 4))
    with connected(scenario, nodes) as clients:
        clients[0].sequences.create("last", **settings)
        callers = [
            scenario.start_client(
                node, sequence="last", mode="ranges,ids,stream,once", id_count=7 + 10 * turn, threads=2, timeout=60.0
            )
            for turn, node in enumerate(nodes)
        ]
        scenario.wait_for_records(callers)
        summaries = []
        for caller in callers:
            scenario.wait_until(lambda: clients[0].sequences.get("last").remaining == 0, "its end", within=600)
            time.sleep(1)  # for the last replies: one that a caller no longer waits for is nobody's
            summaries.append(caller.stop())
        drain(clients)
        for client in clients:
            with pytest.raises(idalloc.SequenceExhausted):
                client.allocate_range("last")
    for node in nodes:
        assert node.stop() == 0

    assert all(summary.errors.keys() == {"SEQUENCE_EXHAUSTED"} for summary in summaries), summaries
    verdict = scenario.prove(end, logs=sorted(scenario.folder.glob("last-*.ids")))
    [found] = verdict.report["sequences"]
    # Nothing is left behind: every id to the last one was issued, or burned by a node that counted it.
    assert found["last"] == last_id
    assert verdict.ids + verdict.missing == ids
    assert verdict.unattributed == 0


# What callers may see while a sequence is changed.
MAY_BE_SEEN = {
    "SEQUENCE_NOT_FOUND",
    "SEQUENCE_EXHAUSTED",
    "STORE_UNAVAILABLE",
    "REQUEST_ID_BURNED",
    "DEADLINE_EXCEEDED",
}


class Changes:
    """Changes orders, by one node after the other, and sees that callers get each from its effective time on."""

    def __init__(self, scenario: Scenario, nodes: list[idalloc.Client], callers: list[ClientProcess]) -> None:
        self._scenario = scenario
        self._nodes = nodes
        self._callers = callers
        self._made = 0
        self._step = 1

    def issued(self) -> list[Issued]:
        """All ranges until now."""
        return [each for caller in self._callers for each in read(caller.log)]

    def highest(self) -> int:
        """The highest id until now."""
        return max(each.highest for each in self.issued())

    def advance(self) -> None:
        """Ids that the counter was moved past come no more."""
        past = self.highest() + 10 * HELD
        since = self._effective(self._next().advance("orders", past))
        assert all(each.lowest > past for each in self._later(since))

    def step(self) -> None:
        """Ids come in the new step."""
        self._step = {1: 5, 5: 2, 2: 1}[self._step]
        since = self._effective(self._next().update("orders", step=self._step))
        assert {each.step for each in self._later(since)} == {self._step}

    def bound(self) -> None:
        """Ids end at the new bound, and go on when it is raised."""
        bound = self.highest() + 5_000_000  # past what the nodes hold, of which each change before burned some
        since = self._effective(self._next().update("orders", max_value=bound))
        made = self._next().update("orders", max_value=None)
        until = boot_ns()
        assert all(each.highest <= bound for each in self.issued() if since <= each.asked and each.answered < until)
        self._effective(made)
        self._later(until)

    def ordering(self) -> None:
        """Ids rise over all nodes, and then not, which ``verify`` looks at."""
        for ordering in ("rising", "rising-per-node"):
            since = self._effective(self._next().update("orders", ordering=ordering))
            self._later(since)

    def format(self) -> None:
        """Another format changes texts alone."""
        since = self._effective(self._next().update("orders", format=f"N{self._made}-{{value}}"))
        self._later(since)

    def recreate(self) -> None:
        """From a delete's effective time on nobody gets an id; made again, it goes on behind the last one."""
        since = self._effective(self._next().delete("orders"))
        time.sleep(0.2)
        until = boot_ns()
        issued = self.issued()
        assert not [each for each in issued if since <= each.asked and each.answered < until]
        highest = max(each.highest for each in issued)
        self._next().create("orders", step=self._step, min_lease_size=HELD)
        later = self._later(until)
        assert min(each.lowest for each in later) > highest

    def _next(self) -> Any:
        self._made += 1
        self._scenario.fault()
        return self._nodes[self._made % len(self._nodes)].sequences

    def _effective(self, reply: Any) -> int:
        time.sleep(max(0.0, reply.effective_delay.ToTimedelta().total_seconds()))
        return boot_ns()

    def _later(self, since: int) -> list[Issued]:
        """The ranges that were asked for since then: each caller got some."""
        for caller in self._callers:
            self._scenario.wait_until(
                lambda caller=caller: sum(each.asked >= since for each in read(caller.log)) > 5,  # type: ignore[misc]
                "more ids for each caller",
            )
        return [each for each in self.issued() if each.asked >= since]


@pytest.mark.scenario(9, "deleted and made again, updated, advanced, over and over, under load")
def test_a_change_is_what_all_callers_get_from_its_effective_time_on(scenario: Scenario, dice: random.Random) -> None:
    nodes = scenario.start_nodes(scenario.pick(2, 4), **LEASES)
    with idalloc.Client(nodes[0].address) as client:
        client.sequences.create("orders", min_lease_size=HELD)
    callers = [
        scenario.start_client(
            node, log=f"caller-{turn}.jsonl", mode="ranges,ids,stream,texts,once", threads=2, timeout=2.0, pause=0.02
        )
        for turn, node in enumerate(nodes)
    ]
    scenario.wait_for_records(callers)
    with connected(scenario, nodes) as clients:
        changes = Changes(scenario, clients, callers)
        kinds = [changes.advance, changes.recreate, changes.step]
        if scenario.full:
            kinds += [changes.bound, changes.ordering, changes.format]
        for _ in range(scenario.pick(1, 3)):
            dice.shuffle(kinds)
            for change in kinds:
                change()
    for caller in callers:
        assert caller.stop().errors.keys() <= MAY_BE_SEEN
    verdict = scenario.prove(note=f"leases of {LEASES['lease_ttl']}")
    assert verdict.burned["generation"]
