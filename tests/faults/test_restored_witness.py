"""Only fresh nodes see a restored older copy of the store, with and without a witness (P1, P3)."""

import os
from collections.abc import Iterator

import pytest

from tests.faults.test_restored import LEASES, PAUSE, wait_until_all_are_refused
from tests.support.cratedb.cluster import URL, CrateCluster
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.faults.store_copies import CopiedCrateDB, CopiedStore, copied_store, run_cli
from tests.support.processes import Server

TITLE = "an older copy of the store that only fresh nodes see"
NAMES = {"sqlite": "SQLite", "cratedb": "the CrateDB emulator", "snapshot": "a snapshot of a real CrateDB"}
SNAPSHOTS = "IDALLOC_TEST_CRATEDB_SNAPSHOTS"


@pytest.fixture(params=NAMES)
def store(request: pytest.FixtureRequest, scenario: Scenario) -> Iterator[CopiedStore | CopiedCrateDB]:
    if request.param != "snapshot":
        with copied_store(request.param, scenario.folder) as store:
            scenario.store = store.url
            yield store
            scenario.close()
        return
    if not (URL and SNAPSHOTS in os.environ):
        pytest.skip(f"IDALLOC_TEST_CRATEDB_URL and {SNAPSHOTS}, a folder in its path.repo, are not both set")
    real = CopiedCrateDB(CrateCluster.real(), os.environ[SNAPSHOTS])
    scenario.store = real.url
    try:
        yield real
    finally:
        scenario.close()
        real.drop()


def issue_past_a_copy(scenario: Scenario, store: CopiedStore | CopiedCrateDB, **settings: object) -> list[Server]:
    """Issue ids, restore the copy that was made before most of them, and start fresh nodes."""
    nodes = scenario.start_nodes(2, **LEASES, **settings)
    texts = ("--reset", "yearly", "--format", "{year}-{value}")
    run_cli("sequences", "create", "invoices", *texts, "--server", nodes[0].address)
    clients = start_clients(scenario, nodes)
    scenario.wait_for_records(clients, more=20)
    copy = store.copy()
    scenario.wait_for_records(clients, more=200)
    nodes[0].process.kill()
    nodes[1].stop()
    for client in clients:
        client.stop()
    store.restore(copy)
    scenario.count_faults()
    return scenario.start_nodes(2, **LEASES, **settings)


def start_clients(scenario: Scenario, nodes: list[Server]) -> list[ClientProcess]:
    clients = [scenario.start_client(node, mode="ranges,once", pause=PAUSE) for node in nodes]
    clients.append(scenario.start_client(nodes[0], mode="texts", sequence="invoices", pause=PAUSE))
    return clients


@pytest.mark.scenario(5, TITLE)
def test_fresh_nodes_refuse_a_restored_store(
    scenario: Scenario, store: CopiedStore | CopiedCrateDB, request: pytest.FixtureRequest
) -> None:
    """P3: with a witness, fresh nodes refuse a restored store until an advance; no id repeats."""
    nodes = issue_past_a_copy(scenario, store, witness=f"sqlite://{scenario.folder}/witness.db")
    clients = start_clients(scenario, nodes)
    documents = scenario.start_client(nodes[1], mode="docids", pause=PAUSE)
    wait_until_all_are_refused(scenario, clients)
    scenario.wait_for_records([documents], more=20)

    run_cli("sequences", "advance", "--all", "--server", nodes[1].address)
    scenario.wait_for_records([*clients, documents], more=20)
    for client in clients:
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    assert not documents.stop().errors
    scenario.prove(NAMES[request.node.callspec.params["store"]], at_least=1_000)


@pytest.mark.scenario(5, TITLE)
def test_without_a_witness_fresh_nodes_repeat_ids(scenario: Scenario, store: CopiedStore | CopiedCrateDB) -> None:
    """The limit of P3: without a witness, the verifier finds ids that fresh nodes issued again."""
    nodes = issue_past_a_copy(scenario, store)
    clients = start_clients(scenario, nodes)
    scenario.wait_for_records(clients, more=100)
    for client in clients:
        assert not client.stop().errors
    assert scenario.verify(exported=False).findings["duplicates"] > 0
