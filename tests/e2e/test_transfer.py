"""`idalloc export` and `idalloc import`: from SQLite to CrateDB and back, and a backup restored under a node."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.e2e.test_crate import Crate
from tests.processes import IDALLOC, Server, environment, running


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
    done = idalloc("export", f"--store={store}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def allocate(server: Server, count: int = 1) -> int:
    with grpc.insecure_channel(server.address) as channel:
        stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        reply: pb.AllocateRangeResponse = stub.AllocateRange(
            pb.AllocateRangeRequest(sequence="orders", id_count=count), timeout=20
        )
        return int(reply.range.last_id)


def test_from_sqlite_to_cratedb_and_back(crate: Crate, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert allocate(server, 500) == 500
        server.stop()
    content = exported(f"sqlite://{tmp_path}/ids.db")
    done = idalloc("import", "-", f"--store={crate.url}", content=content)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("created 1, ")
    with running(tmp_path, store=crate.url) as server:
        assert allocate(server) == 501
        server.stop()
    file = tmp_path / "back.jsonl"
    file.write_text(exported(crate.url))
    back = f"sqlite://{tmp_path}/back.db"
    assert idalloc("import", str(file), f"--store={back}").returncode == 0
    with running(tmp_path, store=back) as server:
        assert allocate(server) == 502


def test_a_line_that_lowers_is_refused_and_named(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/ids.db"
    lines = '{"idalloc_export": 1}\n'
    row = {"sequence": "orders", "last_value": "10", "generation": "1", "settings": {}}
    assert idalloc("import", "-", f"--store={store}", content=f"{lines}{json.dumps(row)}\n").returncode == 0
    other = row | {"sequence": "others"}
    lower = row | {"last_value": "9"}
    done = idalloc("import", "-", f"--store={store}", content=f"{lines}{json.dumps(lower)}\n{json.dumps(other)}\n")
    assert done.returncode == 1
    assert "line 2: sequence 'orders' would be lowered from 10 to 9" in done.stderr
    assert "created 1," in done.stdout


def test_a_broken_line_applies_nothing_unless_partial(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/ids.db"
    row = {"sequence": "orders", "last_value": "10", "generation": "1", "settings": {}}
    content = f'{{"idalloc_export": 1}}\n{{\n{json.dumps(row)}\n'
    done = idalloc("import", "-", f"--store={store}", content=content)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("idalloc: line 2: is not JSON")
    nothing = idalloc("export", f"--store={store}")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "there is nothing in" in nothing.stderr
    assert idalloc("import", "-", f"--store={store}", "--partial", content=content).returncode == 1
    assert "orders" in exported(store)


def test_a_restored_backup_is_refused_by_a_running_node_and_mended_by_an_import(crate: Crate, tmp_path: Path) -> None:
    with running(tmp_path, store=crate.url) as server:
        allocate(server, 100)
        backup = exported(crate.url)
        highest = [allocate(server, 1_000_000) for _ in range(5)][-1]
        content = exported(crate.url)
        crate.kill()
        (tmp_path / "crate.db").unlink()
        for left in tmp_path.glob("crate.db-*"):
            left.unlink()
        crate.restart()
        assert idalloc("import", "-", f"--store={crate.url}", content=backup).returncode == 0
        with pytest.raises(grpc.RpcError) as refused:
            for _ in range(100):  # from memory at first
                highest = max(highest, allocate(server, 100_000))
        assert "STORE_WENT_BACKWARDS" in str(refused.value.trailing_metadata())
        done = idalloc("import", "-", f"--store={crate.url}", content=content)
        assert (done.returncode, done.stderr) == (0, "")
    with running(tmp_path, store=crate.url) as server:
        assert allocate(server) > highest
