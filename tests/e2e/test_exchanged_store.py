"""A store that is exchanged or lost while a server runs: no process of it issues an old id (P3)."""

import asyncio
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import idalloc as sdk
from tests.e2e.test_http import get
from tests.support.fake_store import FakeClock
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.processes import IDALLOC, Server, environment, running, start_module
from tests.support.server_calls import log_events, wait_until, worker_pids
from tests.support.store_backends import CrateBackend, SqliteBackend

pytestmark = pytest.mark.test_long

Exchangeable = SqliteBackend | CrateBackend | OpenSearchBackend


@pytest.fixture(params=["sqlite", "cratedb", "opensearch"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Exchangeable]:
    """A store of each kind."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield SqliteBackend(tmp_path / "ids.db", FakeClock())
        elif request.param == "cratedb":
            yield CrateBackend(f"{start_module(stack, 'tests.support.cratedb.emulator')}?schema=doc")
        else:
            url = start_module(stack, "tests.support.opensearch.stand_in")
            yield OpenSearchBackend(url.removeprefix("opensearch://").strip("/"), "idalloc")


def lose(backend: Exchangeable) -> None:
    """Remove what has the sequences."""
    if isinstance(backend, SqliteBackend):
        for file in backend.files():
            file.rename(file.with_name(f"moved {file.name}"))
    else:
        asyncio.run(backend.lose("sequences"))


def ids_of(server: Server, calls: int) -> list[int]:
    """Call the server on a new connection each time; return the ids that it issues."""
    ids: list[int] = []
    for number in range(calls):
        with sdk.Client(server.address, timeout=5) as client, suppress(sdk.IdallocError):
            ids += client.allocate_range("orders" if number % 2 else f"new {number}", 1_000_000)
    return ids


@pytest.mark.parametrize("how", ["exchanged", "lost"])
def test_a_restarted_worker_opens_no_other_place(backend: Exchangeable, how: str, tmp_path: Path) -> None:
    """P3: the worker in place of a killed one refuses another store, and creates none."""
    with running(tmp_path, store=backend.url, workers=2, http_listen="127.0.0.1:0") as server:
        with sdk.Client(server.address) as client:
            client.allocate_range("orders", 10)
        if how == "exchanged":
            asyncio.run(backend.exchange())
        else:
            lose(backend)
        os.kill(worker_pids(server)[0], signal.SIGKILL)
        wait_until(lambda: bool(log_events(server, "worker_not_started")))
        assert "store" in str(log_events(server, "worker_not_started")[0]["error"])
        assert ids_of(server, 8) == []
        wait_until(lambda: get(server, "readyz")[0] == 503)
        assert not (isinstance(backend, SqliteBackend) and how == "lost" and backend.files())


def command(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the server."""
    return subprocess.run(
        [IDALLOC, *arguments], env=environment(**settings), capture_output=True, text=True, timeout=60
    )


def test_an_export_after_a_loss_fails_until_a_repair(backend: Exchangeable, tmp_path: Path) -> None:
    """P3: an export creates nothing; a repair continues what is known, an import the rest."""
    with running(tmp_path, store=backend.url) as server, sdk.Client(server.address) as client:
        client.allocate_range("orders", 10)
        client.allocate_range("answered", 5, request_id=uuid.uuid4())
        assert server.stop() == 0
    backup = tmp_path / "backup.jsonl"
    backup.write_text(command("store", "export", store=backend.url).stdout)
    asyncio.run(backend.lose("sequences"))
    for arguments in (("store", "export"), ("serve",), ("store", "export")):
        done = command(*arguments, store=backend.url, listen="127.0.0.1:0")
        assert (done.returncode, done.stdout) == (2, "")
        assert "run `idalloc store repair`" in done.stderr
    repaired = command("store", "repair", "--json", store=backend.url)
    assert json.loads(repaired.stdout) == {"repaired": [{"sequence": "answered", "lastId": "5", "state": "reserved"}]}
    assert "before a server starts" in repaired.stderr
    assert command("store", "import", str(backup), store=backend.url).returncode == 0
    assert json.loads(command("store", "repair", "--json", store=backend.url).stdout) == {"repaired": []}
    with running(tmp_path, store=backend.url) as server, sdk.Client(server.address) as client:
        assert client.allocate_range("orders").first_id == 11
        assert client.allocate_range("answered").first_id == 6


def test_an_import_takes_the_name_of_the_witness(tmp_path: Path) -> None:
    """P3: a move keeps the witness: the new store gets its name, and servers start beside it."""
    old, new = (f"sqlite://{tmp_path}/{name}.db" for name in ("old", "new"))
    witness = f"sqlite://{tmp_path}/witness.db"
    with running(tmp_path, store=old, witness=witness) as server, sdk.Client(server.address) as client:
        client.allocate_range("orders", 10)
    header, *rest = command("store", "export", store=old).stdout.splitlines(keepends=True)
    export = tmp_path / "export.jsonl"
    export.write_text('{"idalloc_export": 1}\n' + "".join(rest))
    assert json.loads(header)["store"]
    assert command("store", "import", str(export), store=new, witness=witness).returncode == 0
    with running(tmp_path, store=new, witness=witness) as server, sdk.Client(server.address) as client:
        assert client.allocate_range("orders").first_id == 11
