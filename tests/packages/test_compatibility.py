"""Clients and servers of different versions understand each other."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import idalloc
from tests.languages.conftest import Secrets
from tests.packages import java_package
from tests.packages.node_package import run
from tests.support.faults.scenario import Scenario
from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.upgrade.conftest import python_before

__all__ = ["python_before"]

# The first run installs the version before.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]


def common_calls(python: Path, server: str) -> dict[str, Any]:
    """Make the calls that all versions have with the client of a Python; return what it got."""
    program = ROOT / "tests/packages/python/common_calls.py"
    done = subprocess.run(
        [python, program, server], env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def check(got: dict[str, Any]) -> None:
    """Check that each call had its result, and that no id came twice."""
    first, again = got["repeated"]
    assert first == again
    batch, error = got["batch"]
    numbers = [*got["range"], *first, *batch, *got["pool"], *got["stream"]]
    assert len({*numbers}) == len(numbers) == 3 + 2 + 2 + 3 + 25
    assert (error, got["error"]) == ("InvalidRequest", "INVALID_REQUEST")
    assert (got["texts"], got["parsed"]) == (["INV-000001", "INV-000002"], 2)
    doc_ids = [*got["doc_ids"], *got["doc_id_stream"]]
    assert len({*doc_ids}) == 28
    assert all(re.fullmatch("[0-9a-f]{28}", each) for each in doc_ids)
    assert [each[14] for each in got["uuids"]] == ["7", "7", "4"]
    assert got["names"] == ["invoices", "orders"]
    assert (got["advanced"], got["updated"], got["read"]) == (1_000, 5_000, "INV-{value:06d}")
    assert (got["deleted"], got["prefix"], got["changed_prefix"]) == ("invoices", 0, 7)


@pytest.fixture
def pythons(python_before: Path) -> dict[str, Path]:
    """The Pythons with the version before and with this one."""
    return {"before": python_before, "this": Path(sys.executable)}


@pytest.fixture
def start(pythons: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A function that starts a server of a version, and returns its address."""
    scenario = Scenario(tmp_path, full=False)
    yield lambda version, **settings: scenario.start_node(python=pythons[version], **settings).address
    scenario.close()


@pytest.mark.parametrize("client", ["before", "this"])
@pytest.mark.parametrize("server", ["before", "this"])
def test_python_clients_of_two_versions(
    client: str, server: str, pythons: dict[str, Path], start: Callable[..., str]
) -> None:
    """Each call that both versions have works, whichever is the newer one."""
    check(common_calls(pythons[client], start(server)))


def test_a_call_that_an_older_server_lacks_names_the_cause(start: Callable[..., str]) -> None:
    """AllocateStream on a server without it is an error with the next step; other calls work."""
    with idalloc.Client(start("before")) as client:
        with (
            client.allocate_stream() as stream,
            pytest.raises(idalloc.IdallocError, match="upgrade its idalloc") as failure,
        ):
            stream.allocate_range("orders")
        assert failure.value.code is grpc.StatusCode.UNIMPLEMENTED
        assert list(client.allocate_range("orders", 2)) == [1, 2]


@pytest.fixture
def older_server(start: Callable[..., str], secrets: Secrets) -> str:
    """The address of a server of the version before, with TLS and tokens."""
    settings = {("access" if name == "access_file" else name): value for name, value in secrets.settings.items()}
    return start("before", **settings)


def test_the_go_client_works_with_an_older_server(older_server: str, go_program: Path, secrets: Secrets) -> None:
    """Each call but AllocateStream works; that one is UNIMPLEMENTED."""
    files = {"CA": str(secrets.ca), "TOKEN_FILE": str(secrets.token_file)}
    done = subprocess.run(
        [go_program, "calls", older_server], env=environment() | files, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["texts"] == ["INV-0001", "INV-0002"]
    assert got["range"][:2] == got["range"][2:]
    assert (got["batch"][1:], got["stream"]) == ([True, 5], [50_000, 50_000])
    assert (got["allocate_stream"], got["error"]) == ("UNIMPLEMENTED", ["INVALID_REQUEST", "id_count", True])


def test_the_node_client_works_with_an_older_server(older_server: str, node_consumer: Path, secrets: Secrets) -> None:
    """Each call but AllocateStream works; that one is UNIMPLEMENTED."""
    files = [str(secrets.ca), str(secrets.token_file)]
    with secrets.client_of(older_server) as client:
        client.sequences.create("invoices", format="INV-{value:06d}")
    got = json.loads(run(node_consumer, "node", "dist/every-call.js", older_server, *files))
    assert got["first"] == got["repeated"]
    numbers = [*got["range"], *got["batch"][0], *got["first"], *got["streamed"], *got["pooled"]]
    assert len({*numbers}) == len(numbers) == 3 + 2 + 1 + 25 + 2
    assert (got["texts"], got["overStream"]) == (["INV-000001"], "UNIMPLEMENTED")
    assert [each["reason"] for each in got["errors"]][:4] == [
        *("INVALID_REQUEST", "SEQUENCE_NOT_FOUND", "UNIMPLEMENTED", "UNAUTHENTICATED")
    ]


def test_the_java_client_works_with_an_older_server(
    older_server: str, java_consumer: java_package.Consumer, secrets: Secrets
) -> None:
    """Each call but AllocateStream works; that one is UNIMPLEMENTED."""
    files = {"CA": str(secrets.ca), "TOKEN_FILE": str(secrets.token_file)}
    command = java_consumer.command(java_package.jdk(17), "EveryCall", older_server)
    done = subprocess.run(command, env=environment() | files, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, _ = done.stdout.splitlines()
    assert lines == [
        "range: 100 99 1",
        "request id: true true true",
        "batch: 10 INVALID_REQUEST 5",
        "texts: [INV-0001, INV-0002]",
        "document ids: 5 28",
        "streams: 50000 50000",
        "allocate stream: UNIMPLEMENTED",
        "pool: 1 2 3",
        "error: true INVALID_ARGUMENT [id_count] false",
    ]
