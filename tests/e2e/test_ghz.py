"""Every configuration of examples/ghz, run by ghz itself against a real server."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from idalloc.v1 import id_allocator_pb2, node_pb2
from tests.processes import Server, running

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = sorted((ROOT / "examples" / "ghz").glob("*.json"))
VERSION = "v0.121.0"

pytestmark = pytest.mark.ghz


@pytest.fixture(scope="session")
def ghz() -> str:
    """The ghz on the PATH, or one that Go installs once into the build folder."""
    if found := shutil.which("ghz"):
        return found
    installed = ROOT / ".build" / "bin" / "ghz"
    if not installed.exists():
        go = shutil.which("go")
        if not go:
            pytest.skip("neither ghz nor Go is installed")
        done = subprocess.run(
            [go, "install", f"github.com/bojand/ghz/cmd/ghz@{VERSION}"],
            env=os.environ | {"GOBIN": str(installed.parent)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"Go could not install ghz: {done.stderr.strip().splitlines()[-1]}")
    return str(installed)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("ghz")) as server:
        yield server


@pytest.mark.timeout(400)  # Go may have to compile ghz first
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_call_of_the_configuration_succeeds(ghz: str, server: Server, configuration: Path) -> None:
    done = subprocess.run(
        [ghz, f"--config={configuration}", "--total=100", "--concurrency=8", "--format=json", server.address],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    # ghz exits with 0 also where every call failed.
    assert json.loads(done.stdout)["statusCodeDistribution"] == {"OK": 100}


def test_every_rpc_has_a_configuration() -> None:
    called = {json.loads(path.read_text())["call"].replace("/", ".") for path in CONFIGURATIONS}
    services = [*id_allocator_pb2.DESCRIPTOR.services_by_name.values(), *node_pb2.DESCRIPTOR.services_by_name.values()]
    assert {method.full_name for service in services for method in service.methods} <= called


def test_the_flat_configuration_uses_no_templates() -> None:
    flat = json.loads((ROOT / "examples" / "ghz" / "allocate_range_flat.json").read_text())
    assert "{{" not in json.dumps(flat["data"])
    assert flat["disable-template-functions"] is flat["disable-template-data"] is True
