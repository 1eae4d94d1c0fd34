"""Server processes on CrateDB: the emulator in its own process, with a real cluster's faults."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.support.cratedb.cluster import URL, CrateCluster
from tests.support.processes import IDALLOC, Server, environment, running, serve_command, start_error
from tests.support.server_calls import wait_until


class Crate:
    """A running emulator."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start(0)

    def _start(self, port: int) -> None:
        command = [sys.executable, "-m", "tests.support.cratedb.emulator", f"--port={port}", f"--file={self._file}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("crate://127.0.0.1:")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2].strip("/"))

    def fail(self, *faults: dict[str, Any]) -> None:
        """Inject faults into the next statements."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/_emulator/faults", json.dumps(faults).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    def kill(self) -> None:
        """Kill the process, as a power cut does."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()

    def restart(self) -> None:
        """Start the process again on the same port and file."""
        self._start(self.port)


@pytest.fixture
def crate(tmp_path: Path) -> Iterator[Crate]:
    crate = Crate(tmp_path / "crate.db")
    yield crate
    crate.kill()


@contextmanager
def calling(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        yield id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)


@pytest.mark.test_long
def test_servers_share_a_sequence_on_a_failing_store(crate: Crate, tmp_path: Path) -> None:
    """P1: two servers on a failing store repeat no id; failed calls are STORE_UNAVAILABLE."""
    refusals: list[str] = []

    def work(server: Server) -> list[tuple[int, int]]:
        taken = []
        with calling(server) as stub:
            for n in range(400):
                try:
                    reply = stub.AllocateRange(
                        pb.AllocateRangeRequest(sequence="orders", id_count=1 + 37 * n % 500), timeout=20
                    )
                except grpc.RpcError as error:
                    refusals.append(str(error.trailing_metadata()))
                else:
                    taken.append((reply.range.first_id, reply.range.last_id))
        return taken

    settings = {"store": crate.url, "store_timeout": "2s"}
    with (
        running(tmp_path, node_prefix=1, **settings) as one,
        running(tmp_path, node_prefix=2, **settings) as two,
        ThreadPoolExecutor() as pool,
    ):
        calls = [pool.submit(work, server) for server in (one, two)]
        for kind in ("drop", "reset", "duplicate", "delay", "error", "garbage") * 4:
            crate.fail({"kind": kind, "match": "UPDATE", "seconds": 0.05})
        taken = sorted(each for call in calls for each in call.result())
    assert refusals
    assert all("STORE_UNAVAILABLE" in refusal for refusal in refusals)
    assert len(taken) + len(refusals) == 800
    assert len(taken) > 400
    assert all(before[1] < after[0] for before, after in pairwise(taken))


def test_calls_fail_while_the_store_is_down_and_then_recover(crate: Crate, tmp_path: Path) -> None:
    """A server serves from its lease while the store is down, then UNAVAILABLE, and recovers."""
    with running(tmp_path, store=crate.url, store_timeout="3s") as server, calling(server) as stub:
        request = pb.AllocateRangeRequest(sequence="orders", id_count=100)
        held = [stub.AllocateRange(request, timeout=10).range.last_id for _ in range(5)]
        crate.kill()
        served = stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=1), timeout=10).range
        assert served.first_id == held[-1] + 1  # from memory
        with pytest.raises(grpc.RpcError) as refused:
            stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=100_000), timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "STORE_UNAVAILABLE" in str(refused.value.trailing_metadata())
        crate.restart()
        later = stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=100_000), timeout=10).range
        assert later.first_id > served.last_id


# Answers of a real CrateDB: a blocked table, a revoked privilege, a CHECK constraint.
REFUSALS = {
    "blocked": (
        400,
        4007,
        'OperationOnInaccessibleRelationException[The relation "doc.sequences" doesn\'t support or allow UPDATE '
        "operations]",
    ),
    "revoked": (401, 4011, "MissingPrivilegeException[Missing 'DML' privilege for user 'idalloc']"),
    "constraint": (400, 4000, "SQLParseException[Failed CONSTRAINT few CHECK (last_value < 10)]"),
}


