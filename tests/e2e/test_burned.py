"""The events of a real server's log for burned ids: sequence, number and cause (P9)."""

import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.support.processes import Server, locked, running
from tests.support.server_calls import connect, get_node, log_events, wait_until
from tests.support.waiting import hold_for

pytestmark = pytest.mark.test_long

REQUEST_ID = "11111111-1111-4111-8111-111111111111"
SHORT = {"lease_ttl": "4s", "outage_reserve": "1s", "store_timeout": "2500ms"}


def allocate(channel: grpc.Channel, count: int, **more: Any) -> pb.IdRange:
    stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
    request = pb.AllocateRangeRequest(sequence="orders", id_count=count, **more)
    reply: pb.AllocateRangeResponse = stub.AllocateRange(request, timeout=20)
    return reply.range


def burned(server: Server) -> list[tuple[str, str, int]]:
    return [(line["sequence"], line["cause"], line["ids"]) for line in log_events(server, "burned")]


def last_value(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "ids.db", timeout=20)) as connection:
        [value] = connection.execute("SELECT last_value FROM sequences WHERE name = 'orders'").fetchone()
        return int(value)


def test_ids_of_a_cancelled_call_are_logged(tmp_path: Path) -> None:
    """P9: ids of a call that was cancelled after they were taken are logged as cancelled."""
    with running(tmp_path) as server, connect(server) as channel, connect(server) as other:

        def calls_in_flight() -> int:
            """Return the number of calls in flight, from the next log line; a call makes one."""
            seen = len(log_events(server, "calls"))
            get_node(other)
            wait_until(lambda: len(log_events(server, "calls")) > seen)
            return int(log_events(server, "calls")[-1]["in_flight"])

        last_id = [allocate(channel, 100).last_id for _ in range(5)][-1]
        # The ids are taken from memory; the call waits for its answer to be recorded.
        wait_until(lambda: last_value(tmp_path) >= last_id + 10)
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        with locked(tmp_path / "ids.db"):
            request = pb.AllocateRangeRequest(sequence="orders", id_count=5, request_id=REQUEST_ID)
            call = stub.AllocateRange.future(request, timeout=60)
            wait_until(lambda: calls_in_flight() == 1)
            call.cancel()
            wait_until(lambda: calls_in_flight() == 0)
        wait_until(lambda: burned(server))
        assert burned(server) == [("orders", "cancelled", 5)]
        assert allocate(channel, 1).first_id == last_id + 6


def test_ids_of_a_lease_that_expired_in_a_pause_are_logged(tmp_path: Path) -> None:
    """P9: ids of a lease that expired while the process was paused are logged as expired."""
    stopped, issued = threading.Event(), list[pb.IdRange]()

    def call_in_turn(channel: grpc.Channel) -> None:
        while not stopped.is_set():
            with suppress(grpc.RpcError):  # a lease that expired before the answer
                issued.append(allocate(channel, 10))

    with running(tmp_path, **SHORT) as server, connect(server) as channel, ThreadPoolExecutor() as pool:
        calling = pool.submit(call_in_turn, channel)
        try:
            wait_until(lambda: len(issued) >= 100)
            server.send(signal.SIGSTOP)
            hold_for(4.5, "the lease ends during the pause")
            before = len(issued)
            server.send(signal.SIGCONT)
            wait_until(lambda: len(issued) >= before + 10)
        finally:
            stopped.set()
        calling.result(30)
        missing = max(each.last_id for each in issued) - sum(each.id_count for each in issued)
        assert missing > 0
        wait_until(lambda: sum(ids for _, _, ids in burned(server)) >= missing)
        assert sum(ids for _, _, ids in burned(server)) == missing
        causes = {(sequence, cause) for sequence, cause, _ in burned(server)}
        # A refill during the pause may exceed its store_timeout.
        assert ("orders", "expired") in causes <= {("orders", "expired"), ("orders", "unknown_outcome")}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_tail_that_cannot_be_returned_is_logged(tmp_path: Path, workers: int) -> None:
    """P9: a stop logs a tail's ids that it cannot return, since another node wrote after it."""
    with ExitStack() as stack:
        server = stack.enter_context(running(tmp_path, workers=workers))
        # One channel to each worker, which is identified by its start timestamp.
        channels: dict[int, grpc.Channel] = {}
        while len(channels) < workers:
            channel = stack.enter_context(connect(server))
            channels.setdefault(get_node(channel).start_timestamp, channel)
        issued = 0
        for channel in channels.values():
            for _ in range(5):
                issued += allocate(channel, 100).id_count
        other = stack.enter_context(running(tmp_path, node_prefix=1))
        with connect(other) as channel:
            issued += allocate(channel, 1).id_count
            assert other.stop() == 0
        assert server.stop() == 0
        lines = log_events(server, "burned")
        [stopped] = log_events(server, "stopped")
        # The nodes together log every granted id that was not issued.
        assert sum(line["ids"] for line in lines) == last_value(tmp_path) - issued > 0
        assert {(line["sequence"], line["cause"], line["level"]) for line in lines} == {
            ("orders", "not_returned", "info")
        }
        assert stopped["burned"] == {"not_returned": sum(line["ids"] for line in lines)}
        assert all(("worker" in line) == (workers > 1) for line in lines)


def test_each_process_replies_with_its_own_node_id(tmp_path: Path) -> None:
    """Replies have a node id that no other process has, also after a restart in the same second."""
    found: list[int] = []
    for prefix in (5, 5):  # the second time is a restart in the same second
        with running(tmp_path, workers=2, node_prefix=prefix) as server, ExitStack() as stack:
            nodes: dict[int, int] = {}
            while len(nodes) < 2:
                channel = stack.enter_context(connect(server))
                stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
                reply = stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20)
                nodes[get_node(channel).start_timestamp] = reply.node_id
            assert nodes == {start: prefix * 2**32 + start for start in nodes}
            found += nodes.values()
            assert server.stop() == 0
    assert len(found) == len(set(found)) == 4
