"""What a real server's log says of the ids that it burned: of which sequence, how many, and why (P9)."""

import json
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, node_pb2, node_pb2_grpc
from tests.support.processes import Server, running

REQUEST_ID = "11111111-1111-4111-8111-111111111111"
SHORT = {"lease_ttl": "4s", "outage_reserve": "1s", "store_timeout": "2500ms"}


def connect(server: Server) -> grpc.Channel:
    return grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])


def allocate(channel: grpc.Channel, count: int, **more: Any) -> pb.IdRange:
    stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
    request = pb.AllocateRangeRequest(sequence="orders", id_count=count, **more)
    reply: pb.AllocateRangeResponse = stub.AllocateRange(request, timeout=20)
    return reply.range


def node_of(channel: grpc.Channel) -> node_pb2.Node:
    stub: Any = node_pb2_grpc.NodeServiceStub(channel)
    node: node_pb2.Node = stub.GetNode(node_pb2.GetNodeRequest(), timeout=10).node
    return node


def logged(server: Server, event: str) -> list[dict[str, Any]]:
    whole, _, _ = server.log.read_text().rpartition("\n")
    lines = [json.loads(line) for line in whole.splitlines()]
    return [line for line in lines if line["event"] == event]


def burned(server: Server) -> list[tuple[str, str, int]]:
    return [(line["sequence"], line["cause"], line["ids"]) for line in logged(server, "burned")]


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def last_value(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "ids.db", timeout=20)) as connection:
        [value] = connection.execute("SELECT last_value FROM sequences WHERE name = 'orders'").fetchone()
        return int(value)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps the server from writing to its store."""
    with closing(sqlite3.connect(folder / "ids.db", timeout=20, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_a_call_that_was_cancelled_after_its_ids_were_taken(tmp_path: Path) -> None:
    with running(tmp_path) as server, connect(server) as channel, connect(server) as other:

        def calls_under_way() -> int:
            """What the server says: it has a line for each second with calls, so there is one to be counted."""
            seen = len(logged(server, "calls"))
            node_of(other)
            until(lambda: len(logged(server, "calls")) > seen)
            return int(logged(server, "calls")[-1]["in_flight"])

        last_id = [allocate(channel, 100).last_id for _ in range(5)][-1]
        # Its ids are in memory; what waits for the store is the answer that is to be written down.
        until(lambda: last_value(tmp_path) >= last_id + 10)
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        with locked(tmp_path):
            request = pb.AllocateRangeRequest(sequence="orders", id_count=5, request_id=REQUEST_ID)
            call = stub.AllocateRange.future(request, timeout=60)
            until(lambda: calls_under_way() == 1)
            call.cancel()
            until(lambda: calls_under_way() == 0)
        until(lambda: burned(server))
        assert burned(server) == [("orders", "cancelled", 5)]
        assert allocate(channel, 1).first_id == last_id + 6


def test_a_lease_that_ended_while_the_process_stood_still(tmp_path: Path) -> None:
    over, issued = threading.Event(), list[pb.IdRange]()

    def call_in_turn(channel: grpc.Channel) -> None:
        while not over.is_set():
            with suppress(grpc.RpcError):  # whose lease ended before the answer
                issued.append(allocate(channel, 10))

    with running(tmp_path, **SHORT) as server, connect(server) as channel, ThreadPoolExecutor() as pool:
        calling = pool.submit(call_in_turn, channel)
        try:
            until(lambda: len(issued) >= 100)
            server.send(signal.SIGSTOP)
            time.sleep(4.5)  # longer than a lease lives
            before = len(issued)
            server.send(signal.SIGCONT)
            until(lambda: len(issued) >= before + 10)
        finally:
            over.set()
        calling.result(30)
        missing = max(each.last_id for each in issued) - sum(each.id_count for each in issued)
        assert missing > 0
        until(lambda: sum(ids for _, _, ids in burned(server)) >= missing)
        assert sum(ids for _, _, ids in burned(server)) == missing
        causes = {(sequence, cause) for sequence, cause, _ in burned(server)}
        # A refill that was under way when it was stopped took longer than its store_timeout.
        assert ("orders", "expired") in causes <= {("orders", "expired"), ("orders", "unknown_outcome")}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_tells_the_tail_that_could_not_be_given_back(tmp_path: Path, workers: int) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(running(tmp_path, workers=workers))
        # One channel to each worker; the node that answers is known by its start timestamp.
        channels: dict[int, grpc.Channel] = {}
        while len(channels) < workers:
            channel = stack.enter_context(connect(server))
            channels.setdefault(node_of(channel).start_timestamp, channel)
        issued = 0
        for channel in channels.values():
            for _ in range(5):
                issued += allocate(channel, 100).id_count
        other = stack.enter_context(running(tmp_path, node_prefix=1))
        with connect(other) as channel:
            issued += allocate(channel, 1).id_count
            assert other.stop() == 0
        assert server.stop() == 0
        lines = logged(server, "burned")
        [stopped] = logged(server, "stopped")
        # What nobody got and the counter is past, all nodes together say that they burned.
        assert sum(line["ids"] for line in lines) == last_value(tmp_path) - issued > 0
        assert {(line["sequence"], line["cause"], line["level"]) for line in lines} == {
            ("orders", "not_returned", "info")
        }
        assert stopped["burned"] == {"not_returned": sum(line["ids"] for line in lines)}
        assert all(("worker" in line) == (workers > 1) for line in lines)


def test_each_process_has_a_number_of_its_own_in_its_replies(tmp_path: Path) -> None:
    found: list[int] = []
    for prefix in (5, 5):  # the second is a restart with the same settings, within the same second
        with running(tmp_path, workers=2, node_prefix=prefix) as server, ExitStack() as stack:
            nodes: dict[int, int] = {}
            while len(nodes) < 2:
                channel = stack.enter_context(connect(server))
                stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
                reply = stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20)
                nodes[node_of(channel).start_timestamp] = reply.node
            assert nodes == {start: prefix * 2**32 + start for start in nodes}
            found += nodes.values()
            assert server.stop() == 0
    assert len(found) == len(set(found)) == 4
