"""The last ids before a bound, and changes of a sequence, under load on several nodes."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import idalloc
from tests.support.faults.issued_ranges import IssuedRange, boot_time_ns, read_ranges
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server
from tests.support.promises.effects import EffectiveAdvance
from tests.support.waiting import hold_for

LEASES = {"lease_ttl": "1s", "store_timeout": "400ms", "outage_reserve": "400ms"}
# Minimum lease size: a node's ids outlast a change.
HELD = 1_000_000
JSON_SAFE = 2**53 - 1
LARGEST = 2**63 - 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "end" in metafunc.fixturenames:
        ends = list(ENDS) if metafunc.config.getoption("--full", False) else ["5, counting down in steps"]
        metafunc.parametrize("end", ends)


@contextmanager
def connected(scenario: Scenario, nodes: list[Server]) -> Iterator[list[idalloc.Client]]:
    """Yield a client of each node in this process; the logs are last-0.ids, …"""
    with ExitStack() as clients:
        yield [
            clients.enter_context(idalloc.Client(node.address, timeout=30, log=scenario.folder / f"last-{turn}.ids"))
            for turn, node in enumerate(nodes)
        ]


def drain(clients: list[idalloc.Client]) -> None:
    """Allocate single ids from all nodes until the sequence is exhausted on each."""
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


# Returns the settings of a sequence with the given number of ids left, and its last id.
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
def test_last_ids_before_a_bound_are_issued_exactly_once(scenario: Scenario, end: str) -> None:
    """P1: each id up to a bound is issued at most once; each missing id is counted as burned."""
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
            hold_for(1, "the last replies arrive: the ids of a reply without a caller are burned")
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
    # Every id up to the bound was issued, or counted as burned by a node.
    assert found["last"] == last_id
    assert verdict.ids + verdict.missing == ids
    assert verdict.unattributed == 0


# Errors that callers may get while a sequence is changed.
EXPECTED_ERRORS = {
    "SEQUENCE_NOT_FOUND",
    "SEQUENCE_EXHAUSTED",
    "STORE_UNAVAILABLE",
    "REQUEST_ID_BURNED",
    "DEADLINE_EXCEEDED",
}


@dataclass(eq=False)
class Changes:
    """Changes orders through each node in turn; asserts that clients see each change in time."""

    scenario: Scenario
    nodes: list[idalloc.Client]
    callers: list[ClientProcess]
    _made: int = 0
    _step: int = 1

    def issued(self) -> list[IssuedRange]:
        """Return all ranges issued so far."""
        return [each for caller in self.callers for each in read_ranges(caller.log)]

    def highest(self) -> int:
        """Return the highest id issued so far."""
        return max(each.highest for each in self.issued())

    def advance(self) -> None:
        """Advance; no id at or below the value is issued any more."""
        past = self.highest() + 10 * HELD
        since = self._wait_until_effective(self._next().advance("orders", past))
        self._assert_past(self._later(since), since, past)

    def step(self) -> None:
        """Change the step, which all later ranges have."""
        self._step = {1: 5, 5: 2, 2: 1}[self._step]
        since = self._wait_until_effective(self._next().update("orders", step=self._step))
        assert {each.step for each in self._later(since)} == {self._step}

    def bound(self) -> None:
        """Lower the bound, which later ranges keep, and raise it again."""
        bound = self.highest() + 5_000_000  # above the ids that the nodes hold
        since = self._wait_until_effective(self._next().update("orders", max_value=bound))
        made = self._next().update("orders", max_value=None)
        until = boot_time_ns()
        assert all(each.highest <= bound for each in self.issued() if since <= each.asked and each.answered < until)
        self._wait_until_effective(made)
        self._later(until)

    def ordering(self) -> None:
        """Change the ordering twice; ``verify`` checks it."""
        for ordering in ("rising", "rising-per-node"):
            since = self._wait_until_effective(self._next().update("orders", ordering=ordering))
            self._later(since)

    def format(self) -> None:
        """Change the format, which affects texts only."""
        since = self._wait_until_effective(self._next().update("orders", format=f"N{self._made}-{{value}}"))
        self._later(since)

    def recreate(self) -> None:
        """Delete and recreate: no ids in between, and higher ids afterwards."""
        since = self._wait_until_effective(self._next().delete("orders"))
        hold_for(0.2, "the sequence stays deleted")
        until = boot_time_ns()
        issued = self.issued()
        assert not [each for each in issued if since <= each.asked and each.answered < until]
        highest = max(each.highest for each in issued)
        self._next().create("orders", step=self._step, min_lease_size=HELD)
        self._assert_past(self._later(until), until, highest)

    def _assert_past(self, issued: list[IssuedRange], since: int, value: int) -> None:
        advance = EffectiveAdvance(since, value, self._step)
        assert not [each for each in issued if advance.forbids(each.ids, each.asked)]

    def _next(self) -> Any:
        self._made += 1
        self.scenario.count_faults()
        return self.nodes[self._made % len(self.nodes)].sequences

    def _wait_until_effective(self, reply: Any) -> int:
        hold_for(max(0.0, reply.effective_delay.total_seconds()), "leases from before the change end")
        return boot_time_ns()

    def _later(self, since: int) -> list[IssuedRange]:
        """Return the ranges requested since then, after each client has received some."""
        for caller in self.callers:
            self.scenario.wait_until(
                lambda caller=caller: sum(each.asked >= since for each in read_ranges(caller.log)) > 5,  # type: ignore[misc]
                "more ids for each caller",
            )
        return [each for each in self.issued() if each.asked >= since]


@pytest.mark.scenario(9, "deleted and made again, updated, advanced, over and over, under load")
def test_changes_hold_for_all_clients_from_their_effective_time(scenario: Scenario, rng: random.Random) -> None:
    """P5: advance, update, delete and recreate are safe while other nodes hold leases."""
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
            rng.shuffle(kinds)
            for change in kinds:
                change()
    for caller in callers:
        assert caller.stop().errors.keys() <= EXPECTED_ERRORS
    verdict = scenario.prove(note=f"leases of {LEASES['lease_ttl']}")
    assert verdict.burned["generation"]
