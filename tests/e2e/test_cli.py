"""The commands that issue ids, and `idalloc health`, against a real server."""

import json
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.processes import IDALLOC, Server, environment, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("cli"), node_prefix=11) as server:
        yield server


def idalloc(server: Server | None, *arguments: str, timeout: float = 50) -> subprocess.CompletedProcess[str]:
    env = environment(server=server.address) if server else environment()
    return subprocess.run([IDALLOC, *arguments], env=env, capture_output=True, text=True, timeout=timeout)


def test_allocate_prints_one_id_on_a_line(server: Server) -> None:
    """allocate prints each id on a line, and reports the new sequence on standard error."""
    done = idalloc(server, "allocate", "lines", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n2\n3\n", "created sequence 'lines'\n")


def test_allocate_prints_proto3_json(server: Server) -> None:
    """--json prints the proto3 JSON mapping, as grpcurl does."""
    done = idalloc(server, "allocate", "json", "5", "--json")
    reply = json.loads(done.stdout)
    assert reply["range"] == {"firstId": "1", "lastId": "5", "step": "1", "idCount": "5"}
    assert reply["ordering"] == "ORDERING_RISING_PER_NODE"


def test_stream_prints_a_million_ids(server: Server) -> None:
    """P1: a stream of a million ids is complete and in order."""
    with subprocess.Popen(
        [IDALLOC, "stream", "many", "--total", "1000000"],
        env=environment(server=server.address),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        count = sum(n == int(line) for n, line in enumerate(process.stdout, start=1))
        assert process.wait(50) == 0
    assert count == 1_000_000


def test_stream_prints_a_json_object_for_each_range(server: Server) -> None:
    """stream --json prints an object on a line for each range."""
    done = idalloc(server, "stream", "chunks", "--total", "25", "--chunk", "10", "--json")
    assert [json.loads(line)["range"]["idCount"] for line in done.stdout.splitlines()] == ["10", "10", "5"]


def test_docid_prints_the_format_of_mysql(server: Server) -> None:
    """P6: document ids have MySQL's format and the node's prefix, and rise."""
    done = idalloc(server, "docid", "3")
    ids = done.stdout.split()
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    assert all(len(doc_id) == 28 and doc_id.startswith("000b") for doc_id in ids)


def test_health_sets_exit_code(server: Server) -> None:
    """health exits with 0 only if the server and the service serve."""
    assert idalloc(server, "health").returncode == 0
    assert idalloc(server, "health", "idalloc.v1.NodeService").returncode == 0
    assert idalloc(server, "health", "no.such.Service").returncode != 0
    unreachable = subprocess.run(
        [IDALLOC, "health", "--timeout=1s"], env=environment(server="127.0.0.1:1"), capture_output=True, timeout=30
    )
    assert unreachable.returncode != 0


def test_rejected_call_is_one_line_with_its_reason(server: Server) -> None:
    """A rejected call prints one line with its reason and field."""
    done = idalloc(server, "allocate", "orders", "1000001")
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "INVALID_REQUEST" in line
    assert "id_count" in line


def test_unreachable_server_is_one_line(server: Server) -> None:
    """An unreachable server is one line with its address."""
    done = subprocess.run(
        [IDALLOC, "allocate", "orders", "--timeout=1s"],
        env=environment(server="127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "127.0.0.1:1" in line


def test_closed_pipe_ends_the_command_silently(server: Server) -> None:
    """A reader that closes the pipe ends the command without an error."""
    done = subprocess.run(
        f"'{IDALLOC}' stream pipe --total 100000000 | head -n 2",
        shell=True,
        env=environment(server=server.address),
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.stdout, done.stderr) == ("1\n2\n", "created sequence 'pipe'\n")


def test_stream_resumes_after_a_server_restart(tmp_path: Path) -> None:
    """P1: a stream resumes after a restart of the server, without a duplicate, to its total."""
    errors = tmp_path / "errors"
    with running(tmp_path, drain_timeout="1s") as first, errors.open("w") as stderr:
        process = subprocess.Popen(
            [IDALLOC, "stream", "orders", "--total", "30000000", "--ranges"],
            env=environment(server=first.address),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert process.stdout
        lines = [process.stdout.readline()]
        assert first.stop() == 0
    with running(tmp_path, listen=first.address), process.stdout:
        lines += process.stdout  # `communicate` would lose what `readline` has buffered
        assert process.wait(timeout=50) == 0, errors.read_text()
    ranges = [tuple(map(int, line.split()[:2])) for line in lines]
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert sum(last - first_id + 1 for first_id, last in ranges) == 30_000_000
