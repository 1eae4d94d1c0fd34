"""A program that installs the wheel from a folder of wheels, on a real server."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.python_baseline import BASELINE
from tests.languages.conftest import Secrets
from tests.packages.test_archives import PROJECT
from tests.support.paths import ROOT
from tests.support.processes import environment, running

# With a cold cache pip downloads packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(600)]

PROGRAM = ROOT / "tests/packages/python/every_call.py"


def public_calls(module: str) -> set[str]:
    """Return the public methods of a module's clients, as the baseline names them."""
    callables = re.findall(
        rf"(?m)^{re.escape(module)}\.((?:Client|Ids|AllocateStream)\.[\w.]+)\(\) -> ", BASELINE.read_text()
    )
    return {name for name in callables if "__" not in name}


def test_the_sdist_builds_the_wheel_byte_for_byte(python_dist: list[Path], tmp_path: Path) -> None:
    """pip builds from the sdist alone the wheel that a release publishes."""
    sdist, wheel = python_dist
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(sdist)], check=True)
    [built] = tmp_path.iterdir()
    assert built.name == wheel.name
    assert built.read_bytes() == wheel.read_bytes()


def test_the_package_needs_grpc_and_protobuf_alone(python_consumer: Path) -> None:
    """Without extras, pip installs nothing else, and the oldest allowed versions are enough."""
    listed = subprocess.run([python_consumer, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
    names = {each["name"].lower().replace("_", "-") for each in json.loads(listed.stdout)}
    of_others = {"pip", "setuptools", "typing-extensions"}  # gRPC needs the last one
    assert names - of_others == {"googleapis-common-protos", "grpcio", "idalloc", "protobuf"}


def test_the_command_names_its_extra(python_consumer: Path) -> None:
    """Without the extra `cli` the installed command says how to install it, and exits with 2."""
    done = subprocess.run([python_consumer.with_name("idalloc"), "health"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "the command idalloc needs the package typer: pip install 'idalloc[cli]'\n"


def test_every_call_works_with_tls_and_a_token(python_consumer: Path, secrets: Secrets, tmp_path: Path) -> None:
    """Each public call of both clients works; no id comes twice; errors have class and reason."""
    with running(tmp_path, **secrets.settings) as server:
        settings = environment(server=server.address, ca=str(secrets.ca), token_file=str(secrets.token_file))
        command = [str(python_consumer), "-I", str(PROGRAM), server.address, str(secrets.ca), str(secrets.token_file)]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = json.loads(done.stdout)
    version, file = found["installed"]
    assert version == PROJECT["version"]
    assert Path(file).is_relative_to(python_consumer.parent.parent)
    for name, module in (("threads", "idalloc"), ("asyncio", "idalloc.aio")):
        assert public_calls(module) - found[name].keys() == set()
        check_ids(found[name], found["ext.sqlalchemy.idalloc_default"] if name == "threads" else [])
        check_the_rest(found[name], f"{name}-made", version)
    documents = [each for name in ("threads", "asyncio") for each in document_ids(found[name])]
    assert len({*documents}) == len(documents) == 2 * (2 + 25 + 1)
    assert all(re.fullmatch("[0-9a-f]{28}", each) for each in documents)


def document_ids(found: dict[str, Any]) -> list[str]:
    calls = ("Client.doc_ids", "Client.stream_doc_ids", "AllocateStream.doc_ids")
    return [each for call in calls for each in found[call]]


def check_ids(found: dict[str, Any], others: list[int]) -> None:
    """Check that the calls on one sequence got different ids, all of them below its counter."""
    first, again, texts = found["Client.allocate_range"]
    assert first == again
    batch, error = found["Client.allocate_ranges"]
    assert error == "InvalidRequest"
    pooled = found["Client.ids"] + found["Ids.clear"] + found["AllocateStream.allocate_range"]
    ids = [*first, *batch, *found["Client.stream_ranges"], *pooled]
    assert len({*ids, *others}) == len(ids) + len(others) == 3 + 2 + 25 + 6 + len(others)
    assert max(ids) <= found["last_value"]
    assert texts == ["INV-000001", "INV-000002"]
    assert found["Client.parse_id"] == {"value": "1"}


def check_the_rest(found: dict[str, Any], made: str, version: str) -> None:
    """Check administration, the node, UUIDs and errors."""
    assert found["Client.sequences.create"] == [10, "by a test", {"team": "tests"}]
    assert found["Client.sequences.get"] is True
    assert found["Client.sequences.update"] == ""
    assert found["Client.sequences.advance"] >= 500
    assert found["Client.sequences.delete"] is True
    assert found["Client.sequences.list"] == [[], [made]]
    assert found["Client.update_node"] == found["Client.node"]["autoIncrementIncrement"] == 7
    assert found["Client.node"]["version"] == found["Client.from_environment"] == version
    assert [each[14] for each in found["Client.uuids"]] == ["7", "7", "4"]
    assert found["Client.close"] == "the client is closed"
    assert found["AllocateStream.close"] == "the stream is closed"
    too_many, unknown, none, wrong, unreachable = found["errors"]
    assert too_many[:2] == ["InvalidRequest", "INVALID_REQUEST"]
    assert unknown == ["SequenceNotFound", "SEQUENCE_NOT_FOUND", {"sequence": "nowhere"}]
    assert none == ["InvalidRequest", "INVALID_REQUEST", {"field": "n"}]
    assert wrong[:2] == ["Unauthenticated", "UNAUTHENTICATED"]
    assert unreachable[0] in ("ServerUnreachable", "DeadlineExceeded")
