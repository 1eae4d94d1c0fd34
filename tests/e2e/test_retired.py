"""A retired store refuses creations and names its successor, until the retirement is undone."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from idalloc import Client, IdallocError
from tests.e2e.test_crate import Crate
from tests.e2e.test_fencing import LEASE, fill_lease
from tests.e2e.test_transfer import crate, exported, idalloc
from tests.support.processes import environment, running, serve_command, start_error

pytestmark = pytest.mark.test_long

NEW = "the cluster db1, schema idalloc"

__all__ = ["crate"]


@pytest.fixture(params=["sqlite", "crate"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/ids.db"
    crate: Crate = request.getfixturevalue("crate")
    return crate.url


def retired(store: str, *options: str) -> str:
    """Retire a store, and return the export."""
    done = idalloc("store", "export", "--retire", *options, f"--store={store}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_refused(call: Callable[[], object]) -> bool:
    """Whether a call is refused with the name of the successor."""
    with pytest.raises(IdallocError) as refused:
        call()
    return "this store was retired on 20" in str(refused.value) and f"use instead: {NEW}" in str(refused.value)


def start(store: str) -> subprocess.CompletedProcess[str]:
    """Start a server that must refuse to start."""
    return subprocess.run(serve_command(store=store), env=environment(), capture_output=True, text=True, timeout=30)


def test_a_retired_store_creates_nothing(tmp_path: Path, store: str) -> None:
    """P1: a retired store refuses creations, claims and starts, and names its successor."""
    with running(tmp_path, store=store, **LEASE) as server, Client(server.address) as client:
        issued = fill_lease(client, "orders")
        content = retired(store, f"--moved-to={NEW}")
        for call in (
            lambda: client.allocate_range("orders"),
            lambda: client.allocate_range("others"),
            lambda: client.sequences.create("others"),
            lambda: client.sequences.create("orders"),
            lambda: client.sequences.get("orders"),
            lambda: client.update_node(prefix=7),
        ):
            assert is_refused(call)
        assert client.doc_ids()  # with the exported start timestamp
        assert [each.name for each in client.sequences.list(show_deleted=True)] == ["orders"]
        refused = idalloc("store", "import", "-", f"--store={store}", content=content)
        assert refused.returncode == 1
        assert f"use instead: {NEW}" in refused.stderr
        new = f"sqlite://{tmp_path}/new.db"
        assert idalloc("store", "import", "-", f"--store={new}", content=content).returncode == 0
        with running(tmp_path, store=new) as other, Client(other.address) as there:
            assert there.allocate_range("orders")[0] > issued
            assert there.allocate_range("others")[0] == 1
    done = start(store)
    assert done.returncode == 2
    line = start_error(done.stderr)
    assert line.startswith("store: this store was retired on 20")
    assert f"use instead: {NEW}" in line
    assert "idalloc store import --unretire --new-store URL FILE" in line


def test_an_import_undoes_a_retirement(tmp_path: Path) -> None:
    """P1: after `store import --unretire` of the newest export, ids continue past all issued."""
    store = f"sqlite://{tmp_path}/ids.db"
    new, lines = f"sqlite://{tmp_path}/new.db", ['{"idalloc_export": 1}']
    lines += [f'{{"sequence": "{name}", "last_value": "41", "generation": "1", "settings": {{}}}}' for name in "ab"]
    assert idalloc("store", "import", "-", f"--store={store}", content="\n".join(lines)).returncode == 0
    assert idalloc("store", "import", "-", f"--store={new}", content=retired(store)).returncode == 0
    assert "was imported into" in start(store).stderr
    with running(tmp_path, store=new, **LEASE) as server, Client(server.address) as there:
        assert there.allocate_range("a", 7)[0] == 42
        assert there.allocate_range("c", 5)[0] == 1
        there.sequences.delete("b")
        server.stop()
    back = idalloc("store", "import", "--unretire", f"--new-store={new}", "-", f"--store={store}", content=retired(new))
    assert (back.returncode, back.stderr) == (0, "")
    assert "retired" not in exported(store)
    with running(tmp_path, store=store) as server, Client(server.address) as client:
        assert client.allocate_range("a")[0] == 49
        assert client.allocate_range("c")[0] == 6
        assert client.allocate_range("d")[0] == 1
        client.sequences.create("b")
        assert client.allocate_range("b")[0] == 42


def test_an_export_from_before_the_new_store_served_is_refused(tmp_path: Path) -> None:
    """P1: --unretire refuses a file while the new store has other counters, or may serve."""
    store, new = f"sqlite://{tmp_path}/ids.db", f"sqlite://{tmp_path}/new.db"
    with running(tmp_path, store=store, **LEASE) as server, Client(server.address) as client:
        last = client.allocate_range("orders", 10)[-1]
    content = retired(store)
    assert idalloc("store", "import", "-", f"--store={new}", content=content).returncode == 0
    fresh = exported(new)

    def back(file: str, *options: str) -> tuple[int, str]:
        done = idalloc("store", "import", "--unretire", *options, "-", f"--store={store}", content=file)
        return done.returncode, done.stderr

    named = f"--new-store={new}"
    code, error = back(content)
    assert (code, "--no-ids-since-export" in error) == (2, True)
    code, error = back(fresh, named)
    assert (code, "new.db is not retired" in error) == (2, True)
    with running(tmp_path, store=new, **LEASE) as server, Client(server.address) as there:
        assert there.allocate_range("orders")[0] > last
    newest = retired(new)
    for older in (content, fresh):
        code, error = back(older, named)
        assert (code, "has other sequences or counters than FILE" in error) == (2, True)
    code, error = back(content, f"--new-store={store}")
    assert (code, "is the store to reactivate" in error) == (2, True)
    code, error = back(newest, f"--new-store=sqlite://{tmp_path}/missing.db")
    assert (code, "--new-store: cannot read" in error) == (2, True)
    assert "this store was retired" in start(store).stderr
    assert back(newest, named) == (0, "")
    assert back(newest, named) == (0, "")  # as after a failure


def test_an_operator_may_say_that_no_id_was_issued(tmp_path: Path) -> None:
    """Without its successor, a store is reactivated only by `--no-ids-since-export`."""
    store = f"sqlite://{tmp_path}/ids.db"
    with running(tmp_path, store=store, **LEASE) as server, Client(server.address) as client:
        last = client.allocate_range("orders", 10)[-1]
    back = ("store", "import", "--unretire", "--no-ids-since-export", "-", f"--store={store}")
    assert idalloc(*back, content=retired(store)).returncode == 0
    with running(tmp_path, store=store) as server, Client(server.address) as client:
        assert client.allocate_range("orders")[0] > last


@pytest.mark.parametrize("text", ["a\nb", "x" * 301, "crate://me:secret@db1:4200/"], ids=["lines", "long", "secret"])
def test_an_invalid_moved_to_is_refused(tmp_path: Path, text: str) -> None:
    """--moved-to must be one line without a password; otherwise the store is not changed."""
    done = idalloc("store", "export", "--retire", f"--moved-to={text}", f"--store=sqlite://{tmp_path}/ids.db")
    assert done.returncode == 2
    assert "secret" not in done.stderr
    assert done.stderr.startswith("idalloc: --moved-to: must ")
