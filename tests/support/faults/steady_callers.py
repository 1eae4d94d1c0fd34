"""Callers of each kind at a steady rate, on nodes that share the sequences; for tests of P10."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import idalloc
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server

ONE, TEN, MANY, BATCHES, FORMATTED = "1 id", "10 ids", "1-100 ids", "batches", "formatted ids"
# The sequence of each kind of call.
KINDS = {ONE: "one", TEN: "ten", MANY: "many", BATCHES: "batches", FORMATTED: "formatted"}
# The ids of consecutive calls of ``MANY``, of a batch's requests, and of a ``FORMATTED`` call.
SIZES = random.Random(1).sample(range(1, 101), 100)
BATCH = (1, 5, 20)
TEXTS = 3
# How many ids a call of each kind has on average.
IDS_PER_CALL = {ONE: 1.0, TEN: 10.0, MANY: sum(SIZES) / len(SIZES), BATCHES: float(sum(BATCH)), FORMATTED: float(TEXTS)}
# The pause of a caller after each answer, in seconds.
PAUSE = 0.1
# A call outlasts every outage, so that an outage shows as a long call.
TIMEOUT = 120.0


class Call(NamedTuple):
    """A call; times are in nanoseconds of this machine's boot clock."""

    kind: str  # a key of ``KINDS``
    asked: int  # when it was sent
    answered: int  # when it ended
    error: str  # the reason of its error; empty if it had none

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.answered - self.asked) / 1e9


def create_sequences(node: Server, **settings: Any) -> None:
    """Create the sequences of all kinds, with these settings."""
    with idalloc.Client(node.address, timeout=30) as client:
        for name in KINDS.values():
            client.sequences.create(name, **{"format": "A-{value}"} | settings)


def start(scenario: Scenario, nodes: Iterable[Server]) -> list[ClientProcess]:
    """Start a client with a caller of each kind on each node; wait for their first answers."""
    module = "tests.support.faults.steady_client"
    callers = [scenario.start_client(node, module=module, pause=PAUSE, timeout=TIMEOUT) for node in nodes]
    wait_for_answers(scenario, callers, 1)
    return callers


def wait_for_answers(scenario: Scenario, callers: Sequence[ClientProcess], more: int = 3) -> None:
    """Wait until each caller of each client has ``more`` further answers."""
    before = [answers(caller) for caller in callers]

    def reached() -> bool:
        for caller in callers:
            assert caller.process.poll() is None, f"a client ended: {caller.process.communicate()}"
        return all(
            now[kind] >= then[kind] + more
            for now, then in zip(map(answers, callers), before, strict=True)
            for kind in KINDS
        )

    scenario.wait_until(reached, f"{more} more answers of each kind")


def answers(caller: ClientProcess) -> dict[str, int]:
    """Return the number of successful calls of a client, by kind."""
    counts = dict.fromkeys(KINDS, 0)
    for call in read_calls(caller):
        counts[call.kind] += not call.error
    return counts


def read_calls(caller: ClientProcess) -> Iterator[Call]:
    """Yield the calls of a client that have ended."""
    file = caller.log.with_name(f"calls-{caller.log.name}")
    for line in file.read_text().splitlines(keepends=True) if file.exists() else ():
        if line.endswith("\n"):
            yield Call(*json.loads(line))


def calls_between(callers: Iterable[ClientProcess], began: int, ended: int) -> dict[str, list[Call]]:
    """Return the calls that were sent in a time, by kind."""
    found: dict[str, list[Call]] = {kind: [] for kind in KINDS}
    for caller in callers:
        for call in read_calls(caller):
            if began <= call.asked < ended:
                found[call.kind].append(call)
    return found
