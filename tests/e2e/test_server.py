"""Real server processes on real sockets: starting, serving, crashing, stopping."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2, node_pb2_grpc
from tests.support.processes import Server, environment, running, serve_command
from tests.support.server_calls import id_allocator, wait_until

SERVICES = ("", "idalloc.v1.IdAllocatorService", "idalloc.v1.NodeService")


def allocate(server: Server, sequence: str = "orders", count: int = 1, timeout: float = 20) -> pb.IdRange:
    with grpc.insecure_channel(server.address) as channel:
        request = pb.AllocateRangeRequest(sequence=sequence, id_count=count)
        reply: pb.AllocateRangeResponse = id_allocator(channel).AllocateRange(request, timeout=timeout)
        return reply.range


def last_value(folder: Path, sequence: str = "orders") -> int:
    with closing(sqlite3.connect(folder / "ids.db")) as connection:
        [value] = connection.execute("SELECT last_value FROM sequences WHERE name = ?", (sequence,)).fetchone()
        return int(value)


class TestStarting:
    def test_the_serving_event_has_address_store_and_prefix(self, tmp_path: Path) -> None:
        """The only line on standard output has version, address, store and prefix."""
        with running(tmp_path, node_prefix=7) as server:
            assert int(server.address.removeprefix("127.0.0.1:")) > 0
            serving = json.loads(server.serving)
            del serving["timestamp"]
            assert serving == {
                "level": "info",
                "event": "serving",
                "logger": "idalloc",
                "version": "0.1.0",
                "address": server.address,
                "store": f"sqlite://{tmp_path}/ids.db",
                "store_created": True,
                "prefix": 7,
                "workers": 1,
            }

    def test_the_default_store_is_in_the_users_state_folder(self, tmp_path: Path) -> None:
        """The default store is a SQLite file in the user's state folder."""
        environ = environment() | {"XDG_STATE_HOME": str(tmp_path / "state")}
        with subprocess.Popen(
            serve_command(), env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout
            serving = json.loads(process.stdout.readline())
            process.terminate()
            assert process.wait(20) == 0
        assert serving["store"] == f"sqlite://{tmp_path}/state/idalloc/idalloc.db"
        assert (tmp_path / "state" / "idalloc" / "idalloc.db").exists()

    def test_health_is_serving_for_the_server_and_each_service(self, tmp_path: Path) -> None:
        """Health is SERVING for the server and for each service."""
        with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for service in SERVICES:
                reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
                assert reply.status == health_pb2.HealthCheckResponse.SERVING

    def test_get_node_returns_the_settings(self, tmp_path: Path) -> None:
        """GetNode returns the prefix, offset and increment that document ids have."""
        settings = {"node_prefix": 9, "auto_increment_offset": 3, "auto_increment_increment": 10}
        with running(tmp_path, **settings) as server, grpc.insecure_channel(server.address) as channel:
            stub: Any = node_pb2_grpc.NodeServiceStub(channel)
            node = stub.GetNode(node_pb2.GetNodeRequest(), timeout=10).node
            ids = id_allocator(channel).GenerateDocId(pb.GenerateDocIdRequest(id_count=2), timeout=10).doc_ids
        assert (node.prefix, node.auto_increment_offset, node.auto_increment_increment) == (9, 3, 10)
        assert list(ids) == [f"0009{node.start_timestamp:08x}{serial:016x}" for serial in (3, 13)]

    def test_an_idle_server_uses_little_memory(self, tmp_path: Path) -> None:
        """An idle server uses at most 90 MB."""
        with running(tmp_path) as server:
            status = Path(f"/proc/{server.process.pid}/status")
            if not status.exists():
                pytest.skip("there is no /proc here")
            resident = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        assert int(resident.split()[1]) * 1024 <= 90e6


class TestServing:
    def test_concurrent_callers_get_distinct_ids(self, tmp_path: Path) -> None:
        """P1: a thousand concurrent callers of one sequence get distinct ids."""

        async def call_all(address: str) -> Any:
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = id_allocator(channel)  # type: ignore[arg-type]
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
        """P1: two servers on one store issue no id of a sequence twice."""

        def work(server: Server) -> list[tuple[int, int]]:
            with grpc.insecure_channel(server.address) as channel:
                stub = id_allocator(channel)
                requests = [pb.AllocateRangeRequest(sequence="orders", id_count=1 + n % 50) for n in range(300)]
                ranges = [stub.AllocateRange(request, timeout=20).range for request in requests]
                return [(r.first_id, r.last_id) for r in ranges]

        with running(tmp_path) as one, running(tmp_path, node_prefix=1) as two, ThreadPoolExecutor() as pool:
            taken = [r for each in pool.map(work, [one, two, one, two]) for r in each]
        taken.sort()
        assert all(before[1] < after[0] for before, after in pairwise(taken))

    @pytest.mark.test_long
    def test_servers_with_one_prefix_issue_distinct_doc_ids(self, tmp_path: Path) -> None:
        """P6: two servers with one prefix issue distinct document ids, and the second one warns."""

        def ids(server: Server) -> set[str]:
            with grpc.insecure_channel(server.address) as channel:
                return set(
                    id_allocator(channel).GenerateDocId(pb.GenerateDocIdRequest(id_count=1_000), timeout=10).doc_ids
                )

        with running(tmp_path, node_prefix=5) as one, running(tmp_path, node_prefix=5) as two:
            assert len(ids(one) | ids(two)) == 2_000
            first, second = ([json.loads(line) for line in each.log.read_text().splitlines()] for each in (one, two))
        assert all(line["level"] == "info" for line in first)
        warning = second[0]
        assert warning["level"] == "warning"
        assert "prefix" in warning["event"]

    @pytest.mark.test_long
    def test_a_slow_reader_does_not_delay_others(self, tmp_path: Path) -> None:
        """Streams that nobody reads do not delay other calls."""
        with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
            stub = id_allocator(channel)
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
    @pytest.mark.test_long
    def test_a_stream_ended_by_sigkill_repeats_no_id(self, tmp_path: Path) -> None:
        """P1: no id of a stream that SIGKILL ended is issued again."""
        received: list[tuple[int, int]] = []
        with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
            request = pb.StreamRangesRequest(sequence="orders", total_id_count=10**12, chunk_id_count=1_000)
            stream = id_allocator(channel).StreamRanges(request)
            with pytest.raises(grpc.RpcError) as broken:
                for reply in stream:
                    received.append((reply.range.first_id, reply.range.last_id))
                    if len(received) == 50:
                        server.send(signal.SIGKILL)
            assert broken.value.code() == grpc.StatusCode.UNAVAILABLE
        highest = max(last for _, last in received)
        with running(tmp_path) as server:
            assert allocate(server).first_id > highest

    @pytest.mark.test_long
    def test_doc_ids_rise_over_sigkill_and_restart(self, tmp_path: Path) -> None:
        """P6: document ids rise over SIGKILL and a restart in the same second."""
        drawn: list[str] = []
        for _ in range(4):
            with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
                drawn += id_allocator(channel).GenerateDocId(pb.GenerateDocIdRequest(id_count=5), timeout=10).doc_ids
                server.send(signal.SIGKILL)
        assert drawn == sorted(set(drawn))
        assert len(drawn) == 20

    def test_a_server_without_its_database_file_stops_issuing(self, tmp_path: Path) -> None:
        """P3: a server whose database file was removed stops issuing."""
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
    def test_sigterm_returns_unused_ids_and_exits_with_0(self, tmp_path: Path) -> None:
        """P2: SIGTERM returns the unused tail of a lease, and the next server continues there."""
        with running(tmp_path) as server:
            last = max(allocate(server, count=10).last_id for _ in range(200))
            assert last_value(tmp_path) > last
            assert server.stop() == 0
        assert last_value(tmp_path) == last
        with running(tmp_path) as server:
            assert allocate(server).first_id == last + 1

    def test_a_stream_that_ends_during_a_drain_is_complete(self, tmp_path: Path) -> None:
        """A stream that ends within drain_timeout is served completely."""
        with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
            request = pb.StreamRangesRequest(sequence="orders", total_id_count=300, chunk_id_count=1)
            stream = id_allocator(channel).StreamRanges(request)
            received = [next(stream).range]
            server.send(signal.SIGTERM)
            received += [reply.range for reply in stream]
            assert len(received) == 300
            assert server.process.wait(20) == 0
        assert last_value(tmp_path) == 300

    @pytest.mark.test_long
    def test_a_drain_refuses_calls_and_ends_long_streams(self, tmp_path: Path) -> None:
        """A drain turns health to NOT_SERVING, refuses new calls, and ends long streams in time."""
        with running(tmp_path, drain_timeout="3s") as server, grpc.insecure_channel(server.address) as channel:
            stub = id_allocator(channel)
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
            # From the server, or because it accepts no more connections.
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            assert server.process.wait(20) == 0
            assert time.monotonic() - began < 8
            reader.join()
            assert [error.code() for error in broken] == [grpc.StatusCode.UNAVAILABLE]

    def test_sigint_stops_the_server(self, tmp_path: Path) -> None:
        """SIGINT stops a server as SIGTERM does."""
        with running(tmp_path) as server:
            assert server.stop(signal.SIGINT) == 0

    @pytest.mark.test_long
    def test_a_slow_reader_does_not_delay_a_stop(self, tmp_path: Path) -> None:
        """A stream that nobody reads does not delay a stop beyond drain_timeout."""
        with running(tmp_path, drain_timeout="2s") as server, grpc.insecure_channel(server.address) as channel:
            request = pb.StreamDocIdsRequest(total_id_count=10**9, view=pb.DOC_ID_VIEW_IDS)
            stream = id_allocator(channel).StreamDocIds(request)
            next(stream)
            ids = [0]

            def is_blocked() -> bool:
                ids.append(int(id_allocator(channel).GenerateDocId(pb.GenerateDocIdRequest()).doc_ids[0], 16))
                return ids[-1] == ids[-2] + 1  # the stream took none in between

            wait_until(is_blocked)
            assert server.stop(timeout=10) == 0
            stream.cancel()


class TestLogs:
    def lines(self, server: Server) -> list[dict[str, Any]]:
        return [json.loads(line) for line in server.log.read_text().splitlines()]

    def test_debug_logs_each_call(self, tmp_path: Path) -> None:
        """The log level debug logs each call with method, status and time."""
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

    def test_info_logs_call_counts_once_a_second(self, tmp_path: Path) -> None:
        """The log level info logs the counts of calls at most once a second."""
        began = time.monotonic()
        with running(tmp_path) as server:
            for _ in range(50):
                allocate(server)
            wait_until(lambda: sum(line["count"] for line in self.lines(server)) == 50)
            sums = self.lines(server)
        assert {line["event"] for line in sums} == {"calls"}
        assert len(sums) <= time.monotonic() - began + 1
        assert all(line["failed"] == 0 and line["mean_ms"] > 0 for line in sums)

    def test_a_stop_logs_burned_ids(self, tmp_path: Path) -> None:
        """P9: the event stopped has the number of burned ids by cause."""
        with running(tmp_path) as one:
            for _ in range(5):
                allocate(one, count=100)
            with running(tmp_path, node_prefix=1) as two:
                allocate(two)
            assert one.stop() == 0
            last = self.lines(one)[-1]
        assert last["event"] == "stopped"
        assert last["burned"]["not_returned"] > 0
