"""Several worker processes on one port share the load, updates, counters and the address."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import sequences_pb2, sequences_pb2_grpc
from tests.support.processes import Server, environment, running, serve_command
from tests.support.server_calls import (
    channel_per_worker,
    connect,
    get_node,
    id_allocator,
    log_events,
    refused_start,
    update_node,
    wait_until,
    worker_pids,
)
from tests.support.waiting import hold_for

pytestmark = pytest.mark.test_long


def http_get(server: Server, path: str) -> bytes:
    """Return an answer of the HTTP port."""
    with urllib.request.urlopen(server.http + path, timeout=30) as answer:
        return bytes(answer.read())


def rates_on_page(server: Server) -> list[float]:
    """Return the rates of the sequences that the page shows."""
    return [each["ids_per_second"] for each in json.loads(http_get(server, "api/sequences"))["sequences"]]


def _pages(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


class TestRates:
    def test_the_rate_is_that_of_all_workers(self, tmp_path: Path) -> None:
        """Each worker and the page have the rate of the whole server, not its own 25 or 75 %."""
        with running(tmp_path, workers=2, http_listen="127.0.0.1:0") as server, channel_per_worker(server) as channels:
            stubs, issued, began = [id_allocator(each) for each in channels], 0, time.monotonic()
            while time.monotonic() - began < 6:
                for stub, count in zip(stubs, (100, 300), strict=True):
                    stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=count), timeout=20)
                    issued += count
                hold_for(0.05, "the pace of the calls")
            expected = pytest.approx(issued / (time.monotonic() - began), rel=0.2)
            for channel in channels:
                request = sequences_pb2.GetSequenceRequest(name="orders")
                found = sequences_pb2_grpc.SequenceServiceStub(channel).GetSequence(request, timeout=20).sequence
                assert found.ids_per_second == expected
                assert found.exhaust_time.seconds == 0  # past the year 9999
            wait_until(lambda: rates_on_page(server), "the page lists the sequence")
            assert rates_on_page(server) == pytest.approx([issued / (time.monotonic() - began)], rel=0.2)

    def test_each_process_has_its_own_metrics(self, tmp_path: Path) -> None:
        """The metrics of the processes add up to what the kernel reports of them."""
        with running(tmp_path, workers=2, http_listen="127.0.0.1:0") as server:
            pids = {"supervisor": server.process.pid}
            pids |= {f"worker {number}": pid for number, pid in enumerate(sorted(worker_pids(server)), start=1)}
            resident = {
                sample.labels["process"]: sample.value
                for family in text_string_to_metric_families(http_get(server, "metrics").decode())
                for sample in family.samples
                if sample.name == "process_resident_memory_bytes"
            }
            assert resident.keys() == pids.keys()
            expected = sum(os.sysconf("SC_PAGESIZE") * _pages(pid) for pid in pids.values())
            assert sum(resident.values()) == pytest.approx(expected, rel=0.1)


class TestServing:
    def test_the_serving_event_follows_the_last_worker(self, tmp_path: Path) -> None:
        """The event serving comes when all workers serve, and GetNode returns their number."""
        with running(tmp_path, workers=2, node_prefix=7) as server, connect(server) as channel:
            serving = json.loads(server.serving)
            assert (serving["address"], serving["prefix"], serving["workers"]) == (server.address, 7, 2)
            assert not server.address.endswith(":0")
            assert get_node(channel).worker_count == 2
            assert len(worker_pids(server)) == 2

    def test_one_worker_is_one_process(self, tmp_path: Path) -> None:
        """A server with one worker has no child processes."""
        with running(tmp_path) as server, connect(server) as channel:
            assert get_node(channel).worker_count == 1
            assert Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text() == ""

    @pytest.mark.parametrize("transport", ["grpcio", "native"])
    def test_workers_on_one_file_issue_distinct_ids(self, tmp_path: Path, transport: str) -> None:
        """P1: workers that share a SQLite file issue no id twice."""

        def take(channel: grpc.Channel) -> list[int]:
            stub = id_allocator(channel)
            request = pb.AllocateRangeRequest(sequence="orders", id_count=7)
            replies = [stub.AllocateRange(request, timeout=20) for _ in range(300)]
            return [i for reply in replies for i in range(reply.range.first_id, reply.range.last_id + 1)]

        with (
            running(tmp_path, workers=3, transport=transport) as server,
            channel_per_worker(server, 3) as channels,
            ThreadPoolExecutor() as pool,
        ):
            taken = [i for each in pool.map(take, channels * 2) for i in each]
        assert len(taken) == len(set(taken)) == 6 * 300 * 7

    def test_a_rising_sequence_rises_over_all_workers(self, tmp_path: Path) -> None:
        """Ids of a sequence with the ordering rising rise over all workers."""

        def take(channel: grpc.Channel) -> list[tuple[float, float, int]]:
            taken = []
            for _ in range(40):
                began = time.monotonic()
                reply = id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="invoices"), timeout=20)
                taken.append((began, time.monotonic(), reply.range.first_id))
            return taken

        with (
            running(tmp_path, workers=2) as server,
            channel_per_worker(server) as channels,
            ThreadPoolExecutor() as pool,
        ):
            sequences: Any = sequences_pb2_grpc.SequenceServiceStub(channels[0])
            rising = sequences_pb2.Sequence(name="invoices", ordering=pb.ORDERING_RISING)
            sequences.CreateSequence(sequences_pb2.CreateSequenceRequest(sequence=rising), timeout=10)
            taken = sorted(each for some in pool.map(take, channels * 3) for each in some)
        assert len({first_id for *_, first_id in taken}) == 6 * 40
        for (_, ended, earlier), (began, _, later) in combinations(taken, 2):
            assert earlier < later or began < ended

    def test_workers_share_a_prefix_but_no_start_timestamp(self, tmp_path: Path) -> None:
        """P6: workers share a prefix, and each has a start timestamp of its own."""
        with running(tmp_path, workers=2, prefix_conflict="refuse") as server, channel_per_worker(server) as channels:
            request = pb.GenerateDocIdRequest(id_count=1_000)
            drawn = [list(id_allocator(each).GenerateDocId(request, timeout=10).doc_ids) for each in channels]
        assert len({each for one in drawn for each in one}) == 2_000
        assert {each[:4] for one in drawn for each in one} == {"0000"}
        assert "prefix_conflict" not in server.log.read_text()

    def test_lease_count_sums_all_workers(self, tmp_path: Path) -> None:
        """GetNode returns the sum of the leases of all workers."""
        with running(tmp_path, workers=2) as server, channel_per_worker(server) as channels:
            for each in channels:
                for _ in range(5):  # the first lease of a sequence has no spare ids
                    id_allocator(each).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=10)
            wait_until(lambda: all(get_node(each).lease_count == 2 for each in channels))


class TestUpdating:
    def test_an_update_applies_to_all_workers(self, tmp_path: Path) -> None:
        """UpdateNode has changed all workers when it returns, and later ones, too."""
        with running(tmp_path, workers=2) as server, channel_per_worker(server) as channels:
            changed = update_node(channels[0], prefix=9, auto_increment_offset=3, auto_increment_increment=10)
            assert changed.prefix == 9
            nodes = [get_node(each) for each in channels]
            for node in nodes:
                assert (node.prefix, node.auto_increment_offset, node.auto_increment_increment) == (9, 3, 10)
            assert len({node.start_timestamp for node in nodes}) == 2
            drawn = [
                id_allocator(each).GenerateDocId(pb.GenerateDocIdRequest(), timeout=10).doc_ids[0] for each in channels
            ]
            assert drawn == [f"0009{node.start_timestamp:08x}{3:016x}" for node in nodes]
            os.kill(worker_pids(server)[0], signal.SIGKILL)
            wait_until(lambda: len(worker_pids(server)) == 3)
            with channel_per_worker(server) as after:
                assert [get_node(each).prefix for each in after] == [9, 9]

    def test_a_failed_update_changes_no_worker(self, tmp_path: Path) -> None:
        """UpdateNode changes no worker, and keeps nothing, if the first one cannot change."""
        store = f"sqlite://{tmp_path}/ids.db"
        with (
            running(tmp_path, node_prefix=4),
            running(tmp_path, store=store, workers=2, node_prefix=5, prefix_conflict="refuse") as server,
            channel_per_worker(server) as channels,
        ):
            with pytest.raises(grpc.RpcError) as error:
                update_node(channels[1], prefix=4, auto_increment_offset=3)
            assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert "PREFIX_IN_USE" in str(error.value.trailing_metadata())
            nodes = [get_node(each) for each in channels]
            assert [(node.prefix, node.auto_increment_offset) for node in nodes] == [(5, 1), (5, 1)]
            with pytest.raises(grpc.RpcError) as error:
                update_node(channels[0], prefix=70_000)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert update_node(channels[0], prefix=6).prefix == 6

    def test_a_persisted_update_survives_a_restart(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """UpdateNode with persist survives a restart, and needs a fixed port."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            listen = f"127.0.0.1:{free.getsockname()[1]}"
        with running(tmp_path, listen=listen, workers=2) as server, connect(server) as channel:
            assert update_node(channel, prefix=12, persist=True).prefix == 12
            assert server.stop() == 0
        with running(tmp_path, listen=listen, workers=2) as server, channel_per_worker(server) as channels:
            assert [get_node(each).prefix for each in channels] == [12, 12]
        with running(tmp_path, workers=2) as server, connect(server) as channel:
            with pytest.raises(grpc.RpcError) as error:
                update_node(channel, prefix=13, persist=True)
            assert "port 0" in str(error.value.details())
            assert get_node(channel).prefix == 0

    def test_the_last_of_two_updates_at_once_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """P6: all workers, one of them new, and a restart use one of two updates made at once."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            listen = f"127.0.0.1:{free.getsockname()[1]}"
        updates = {"prefix": 7, "auto_increment_offset": 3}, {"prefix": 8, "auto_increment_increment": 10}

        def is_made(channel: grpc.Channel, update: dict[str, int]) -> bool:
            with suppress(grpc.RpcError):  # its worker is killed
                update_node(channel, persist=True, timeout=50, **update)
                return True
            return False

        def settings_of(channel: grpc.Channel) -> tuple[int, int, int]:
            node = get_node(channel)
            return node.prefix, node.auto_increment_offset, node.auto_increment_increment

        last = (0, 0, 0)
        with running(tmp_path, listen=listen, workers=2) as server:
            for killed in range(2):
                with channel_per_worker(server) as channels, ThreadPoolExecutor() as pool:
                    made = pool.map(is_made, channels, updates)
                    hold_for(0.01 * killed, "both updates are under way")
                    os.kill(worker_pids(server)[killed], signal.SIGKILL)
                    assert any(made)
                wait_until(lambda killed=killed: len(worker_pids(server)) == 3 + killed)  # type: ignore[misc]
                with channel_per_worker(server) as channels:  # each has a start timestamp of its own
                    wait_until(lambda channels=channels: len(set(map(settings_of, channels))) == 1, seconds=1)  # type: ignore[misc]
                    last = settings_of(channels[0])
            assert last in {(7, 3, 10), (8, 3, 10), (7, 3, 1), (8, 1, 10)}
            assert server.stop() == 0
        with running(tmp_path, listen=listen, workers=2) as server, channel_per_worker(server) as channels:
            assert [settings_of(each) for each in channels] == [last, last]


class TestCounting:
    def test_call_counts_sum_all_workers(self, tmp_path: Path) -> None:
        """The event calls sums all workers, including those that died."""

        def fail(channel: grpc.Channel) -> None:
            with pytest.raises(grpc.RpcError):
                id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence=""), timeout=10)

        def failed() -> int:
            return sum(line["failed"] for line in log_events(server, "calls"))

        with running(tmp_path, workers=2) as server:
            with channel_per_worker(server) as channels:
                for each in channels:
                    for _ in range(25):
                        fail(each)
                wait_until(lambda: failed() == 50)
            os.kill(worker_pids(server)[0], signal.SIGKILL)
            wait_until(lambda: len(worker_pids(server)) == 3)
            with channel_per_worker(server) as channels:
                for each in channels:
                    fail(each)
            wait_until(lambda: failed() == 52)
            assert all("worker" not in line and line["count"] >= line["failed"] for line in log_events(server, "calls"))

    def test_burned_ids_are_logged_once(self, tmp_path: Path) -> None:
        """P9: the event stopped sums the burned ids of all workers."""
        with running(tmp_path, workers=2) as server:
            with channel_per_worker(server) as channels:
                for each in channels:
                    for _ in range(5):
                        id_allocator(each).AllocateRange(
                            pb.AllocateRangeRequest(sequence="orders", id_count=100), timeout=10
                        )
            assert server.stop() == 0
            (stopped,) = log_events(server, "stopped")
        # One of the workers cannot return its tail, since the other wrote after it.
        assert stopped["burned"]["not_returned"] > 0


class TestStarting:
    @pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 2)])
    def test_a_second_server_on_the_address_is_refused(self, tmp_path: Path, first: int, second: int) -> None:
        """A second server on the same address is refused, with any number of workers."""
        with running(tmp_path, workers=first) as server:
            began = server.log.read_text()
            line = refused_start(listen=server.address, workers=second, store=f"sqlite://{tmp_path}/other.db")
            assert line.startswith(f"2 listen: cannot serve on {server.address}: Address already in use")
            assert server.log.read_text() == began
        assert not (tmp_path / "other.db").exists()

    @pytest.mark.parametrize("hosts", [("127.0.0.1",) * 3, ("0.0.0.0", "127.0.0.1")])
    def test_servers_that_start_at_once_do_not_share_an_address(self, tmp_path: Path, hosts: tuple[str, ...]) -> None:
        """Of servers that start at once on one address, one serves."""
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        settings = {"workers": 2, "store": f"sqlite://{tmp_path}/ids.db", "insecure": "true"}
        commands = [serve_command(listen=f"{host}:{port}", **settings) for host in hosts]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": environment(), "text": True}
        starting: list[subprocess.Popen[str]] = [subprocess.Popen(command, **pipes) for command in commands]  # type: ignore[call-overload]
        try:
            first = [each.stdout.readline() for each in starting]  # type: ignore[union-attr]
            assert sum("serving" in line for line in first) == 1
        finally:
            for each in starting:
                each.terminate()
                each.communicate(timeout=20)

    def test_an_unusable_store_is_a_one_line_error(self, tmp_path: Path) -> None:
        """An unusable store ends the start with exit code 2 and a one-line error."""
        (tmp_path / "notes.db").write_text("not a database, but long enough to be taken for one " * 20)
        assert refused_start(store=f"sqlite://{tmp_path}/notes.db", workers=2).startswith("2 store: ")

    def test_an_unreachable_store_is_a_one_line_error(self) -> None:
        """An unreachable store ends the start with exit code 1 and a one-line error."""
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        # A worker may take a few times this to start, and needs seconds on a busy machine.
        line = refused_start(store=f"crate://127.0.0.1:{port}", store_timeout="4s", workers=2)
        assert line.startswith("1 store: ")
