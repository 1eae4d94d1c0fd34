"""What a first start and a first use print, on real processes (issue 15, 11)."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceStub
from tests.support.processes import IDALLOC, Server, environment, running, serve_command


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("first")) as server:
        yield server


def idalloc(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment(server=server.address)
    return subprocess.run([IDALLOC, *arguments], env=env, capture_output=True, text=True, timeout=50)


def test_the_first_use_of_a_name_says_that_it_is_new(server: Server) -> None:
    """A mistyped name is noticed at its first use; standard output has the ids alone."""
    done = idalloc(server, "allocate", "orderz", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n2\n", "created sequence 'orderz'\n")
    assert idalloc(server, "allocate", "orderz").stderr == ""
    done = idalloc(server, "stream", "other", "--total", "30000", "--ranges")
    assert done.stderr == "created sequence 'other'\n"
    assert idalloc(server, "stream", "other", "--total", "5").stderr == ""
    done = idalloc(server, "allocate", "third", "--json")
    assert (json.loads(done.stdout)["created"], done.stderr) == (True, "created sequence 'third'\n")


def test_a_created_sequence_is_not_new(server: Server) -> None:
    """The line is about creation by use: a sequence that was made on purpose has none."""
    assert idalloc(server, "sequences", "create", "made").returncode == 0
    done = idalloc(server, "allocate", "made")
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_with_a_request_id_the_first_answer_says_so(server: Server) -> None:
    """A repeat of the call gets the same ids, and does not say that it created the sequence."""
    line = ("allocate", "repeated", "--request-id", "8f14e45f-ceea-467f-a34f-0e5a1b1c2d3e")
    assert idalloc(server, *line).stderr == "created sequence 'repeated'\n"
    done = idalloc(server, *line)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_of_calls_that_wait_for_the_creation_one_says_so(server: Server) -> None:
    """Concurrent first calls are one creation."""
    with grpc.insecure_channel(server.address) as channel:
        stub = IdAllocatorServiceStub(channel)
        calls = [stub.AllocateRange.future(pb.AllocateRangeRequest(sequence="together")) for _ in range(30)]
        replies = [call.result(timeout=50) for call in calls]
    assert sorted(reply.range.first_id for reply in replies) == list(range(1, 31))
    assert sum(reply.created for reply in replies) == 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_start_says_where_the_store_is(tmp_path: Path, workers: int) -> None:
    """A new store is named once; an existing one, as after a restart, is not called new."""
    store = tmp_path / "new" / "ids.db"
    for first in (True, False):
        with running(tmp_path, store=f"sqlite://{store}", workers=workers) as server:
            server.stop()
            assert server.process.stdout
            rest = server.process.stdout.read().splitlines()
        assert rest == ([f"store created at {store}"] if first else [])


def test_a_failed_start_claims_no_store(tmp_path: Path) -> None:
    """The line comes when the store is open, not before."""
    (tmp_path / "file").write_text("")
    command = serve_command(store=f"sqlite://{tmp_path}/file/ids.db")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=50)
    assert done.returncode == 2
    assert "store created" not in done.stdout + done.stderr
