"""ghz with every configuration of examples/ghz, and grpcurl, on a real server by reflection."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from idalloc.v1 import id_allocator_pb2, node_pb2, sequences_pb2
from tests.support.paths import ROOT
from tests.support.processes import Server, running
from tests.support.waiting import wait_until

CONFIGURATIONS = sorted((ROOT / "examples" / "ghz").glob("*.json"))

# Go may have to compile the tools first.
pytestmark = [pytest.mark.ghz, pytest.mark.timeout(400)]


def installed_tool(name: str, package: str) -> str:
    """Return a tool's path: from the PATH, else installed once by Go in the build folder."""
    if path := shutil.which(name):
        return path
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
    return installed_tool("ghz", "github.com/bojand/ghz/cmd/ghz@v0.121.0")


@pytest.fixture(scope="session")
def grpcurl() -> str:
    return installed_tool("grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("ghz")) as server:
        yield server


@pytest.mark.test_long
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
def test_grpcurl_calls_by_reflection(grpcurl: str, server: Server, call: str, data: dict[str, object]) -> None:
    """grpcurl calls each RPC that issues ids, by server reflection."""
    method = f"idalloc.v1.IdAllocatorService/{call}"
    done = subprocess.run(
        [grpcurl, "-plaintext", "-d", json.dumps(data), server.address, method], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    assert reply.get("range", {}).get("firstId") == "1" or len(reply["docIds"]) in (1, 3)


@pytest.mark.test_long
def test_grpcurl_sends_requests_over_a_stream(grpcurl: str, server: Server) -> None:
    """grpcurl sends several requests over one stream, and prints an answer to each."""
    requests = [
        {"number": 1, "allocate_range": {"sequence": "grpcurl-lines", "id_count": 5}},
        {"number": 2, "allocate_range": {"sequence": "grpcurl-lines", "id_count": -1}},
        {"number": 3, "generate_doc_id": {"view": "DOC_ID_VIEW_IDS"}},
    ]
    method = "idalloc.v1.IdAllocatorService/AllocateStream"
    done = subprocess.run(
        [grpcurl, "-plaintext", "-d", "\n".join(map(json.dumps, requests)), server.address, method],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [ids, failed, doc_ids] = json.loads("[" + done.stdout.replace("}\n{", "},{") + "]")
    assert [each["number"] for each in (ids, failed, doc_ids)] == ["1", "2", "3"]
    assert ids["allocateRange"]["range"]["lastId"] == "5"
    assert failed["error"]["message"].startswith("id_count: must be")
    assert len(doc_ids["generateDocId"]["docIds"]) == 1


@pytest.mark.test_long
def test_grpcurl_lists_the_services(grpcurl: str, server: Server) -> None:
    """Server reflection lists the services."""
    done = subprocess.run([grpcurl, "-plaintext", server.address, "list"], capture_output=True, text=True)
    assert {"idalloc.v1.IdAllocatorService", "idalloc.v1.NodeService", "grpc.health.v1.Health"} <= set(
        done.stdout.split()
    )


@pytest.mark.test_long
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_ghz_configuration_succeeds(ghz: str, server: Server, configuration: Path) -> None:
    """All calls of each configuration in examples/ghz succeed."""
    done = subprocess.run(
        [ghz, f"--config={configuration}", "--total=100", "--concurrency=8", "--format=json", server.address],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    # ghz exits with 0 even if every call fails.
    assert json.loads(done.stdout)["statusCodeDistribution"] == {"OK": 100}


@pytest.mark.test_long
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("transport", ["grpcio", "native"])
@pytest.mark.parametrize("call", ["AllocateRange", "StreamRanges"])
def test_shutdown_cancels_no_call(ghz: str, tmp_path: Path, call: str, transport: str, workers: int) -> None:
    """With 64 calls in flight at SIGTERM, each is served or rejected with UNAVAILABLE."""
    data = {"sequence": "orders"} | ({"total_id_count": "30", "chunk_id_count": "1"} if call == "StreamRanges" else {})
    options = ["--concurrency=64", "--connections=8", "--duration=6s", "--duration-stop=wait", "--format=json"]
    with running(tmp_path, transport=transport, workers=workers) as server:
        command = [ghz, "--insecure", f"--call=idalloc.v1.IdAllocatorService/{call}", f"--data={json.dumps(data)}"]
        command += [*options, server.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as load:
            wait_until(lambda: '"event": "calls"' in server.log.read_text() or load.poll() is not None)
            assert server.stop() == 0
            report, errors = load.communicate(timeout=60)
    assert load.returncode == 0, errors
    assert set(json.loads(report)["statusCodeDistribution"]) == {"OK", "Unavailable"}
    assert "Cancelling all calls" not in report


def test_every_id_rpc_has_a_ghz_configuration() -> None:
    """examples/ghz has a configuration for each RPC that issues ids."""
    called = {json.loads(path.read_text())["call"].replace("/", ".") for path in CONFIGURATIONS}
    [service] = id_allocator_pb2.DESCRIPTOR.services_by_name.values()
    assert {method.full_name for method in service.methods} <= called


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda path: path.stem)
def test_ghz_configurations_match_the_protos(configuration: Path) -> None:
    """Each configuration has only fields of its request, and no timeout only for streams."""
    content = json.loads(configuration.read_text())
    service, _, name = content["call"].rpartition("/")
    services = [
        service
        for file in (id_allocator_pb2, node_pb2, sequences_pb2, health_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    ]
    [method] = (each.methods_by_name[name] for each in services if each.full_name == service)
    fields = {field.name for field in method.input_type.fields}
    assert set(content["data"]) <= fields
    # ghz's default timeout of 20 s would end a stream.
    assert (content.get("timeout") == "0s") == method.server_streaming


def test_ghz_configurations_are_documented() -> None:
    """The guide to load tests names each configuration."""
    guide = (ROOT / "docs" / "guides" / "load-tests.md").read_text()
    assert [path.name for path in CONFIGURATIONS if f"`{path.name}`" not in guide] == []


def test_flat_ghz_configuration_has_no_templates() -> None:
    """The flat configuration disables templates, which cost ghz time."""
    flat = json.loads((ROOT / "examples" / "ghz" / "allocate_range_flat.json").read_text())
    assert "{{" not in json.dumps(flat["data"])
    assert flat["disable-template-functions"] is flat["disable-template-data"] is True
