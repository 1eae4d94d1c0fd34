"""Server processes on a CrateDB that refuses statements until an operator acts."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import idalloc
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.e2e.test_crate import cluster, crate  # noqa: F401 - fixtures
from tests.support.cratedb.cluster import CrateCluster
from tests.support.processes import environment, running, serve_command, start_error

BLOCK = 'ALTER TABLE "{}"."sequences" SET ("blocks.write" = true)'
UNBLOCK = 'ALTER TABLE "{}"."sequences" SET ("blocks.write" = false)'


@contextmanager
def calling(address: str) -> Iterator[id_allocator_pb2_grpc.IdAllocatorServiceStub]:
    """Open a channel with the retry policy of the contract."""
    config = (Path(idalloc.__file__).parent / "v1" / "service_config.json").read_text()
    with grpc.insecure_channel(address, [("grpc.service_config", config)]) as channel:
        yield id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)


def refusal_of(error: Any) -> tuple[status_pb2.Status, error_details_pb2.ErrorInfo, list[str]]:
    """Return the status, its ErrorInfo, and the names of all details."""
    trailers = dict(error.trailing_metadata())
    assert "grpc-retry-pushback-ms" not in trailers
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return status, info, [detail.TypeName() for detail in status.details]


def test_a_blocked_table_is_refused_with_the_next_step(cluster: CrateCluster, tmp_path: Path) -> None:  # noqa: F811
    """A blocked table is STORE_REFUSED, with CrateDB's message and the unblocking statement."""
    with (
        running(tmp_path, store=cluster.store, log_level="debug") as server,
        calling(server.address) as stub,
    ):
        first = stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=10), timeout=20).range
        cluster.sql(BLOCK)
        request = pb.AllocateRangeRequest(sequence="orders", id_count=100_000)
        with pytest.raises(grpc.RpcError) as caught:
            stub.AllocateRange(request, timeout=20)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        status, info, details = refusal_of(caught.value)
        assert (info.reason, info.domain, dict(info.metadata)) == (
            "STORE_REFUSED",
            "idalloc",
            {"code": "4007", "http_status": "400"},
        )
        assert details == ["google.rpc.ErrorInfo"]  # no RetryInfo
        assert "doesn't support or allow UPDATE operations" in status.message
        assert 'run ALTER TABLE "' in status.message
        # Neither the SDK nor a channel with service_config.json retries.
        with idalloc.Client(server.address) as client, pytest.raises(idalloc.StoreRefused, match="run ALTER TABLE"):
            client.allocate_range("orders", 100_000)
        cluster.sql(UNBLOCK)
        assert stub.AllocateRange(request, timeout=20).range.first_id > first.last_id
        assert server.stop() == 0
        calls = [line for line in map(json.loads, server.log.read_text().splitlines()) if line["event"] == "call"]
        assert [line["code"] for line in calls].count("FAILED_PRECONDITION") == 2


def test_an_unusable_table_is_refused_at_startup(cluster: CrateCluster) -> None:  # noqa: F811
    """An unusable table ends the start with exit code 2, the cause and the statement to run."""
    cluster.sql('CREATE TABLE "{}"."sequences" (name TEXT PRIMARY KEY, last_value BIGINT, owner TEXT NOT NULL)')
    done = subprocess.run(
        serve_command(store=cluster.store), env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    line = start_error(done.stderr)
    assert line.startswith("store: the table idalloc_test_")
    assert "its column owner is NOT NULL without a default, and idalloc does not write it: run ALTER TABLE" in line
