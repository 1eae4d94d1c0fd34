"""Callers of every kind, for a store that fails under them."""

from collections import Counter
from itertools import pairwise
from typing import Any

import idalloc
from idalloc._issued_log.format import RECORD, ROW
from tests.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server

# What an application may see while its server cannot ask the store.
STORE_IS_AWAY = {"STORE_UNAVAILABLE", "DEADLINE_EXCEEDED", "REQUEST_ID_BURNED", "SEQUENCE_AHEAD_OF_CLOCK"}

STEADY = "steady"
# How many ids a second a steady caller takes at most.
STEADY_RATE = 200


def start_callers(scenario: Scenario, nodes: list[Server], pause: float = 0.005) -> list[ClientProcess]:
    """Starts callers of every kind: from leases, from the store each time, with request ids, streams, document ids.

    Args:
        scenario: Where they belong.
        nodes: Each has a caller of its own; others know them all.
        pause: How long a caller waits between calls, in seconds.
    """
    with idalloc.Client(nodes[0].address, timeout=30) as client:
        client.sequences.create("invoices", ordering="rising")
        client.sequences.create("events", kind="timestamp-us")
    wishes: dict[str, Any] = {"threads": 3, "pause": pause}
    by_node = [
        scenario.start_client(node, mode="ranges,ids,once,stream,texts,docids", id_count=10**number, **wishes)
        for number, node in enumerate(nodes, start=1)
    ]
    callers = [
        *by_node,
        scenario.start_client(*nodes, sequence="invoices", mode="ranges,once", **wishes),
        scenario.start_client(*reversed(nodes), sequence="events", mode="ranges,once", **wishes),
    ]
    scenario.wait_for_records(callers, 5)
    return callers


def start_steady(scenario: Scenario, node: Server, number: int = 0) -> ClientProcess:
    """Starts a caller at a steady rate, of a sequence that nobody else uses."""
    pause = 10 / STEADY_RATE
    # It waits for each answer, however long that takes: what it notices is a stall.
    return scenario.start_client(node, sequence=f"{STEADY}-{number}", id_count=10, pause=pause, timeout=120)


def longest_stall(caller: ClientProcess, since: int) -> float:
    """The longest time, in seconds, between two answers that a caller got, from its record of this number on."""
    data = caller.log.read_bytes()
    rows = list(ROW.iter_unpack(data[: len(data) // ROW.size * ROW.size]))[since - 1 :]
    answered = [row[10] for row in rows if row[0] == RECORD]
    assert len(answered) > 1
    return float(max(after - before for before, after in pairwise(answered)) / 1e9)


def wait_for_reserve(scenario: Scenario, node: Server, caller: ClientProcess, seconds: float, number: int = 0) -> None:
    """Waits until the node holds what a steady caller needs for so long. That takes time: it holds what it saw used."""

    def holds() -> int:
        return client.sequences.get(f"{STEADY}-{number}").last_value - 10 * caller.records

    with idalloc.Client(node.address, timeout=30) as client:
        scenario.wait_for_records([caller], 20)
        scenario.wait_until(lambda: holds() > seconds * STEADY_RATE, f"a reserve for {seconds} s", within=180)


def end(scenario: Scenario, callers: list[ClientProcess], nodes: list[Server]) -> Counter[str]:
    """Ends callers, who must get ids to the end, and then nodes, which give back what they hold.

    Returns:
        The errors that callers saw.
    """
    scenario.wait_for_records(callers, 20)
    errors = Counter[str]()
    for caller in callers:
        errors += Counter(caller.stop().errors)
    assert errors.keys() <= STORE_IS_AWAY, errors
    for node in nodes:
        assert node.stop(timeout=60) == 0
    return errors
