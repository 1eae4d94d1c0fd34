"""`idalloc store export` and `import` between stores, under live nodes, and after restores."""

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

import grpc
import pytest
from crate import client as crate_client

from idalloc import Client, SequenceNotFound
from idalloc._core.sequences import SequenceSettings
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from idalloc_server.backup.exporter import export_lines
from idalloc_server.domain.clock import SystemClock
from idalloc_server.store.sqlite.store import SqliteStore
from tests.e2e.test_crate import Crate
from tests.e2e.test_fencing import LEASE, fill_lease
from tests.support.processes import IDALLOC, Server, environment, running
from tests.support.waiting import hold_for

pytestmark = pytest.mark.test_long

# The table of CrateDB's guide.
RECIPE = (
    "CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value BIGINT)",
    "INSERT INTO sequences (name, last_value) VALUES ('orders', 41)",
)


@pytest.fixture
def crate(tmp_path: Path) -> Iterator[Crate]:
    crate = Crate(tmp_path / "crate.db")
    yield crate
    crate.kill()


def idalloc(*arguments: str, content: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [IDALLOC, *arguments], env=environment(), input=content, capture_output=True, text=True, timeout=50
    )


def exported(store: str) -> str:
    done = idalloc("store", "export", f"--store={store}")
    assert done.returncode == 0, done.stderr
    return done.stdout


async def exported_at_once(path: Path) -> str:
    """Export a SQLite file in this process, which is faster than a node returns unused ids."""
    store = SqliteStore(path, SystemClock())
    await store.open()
    lines = [line async for line in export_lines(store)]
    await store.close()
    return "".join(f"{line}\n" for line in lines)


def allocate(server: Server, count: int = 1) -> int:
    with grpc.insecure_channel(server.address) as channel:
        stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        reply: pb.AllocateRangeResponse = stub.AllocateRange(
            pb.AllocateRangeRequest(sequence="orders", id_count=count), timeout=20
        )
        return int(reply.range.last_id)


def test_sequences_move_to_cratedb_and_back(crate: Crate, tmp_path: Path) -> None:
    """P1: a sequence that moves to another store and back continues beyond its last id."""
    with running(tmp_path) as server:
        assert allocate(server, 500) == 500
        server.stop()
    content = exported(f"sqlite://{tmp_path}/ids.db")
    done = idalloc("store", "import", "-", f"--store={crate.url}", content=content)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("created 1, ")
    with running(tmp_path, store=crate.url) as server:
        assert allocate(server) == 501
        server.stop()
    file = tmp_path / "back.jsonl"
    file.write_text(exported(crate.url))
    back = f"sqlite://{tmp_path}/back.db"
    assert idalloc("store", "import", str(file), f"--store={back}").returncode == 0
    with running(tmp_path, store=back) as server:
        assert allocate(server) == 502


def test_a_line_that_lowers_a_counter_is_refused(tmp_path: Path) -> None:
    """P2: an import refuses a line that would lower a counter, and imports the others."""
    store = f"sqlite://{tmp_path}/ids.db"
    lines = '{"idalloc_export": 1}\n'
    row = {"sequence": "orders", "last_value": "10", "generation": "1", "settings": {}}
    assert idalloc("store", "import", "-", f"--store={store}", content=f"{lines}{json.dumps(row)}\n").returncode == 0
    other = row | {"sequence": "others"}
    lower = row | {"last_value": "9"}
    done = idalloc(
        "store", "import", "-", f"--store={store}", content=f"{lines}{json.dumps(lower)}\n{json.dumps(other)}\n"
    )
    assert done.returncode == 1
    assert "line 2: sequence 'orders' would be lowered from 10 to 9" in done.stderr
    assert "created 1," in done.stdout


def test_an_invalid_line_imports_nothing_unless_partial(tmp_path: Path) -> None:
    """A file with an invalid line is imported only with --partial."""
    store = f"sqlite://{tmp_path}/ids.db"
    row = {"sequence": "orders", "last_value": "10", "generation": "1", "settings": {}}
    content = f'{{"idalloc_export": 1}}\n{{\n{json.dumps(row)}\n'
    done = idalloc("store", "import", "-", f"--store={store}", content=content)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("idalloc: line 2: is not JSON")
    assert not (tmp_path / "ids.db").exists()
    assert idalloc("store", "import", "-", f"--store={store}", "--partial", content=content).returncode == 1
    assert "orders" in exported(store)


