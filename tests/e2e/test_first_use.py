"""The output of a first start and a first use, on real processes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceStub
from tests.support.processes import Server, environment, idalloc, running, serve_command, start_error


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("first")) as server:
        yield server


def test_first_use_of_a_name_reports_its_creation(server: Server) -> None:
    """The first use of a name is reported on standard error, so that a mistyped one is noticed."""
    done = idalloc(server, "allocate", "orderz", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n2\n", "created sequence 'orderz'\n")
    assert idalloc(server, "allocate", "orderz").stderr == ""
    done = idalloc(server, "stream", "other", "--total", "30000", "--ranges")
    assert done.stderr == "created sequence 'other'\n"
    assert idalloc(server, "stream", "other", "--total", "5").stderr == ""
    done = idalloc(server, "allocate", "third", "--json")
    assert (json.loads(done.stdout)["created"], done.stderr) == (True, "created sequence 'third'\n")


def test_explicitly_created_sequence_is_not_reported(server: Server) -> None:
    """Only creation by use is reported, not `sequences create`."""
    assert idalloc(server, "sequences", "create", "explicit").returncode == 0
    done = idalloc(server, "allocate", "explicit")
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.test_long
def test_retry_does_not_report_the_creation_again(server: Server) -> None:
    """P7: a retry gets the same ids, and does not report the creation."""
    line = ("allocate", "repeated", "--request-id", "8f14e45f-ceea-467f-a34f-0e5a1b1c2d3e")
    assert idalloc(server, *line).stderr == "created sequence 'repeated'\n"
    done = idalloc(server, *line)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_concurrent_first_calls_create_once(server: Server) -> None:
    """P1: of concurrent first calls, one reports the creation, and all get distinct ids."""
    with grpc.insecure_channel(server.address) as channel:
        stub = IdAllocatorServiceStub(channel)
        calls = [stub.AllocateRange.future(pb.AllocateRangeRequest(sequence="together")) for _ in range(30)]
        replies = [call.result(timeout=50) for call in calls]
    assert sorted(reply.range.first_id for reply in replies) == list(range(1, 31))
    assert sum(reply.created for reply in replies) == 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.test_long)])
def test_first_start_reports_the_new_store(tmp_path: Path, workers: int) -> None:
    """A new store is reported once; an existing one, as after a restart, is not."""
    store = f"sqlite://{tmp_path}/new/ids.db"
    for first in (True, False):
        with running(tmp_path, store=store, workers=workers) as server:
            server.stop()
            assert server.process.stdout
            assert server.process.stdout.read() == ""
        serving = json.loads(server.serving)
        assert (serving["store"], serving["store_created"]) == (store, first)


def test_failed_start_reports_no_new_store(tmp_path: Path) -> None:
    """The path is printed only when the store is open."""
    (tmp_path / "file").write_text("")
    command = serve_command(store=f"sqlite://{tmp_path}/file/ids.db")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=50)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "ids.db" in start_error(done.stderr)
