"""An older copy of the store is restored under live nodes, and repaired by the runbook (P3)."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from idalloc._issued_log.format import ROW
from tests.faults.conftest import ON_OPENSEARCH, REAL_OPENSEARCH, RELEASE
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.faults.store_copies import (
    CopiedOpenSearch,
    CopiedStore,
    copied_store,
    run_cli,
    values_before_restore,
)
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.processes import Server
from tests.support.waiting import hold_for

TITLE = "the store restored from an older copy"
NAMES = {"sqlit": "SQLite", "crate": "the CrateDB emulator", "opens": "a real OpenSearch"}
# An advance takes this time and a second.
LEASE_SECONDS = 4
LEASES = {"lease_ttl": f"{LEASE_SECONDS}s", "store_timeout": "3s", "outage_reserve": "600ms"}
# Seconds between the calls of a client, to limit the load.
PAUSE = 0.01


def restore_until_refused(
    scenario: Scenario, where: dict[str, list[Server]], restore: Callable[[], None]
) -> dict[str, int]:
    """Restore the store, and wait until the nodes have logged store_went_backwards.

    Args:
        where: The nodes that use each sequence.

    Returns:
        The highest id that a node saw of each sequence.
    """
    both = [(sequence, node) for sequence, nodes in where.items() for node in nodes]
    before = [len(values_before_restore(node, sequence)) for sequence, node in both]
    restore()
    scenario.count_faults()
    for (sequence, node), count in zip(both, before, strict=True):
        scenario.wait_until(lambda: len(values_before_restore(node, sequence)) > count, f"{sequence} is refused")  # noqa: B023
    return {
        sequence: max(values_before_restore(node, sequence)[-1] for node in nodes) for sequence, nodes in where.items()
    }


def wait_until_all_are_refused(scenario: Scenario, clients: list[ClientProcess], *reasons: str) -> None:
    """Wait until each client saw one of the reasons, then until none received ids for a second."""
    expected = reasons or ("STORE_WENT_BACKWARDS",)
    scenario.wait_until(
        lambda: all(client.reasons.intersection(expected) for client in clients), f"{expected} at each client"
    )
    before: list[int] = []
    since = 0

    def still() -> bool:
        nonlocal since
        now = [client.records for client in clients]
        since = since + 1 if now == before else 0
        before[:] = now
        return since > 50  # polled every 20 ms

    scenario.wait_until(still, "all calls are refused")


def wait_until_all_nodes_write(scenario: Scenario, clients: list[ClientProcess]) -> None:
    """Wait until each node saw a counter past the copy's; else it cannot detect the restore.

    A node renews a lease in use after a third of its life.
    """
    for _ in range(2):  # first some node moves the counter past the copy, then the others see it
        hold_for(LEASE_SECONDS, "each node renews its lease")
        scenario.wait_for_records(clients, more=5)


def export_at_rest(scenario: Scenario) -> Path:
    """Export the store when it no longer changes; a refill may follow the last call."""
    while True:
        export = scenario.export()
        hold_for(LEASE_SECONDS, "a lease ends that a refill may still follow")
        if scenario.export().read_bytes() == export.read_bytes():
            return export


def last_record(client: ClientProcess) -> tuple[int, int]:
    """Return the generation and the last id of a client's last range."""
    content = client.log.read_bytes()
    end = len(content) // ROW.size * ROW.size
    _, _, _, _, generation, _, first, step, count, *_ = ROW.unpack(content[end - ROW.size : end])
    return generation, first + (count - 1) * step


def advance(node: Server, highest: dict[str, int]) -> None:
    """Advance sequences at once, as in the runbook; each command waits until leases have ended."""
    with ThreadPoolExecutor() as operators:
        done = [
            operators.submit(run_cli, "sequences", "advance", name, "--past", past, "--server", node.address)
            for name, past in highest.items()
        ]
    for each in done:
        each.result()


@pytest.fixture(params=["sqlite", pytest.param("cratedb", marks=pytest.mark.long), REAL_OPENSEARCH])
def store(request: pytest.FixtureRequest, scenario: Scenario) -> Iterator[CopiedStore | CopiedOpenSearch]:
    if request.param == "opensearch":
        scenario.store = request.getfixturevalue("opensearch_url")
        yield CopiedOpenSearch(scenario.store, scenario.folder)
        return
    with copied_store(request.param, scenario.folder) as store:
        scenario.store = store.url
        yield store
        scenario.close()


