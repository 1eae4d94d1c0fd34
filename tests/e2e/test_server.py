"""Real server processes on real sockets: starting, serving, crashing, stopping."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, node_pb2, node_pb2_grpc
from tests.support.processes import Server, environment, running, serve_command

SERVICES = ("", "idalloc.v1.IdAllocatorService", "idalloc.v1.NodeService")


def stub_of(channel: grpc.Channel) -> Any:
    return id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)


def allocate(server: Server, sequence: str = "orders", count: int = 1, timeout: float = 20) -> pb.IdRange:
    with grpc.insecure_channel(server.address) as channel:
        request = pb.AllocateRangeRequest(sequence=sequence, id_count=count)
        reply: pb.AllocateRangeResponse = stub_of(channel).AllocateRange(request, timeout=timeout)
        return reply.range


def last_value(folder: Path, sequence: str = "orders") -> int:
    with closing(sqlite3.connect(folder / "ids.db")) as connection:
        [value] = connection.execute("SELECT last_value FROM sequences WHERE name = ?", (sequence,)).fetchone()
        return int(value)


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class TestStarting:
    def test_one_line_says_address_store_prefix_and_version(self, tmp_path: Path) -> None:
        with running(tmp_path, node_prefix=7) as server:
            port = int(server.address.rpartition(":")[2])
            assert port > 0
            assert server.welcome == (
                f"idalloc 0.1.0 serves on 127.0.0.1:{port}, store sqlite://{tmp_path}/ids.db, prefix 7"
            )

    def test_the_default_store_is_in_the_users_state_folder(self, tmp_path: Path) -> None:
        environ = environment() | {"XDG_STATE_HOME": str(tmp_path / "state")}
        with subprocess.Popen(
            serve_command(), env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout
            welcome = process.stdout.readline()
            process.terminate()
            assert process.wait(20) == 0
        assert f"store sqlite://{tmp_path}/state/idalloc/idalloc.db" in welcome
        assert (tmp_path / "state" / "idalloc" / "idalloc.db").exists()

    def test_health_is_serving_for_the_server_and_each_service(self, tmp_path: Path) -> None:
        with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for service in SERVICES:
                reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
                assert reply.status == health_pb2.HealthCheckResponse.SERVING

    def test_the_node_tells_its_settings(self, tmp_path: Path) -> None:
        settings = {"node_prefix": 9, "auto_increment_offset": 3, "auto_increment_increment": 10}
        with running(tmp_path, **settings) as server, grpc.insecure_channel(server.address) as channel:
            stub: Any = node_pb2_grpc.NodeServiceStub(channel)
            node = stub.GetNode(node_pb2.GetNodeRequest(), timeout=10).node
            ids = stub_of(channel).GenerateDocId(pb.GenerateDocIdRequest(id_count=2), timeout=10).doc_ids
        assert (node.prefix, node.auto_increment_offset, node.auto_increment_increment) == (9, 3, 10)
        assert list(ids) == [f"0009{node.start_timestamp:08x}{serial:016x}" for serial in (3, 13)]

    def test_an_idle_server_is_small(self, tmp_path: Path) -> None:
        with running(tmp_path) as server:
            status = Path(f"/proc/{server.process.pid}/status")
            if not status.exists():
                pytest.skip("there is no /proc here")
            resident = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        assert int(resident.split()[1]) * 1024 <= 90e6


class TestServing:
    def test_a_thousand_concurrent_callers_on_one_sequence(self, tmp_path: Path) -> None:
        async def call_all(address: str) -> Any:
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = stub_of(channel)  # type: ignore[arg-type]
                return await asyncio.gather(
                    *(
                        stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=1 + n % 3), timeout=30)
                        for n in range(1_000)
                    )
                )

        with running(tmp_path) as server:
            replies = asyncio.run(call_all(server.address))
        ids = [i for r in replies for i in range(r.range.first_id, r.range.last_id + 1)]
        assert len(ids) == len(set(ids)) == sum(1 + n % 3 for n in range(1_000))

    def test_two_servers_on_one_store_share_a_sequence(self, tmp_path: Path) -> None:
        def work(server: Server) -> list[tuple[int, int]]:
            with grpc.insecure_channel(server.address) as channel:
                stub = stub_of(channel)
                requests = [pb.AllocateRangeRequest(sequence="orders", id_count=1 + n % 50) for n in range(300)]
                ranges = [stub.AllocateRange(request, timeout=20).range for request in requests]
                return [(r.first_id, r.last_id) for r in ranges]

        with running(tmp_path) as one, running(tmp_path, node_prefix=1) as two, ThreadPoolExecutor() as pool:
            taken = [r for each in pool.map(work, [one, two, one, two]) for r in each]
        taken.sort()
        assert all(before[1] < after[0] for before, after in pairwise(taken))

    def test_document_ids_of_two_servers_with_one_prefix_never_meet_and_the_second_warns(self, tmp_path: Path) -> None:
        def ids(server: Server) -> set[str]:
            with grpc.insecure_channel(server.address) as channel:
                return set(stub_of(channel).GenerateDocId(pb.GenerateDocIdRequest(id_count=1_000), timeout=10).doc_ids)

        with running(tmp_path, node_prefix=5) as one, running(tmp_path, node_prefix=5) as two:
            assert len(ids(one) | ids(two)) == 2_000
            first, second = ([json.loads(line) for line in each.log.read_text().splitlines()] for each in (one, two))
        assert all(line["level"] == "info" for line in first)
        warning = second[0]
        assert warning["level"] == "warning"
        assert "prefix" in warning["event"]

    def test_a_slow_reader_does_not_hold_up_others(self, tmp_path: Path) -> None:
        with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
            stub = stub_of(channel)
            streams = [
                stub.StreamDocIds(pb.StreamDocIdsRequest(total_id_count=10**9, view=pb.DOC_ID_VIEW_IDS))
                for _ in range(20)
            ]
            for stream in streams:
                next(stream)
            began = time.monotonic()
            assert allocate(server).first_id == 1
            assert time.monotonic() - began < 10
            for stream in streams:
                stream.cancel()


class TestCrashing:
    def test_after_kill_9_in_a_stream_no_received_id_is_issued_again(self, tmp_path: Path) -> None:
        received: list[tuple[int, int]] = []
        with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
            request = pb.StreamRangesRequest(sequence="orders", total_id_count=10**12, chunk_id_count=1_000)
            stream = stub_of(channel).StreamRanges(request)
            with pytest.raises(grpc.RpcError) as broken:
                for reply in stream:
                    received.append((reply.range.first_id, reply.range.last_id))
                    if len(received) == 50:
                        server.send(signal.SIGKILL)
            assert broken.value.code() == grpc.StatusCode.UNAVAILABLE
        highest = max(last for _, last in received)
        with running(tmp_path) as server:
            assert allocate(server).first_id > highest

    def test_document_ids_rise_over_a_kill_9_and_a_restart_in_the_same_second(self, tmp_path: Path) -> None:
        drawn: list[str] = []
        for _ in range(4):
            with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
                drawn += stub_of(channel).GenerateDocId(pb.GenerateDocIdRequest(id_count=5), timeout=10).doc_ids
                server.send(signal.SIGKILL)
        assert drawn == sorted(set(drawn))
        assert len(drawn) == 20

    def test_a_server_whose_database_file_was_replaced_stops_issuing(self, tmp_path: Path) -> None:
        with running(tmp_path) as server:
            assert allocate(server, count=100).last_id == 100
            for file in tmp_path.glob("ids.db*"):
                file.unlink()
            with pytest.raises(grpc.RpcError) as refused:
                allocate(server, count=100)
            assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert "STORE_WENT_BACKWARDS" in str(refused.value.trailing_metadata())
            wait_until(lambda: "store_went_backwards" in server.log.read_text())


class TestStopping:
    def test_sigterm_gives_unused_ids_back_and_exits_with_0(self, tmp_path: Path) -> None:
        with running(tmp_path) as server:
            last = max(allocate(server, count=10).last_id for _ in range(200))
            assert last_value(tmp_path) > last
            assert server.stop() == 0
        assert last_value(tmp_path) == last
        with running(tmp_path) as server:
            assert allocate(server).first_id == last + 1

    def test_a_stream_that_ends_soon_ends_well(self, tmp_path: Path) -> None:
        with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
            request = pb.StreamRangesRequest(sequence="orders", total_id_count=300, chunk_id_count=1)
            stream = stub_of(channel).StreamRanges(request)
            received = [next(stream).range]
            server.send(signal.SIGTERM)
            received += [reply.range for reply in stream]
            assert len(received) == 300
            assert server.process.wait(20) == 0
        assert last_value(tmp_path) == 300

    def test_draining_refuses_new_calls_turns_health_and_ends_long_streams_in_time(self, tmp_path: Path) -> None:
        with running(tmp_path, drain_timeout="5s") as server, grpc.insecure_channel(server.address) as channel:
            stub = stub_of(channel)
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            stream = stub.StreamRanges(pb.StreamRangesRequest(sequence="orders", total_id_count=10**15))
            next(stream)
            broken: list[grpc.RpcError] = []

            def read() -> None:
                try:
                    for _ in stream:
                        pass
                except grpc.RpcError as error:
                    broken.append(error)

            reader = threading.Thread(target=read)
            reader.start()
            began = time.monotonic()
            server.send(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.RpcError) as refused:
                stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=3)
            # By the server, or since it takes no connection any more.
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            assert server.process.wait(20) == 0
            assert time.monotonic() - began < 8
            reader.join()
            assert [error.code() for error in broken] == [grpc.StatusCode.UNAVAILABLE]

    def test_ctrl_c_stops_it_too(self, tmp_path: Path) -> None:
        with running(tmp_path) as server:
            assert server.stop(signal.SIGINT) == 0

    def test_a_reader_who_never_reads_does_not_stop_the_stop(self, tmp_path: Path) -> None:
        with running(tmp_path, drain_timeout="2s") as server, grpc.insecure_channel(server.address) as channel:
            request = pb.StreamDocIdsRequest(total_id_count=10**9, view=pb.DOC_ID_VIEW_IDS)
            stream = stub_of(channel).StreamDocIds(request)
            next(stream)
            time.sleep(0.5)
            assert server.stop(timeout=10) == 0
            stream.cancel()


class TestLogs:
    def lines(self, server: Server) -> list[dict[str, Any]]:
        return [json.loads(line) for line in server.log.read_text().splitlines()]

    def test_debug_logs_a_line_a_call(self, tmp_path: Path) -> None:
        with running(tmp_path, log_level="debug") as server:
            for _ in range(3):
                allocate(server)
            with pytest.raises(grpc.RpcError):
                allocate(server, sequence="")
            wait_until(lambda: sum(line["event"] == "call" for line in self.lines(server)) == 4)
            calls = [line for line in self.lines(server) if line["event"] == "call"]
        assert {line["method"] for line in calls} == {"/idalloc.v1.IdAllocatorService/AllocateRange"}
        assert [line["code"] for line in calls] == ["OK", "OK", "OK", "INVALID_ARGUMENT"]
        assert all(line["level"] == "debug" and line["ms"] > 0 and line["timestamp"] for line in calls)

    def test_info_logs_one_line_a_second_in_sum(self, tmp_path: Path) -> None:
        began = time.monotonic()
        with running(tmp_path) as server:
            for _ in range(50):
                allocate(server)
            wait_until(lambda: sum(line["count"] for line in self.lines(server)) == 50)
            sums = self.lines(server)
        assert {line["event"] for line in sums} == {"calls"}
        assert len(sums) <= time.monotonic() - began + 1
        assert all(line["failed"] == 0 and line["mean_ms"] > 0 for line in sums)

    def test_a_stop_tells_what_was_burned(self, tmp_path: Path) -> None:
        with running(tmp_path) as one:
            for _ in range(5):
                allocate(one, count=100)
            with running(tmp_path, node_prefix=1) as two:
                allocate(two)
            assert one.stop() == 0
            last = self.lines(one)[-1]
        assert last["event"] == "stopped"
        assert last["burned"]["not_returned"] > 0