@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.test_long
def test_log_and_health_report_why_calls_fail(crate: Crate, tmp_path: Path, why: str, workers: int) -> None:
    """The log counts the cause, and `idalloc health` fails by name, until the store works."""

    def lines(event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in server.log.read_text().splitlines()]
        return [line for line in found if line["event"] == event]

    def health(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [IDALLOC, "--server", server.address, "health", "--timeout", "20s", *arguments]
        return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=40)

    status, code, message = REFUSALS[why]
    request = pb.AllocateRangeRequest(sequence="orders")
    with running(tmp_path, store=crate.url, workers=workers, log_level="error") as server, calling(server) as stub:
        crate.fail(
            {"kind": "error", "times": -1, "match": "UPDATE", "status": status, "code": code, "message": message}
        )
        for _ in range(3):
            with pytest.raises(grpc.RpcError):
                stub.AllocateRange(request, timeout=20)
        wait_until(lambda: sum(line["count"] for line in lines("calls_failed")) == 3)
        for line in lines("calls_failed"):
            assert line["method"] == "/idalloc.v1.IdAllocatorService/AllocateRange"
            assert line["reason"].startswith("STORE_")
            assert message in line["why"]
        if workers == 1:  # with several, another worker may answer
            asked = health()
            assert (asked.returncode, asked.stdout) == (0, "SERVING\n")
            assert asked.stderr.startswith("store: NOT_SERVING: CrateDB at ")
            assert message in asked.stderr
            assert json.loads(health("--json").stdout)["failing"]["store"].count(message) == 1
            assert health("store").returncode == 1
        crate.kill()
        crate.restart()
        # Each worker checks its own calls of the store, so call all of them, by many connections.
        more = pb.AllocateRangeRequest(sequence="orders", id_count=100_000)
        for _ in range(1 if workers == 1 else 20):
            with calling(server) as another:
                another.AllocateRange(more, timeout=20)
        wait_until(lambda: all(health("store").returncode == 0 for _ in range(3 * workers)))
        assert health().stderr == ""


def test_doc_ids_need_no_store(crate: Crate, tmp_path: Path) -> None:
    """A server generates document ids while the store is down."""
    with running(tmp_path, store=crate.url) as server, calling(server) as stub:
        crate.kill()
        ids = stub.GenerateDocId(pb.GenerateDocIdRequest(id_count=1_000), timeout=10).doc_ids
        assert len(set(ids)) == 1_000


def test_a_server_waits_for_its_store_at_startup(crate: Crate, tmp_path: Path) -> None:
    """A server starts when its store becomes reachable within store_timeout."""
    crate.kill()
    with ThreadPoolExecutor(1) as pool:

        def start() -> str:
            with running(tmp_path, store=crate.url, store_timeout="20s") as server:
                return server.serving

        serving = pool.submit(start)
        log = tmp_path / "server-0.log"
        while not (log.exists() and "waiting_for_store" in log.read_text()):
            assert not serving.done()
        crate.restart()
        assert crate.url.rstrip("/") in serving.result(timeout=30)


@pytest.mark.test_long
def test_a_start_without_a_store_fails_with_one_line(crate: Crate) -> None:
    """An unreachable store ends the start with exit code 1 and a one-line error."""
    crate.kill()
    done = subprocess.run(
        serve_command(store=crate.url, store_timeout="500ms"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    crate.restart()
    assert done.returncode == 1
    assert start_error(done.stderr).startswith("store: cannot connect to CrateDB at 127.0.0.1:")


@pytest.fixture(params=["emulator", *([pytest.param("cratedb", marks=pytest.mark.cratedb)] if URL else [])])
def cluster(request: pytest.FixtureRequest) -> Iterator[CrateCluster]:
    """A schema of its own on the emulator, or on a real CrateDB where one is named."""
    if request.param == "emulator":
        cluster = CrateCluster([f"127.0.0.1:{request.getfixturevalue('crate').port}"])
    else:
        cluster = CrateCluster.real()
    yield cluster
    cluster.remove()


@pytest.mark.test_long
def test_the_stop_of_a_single_server_burns_no_ids(cluster: CrateCluster, tmp_path: Path) -> None:
    """P9: the only server returns every unused id to CrateDB, and logs no burned ids."""

    def last_value(name: str) -> int:
        return int(cluster.sql('SELECT last_value FROM "{}"."sequences" WHERE name = ?', name)[0][0])

    names = [f"orders-{number}" for number in range(4)]
    issued: dict[str, int] = {}
    counters: dict[str, set[int]] = {name: set() for name in names}
    with running(tmp_path, store=cluster.store, outage_reserve="1s") as server:
        with calling(server) as stub:
            # Until each lease was refilled several times, between refills of the others.
            while min(map(len, counters.values())) < 5:
                for name in names * 10:
                    reply = stub.AllocateRange(pb.AllocateRangeRequest(sequence=name, id_count=10), timeout=20)
                    issued[name] = reply.range.last_id
                for name in names:
                    counters[name].add(last_value(name))
        assert server.stop() == 0
        log = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert [line for line in log if line["event"] == "burned"] == []
    [stopped] = [line for line in log if line["event"] == "stopped"]
    assert "burned" not in stopped
    assert {name: last_value(name) for name in names} == issued