def test_an_export_of_an_empty_store_fails(tmp_path: Path) -> None:
    """An export of an empty store fails with a message."""
    store = f"sqlite://{tmp_path}/ids.db"
    assert idalloc("store", "import", "-", f"--store={store}", content='{"idalloc_export": 1}\n').returncode == 0
    nothing = idalloc("store", "export", f"--store={store}")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == f"idalloc: there is nothing in {store} to export\n"


def test_an_import_repairs_a_restored_backup(crate: Crate, tmp_path: Path) -> None:
    """P3: a node refuses a restored backup, and an import of the newest export repairs it."""
    with running(tmp_path, store=crate.url) as server:
        allocate(server, 100)
        backup = exported(crate.url)
        highest = [allocate(server, 1_000_000) for _ in range(5)][-1]
        content = exported(crate.url)
        crate.kill()
        (tmp_path / "crate.db").unlink()
        for beside in tmp_path.glob("crate.db-*"):
            beside.unlink()
        crate.restart()
        assert idalloc("store", "import", "-", f"--store={crate.url}", content=backup).returncode == 0
        with pytest.raises(grpc.RpcError) as refused:
            for _ in range(10_000):  # from memory at first: the more, the faster the calls before
                highest = max(highest, allocate(server, 100_000))
        assert "STORE_WENT_BACKWARDS" in str(refused.value.trailing_metadata())
        done = idalloc("store", "import", "-", f"--store={crate.url}", content=content)
        assert (done.returncode, done.stderr) == (0, "")
    with running(tmp_path, store=crate.url) as server:
        assert allocate(server) > highest


