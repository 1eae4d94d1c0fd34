"""SIGKILL ends nodes, workers and clients at random; they are replaced, and no id is repeated."""

import json
import os
import random
import signal

import pytest

import idalloc
from tests.support.faults.issued_ranges import ReservedPort
from tests.support.faults.scenario import SHORT_LEASES, ClientProcess, Scenario
from tests.support.processes import Server
from tests.support.waiting import hold_for

ALL_KINDS = "ranges,once,ids,stream,docids,texts,requests,shared"
# Errors that an application may get while a server is down.
AWAY = {"SERVER_UNREACHABLE", "STORE_UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "REQUEST_ID_BURNED"}


def make_rising(node: Server) -> None:
    """Create a sequence with the ordering rising."""
    with idalloc.Client(node.address) as client:
        client.sequences.create("invoices", ordering="rising")


def stop(scenario: Scenario, clients: list[ClientProcess]) -> None:
    """Stop the clients after each received ids once more; assert that each error was expected."""
    scenario.wait_for_records(clients, 30)
    for client in clients:
        assert client.stop().errors.keys() <= AWAY


def worker_pids(server: Server) -> list[int]:
    """Return the process ids of all workers that were ever started."""
    events = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    return [event["pid"] for event in events if event["event"] == "worker_started"]


@pytest.mark.scenario(2, "kill -9 of nodes in random moments")
@pytest.mark.usefixtures("on_each_store")
def test_ids_of_a_killed_node_are_not_issued_again(
    scenario: Scenario, rng: random.Random, ports: list[ReservedPort]
) -> None:
    """P1: ids that a killed node held are never issued."""
    addresses = [port.address for port in ports[: scenario.pick(2, 3)]]
    nodes = scenario.start_nodes(len(addresses), addresses=addresses, **SHORT_LEASES)
    make_rising(nodes[0])
    clients = [
        scenario.start_client(*nodes, mode=ALL_KINDS, threads=3),
        scenario.start_client(*nodes[::-1], mode=ALL_KINDS, threads=3, id_count=500),
        scenario.start_client(*nodes[::-1], sequence="invoices", mode="ranges,once", threads=3),
    ]
    for _ in range(scenario.pick(2, 30)):
        scenario.wait_for_records(clients, 10)
        hold_for(rng.uniform(0, 0.3), "until a random moment")
        victim = rng.randrange(len(nodes))
        assert nodes[victim].stop(signal.SIGKILL) == -signal.SIGKILL
        scenario.count_faults()
        nodes[victim] = scenario.start_node(listen=addresses[victim], **SHORT_LEASES)
    stop(scenario, clients)
    verdict = scenario.prove(at_least=1_000, note=f"on {scenario.store_name}")
    assert verdict.missing  # the ids that they held


@pytest.mark.scenario(2, "kill -9 of workers in random moments")
def test_ids_of_a_killed_worker_are_not_issued_again(scenario: Scenario, rng: random.Random) -> None:
    """P1: ids that a killed worker held are never issued."""
    workers = scenario.pick(2, 3)
    server = scenario.start_node(workers=workers, **SHORT_LEASES)
    make_rising(server)
    clients = [
        scenario.start_client(server, mode=ALL_KINDS, threads=3),
        scenario.start_client(server, mode=ALL_KINDS, threads=3, id_count=500),
        scenario.start_client(server, sequence="invoices", mode="ranges,once", threads=3),
    ]
    alive = worker_pids(server)
    for _ in range(scenario.pick(2, 40)):
        scenario.wait_for_records(clients, 10)
        hold_for(rng.uniform(0, 0.3), "until a random moment")
        known = len(worker_pids(server))
        victim = alive.pop(rng.randrange(workers))
        os.kill(victim, signal.SIGKILL)
        scenario.count_faults()
        scenario.wait_until(lambda known=known: len(worker_pids(server)) > known, "another worker")  # type: ignore[misc]
        alive.append(worker_pids(server)[-1])
    stop(scenario, clients)
    verdict = scenario.prove(at_least=1_000)
    assert verdict.missing


@pytest.mark.scenario(2, "kill -9 of clients in random moments")
def test_a_restarted_client_gets_new_ids(scenario: Scenario, rng: random.Random) -> None:
    """P1: a client restarted after SIGKILL gets new ids, and its log has all earlier ones."""
    nodes = scenario.start_nodes(2, **SHORT_LEASES)
    make_rising(nodes[0])
    staying = scenario.start_client(*nodes, sequence="invoices", mode="ranges,once", threads=3)
    killed = 0

    def start(turn: int) -> ClientProcess:
        module = "tests.support.faults.aio_load_client" if turn % 2 else "tests.support.faults.load_client"
        ends = ["ids", "jsonl"][turn // 2 % 2]
        sequence = rng.choice(["orders", "orders", "invoices"])
        log = f"killed-{turn}.{ends}"
        return scenario.start_client(*nodes, log=log, module=module, sequence=sequence, mode=ALL_KINDS, threads=3)

    for turn in range(scenario.pick(2, 30)):
        client = start(turn)
        scenario.wait_for_records([client, staying], 10)
        hold_for(rng.uniform(0, 0.3), "until a random moment")
        client.kill()
        scenario.count_faults()
        killed += client.records
    going_on = start(0x1000)
    stop(scenario, [staying, going_on])
    verdict = scenario.prove(at_least=1_000)
    assert verdict.ids > killed > 0
