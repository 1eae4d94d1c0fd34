"""Several worker processes on one port: real ones, which share the work, die, are replaced, and stop."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, node_pb2, node_pb2_grpc, sequences_pb2, sequences_pb2_grpc
from tests.support.processes import Server, environment, running, serve_command

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def ids_of(channel: grpc.Channel) -> Any:
    return id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)


def node_of(channel: grpc.Channel) -> node_pb2.Node:
    stub: Any = node_pb2_grpc.NodeServiceStub(channel)
    node: node_pb2.Node = stub.GetNode(node_pb2.GetNodeRequest(), timeout=10).node
    return node


def update(channel: grpc.Channel, *, persist: bool = False, timeout: float = 10, **node: Any) -> node_pb2.Node:
    stub: Any = node_pb2_grpc.NodeServiceStub(channel)
    request = node_pb2.UpdateNodeRequest(node=node_pb2.Node(**node), persist=persist)
    changed: node_pb2.Node = stub.UpdateNode(request, timeout=timeout).node
    return changed


def connect(server: Server) -> grpc.Channel:
    """Returns a channel with a connection of its own: else all channels of a process to one address share one."""
    return grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])


@contextmanager
def one_channel_each(server: Server, workers: int = 2) -> Iterator[list[grpc.Channel]]:
    """Connects until every worker has a channel; who answers is known by its start timestamp."""
    with ExitStack() as channels:
        found: dict[int, grpc.Channel] = {}
        for _ in range(200):
            if len(found) == workers:
                break
            channel = channels.enter_context(connect(server))
            found.setdefault(node_of(channel).start_timestamp, channel)
        assert len(found) == workers, "some worker was never reached"
        yield list(found.values())


def lines(server: Server, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [line for line in found if line["event"] == event]


def workers_of(server: Server) -> list[int]:
    """Returns the process ids of all workers that were ever started."""
    return [line["pid"] for line in lines(server, "worker_started")]


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def refused(**settings: object) -> str:
    done = subprocess.run(serve_command(**settings), env=environment(), capture_output=True, text=True, timeout=40)
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    return f"{done.returncode} {line}"


class TestServing:
    def test_one_line_when_all_serve_and_the_node_says_how_many(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2, node_prefix=7) as server, connect(server) as channel:
            assert server.welcome == (
                f"idalloc 0.1.0 serves on {server.address}, store sqlite://{tmp_path}/ids.db, prefix 7, 2 workers"
            )
            assert not server.address.endswith(":0")
            assert node_of(channel).worker_count == 2
            assert len(workers_of(server)) == 2

    def test_a_server_without_the_setting_is_one_process(self, tmp_path: Path) -> None:
        with running(tmp_path) as server, connect(server) as channel:
            assert node_of(channel).worker_count == 1
            assert Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text() == ""

    @pytest.mark.parametrize("transport", ["grpcio", "native"])
    def test_no_id_comes_twice_from_workers_on_one_file(self, tmp_path: Path, transport: str) -> None:
        def take(channel: grpc.Channel) -> list[int]:
            stub = ids_of(channel)
            request = pb.AllocateRangeRequest(sequence="orders", id_count=7)
            replies = [stub.AllocateRange(request, timeout=20) for _ in range(300)]
            return [i for reply in replies for i in range(reply.range.first_id, reply.range.last_id + 1)]

        with (
            running(tmp_path, workers=3, transport=transport) as server,
            one_channel_each(server, 3) as channels,
            ThreadPoolExecutor() as pool,
        ):
            taken = [i for each in pool.map(take, channels * 2) for i in each]
        assert len(taken) == len(set(taken)) == 6 * 300 * 7

    def test_ids_of_a_rising_sequence_rise_over_all_workers(self, tmp_path: Path) -> None:
        def take(channel: grpc.Channel) -> list[tuple[float, float, int]]:
            taken = []
            for _ in range(40):
                began = time.monotonic()
                reply = ids_of(channel).AllocateRange(pb.AllocateRangeRequest(sequence="invoices"), timeout=20)
                taken.append((began, time.monotonic(), reply.range.first_id))
            return taken

        with (
            running(tmp_path, workers=2) as server,
            one_channel_each(server) as channels,
            ThreadPoolExecutor() as pool,
        ):
            sequences: Any = sequences_pb2_grpc.SequenceServiceStub(channels[0])
            rising = sequences_pb2.Sequence(name="invoices", ordering=pb.ORDERING_RISING)
            sequences.CreateSequence(sequences_pb2.CreateSequenceRequest(sequence=rising), timeout=10)
            taken = sorted(each for some in pool.map(take, channels * 3) for each in some)
        assert len({first_id for *_, first_id in taken}) == 6 * 40
        for (_, ended, earlier), (began, _, later) in combinations(taken, 2):
            assert earlier < later or began < ended

    def test_each_worker_has_a_start_timestamp_of_its_own_and_all_one_prefix(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2, prefix_conflict="refuse") as server, one_channel_each(server) as channels:
            request = pb.GenerateDocIdRequest(id_count=1_000)
            drawn = [list(ids_of(each).GenerateDocId(request, timeout=10).doc_ids) for each in channels]
        assert len({each for one in drawn for each in one}) == 2_000
        assert {each[:4] for one in drawn for each in one} == {"0000"}
        assert "prefix_conflict" not in server.log.read_text()

    def test_leases_of_all_workers_are_added_up(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2) as server, one_channel_each(server) as channels:
            for each in channels:
                for _ in range(5):  # the first lease of a sequence has only what was asked for
                    ids_of(each).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=10)
            wait_until(lambda: all(node_of(each).lease_count == 2 for each in channels))


class TestUpdating:
    def test_a_change_is_made_in_all_workers_when_the_answer_comes(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2) as server, one_channel_each(server) as channels:
            changed = update(channels[0], prefix=9, auto_increment_offset=3, auto_increment_increment=10)
            assert changed.prefix == 9
            nodes = [node_of(each) for each in channels]
            for node in nodes:
                assert (node.prefix, node.auto_increment_offset, node.auto_increment_increment) == (9, 3, 10)
            assert len({node.start_timestamp for node in nodes}) == 2
            drawn = [ids_of(each).GenerateDocId(pb.GenerateDocIdRequest(), timeout=10).doc_ids[0] for each in channels]
            assert drawn == [f"0009{node.start_timestamp:08x}{3:016x}" for node in nodes]
            os.kill(workers_of(server)[0], signal.SIGKILL)
            wait_until(lambda: len(workers_of(server)) == 3)
            with one_channel_each(server) as after:
                assert [node_of(each).prefix for each in after] == [9, 9]

    def test_a_change_that_one_worker_cannot_make_changes_none(self, tmp_path: Path) -> None:
        store = f"sqlite://{tmp_path}/ids.db"
        with (
            running(tmp_path, node_prefix=4),
            running(tmp_path, store=store, workers=2, node_prefix=5, prefix_conflict="refuse") as server,
            one_channel_each(server) as channels,
        ):
            with pytest.raises(grpc.RpcError) as error:
                update(channels[1], prefix=4, auto_increment_offset=3)
            assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert "PREFIX_IN_USE" in str(error.value.trailing_metadata())
            nodes = [node_of(each) for each in channels]
            assert [(node.prefix, node.auto_increment_offset) for node in nodes] == [(5, 1), (5, 1)]
            with pytest.raises(grpc.RpcError) as error:
                update(channels[0], prefix=70_000)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert update(channels[0], prefix=6).prefix == 6

    def test_a_change_is_kept_over_restarts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            listen = f"127.0.0.1:{free.getsockname()[1]}"
        with running(tmp_path, listen=listen, workers=2) as server, connect(server) as channel:
            assert update(channel, prefix=12, persist=True).prefix == 12
            assert server.stop() == 0
        with running(tmp_path, listen=listen, workers=2) as server, one_channel_each(server) as channels:
            assert [node_of(each).prefix for each in channels] == [12, 12]
        with running(tmp_path, workers=2) as server, connect(server) as channel:
            with pytest.raises(grpc.RpcError) as error:
                update(channel, prefix=13, persist=True)
            assert "port 0" in str(error.value.details())
            assert node_of(channel).prefix == 0


class TestDying:
    def test_a_worker_that_was_killed_is_replaced_and_service_goes_on(self, tmp_path: Path) -> None:
        def take(_: int) -> int:
            """Takes an id on a connection of its own; one that broke is no more than a call to repeat."""
            for _ in range(100):
                with connect(server) as channel, suppress(grpc.RpcError):
                    reply = ids_of(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20)
                    return int(reply.range.first_id)
            raise AssertionError("nobody served")

        with running(tmp_path, workers=2) as server:
            before = [take(0) for _ in range(20)]
            first, other = workers_of(server)
            os.kill(first, signal.SIGKILL)
            with ThreadPoolExecutor(4) as pool:
                after = list(pool.map(take, range(40)))
            assert len(set(before + after)) == 60
            wait_until(lambda: len(workers_of(server)) == 3)
            with one_channel_each(server):
                assert runs(other)
            (ended,) = lines(server, "worker_ended")
            assert (ended["pid"], ended["exit_code"]) == (first, -signal.SIGKILL)

    def test_a_worker_that_dies_again_at_once_is_replaced_ever_later(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2) as server:
            for died in range(3):
                wait_until(lambda died=died: len(workers_of(server)) == 2 + died)  # type: ignore[misc]
                newest = max(lines(server, "worker_started"), key=lambda line: str(line["timestamp"]))["pid"]
                os.kill(newest, signal.SIGKILL)
            wait_until(lambda: len(lines(server, "worker_ended")) == 3)
            pauses = [line["restart_in"] for line in lines(server, "worker_ended")]
        assert pauses == [0.0, 0.5, 1.0]

    def test_a_worker_that_hangs_is_replaced_when_the_node_is_changed(self, tmp_path: Path) -> None:
        def changed(channel: grpc.Channel) -> grpc.StatusCode:
            with pytest.raises(grpc.RpcError) as error:
                update(channel, auto_increment_offset=5, timeout=40)
            return error.value.code()

        with running(tmp_path, workers=2, store_timeout="1s") as server:
            with one_channel_each(server) as channels, ThreadPoolExecutor() as pool:
                hung = workers_of(server)[0]
                os.kill(hung, signal.SIGSTOP)
                # One of them asks the worker that hangs, and the other is told of it.
                assert grpc.StatusCode.INTERNAL in list(pool.map(changed, channels))
            wait_until(lambda: len(workers_of(server)) == 3)
            assert [line["pid"] for line in lines(server, "worker_unresponsive")] == [hung]
            with one_channel_each(server) as channels:
                assert [node_of(each).auto_increment_offset for each in channels] == [1, 1]
                assert update(channels[0], auto_increment_offset=5).auto_increment_offset == 5

    def test_workers_end_when_their_supervisor_was_killed(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2) as server, connect(server) as channel:
            stream = ids_of(channel).StreamRanges(pb.StreamRangesRequest(sequence="orders", total_id_count=10**15))
            next(stream)
            workers = workers_of(server)
            assert all(map(runs, workers))
            server.send(signal.SIGKILL)
            wait_until(lambda: not any(map(runs, workers)))
            stream.cancel()
        with running(tmp_path, listen=server.address, workers=2):
            pass

    def test_a_worker_that_is_told_to_end_drains_and_leaves_the_prefix_to_the_others(self, tmp_path: Path) -> None:
        settings = {"node_prefix": 4, "prefix_conflict": "refuse"}
        with running(tmp_path, workers=2, **settings) as server:
            os.kill(workers_of(server)[0], signal.SIGTERM)
            wait_until(lambda: lines(server, "worker_ended") != [])
            with closing(sqlite3.connect(tmp_path / "ids.db")) as store:  # before a new one could take it again
                assert store.execute("SELECT holder FROM start_timestamps WHERE prefix = 4").fetchone() != (None,)
            wait_until(lambda: len(workers_of(server)) == 3)
            assert [line["exit_code"] for line in lines(server, "worker_ended")] == [0]
            assert "node_prefix: " in refused(store=f"sqlite://{tmp_path}/ids.db", **settings)
            assert server.stop() == 0
        with running(tmp_path, **settings):
            pass


class TestStopping:
    def test_sigterm_gives_all_back_exits_with_0_and_leaves_nothing_running(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2, node_prefix=4) as server:
            with one_channel_each(server) as channels:
                for each in channels:
                    for _ in range(20):
                        ids_of(each).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=10)
            workers = workers_of(server)
            assert server.stop() == 0
            assert not any(map(runs, workers))
            (last,) = lines(server, "stopped")
            assert "worker" not in last
        with running(tmp_path, node_prefix=4, prefix_conflict="refuse"):
            pass

    def test_a_signal_to_all_processes_that_reaches_the_supervisor_last(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2, node_prefix=4) as server:
            for pid in workers_of(server):
                os.kill(pid, signal.SIGTERM)
            wait_until(lambda: len(lines(server, "draining")) == 2)
            assert server.stop() == 0
            assert lines(server, "worker_ended") == []
        with running(tmp_path, node_prefix=4, prefix_conflict="refuse"):
            pass

    def test_all_turn_to_not_serving_and_drain_in_their_time(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2, drain_timeout="5s") as server, one_channel_each(server) as channels:
            stubs: list[Any] = [health_pb2_grpc.HealthStub(each) for each in channels]
            watches = [stub.Watch(health_pb2.HealthCheckRequest()) for stub in stubs]
            assert [next(watch).status for watch in watches] == [SERVING, SERVING]
            # A stream in each: a worker without any call is gone before it could say so.
            with ExitStack() as streams:
                for each in channels:
                    request = pb.StreamRangesRequest(sequence="orders", total_id_count=10**15)
                    stream = ids_of(each).StreamRanges(request)
                    next(stream)
                    streams.enter_context(reading(stream))
                began = time.monotonic()
                server.send(signal.SIGTERM)
                assert [next(watch).status for watch in watches] == [NOT_SERVING, NOT_SERVING]
                assert server.process.wait(30) == 0
                assert time.monotonic() - began >= 3

    def test_a_second_signal_ends_at_once(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2, drain_timeout="50s") as server, connect(server) as channel:
            stream = ids_of(channel).StreamRanges(pb.StreamRangesRequest(sequence="orders", total_id_count=10**15))
            next(stream)
            with reading(stream):
                workers = workers_of(server)
                server.send(signal.SIGTERM)
                wait_until(lambda: len(lines(server, "draining")) == 2)
                assert server.stop(signal.SIGINT, timeout=10) == 128 + signal.SIGINT
                assert not any(map(runs, workers))


class TestCounting:
    def test_calls_are_logged_in_sum_also_those_of_a_worker_that_died(self, tmp_path: Path) -> None:
        def fail(channel: grpc.Channel) -> None:
            with pytest.raises(grpc.RpcError):
                ids_of(channel).AllocateRange(pb.AllocateRangeRequest(sequence=""), timeout=10)

        def failed() -> int:
            return sum(line["failed"] for line in lines(server, "calls"))

        with running(tmp_path, workers=2) as server:
            with one_channel_each(server) as channels:
                for each in channels:
                    for _ in range(25):
                        fail(each)
                wait_until(lambda: failed() == 50)
            os.kill(workers_of(server)[0], signal.SIGKILL)
            wait_until(lambda: len(workers_of(server)) == 3)
            with one_channel_each(server) as channels:
                for each in channels:
                    fail(each)
            wait_until(lambda: failed() == 52)
            assert all("worker" not in line and line["count"] >= line["failed"] for line in lines(server, "calls"))

    def test_what_was_burned_is_told_once(self, tmp_path: Path) -> None:
        with running(tmp_path, workers=2) as server:
            with one_channel_each(server) as channels:
                for each in channels:
                    for _ in range(5):
                        ids_of(each).AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=100), timeout=10)
            assert server.stop() == 0
            (stopped,) = lines(server, "stopped")
        # Of two workers on one sequence, one finds that the other wrote after it.
        assert stopped["burned"]["not_returned"] > 0


class TestStarting:
    @pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 2)])
    def test_a_second_server_on_the_address_is_refused(self, tmp_path: Path, first: int, second: int) -> None:
        with running(tmp_path, workers=first) as server:
            began = server.log.read_text()
            line = refused(listen=server.address, workers=second, store=f"sqlite://{tmp_path}/other.db")
            assert line.startswith(f"2 idalloc: listen: cannot serve on {server.address}: Address already in use")
            assert server.log.read_text() == began
        assert not (tmp_path / "other.db").exists()

    @pytest.mark.parametrize("hosts", [("127.0.0.1",) * 3, ("0.0.0.0", "127.0.0.1")])
    def test_servers_that_start_at_once_do_not_share_an_address(self, tmp_path: Path, hosts: tuple[str, ...]) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        settings = {"workers": 2, "store": f"sqlite://{tmp_path}/ids.db", "insecure": "true"}
        commands = [serve_command(listen=f"{host}:{port}", **settings) for host in hosts]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": environment(), "text": True}
        starting: list[subprocess.Popen[str]] = [subprocess.Popen(command, **pipes) for command in commands]  # type: ignore[call-overload]
        try:
            first = [each.stdout.readline() for each in starting]  # type: ignore[union-attr]
            assert sum("serves on" in line for line in first) == 1
        finally:
            for each in starting:
                each.terminate()
                each.communicate(timeout=20)

    def test_a_store_that_cannot_be_used_is_told_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "notes.db").write_text("not a database, but long enough to be taken for one " * 20)
        assert refused(store=f"sqlite://{tmp_path}/notes.db", workers=2).startswith("2 idalloc: store: ")

    def test_a_store_that_is_away_is_told_in_one_line(self) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        # A worker has a few times this to start, and a busy machine needs seconds for that.
        line = refused(store=f"crate://127.0.0.1:{port}", store_timeout="4s", workers=2)
        assert line.startswith("1 idalloc: store: ")


@contextmanager
def reading(stream: Any) -> Iterator[None]:
    """Reads a stream to its end, beside what the block does."""

    def read() -> None:
        with suppress(grpc.RpcError):
            for _ in stream:
                pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        stream.cancel()
        reader.join()
