"""A store without a name, of the version before names, gets one, and older servers keep it (P3)."""

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import idalloc
from idalloc_server.domain.store.identity import IDENTITY, Opening
from idalloc_server.store.urls import open_store
from tests.support.fake_store import FakeClock
from tests.support.faults.scenario import Scenario
from tests.support.processes import Server, environment
from tests.support.store_rows import new_row
from tests.upgrade.conftest import EACH_STORE

pytestmark = pytest.mark.test_long
THIS = Path(sys.executable)

SETTINGS = {"request_id_window": "1s", "lease_ttl": "5s", "store_timeout": "3s", "outage_reserve": "1s"}


@pytest.fixture(scope="module")
def scenario(store: str, first: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    """Servers on one store."""
    scenario = Scenario(tmp_path_factory.mktemp(first), full=False, store=store)
    yield scenario
    scenario.close()


def opened(store: str, opening: Opening) -> tuple[str, dict[str, str]]:
    """Open a store; return its name, and its list of parts."""

    async def run() -> tuple[str, dict[str, str]]:
        opening_store = open_store(store, FakeClock())
        try:
            await opening_store.open(opening)
            row = await opening_store.get(IDENTITY)
            return opening_store.opened["name"], dict(row.sequence.labels) if row else {}
        finally:
            await opening_store.close()

    return asyncio.run(run())


def take(server: Server, sequence: str = "orders", **options: object) -> idalloc.Range:
    with idalloc.Client(server.address, timeout=20) as client:
        return client.allocate_range(sequence, 10, **options)  # type: ignore[arg-type]


def command(python: Path, *arguments: str, **settings: str) -> str:
    """Run a command of a version's server; return what it prints."""
    idalloc_of = python.with_name("idalloc")
    done = subprocess.run(
        [idalloc_of, *arguments], env=environment(**settings), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("first", ["before"], indirect=True)
@pytest.mark.parametrize("store", EACH_STORE, indirect=True)
def test_older_servers_keep_the_name(scenario: Scenario, python_before_names: Path, tmp_path: Path) -> None:
    """P3: a store is named in each state, without a false alarm; an older server keeps the name."""
    old, new = {"python": python_before_names, "node_prefix": 1, **SETTINGS}, {"node_prefix": 2, **SETTINGS}
    # Never called; then used for document ids alone; then for sequences, and with request ids.
    scenario.start_node(**old).stop()
    assert opened(scenario.store, Opening(creates=False)) == ("", {})
    before = scenario.start_node(**old)
    with idalloc.Client(before.address) as client:
        client.doc_ids(3)
    assert take(before, request_id=uuid.uuid4()).first_id == 1
    assert opened(scenario.store, Opening(creates=False)) == ("", {})
    # Named beside a server that runs, and is not restarted.
    after = scenario.start_node(**new)
    name, parts = opened(scenario.store, Opening(creates=False))
    assert len(name) == 32
    assert {"sequences", "start_timestamps", "allocations"} <= parts.keys()
    seen = {*take(before), *take(after, request_id=uuid.uuid4()), *take(before, request_id=uuid.uuid4())}
    assert len(seen) == 30
    # An older server that starts on it, prunes, exports and imports.
    before.stop()
    again = scenario.start_node(**old)
    scenario.wait_until(lambda: bool(take(again, request_id=uuid.uuid4())), "the older server issues ids")
    export = command(python_before_names, "store", "export", store=scenario.store)
    assert name not in export
    (tmp_path / "export.jsonl").write_text(export)
    command(python_before_names, "store", "import", str(tmp_path / "export.jsonl"), store=scenario.store)
    with idalloc.Client(again.address) as client:
        assert [each.name for each in client.sequences.list()] == ["orders"]
    assert opened(scenario.store, Opening(creates=False))[0] == name
    for server in (after, again):
        assert server.stop() == 0, server.log.read_text()
        assert "error" not in server.log.read_text().replace('"error": null', "")
    # Retired by the older version; then opened by this one.
    command(python_before_names, "store", "export", "--retire", store=scenario.store)
    assert opened(scenario.store, Opening()) == opened(scenario.store, Opening(creates=False))
    assert opened(scenario.store, Opening())[0] == name


def test_a_store_with_a_witness_keeps_its_name(python_before_names: Path, tmp_path: Path) -> None:
    """P3: the name that an older version gave a store with a witness is the one of its parts."""
    scenario = Scenario(tmp_path, full=False)
    witness = {"witness": f"sqlite://{tmp_path}/witness.db", **SETTINGS}
    try:
        ids, names = set[int](), ("", dict[str, str]())
        for python in (python_before_names, THIS, python_before_names, THIS):
            server = scenario.start_node(python=python, **witness)
            ids |= {*take(server)}
            names = opened(scenario.store, Opening(creates=False))
            assert server.stop() == 0, server.log.read_text()
            events = [json.loads(line) for line in server.log.read_text().splitlines()]
            assert {line["event"] for line in events if line["level"] != "info"} == {"witness_on_the_stores_disk"}
        assert len(ids) == 40
        assert {"sequences", "start_timestamps", "allocations"} <= names[1].keys()
    finally:
        scenario.close()


def test_an_export_moves_the_name(python_before_names: Path, tmp_path: Path) -> None:
    """P3: both versions read each other's exports; only a new one has the name of the store."""
    urls = {name: f"sqlite://{tmp_path}/{name}.db" for name in ("first", "moved", "old", "back")}
    name, _ = opened(urls["first"], Opening())

    async def create() -> None:
        store = open_store(urls["first"], FakeClock())
        await store.open()
        await store.create(new_row("orders", last_value=41))
        await store.close()

    asyncio.run(create())
    file = tmp_path / "export.jsonl"
    file.write_text(command(THIS, "store", "export", store=urls["first"]))
    assert name in file.read_text().partition("\n")[0]
    command(THIS, "store", "import", str(file), store=urls["moved"])
    command(python_before_names, "store", "import", str(file), store=urls["old"])
    file.write_text(command(python_before_names, "store", "export", store=urls["old"]))
    command(THIS, "store", "import", str(file), store=urls["back"])
    names = {key: opened(url, Opening(creates=False))[0] for key, url in urls.items()}
    assert (names["moved"], names["old"]) == (name, "")
    assert names["back"] not in ("", name)