@pytest.mark.scenario(5, TITLE)
def test_nodes_refuse_a_restored_store_until_an_advance(
    scenario: Scenario, store: CopiedStore | CopiedOpenSearch
) -> None:
    """P3: nodes refuse a store that is behind what they saw, until an advance repairs it."""
    one, other = nodes = scenario.start_nodes(2, **LEASES)
    run_cli("sequences", "create", "tickets", "--ordering", "rising", "--server", one.address)
    texts = ("--format", "INV-{year}-{value:012d}", "--reset", "yearly")
    run_cli("sequences", "create", "invoices", *texts, "--server", one.address)
    counting = [scenario.start_client(node, mode="ranges,once,stream", pause=PAUSE) for node in nodes]
    counting.append(scenario.start_client(one, mode="texts", sequence="invoices", pause=PAUSE))
    counting.append(scenario.start_client(other, sequence="tickets", pause=PAUSE))
    documents = scenario.start_client(one, mode="docids", pause=PAUSE)
    for _ in range(scenario.pick(1, 10)):
        scenario.wait_for_records([*counting, documents], more=20)
        copy = store.copy()
        scenario.wait_for_records([*counting, documents], more=20)
        wait_until_all_nodes_write(scenario, [*counting, documents])

        where = {"orders": nodes, "invoices": [one], "tickets": [other]}
        highest = restore_until_refused(scenario, where, partial(store.restore, copy))
        wait_until_all_are_refused(scenario, counting)
        scenario.wait_for_records([documents], more=20)  # document ids need no counter

        advance(one, highest)
        scenario.wait_for_records([*counting, documents], more=20)

    # A new node joins after the advance.
    fresh = scenario.start_node(**LEASES)
    last = [scenario.start_client(fresh, mode=mode, pause=PAUSE) for mode in ("ranges", "docids")]
    scenario.wait_for_records([*counting, documents, *last], more=20)
    for client in counting:
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    assert not any(client.stop().errors for client in [documents, *last])
    scenario.prove(NAMES[store.url[:5]], at_least=1_000)


@pytest.mark.scenario(5, TITLE)
@pytest.mark.long
def test_an_advance_on_any_node_ends_all_refusals(scenario: Scenario) -> None:
    """P3: nodes refuse an older generation, and a missing row, until one node repairs it."""
    store = CopiedStore(scenario.store, scenario.folder / "ids.db")
    one, other = nodes = scenario.start_nodes(2, **LEASES)
    clients = [scenario.start_client(node, mode="ranges,once", pause=PAUSE) for node in nodes]
    scenario.wait_for_records(clients, more=20)
    copy = store.copy()
    # The first node sees two more generations than the copy, which has no customers; the other one.
    copied, _ = last_record(clients[1])
    run_cli("sequences", "advance", "orders", "--past", 0, "--no-wait", "--server", one.address)
    scenario.wait_until(lambda: last_record(clients[1])[0] > copied, "the other node sees the next generation")
    between, _ = last_record(clients[1])
    saw_less = clients[1].stop()
    run_cli("sequences", "advance", "orders", "--past", 0, "--no-wait", "--server", one.address)
    clients = [clients[0], scenario.start_client(one, sequence="customers", pause=PAUSE)]
    scenario.wait_until(lambda: last_record(clients[0])[0] > between, "the first node sees the third generation")
    scenario.wait_for_records(clients, more=20)

    highest = restore_until_refused(scenario, {"orders": [one], "customers": [one]}, partial(store.restore, copy))
    clients.append(scenario.start_client(other, mode="ranges,once", pause=PAUSE))
    scenario.wait_until(lambda: bool(values_before_restore(other, "orders")), "the other node refuses too")
    wait_until_all_are_refused(scenario, clients)

    # An advance on the node that saw less is enough: generations follow the clock, past lost ones.
    run_cli("sequences", "advance", "orders", "--past", highest["orders"], "--server", other.address)
    scenario.wait_for_records([clients[0], clients[2]], more=20)
    assert "SEQUENCE_NOT_FOUND" in run_cli(
        "sequences", "advance", "customers", "--past", highest["customers"], "--server", one.address, exit_code=1
    )
    run_cli("sequences", "create", "customers", "--start", highest["customers"] + 1, "--server", one.address)
    scenario.wait_for_records(clients, more=20)
    assert not saw_less.errors
    for client in clients:
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    scenario.prove("older generation, and a row that is not in the copy", at_least=1_000)


