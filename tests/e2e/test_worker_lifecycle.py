"""Workers die, hang, drain and stop; their supervisor replaces or stops them."""

import os
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from tests.support.processes import Server, environment, running, serve_command
from tests.support.rpc_errors import details_of
from tests.support.server_calls import (
    channel_per_worker,
    connect,
    get_node,
    id_allocator,
    is_running,
    log_events,
    refused_start,
    stream_of_requests,
    update_node,
    wait_until,
    worker_pids,
)

pytestmark = pytest.mark.test_long

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class TestDying:
    def test_a_killed_worker_is_replaced(self, tmp_path: Path) -> None:
        """P1: a killed worker is replaced, calls go on, and no id is repeated."""

        def take(_: int) -> int:
            """Allocate an id on a new connection, and retry if the connection breaks."""
            for _ in range(100):
                with connect(server) as channel, suppress(grpc.RpcError):
                    reply = id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20)
                    return int(reply.range.first_id)
            raise AssertionError("no worker answered")

        with running(tmp_path, workers=2) as server:
            before = [take(0) for _ in range(20)]
            first, other = worker_pids(server)
            os.kill(first, signal.SIGKILL)
            with ThreadPoolExecutor(4) as pool:
                after = list(pool.map(take, range(40)))
            assert len(set(before + after)) == 60
            wait_until(lambda: len(worker_pids(server)) == 3)
            with channel_per_worker(server):
                assert is_running(other)
            (ended,) = log_events(server, "worker_ended")
            assert (ended["pid"], ended["exit_code"]) == (first, -signal.SIGKILL)

    def test_restart_delays_of_a_crashing_worker_grow(self, tmp_path: Path) -> None:
        """A worker that dies repeatedly is restarted after growing delays."""
        with running(tmp_path, workers=2) as server:
            for died in range(3):
                wait_until(lambda died=died: len(worker_pids(server)) == 2 + died)  # type: ignore[misc]
                newest = max(log_events(server, "worker_started"), key=lambda line: str(line["timestamp"]))["pid"]
                os.kill(newest, signal.SIGKILL)
            wait_until(lambda: len(log_events(server, "worker_ended")) == 3)
            pauses = [line["restart_in"] for line in log_events(server, "worker_ended")]
        assert pauses == [0.0, 0.5, 1.0]

    def test_a_hanging_worker_is_not_ended_by_an_update(self, tmp_path: Path) -> None:
        """UpdateNode reports a hanging worker, which applies the change when it resumes."""

        def changed(channel: grpc.Channel) -> tuple[grpc.StatusCode, str]:
            with pytest.raises(grpc.RpcError) as error:
                update_node(channel, auto_increment_offset=5, timeout=3)
            return error.value.code(), str(error.value.details())

        with running(tmp_path, workers=2) as server, channel_per_worker(server) as channels:
            hung = worker_pids(server)[0]
            os.kill(hung, signal.SIGSTOP)
            with ThreadPoolExecutor() as pool:
                results = dict(pool.map(changed, channels))  # One of the channels belongs to the hanging worker.
            assert set(results) == {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
            assert results[grpc.StatusCode.UNAVAILABLE].startswith("1 of 2 workers have applied the change")
            os.kill(hung, signal.SIGCONT)
            wait_until(lambda: [get_node(each).auto_increment_offset for each in channels] == [5, 5])
            assert len(worker_pids(server)) == 2
            assert log_events(server, "worker_unresponsive") == []

    def test_workers_end_with_their_supervisor(self, tmp_path: Path) -> None:
        """Workers end when their supervisor is killed, and free its address."""
        with running(tmp_path, workers=2) as server, connect(server) as channel:
            stream = id_allocator(channel).StreamRanges(
                pb.StreamRangesRequest(sequence="orders", total_id_count=10**15)
            )
            next(stream)
            workers = worker_pids(server)
            assert all(map(is_running, workers))
            server.send(signal.SIGKILL)
            wait_until(lambda: not any(map(is_running, workers)))
            stream.cancel()
        with running(tmp_path, listen=server.address, workers=2):
            pass

    def test_a_worker_that_gets_sigterm_keeps_the_prefix(self, tmp_path: Path) -> None:
        """A worker that gets SIGTERM drains, is replaced, and keeps the shared prefix claimed."""
        settings = {"node_prefix": 4, "prefix_conflict": "refuse"}
        with running(tmp_path, workers=2, **settings) as server:
            os.kill(worker_pids(server)[0], signal.SIGTERM)
            wait_until(lambda: log_events(server, "worker_ended") != [])
            with closing(sqlite3.connect(tmp_path / "ids.db")) as store:  # before a new worker could claim it again
                assert store.execute("SELECT holder FROM start_timestamps WHERE prefix = 4").fetchone() != (None,)
            wait_until(lambda: len(worker_pids(server)) == 3)
            assert [line["exit_code"] for line in log_events(server, "worker_ended")] == [0]
            assert "node_prefix: " in refused_start(store=f"sqlite://{tmp_path}/ids.db", **settings)
            assert server.stop() == 0
        with running(tmp_path, **settings):
            pass

    @pytest.mark.parametrize("transport", ["grpcio", "native"])
    def test_a_draining_worker_ends_its_streams_of_requests_only(self, tmp_path: Path, transport: str) -> None:
        """A worker that drains ends AllocateStream with SERVER_DRAINING; others go on with it."""
        with running(tmp_path, workers=2, transport=transport) as server, channel_per_worker(server) as channels:
            issued: list[int] = []

            def take(send: Any, coming: Any) -> None:
                send(*["orders"] * 3)
                issued.extend(next(coming).allocate_range.range.first_id for _ in range(3))

            with ExitStack() as opened:
                streams = [opened.enter_context(stream_of_requests(channel)) for channel in channels]
                for each in streams:
                    take(*each)
                os.kill(worker_pids(server)[0], signal.SIGTERM)
                wait_until(lambda: not all(coming.is_active() for _, coming in streams))
                [ended] = [coming for _, coming in streams if not coming.is_active()]
                assert details_of(ended).info.reason == "SERVER_DRAINING"
                [running_on] = [each for each in streams if each[1] is not ended]
                take(*running_on)
                wait_until(lambda: len(worker_pids(server)) == 3)
                take(*running_on)
            for channel in channels:
                with stream_of_requests(channel) as stream:
                    take(*stream)
            assert len(set(issued)) == len(issued) == 18


class TestStopping:
    def test_sigterm_stops_all_workers(self, tmp_path: Path) -> None:
        """SIGTERM stops all workers, releases the prefix and exits with 0."""
        with running(tmp_path, workers=2, node_prefix=4) as server:
            with channel_per_worker(server) as channels:
                for each in channels:
                    for _ in range(20):
                        id_allocator(each).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=10)
            workers = worker_pids(server)
            assert server.stop() == 0
            assert not any(map(is_running, workers))
            (last,) = log_events(server, "stopped")
            assert "worker" not in last
        with running(tmp_path, node_prefix=4, prefix_conflict="refuse"):
            pass

    def test_sigterm_during_the_start_stops_all_workers(self, tmp_path: Path) -> None:
        """SIGTERM ends all workers of a server that still waits for the store, with exit code 0."""
        log = tmp_path / "server.log"
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            store = f"crate://127.0.0.1:{free.getsockname()[1]}"
        command = serve_command(store=store, workers=2)
        with log.open("w") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment())
        server = Server(process, "", "", log)
        try:
            wait_until(lambda: {line["worker"] for line in log_events(server, "waiting_for_store")} == {1, 2})
            workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert len(workers) == 2
            assert server.stop() == 0
            assert not any(is_running(int(pid)) for pid in workers)
        finally:
            process.kill()
            output, _ = process.communicate()
        assert output == ""

    def test_a_signal_that_reaches_the_supervisor_last_stops_all(self, tmp_path: Path) -> None:
        """Workers that get the signal before their supervisor are not replaced."""
        with running(tmp_path, workers=2, node_prefix=4) as server:
            for pid in worker_pids(server):
                os.kill(pid, signal.SIGTERM)
            wait_until(lambda: len(log_events(server, "draining")) == 2)
            assert server.stop() == 0
            assert log_events(server, "worker_ended") == []
        with running(tmp_path, node_prefix=4, prefix_conflict="refuse"):
            pass

    def test_all_workers_drain_in_parallel(self, tmp_path: Path) -> None:
        """All workers turn to NOT_SERVING and drain within drain_timeout."""
        with running(tmp_path, workers=2, drain_timeout="5s") as server, channel_per_worker(server) as channels:
            stubs: list[Any] = [health_pb2_grpc.HealthStub(each) for each in channels]
            watches = [stub.Watch(health_pb2.HealthCheckRequest()) for stub in stubs]
            assert [next(watch).status for watch in watches] == [SERVING, SERVING]
            # A stream in each worker: an idle one would exit at once.
            with ExitStack() as streams:
                for each in channels:
                    request = pb.StreamRangesRequest(sequence="orders", total_id_count=10**15)
                    stream = id_allocator(each).StreamRanges(request)
                    next(stream)
                    streams.enter_context(reading(stream))
                began = time.monotonic()
                server.send(signal.SIGTERM)
                assert [next(watch).status for watch in watches] == [NOT_SERVING, NOT_SERVING]
                assert server.process.wait(30) == 0
                assert time.monotonic() - began >= 3

    def test_a_second_signal_stops_at_once(self, tmp_path: Path) -> None:
        """A second signal stops a drain at once."""
        with running(tmp_path, workers=2, drain_timeout="50s") as server, connect(server) as channel:
            stream = id_allocator(channel).StreamRanges(
                pb.StreamRangesRequest(sequence="orders", total_id_count=10**15)
            )
            next(stream)
            with reading(stream):
                workers = worker_pids(server)
                server.send(signal.SIGTERM)
                wait_until(lambda: len(log_events(server, "draining")) == 2)
                assert server.stop(signal.SIGINT, timeout=10) == 128 + signal.SIGINT
                assert not any(map(is_running, workers))


@contextmanager
def reading(stream: Any) -> Iterator[None]:
    """Read a stream in a thread, and cancel it at the end of the block."""

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
