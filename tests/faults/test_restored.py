"""The store restored from an older copy under live nodes, and the runbook's way out of it, to the end (P3)."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from idalloc._issued_log.format import ROW
from tests.faults.copies import Copied, idalloc, noticed, store_of
from tests.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server

TITLE = "the store restored from an older copy"
NAMES = {"sqlit": "SQLite", "crate": "the CrateDB emulator"}
# Each advance lasts as long as the leases, and a second.
LEASE_SECONDS = 2
LEASES = {"lease_ttl": f"{LEASE_SECONDS}s", "store_timeout": "1s", "outage_reserve": "600ms"}
# Between the calls of a client, so that several of them do not take all of a small machine.
PAUSE = 0.01


def refusals(scenario: Scenario, where: dict[str, list[Server]], restore: Callable[[], None]) -> dict[str, int]:
    """Restores the store, and waits until nodes have logged that it is behind.

    Args:
        where: By sequence, the nodes that use it.
        restore: Puts the copy back.

    Returns:
        By sequence, the highest id that one of these nodes saw.
    """
    both = [(sequence, node) for sequence, nodes in where.items() for node in nodes]
    before = [len(noticed(node, sequence)) for sequence, node in both]
    restore()
    scenario.fault()
    for (sequence, node), count in zip(both, before, strict=True):
        scenario.wait_until(lambda: len(noticed(node, sequence)) > count, f"{sequence} is refused")  # noqa: B023
    return {sequence: max(noticed(node, sequence)[-1] for node in nodes) for sequence, nodes in where.items()}


def stand_still(scenario: Scenario, clients: list[ClientProcess]) -> None:
    """Waits until no client gets anything for a second."""
    before: list[int] = []
    since = 0

    def still() -> bool:
        nonlocal since
        now = [client.records for client in clients]
        since = since + 1 if now == before else 0
        before[:] = now
        return since > 50  # it is asked every 20 ms

    scenario.wait_until(still, "all calls are refused")


def let_all_write(scenario: Scenario, clients: list[ClientProcess]) -> None:
    """Waits until each node has seen a counter past the one in the copy: one that has not can know nothing of it.

    Nodes serve from what they hold. But a lease in use is renewed when a third of its life is gone.
    """
    for _ in range(2):  # first some node takes more than the copy knows, then the others see that
        time.sleep(LEASE_SECONDS)
        scenario.wait_for_records(clients, more=5)


def export_at_rest(scenario: Scenario) -> Path:
    """Exports a store that nobody writes to any more: a refill for the last call may come after that."""
    while True:
        export = scenario.export()
        time.sleep(LEASE_SECONDS)
        if scenario.export().read_bytes() == export.read_bytes():
            return export


def last_record(client: ClientProcess) -> tuple[int, int]:
    """Returns the generation and the last id of what a client got last."""
    content = client.log.read_bytes()
    end = len(content) // ROW.size * ROW.size
    _, _, _, _, generation, _, first, step, count, *_ = ROW.unpack(content[end - ROW.size : end])
    return generation, first + (count - 1) * step


def advance(node: Server, highest: dict[str, int]) -> None:
    """Does what the runbook says, for several sequences at once: each command waits until leases have ended."""
    with ThreadPoolExecutor() as operators:
        done = [
            operators.submit(idalloc, "sequences", "advance", name, "--past", past, "--server", node.address)
            for name, past in highest.items()
        ]
    for each in done:
        each.result()


@pytest.fixture(params=["sqlite", pytest.param("cratedb", marks=pytest.mark.long)])
def store(request: pytest.FixtureRequest, scenario: Scenario) -> Iterator[Copied]:
    with store_of(request.param, scenario.folder) as store:
        scenario.store = store.url
        yield store
        scenario.close()


@pytest.mark.scenario(5, TITLE)
def test_nodes_that_saw_more_refuse_and_go_on_once_it_was_advanced(scenario: Scenario, store: Copied) -> None:
    one, other = nodes = scenario.start_nodes(2, **LEASES)
    idalloc("sequences", "create", "tickets", "--ordering", "rising", "--server", one.address)
    texts = ("--format", "INV-{year}-{value:012d}", "--reset", "yearly")
    idalloc("sequences", "create", "invoices", *texts, "--server", one.address)
    counting = [scenario.start_client(node, mode="ranges,once,stream", pause=PAUSE) for node in nodes]
    counting.append(scenario.start_client(one, mode="texts", sequence="invoices", pause=PAUSE))
    counting.append(scenario.start_client(other, sequence="tickets", pause=PAUSE))
    documents = scenario.start_client(one, mode="docids", pause=PAUSE)
    for _ in range(scenario.pick(1, 10)):
        scenario.wait_for_records([*counting, documents], more=20)
        copy = store.take()
        scenario.wait_for_records([*counting, documents], more=20)
        let_all_write(scenario, [*counting, documents])

        where = {"orders": nodes, "invoices": [one], "tickets": [other]}
        highest = refusals(scenario, where, partial(store.put_back, copy))
        stand_still(scenario, counting)
        scenario.wait_for_records([documents], more=20)  # no node takes those from a counter

        advance(one, highest)
        scenario.wait_for_records([*counting, documents], more=20)

    # Advanced first, then restarted, or joined by a new one.
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
    """P3: after a restore with an older generation, and without a row, nodes refuse until one of them repairs it."""
    store = Copied(scenario.store, scenario.folder / "ids.db")
    one, other = nodes = scenario.start_nodes(2, **LEASES)
    clients = [scenario.start_client(node, mode="ranges,once", pause=PAUSE) for node in nodes]
    scenario.wait_for_records(clients, more=20)
    copy = store.take()
    # The first node sees two generations more than the copy has, the other one sees one. The copy has no customers.
    copied, _ = last_record(clients[1])
    idalloc("sequences", "advance", "orders", "--past", 0, "--no-wait", "--server", one.address)
    scenario.wait_until(lambda: last_record(clients[1])[0] > copied, "the other node sees the next generation")
    between, _ = last_record(clients[1])
    saw_less = clients[1].stop()
    idalloc("sequences", "advance", "orders", "--past", 0, "--no-wait", "--server", one.address)
    clients = [clients[0], scenario.start_client(one, sequence="customers", pause=PAUSE)]
    scenario.wait_until(lambda: last_record(clients[0])[0] > between, "the first node sees the third generation")
    scenario.wait_for_records(clients, more=20)

    highest = refusals(scenario, {"orders": [one], "customers": [one]}, partial(store.put_back, copy))
    clients.append(scenario.start_client(other, mode="ranges,once", pause=PAUSE))
    scenario.wait_until(lambda: bool(noticed(other, "orders")), "the other node refuses too")
    stand_still(scenario, clients)

    # An advance on the node that saw less is enough: its generation follows the clock, and so is newer than a lost one.
    idalloc("sequences", "advance", "orders", "--past", highest["orders"], "--server", other.address)
    scenario.wait_for_records([clients[0], clients[2]], more=20)
    assert "SEQUENCE_NOT_FOUND" in idalloc(
        "sequences", "advance", "customers", "--past", highest["customers"], "--server", one.address, exit_code=1
    )
    idalloc("sequences", "create", "customers", "--start", highest["customers"] + 1, "--server", one.address)
    scenario.wait_for_records(clients, more=20)
    assert not saw_less.errors
    for client in clients:
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    scenario.prove("older generation, and a row that is not in the copy", at_least=1_000)


@pytest.mark.scenario(5, TITLE)
@pytest.mark.parametrize("imported", [False, pytest.param(True, marks=pytest.mark.long)], ids=["advance", "import"])
def test_a_file_that_was_replaced_is_refused_until_all_were_stopped(scenario: Scenario, imported: bool) -> None:
    store = Copied(scenario.store, scenario.folder / "ids.db")
    nodes = scenario.start_nodes(2, **LEASES)
    clients = [scenario.start_client(node, mode="ranges,once", pause=PAUSE) for node in nodes]
    documents = [scenario.start_client(node, mode="docids", pause=PAUSE) for node in nodes]
    scenario.wait_for_records([*clients, *documents], more=20)
    copy = store.take()
    scenario.wait_for_records(clients, more=20)
    newer = scenario.export() if imported else None
    scenario.wait_for_records(clients, more=20)

    refusals(scenario, {"orders": nodes}, partial(store.replace_by, copy))
    stand_still(scenario, clients)
    scenario.wait_for_records(documents, more=20)
    in_use = max(last_record(client)[1] for client in clients)
    said = idalloc("sequences", "advance", "orders", "--past", in_use, "--server", nodes[0].address, exit_code=1)
    assert said.startswith("STORE_REFUSED: ")
    assert f"{store.file} was replaced" in said

    # As the runbook has it: all end, what belonged to the old file goes, and nobody calls before it was advanced.
    assert [node.stop() for node in nodes] == [0, 0]
    for beside in ("-wal", "-shm"):
        store.file.with_name(store.file.name + beside).unlink(missing_ok=True)
    if newer:
        assert "raised or changed 1" in idalloc("import", newer, "--store", scenario.store)
    alone = scenario.start_node(**LEASES)
    idalloc("sequences", "advance", "orders", "--past", in_use, "--server", alone.address)
    assert alone.stop() == 0
    for node in nodes:
        scenario.start_node(listen=node.address, **LEASES)
    scenario.wait_for_records([*clients, *documents], more=20)
    for client in clients:
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    scenario.prove("the file replaced under the nodes" + ", a newer export imported" * imported, at_least=1_000)


@pytest.mark.scenario(5, TITLE)
def test_a_newer_export_that_is_imported_under_live_nodes_mends_it_too(scenario: Scenario) -> None:
    store = Copied(scenario.store, scenario.folder / "ids.db")
    nodes = scenario.start_nodes(2, **LEASES)
    before = [scenario.start_client(node, mode="ranges,ids", pause=PAUSE) for node in nodes]
    scenario.wait_for_records(before, more=20)
    copy = store.take()
    scenario.wait_for_records(before, more=20)
    assert not any(client.stop().errors for client in before)
    newer = export_at_rest(scenario)

    after: list[ClientProcess] = []

    def restore() -> None:
        store.put_back(copy)
        after.extend(scenario.start_client(node, mode="ranges", pause=PAUSE) for node in nodes)

    refusals(scenario, {"orders": nodes}, restore)
    stand_still(scenario, after)
    assert "raised or changed 1" in idalloc("import", newer, "--store", scenario.store)
    scenario.wait_for_records(after, more=20)
    for client in after:  # or they would get ids that are not in the last export yet
        assert "STORE_WENT_BACKWARDS" in client.stop().errors
    scenario.prove("a newer export imported under the nodes", at_least=500)
