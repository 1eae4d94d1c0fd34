"""Rolling restarts under load cause no errors in applications that use the SDK."""

import os
import signal
from itertools import islice

import pytest

import idalloc
from tests.support.faults.issued_ranges import ReservedPort, read_ranges
from tests.support.faults.scenario import ClientProcess, Scenario, Summary
from tests.support.processes import Server
from tests.support.server_calls import worker_pids

ALL_KINDS = "ranges,ids,stream,texts,docids,once,requests,shared"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "transport" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full", False)
        metafunc.parametrize("transport", ["grpcio", "native"] if full else ["grpcio"])


def start_clients(scenario: Scenario, nodes: list[Server], count: int) -> list[ClientProcess]:
    """Start clients that know all nodes, in different orders; every second one uses asyncio."""
    return [
        scenario.start_client(
            *nodes[turn % len(nodes) :],
            *nodes[: turn % len(nodes)],
            module="tests.support.faults.aio_load_client" if turn % 2 else "tests.support.faults.load_client",
            log=f"application-{turn}.jsonl",
            mode=ALL_KINDS,
            threads=4,
            timeout=5.0,
        )
        for turn in range(count)
    ]


def stop(scenario: Scenario, clients: list[ClientProcess]) -> list[Summary]:
    """Stop the clients, after each has received ids once more."""
    scenario.wait_for_records(clients, 50)
    return [client.stop() for client in clients]


@pytest.mark.scenario(11, "a rolling restart of three nodes under load")
def test_a_client_of_all_nodes_sees_no_error(scenario: Scenario, ports: list[ReservedPort], transport: str) -> None:
    """A client that knows all nodes gets no error while they restart one after the other."""
    nodes = scenario.start_nodes(3, addresses=[port.address for port in ports], transport=transport)
    clients = start_clients(scenario, nodes, scenario.pick(2, 4))
    scenario.wait_for_records(clients)
    for _ in range(scenario.pick(1, 4)):
        restart_in_turn(scenario, nodes, clients, ports, transport, records=20)
    prove_no_error(scenario, clients, transport)


def restart_in_turn(
    scenario: Scenario,
    nodes: list[Server],
    clients: list[ClientProcess],
    ports: list[ReservedPort],
    transport: str,
    *,
    records: int,
) -> None:
    """Stop and start each node, and wait after each until the clients have so many more records."""
    for turn in range(len(nodes)):
        assert nodes[turn].stop() == 0
        scenario.count_faults()
        scenario.wait_for_records(clients, records)
        nodes[turn] = scenario.start_node(listen=ports[turn].address, transport=transport)
        scenario.wait_for_records(clients, records)


def prove_no_error(scenario: Scenario, clients: list[ClientProcess], transport: str) -> None:
    """Stop the clients; each used a node that stopped, and none had an error or a repeated id."""
    summaries = stop(scenario, clients)
    assert [summary.errors for summary in summaries] == [{}] * len(clients), summaries
    assert all(len({issued.node for issued in read_ranges(client.log)}) > 1 for client in clients)
    scenario.prove(f"transport {transport}", note="no error reached an application")


@pytest.mark.scenario(11, "a rolling restart of three nodes under 64 streams of requests")
def test_streams_of_requests_see_no_error(scenario: Scenario, ports: list[ReservedPort], transport: str) -> None:
    """Requests of a stream move to another node; their callers get no error."""
    nodes = scenario.start_nodes(3, addresses=[port.address for port in ports], transport=transport)
    clients = [
        scenario.start_client(
            *nodes[turn:],
            *nodes[:turn],
            module=f"tests.support.faults.{module}",
            log=f"requests-{turn}.jsonl",
            mode="requests,shared",
            threads=32,
            timeout=10.0,
            pause=scenario.pick(0.1, 0.0),
        )
        for turn, module in enumerate(("load_client", "aio_load_client"))
    ]
    scenario.wait_for_records(clients)
    restart_in_turn(scenario, nodes, clients, ports, transport, records=200)
    prove_no_error(scenario, clients, transport)


@pytest.mark.scenario(11, "the workers of one server replaced one by one under load")
@pytest.mark.long
def test_replacing_workers_causes_no_error(scenario: Scenario) -> None:
    """A client gets no error while a server's workers are replaced one after the other."""
    server = scenario.start_node(workers=2)
    clients = start_clients(scenario, [server], scenario.pick(2, 4))
    scenario.wait_for_records(clients)
    for _ in range(scenario.pick(1, 4)):
        for pid in worker_pids(server)[-2:]:
            started = len(worker_pids(server))
            os.kill(pid, signal.SIGTERM)
            scenario.count_faults()
            scenario.wait_until(lambda known=started: len(worker_pids(server)) > known, "another worker")  # type: ignore[misc]
            scenario.wait_for_records(clients, 20)
    summaries = stop(scenario, clients)

    assert [summary.errors for summary in summaries] == [{}] * len(clients), summaries
    assert all(len({issued.node for issued in read_ranges(client.log)}) > 1 for client in clients)
    scenario.prove(note="no error reached an application")


@pytest.mark.scenario(11, "a node that drains for long, since someone reads a stream slowly")
def test_other_clients_leave_a_node_that_drains_a_stream(scenario: Scenario) -> None:
    """Clients leave a draining node at once, also while a slow stream keeps it running."""
    leaving, staying = scenario.start_nodes(2, drain_timeout="600s")
    log = scenario.folder / "reader.jsonl"
    reader = idalloc.Client(f"ipv4:{leaving.address},{staying.address}", log=log)
    with reader:
        stream = reader.stream_ranges("orders", 10**9, 10)
        list(islice(stream, 10))
        clients = start_clients(scenario, [leaving, staying], 2)
        scenario.wait_for_records(clients)
        leaving.send(signal.SIGTERM)
        scenario.count_faults()
        scenario.wait_for_records(clients, 500)
        summaries = stop(scenario, clients)
        assert leaving.process.poll() is None

    assert leaving.process.wait(30) == 0

    assert [summary.errors for summary in summaries] == [{}] * len(clients), summaries
    scenario.prove(note="no error reached an application", logs=[log])