def test_an_export_of_a_missing_file_creates_nothing(tmp_path: Path) -> None:
    """An export of a missing database fails, and creates no file."""
    missing = tmp_path / "nowhere" / "ids.db"
    done = idalloc("store", "export", f"--store=sqlite://{missing}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"idalloc: store: cannot read {missing}: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


def idalloc_while_in_use(client: Client, *arguments: str) -> tuple[int, str]:
    """Run a command while it allocates single ids; return the last id, and the command's output."""
    issued = 0
    with subprocess.Popen(
        [IDALLOC, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            with suppress(SequenceNotFound):
                issued = client.allocate_range("orders")[0]
        output, errors = process.communicate(timeout=50)
    assert process.returncode == 0, errors
    return issued, output


def test_export_retire_ends_all_leases_first(tmp_path: Path) -> None:
    """P5: `store export --retire` ends all leases, also of a paused node, before it reads."""
    store = f"sqlite://{tmp_path}/ids.db"
    with (
        running(tmp_path, **LEASE) as server,
        running(tmp_path, **LEASE) as paused,
        Client(server.address) as client,
        Client(paused.address) as late,
    ):
        before = max(fill_lease(client, "orders"), fill_lease(late, "orders"))
        while (client.sequences.get("orders").last_value or 0) <= before:  # until the node holds more ids
            before = max(before, late.allocate_range("orders", 10)[-1])
        paused.pause(tmp_path / "ids.db")
        try:
            issued, content = idalloc_while_in_use(client, "store", "export", "--retire", f"--store={store}")
        finally:
            paused.send(signal.SIGCONT)
        for each in (late, client):
            with pytest.raises(SequenceNotFound):
                each.allocate_range("orders")
    new = f"sqlite://{tmp_path}/new.db"
    assert idalloc("store", "import", "-", f"--store={new}", content=content).returncode == 0
    with running(tmp_path, store=new) as server:
        assert allocate(server) > max(before, issued)


def assert_recipe_continues(tmp_path: Path, store: str) -> None:
    """Move the guide's table to a new store, and assert that ids continue there."""
    refused = idalloc("store", "export", f"--store={store}")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "run `idalloc store repair`" in refused.stderr
    assert idalloc("store", "repair", f"--store={store}").returncode == 0
    new = f"sqlite://{tmp_path}/new.db"
    done = idalloc("store", "import", "-", f"--store={new}", content=exported(store))
    assert (done.returncode, done.stderr) == (0, "")
    with running(tmp_path, store=new) as server:
        assert allocate(server) == 42


def test_an_adopted_sqlite_table_can_be_moved(tmp_path: Path) -> None:
    """The table of CrateDB's guide, in SQLite, can be exported."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        for statement in RECIPE:
            shop.execute(statement)
    assert_recipe_continues(tmp_path, f"sqlite://{tmp_path}/shop.db")


def test_an_adopted_cratedb_table_can_be_moved(crate: Crate, tmp_path: Path) -> None:
    """The table of CrateDB's guide, in CrateDB, can be exported."""
    with closing(crate_client.connect(f"http://127.0.0.1:{crate.port}")) as shop:
        for statement in RECIPE:
            shop.cursor().execute(statement)
    assert_recipe_continues(tmp_path, crate.url)


def test_a_live_node_continues_beyond_an_import(tmp_path: Path) -> None:
    """P5: a live node issues ids beyond an imported counter from its effective time on."""
    store, file = f"sqlite://{tmp_path}/ids.db", tmp_path / "raised.jsonl"
    with running(tmp_path, **LEASE) as server, Client(server.address) as client:
        issued = allocate(server)
        file.write_text(re.sub(r'"last_value": "\d+"', '"last_value": "1000000000"', exported(store)))
        # Until the node holds more ids than are allocated before the import is effective.
        while (client.sequences.get("orders").last_value or 0) < issued + 50_000:
            issued = allocate(server, 100_000)
        assert issued < 900_000_000
        _, output = idalloc_while_in_use(client, "store", "import", str(file), f"--store={store}")
        found = re.search(r"^effective at (\S+),", output, re.MULTILINE)
        assert found
        effective_at = datetime.fromisoformat(found[1]).timestamp()
        asked_at, first = 0.0, 0
        while asked_at < effective_at:
            asked_at, first = time.time(), client.allocate_range("orders")[0]
        assert first > 1_000_000_000


def test_a_move_includes_the_start_timestamps(tmp_path: Path) -> None:
    """P6: a move includes the claimed start timestamps, also those ahead of the clock."""

    def start(client: Client) -> str:
        return client.doc_ids()[0][:12]  # prefix and start timestamp

    old = set()
    with running(tmp_path, node_prefix=7) as server, Client(server.address) as client:
        for _ in range(20):
            old.add(start(client))
            client.update_node(prefix=8)
            client.update_node(prefix=7)
        server.stop()
    assert len(old) == 20
    assert int(max(old)[4:], 16) > time.time()
    new = f"sqlite://{tmp_path}/new.db"
    content = exported(f"sqlite://{tmp_path}/ids.db")
    assert idalloc("store", "import", "-", f"--store={new}", content=content).returncode == 0
    with (
        running(tmp_path, store=new, node_prefix=7) as server,
        running(tmp_path, store=new, node_prefix=7) as twin,
        Client(server.address) as client,
        Client(twin.address) as other,
    ):
        starts = {start(client), start(other)}
    assert len(starts) == 2
    assert min(starts) > max(old)


@pytest.mark.parametrize("settings", [{}, {"reset": "yearly", "format": "{year}-{value}"}], ids=["plain", "period"])
def test_an_import_of_equal_counters_ends_leases(tmp_path: Path, settings: SequenceSettings) -> None:
    """P5: an import with equal counters after a restore ends the leases of live nodes."""
    path, copy, lease = tmp_path / "ids.db", tmp_path / "copy.db", LEASE | {"lease_ttl": "4s"}
    store, file = f"sqlite://{path}", tmp_path / "export.jsonl"
    with (
        running(tmp_path, **lease) as server,
        running(tmp_path, **lease) as rival,
        Client(server.address) as client,
        Client(rival.address) as other,
    ):
        client.sequences.create("orders", **settings)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        issued, counter, content = fill_lease(client, "orders"), 0, ""
        while counter <= issued:  # until the node holds more ids
            issued = client.allocate_range("orders", 10)[-1]
            content = asyncio.run(exported_at_once(path))
            counter = max(int(number) for number in re.findall(r'"last_value": "(\d+)"', content))
        file.write_text(content)
        with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)  # restored in place, with the same inode
        in_use = other.allocate_range("orders", counter)
        assert in_use[-1] == counter
        done = idalloc("store", "import", str(file), f"--store={store}")
        assert (done.returncode, done.stderr) == (0, "")
        found = re.search(r"^effective at (\S+),", done.stdout, re.MULTILINE)
        effective_at = datetime.fromisoformat(found[1]).timestamp() if found else time.time() + 5
        asked_at, late = 0.0, 0
        while asked_at < effective_at:
            asked_at, late = time.time(), client.allocate_range("orders")[0]
            hold_for(0.02, "the sequence stays in use")
        assert late not in in_use
        assert found
