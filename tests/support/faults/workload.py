"""Load on nodes whose store fails: clients that make calls of every kind."""

from collections import Counter
from itertools import pairwise
from typing import Any

import idalloc
from idalloc._issued_log.format import RECORD, ROW
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server

# Errors that an application may get while its server cannot reach the store.
STORE_ERRORS = {"STORE_UNAVAILABLE", "DEADLINE_EXCEEDED", "REQUEST_ID_BURNED", "SEQUENCE_AHEAD_OF_CLOCK"}

STEADY = "steady"
# Ids per second that a steady caller takes at most.
STEADY_RATE = 200


def start_callers(scenario: Scenario, nodes: list[Server], pause: float = 0.005) -> list[ClientProcess]:
    """Start clients with calls of every kind: leases, the store, request ids, streams, documents.

    Args:
        nodes: Each gets a client of its own; two more clients use all of them.
        pause: Time between the calls of a client, in seconds.
    """
    with idalloc.Client(nodes[0].address, timeout=30) as client:
        client.sequences.create("invoices", ordering="rising")
        client.sequences.create("events", kind="timestamp-us")
    options: dict[str, Any] = {"threads": 3, "pause": pause}
    by_node = [
        scenario.start_client(node, mode="ranges,ids,once,stream,texts,docids", id_count=10**number, **options)
        for number, node in enumerate(nodes, start=1)
    ]
    callers = [
        *by_node,
        scenario.start_client(*nodes, sequence="invoices", mode="ranges,once", **options),
        scenario.start_client(*reversed(nodes), sequence="events", mode="ranges,once", **options),
    ]
    scenario.wait_for_records(callers, 5)
    return callers


def start_steady_caller(scenario: Scenario, node: Server, number: int = 0) -> ClientProcess:
    """Start a client with a steady rate and a sequence of its own."""
    pause = 10 / STEADY_RATE
    # Its timeout outlasts every fault, so that a fault shows as a stall and not as an error.
    return scenario.start_client(node, sequence=f"{STEADY}-{number}", id_count=10, pause=pause, timeout=120)


def longest_stall(caller: ClientProcess, since: int) -> float:
    """Return the longest time, in seconds, between a client's answers from record ``since`` on."""
    data = caller.log.read_bytes()
    rows = list(ROW.iter_unpack(data[: len(data) // ROW.size * ROW.size]))[since - 1 :]
    answered = [row[10] for row in rows if row[0] == RECORD]
    assert len(answered) > 1
    return float(max(after - before for before, after in pairwise(answered)) / 1e9)


def wait_for_reserve(scenario: Scenario, node: Server, caller: ClientProcess, seconds: float, number: int = 0) -> None:
    """Wait until the reserve, which grows with use, serves a steady caller for ``seconds``."""

    def holds() -> int:
        return (client.sequences.get(f"{STEADY}-{number}").last_value or 0) - 10 * caller.records

    with idalloc.Client(node.address, timeout=30) as client:
        scenario.wait_for_records([caller], 20)
        scenario.wait_until(lambda: holds() > seconds * STEADY_RATE, f"a reserve for {seconds} s", within=180)


def stop_all(scenario: Scenario, callers: list[ClientProcess], nodes: list[Server]) -> Counter[str]:
    """Stop the clients, after each has received ids once more, and then the nodes.

    Returns:
        The clients' errors, by reason.
    """
    scenario.wait_for_records(callers, 20)
    errors = Counter[str]()
    for caller in callers:
        errors += Counter(caller.stop().errors)
    assert errors.keys() <= STORE_ERRORS, errors
    for node in nodes:
        assert node.stop(timeout=60) == 0
    return errors
