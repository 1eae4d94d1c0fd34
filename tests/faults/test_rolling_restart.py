"""Servers are stopped and started again, one after the other, under load: applications with the SDK notice nothing."""

import json
import os
import signal
from collections.abc import Iterator
from itertools import islice

import pytest

import idalloc
from tests.faults.issued import Port, read
from tests.faults.scenario import ClientProcess, Scenario, Summary
from tests.support.processes import Server

ALL_KINDS = "ranges,ids,stream,texts,docids,once"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "transport" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full", False)
        metafunc.parametrize("transport", ["grpcio", "native"] if full else ["grpcio"])


@pytest.fixture
def ports() -> Iterator[list[Port]]:
    """Three ports for servers that come back where they were."""
    made = [Port() for _ in range(3)]
    yield made
    for port in made:
        port.close()


def start_clients(scenario: Scenario, nodes: list[Server], count: int) -> list[ClientProcess]:
    """Applications that know all nodes, each with another one in front; every second one is of asyncio."""
    return [
        scenario.start_client(
            *nodes[turn % len(nodes) :],
            *nodes[: turn % len(nodes)],
            module="tests.faults.aio_client" if turn % 2 else "tests.faults.client",
            log=f"application-{turn}.jsonl",
            mode=ALL_KINDS,
            threads=4,
            timeout=5.0,
        )
        for turn in range(count)
    ]


def stop(scenario: Scenario, clients: list[ClientProcess]) -> list[Summary]:
    """Ends applications that get ids to the end."""
    scenario.wait_for_records(clients, 50)
    return [client.stop() for client in clients]


def worker_pids(server: Server) -> list[int]:
    """The process ids of all workers that were ever started."""
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [event["pid"] for event in events if event["event"] == "worker_started"]


@pytest.mark.scenario(11, "a rolling restart of three nodes under load")
def test_no_error_reaches_an_application_that_knows_all_nodes(
    scenario: Scenario, ports: list[Port], transport: str
) -> None:
    nodes = scenario.start_nodes(3, addresses=[port.address for port in ports], transport=transport)
    clients = start_clients(scenario, nodes, scenario.pick(2, 4))
    scenario.wait_for_records(clients)
    for _ in range(scenario.pick(1, 4)):
        for turn in range(len(nodes)):
            assert nodes[turn].stop() == 0
            scenario.fault()
            scenario.wait_for_records(clients, 20)
            nodes[turn] = scenario.start_node(listen=ports[turn].address, transport=transport)
            scenario.wait_for_records(clients, 20)
    summaries = stop(scenario, clients)

    assert [summary.errors for summary in summaries] == [{}] * len(clients), summaries
    # Each of them was on a node that stopped.
    assert all(len({issued.node for issued in read(client.log)}) > 1 for client in clients)
    scenario.prove(f"transport {transport}", note="no error reached an application")


@pytest.mark.scenario(11, "the workers of one server replaced one by one under load")
@pytest.mark.long
def test_no_error_reaches_an_application_when_workers_are_replaced(scenario: Scenario) -> None:
    server = scenario.start_node(workers=2)
    clients = start_clients(scenario, [server], scenario.pick(2, 4))
    scenario.wait_for_records(clients)
    for _ in range(scenario.pick(1, 4)):
        for pid in worker_pids(server)[-2:]:
            started = len(worker_pids(server))
            os.kill(pid, signal.SIGTERM)
            scenario.fault()
            scenario.wait_until(lambda known=started: len(worker_pids(server)) > known, "another worker")  # type: ignore[misc]
            scenario.wait_for_records(clients, 20)
    summaries = stop(scenario, clients)

    assert [summary.errors for summary in summaries] == [{}] * len(clients), summaries
    assert all(len({issued.node for issued in read(client.log)}) > 1 for client in clients)
    scenario.prove(note="no error reached an application")


@pytest.mark.scenario(11, "a node that drains for long, since someone reads a stream slowly")
def test_a_stream_that_keeps_a_node_from_ending_keeps_no_caller_there(scenario: Scenario) -> None:
    leaving, staying = scenario.start_nodes(2, drain_timeout="600s")
    log = scenario.folder / "reader.jsonl"
    reader = idalloc.Client(f"ipv4:{leaving.address},{staying.address}", log=log)
    with reader:
        stream = reader.stream_ranges("orders", 10**9, 10)
        list(islice(stream, 10))  # and then no more
        clients = start_clients(scenario, [leaving, staying], 2)
        scenario.wait_for_records(clients)
        leaving.send(signal.SIGTERM)
        scenario.fault()
        scenario.wait_for_records(clients, 500)
        summaries = stop(scenario, clients)
        assert leaving.process.poll() is None

    assert leaving.process.wait(30) == 0

    assert [summary.errors for summary in summaries] == [{}] * len(clients), summaries
    scenario.prove(note="no error reached an application", logs=[log])