@pytest.mark.scenario(5, TITLE)
@pytest.mark.parametrize("imported", [False, pytest.param(True, marks=pytest.mark.long)], ids=["advance", "import"])
def test_a_replaced_file_is_refused_until_all_nodes_stop(scenario: Scenario, imported: bool) -> None:
    """P3: a replaced database file is refused until all nodes stopped and the counter advanced."""
    store = CopiedStore(scenario.store, scenario.folder / "ids.db")
    nodes = scenario.start_nodes(2, **LEASES)
    clients = [scenario.start_client(node, mode="ranges,once", pause=PAUSE) for node in nodes]
    documents = [scenario.start_client(node, mode="docids", pause=PAUSE) for node in nodes]
    scenario.wait_for_records([*clients, *documents], more=20)
    copy = store.copy()
    scenario.wait_for_records(clients, more=20)
    newer = scenario.export() if imported else None
    scenario.wait_for_records(clients, more=20)

    restore_until_refused(scenario, {"orders": nodes}, partial(store.replace_file, copy))
    wait_until_all_are_refused(scenario, clients)
    scenario.wait_for_records(documents, more=20)
    in_use = max(last_record(client)[1] for client in clients)
    message = run_cli("sequences", "advance", "orders", "--past", in_use, "--server", nodes[0].address, exit_code=1)
    assert message.startswith("STORE_REFUSED: ")
    assert f"{store.file} was replaced" in message

    # As in the runbook: stop all nodes, remove -wal and -shm, and advance before clients call.
    assert [node.stop() for node in nodes] == [0, 0]
    for beside in ("-wal", "-shm"):
        store.file.with_name(store.file.name + beside).unlink(missing_ok=True)
    if newer:
        assert "raised or changed 1" in run_cli("store", "import", newer, "--store", scenario.store)
    alone = scenario.start_node(**LEASES)
    run_cli("sequences", "advance", "orders", "--past", in_use, "--server", alone.address)
    assert alone.stop() == 0
    for node in nodes:
        scenario.start_node(listen=node.address, **LEASES)
    scenario.wait_for_records([*clients, *documents], more=20)
    for client in clients:
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    scenario.prove("the file replaced under the nodes" + ", a newer export imported" * imported, at_least=1_000)


@pytest.mark.scenario(5, TITLE)
def test_importing_a_newer_export_repairs_a_restored_store(scenario: Scenario) -> None:
    """P3: an import of the newest export under live nodes ends the refusals."""
    store = CopiedStore(scenario.store, scenario.folder / "ids.db")
    nodes = scenario.start_nodes(2, **LEASES)
    before = [scenario.start_client(node, mode="ranges,ids", pause=PAUSE) for node in nodes]
    scenario.wait_for_records(before, more=20)
    copy = store.copy()
    wait_until_all_nodes_write(scenario, before)
    assert not any(client.stop().errors for client in before)
    newer = export_at_rest(scenario)

    after: list[ClientProcess] = []

    def restore() -> None:
        store.restore(copy)
        after.extend(scenario.start_client(node, mode="ranges", pause=PAUSE) for node in nodes)

    restore_until_refused(scenario, {"orders": nodes}, restore)
    wait_until_all_are_refused(scenario, after)
    assert "raised or changed 1" in run_cli("store", "import", newer, "--store", scenario.store)
    scenario.wait_for_records(after, more=20)
    for client in after:
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    scenario.prove("a newer export imported under the nodes", at_least=500)


@ON_OPENSEARCH
@pytest.mark.scenario(5, TITLE)
def test_no_node_follows_a_rollover(scenario: Scenario, opensearch_host: Callable[[str], str]) -> None:
    """P3: after a rollover no node issues ids until the alias is back and all nodes restarted."""
    backend = OpenSearchBackend(opensearch_host(RELEASE), f"idalloc-{uuid.uuid4().hex[:12]}")
    asyncio.run(backend.make_older_indices())
    scenario.store = backend.url
    nodes = scenario.start_nodes(2, **LEASES)
    clients = [scenario.start_client(node, mode="ranges,once", pause=PAUSE) for node in nodes]
    clients.append(scenario.start_client(nodes[0], sequence="early", pause=PAUSE))
    scenario.wait_for_records(clients, more=20)

    status, rolled = asyncio.run(backend.send("POST", f"/{backend.alias}/_rollover"))
    assert status == 200, rolled
    scenario.count_faults()
    # A sequence that a node has not used before the rollover would begin at 1 again.
    late = [scenario.start_client(node, sequence=name, pause=PAUSE) for node in nodes for name in ("early", "late")]
    wait_until_all_are_refused(scenario, [*clients, *late])
    assert [node.stop() for node in nodes] == [0, 0]

    back = [
        {"remove_index": {"index": rolled["new_index"]}},
        {"add": {"index": rolled["old_index"], "alias": backend.alias, "is_write_index": True}},
    ]
    assert asyncio.run(backend.send("POST", "/_aliases", {"actions": back}))[0] == 200
    for node in nodes:
        scenario.start_node(listen=node.address, **LEASES)
    scenario.wait_for_records([*clients, *late], more=20)
    for client in [*clients, *late]:
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    scenario.prove("the alias of OpenSearch rolled over under the nodes", at_least=500)
