"""ghz with every configuration of examples/ghz, and grpcurl: real tools against a real server, by reflection."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from idalloc.v1 import id_allocator_pb2, node_pb2, sequences_pb2
from tests.support.paths import ROOT
from tests.support.processes import Server, running

CONFIGURATIONS = sorted((ROOT / "examples" / "ghz").glob("*.json"))

# Go may have to compile the tools first.
pytestmark = [pytest.mark.ghz, pytest.mark.timeout(400)]


def installed(name: str, package: str) -> str:
    """The tool on the PATH, or one that Go installs once into the build folder."""
    if found := shutil.which(name):
        return found
    tool = ROOT / ".build" / "bin" / name
    if not tool.exists():
        go = shutil.which("go")
        if not go:
            pytest.skip(f"neither {name} nor Go is installed")
        command = [go, "install", package]
        env = os.environ | {"GOBIN": str(tool.parent)}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"Go could not install {name}: {done.stderr.strip().splitlines()[-1]}")
    return str(tool)


@pytest.fixture(scope="session")
def ghz() -> str:
    return installed("ghz", "github.com/bojand/ghz/cmd/ghz@v0.121.0")


@pytest.fixture(scope="session")
def grpcurl() -> str:
    return installed("grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("ghz")) as server:
        yield server


@pytest.mark.parametrize(
    ("call", "data"),
    [
        ("AllocateRange", {"sequence": "grpcurl"}),
        ("StreamRanges", {"sequence": "grpcurl-stream", "total_id_count": 3}),
        ("GenerateDocId", {}),
        ("StreamDocIds", {"total_id_count": 3}),
    ],
    ids=["range", "ranges", "doc-id", "doc-ids"],
)
def test_grpcurl_finds_the_protos_and_calls(grpcurl: str, server: Server, call: str, data: dict[str, object]) -> None:
    method = f"idalloc.v1.IdAllocatorService/{call}"
    done = subprocess.run(
        [grpcurl, "-plaintext", "-d", json.dumps(data), server.address, method], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    assert reply.get("range", {}).get("first_id") == "1" or len(reply["doc_ids"]) in (1, 3)


def test_grpcurl_describes_the_services(grpcurl: str, server: Server) -> None:
    done = subprocess.run([grpcurl, "-plaintext", server.address, "list"], capture_output=True, text=True)
    assert {"idalloc.v1.IdAllocatorService", "idalloc.v1.NodeService", "grpc.health.v1.Health"} <= set(
        done.stdout.split()
    )


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


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("transport", ["grpcio", "native"])
@pytest.mark.parametrize("call", ["AllocateRange", "StreamRanges"])
def test_no_call_is_cancelled_at_a_stop(ghz: str, tmp_path: Path, call: str, transport: str, workers: int) -> None:
    """With 64 calls in flight at SIGTERM, each is served or refused; ghz calls on until its time is over."""
    data = {"sequence": "orders"} | ({"total_id_count": "30", "chunk_id_count": "1"} if call == "StreamRanges" else {})
    options = ["--concurrency=64", "--connections=8", "--duration=6s", "--duration-stop=wait", "--format=json"]
    with running(tmp_path, transport=transport, workers=workers) as server:
        command = [ghz, "--insecure", f"--call=idalloc.v1.IdAllocatorService/{call}", f"--data={json.dumps(data)}"]
        command += [*options, server.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as load:
            while '"event": "calls"' not in server.log.read_text() and load.poll() is None:
                time.sleep(0.05)
            assert server.stop() == 0
            report, errors = load.communicate(timeout=60)
    assert load.returncode == 0, errors
    assert set(json.loads(report)["statusCodeDistribution"]) == {"OK", "Unavailable"}
    assert "Cancelling all calls" not in report


def test_every_rpc_that_gives_ids_has_a_configuration() -> None:
    called = {json.loads(path.read_text())["call"].replace("/", ".") for path in CONFIGURATIONS}
    [service] = id_allocator_pb2.DESCRIPTOR.services_by_name.values()
    assert {method.full_name for method in service.methods} <= called


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_configuration_says_what_the_protos_say(configuration: Path) -> None:
    content = json.loads(configuration.read_text())
    service, _, name = content["call"].rpartition("/")
    services = [
        service
        for file in (id_allocator_pb2, node_pb2, sequences_pb2, health_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    ]
    [method] = (found.methods_by_name[name] for found in services if found.full_name == service)
    fields = {field.name for field in method.input_type.fields}
    assert set(content["data"]) <= fields
    # ghz ends a stream after 20 s, as any call, unless it is told otherwise.
    assert (content.get("timeout") == "0s") == method.server_streaming


def test_every_configuration_is_explained() -> None:
    explained = (ROOT / "examples" / "ghz" / "README.md").read_text()
    assert [path.name for path in CONFIGURATIONS if f"`{path.name}`" not in explained] == []


def test_the_flat_configuration_uses_no_templates() -> None:
    flat = json.loads((ROOT / "examples" / "ghz" / "allocate_range_flat.json").read_text())
    assert "{{" not in json.dumps(flat["data"])
    assert flat["disable-template-functions"] is flat["disable-template-data"] is True
