"""Calls to real server processes, and the events in their logs."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, node_pb2, node_pb2_grpc
from tests.support.processes import Server, environment, serve_command
from tests.support.waiting import wait_until as wait_until


def connect(server: Server) -> grpc.Channel:
    """Return a channel with a connection of its own; by default channels share an address's."""
    return grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])


def id_allocator(channel: grpc.Channel) -> Any:
    """Return a stub of IdAllocatorService."""
    return id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)


@contextmanager
def stream_of_requests(channel: grpc.Channel) -> Iterator[tuple[Any, Any]]:
    """Open AllocateStream during the block: a function that sends requests, and the answers."""
    requests: SimpleQueue[pb.AllocateStreamRequest | None] = SimpleQueue()
    call = id_allocator(channel).AllocateStream(iter(requests.get, None))

    def send(*sequences: str) -> None:
        for number, name in enumerate(sequences):
            wanted = pb.AllocateRangeRequest(sequence=name)
            requests.put(pb.AllocateStreamRequest(number=number, allocate_range=wanted))

    try:
        call.initial_metadata()  # The stream is open.
        yield send, call
    finally:
        requests.put(None)
        call.cancel()


def status_of(server: Server, path: str, host: str) -> int:
    """Return the status with which the HTTP port answers a request under a name."""
    address = server.http.removeprefix("http://").rstrip("/")
    with closing(HTTPConnection(address, timeout=30)) as connection:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status


def get_node(channel: grpc.Channel) -> node_pb2.Node:
    """Call GetNode."""
    stub: Any = node_pb2_grpc.NodeServiceStub(channel)
    node: node_pb2.Node = stub.GetNode(node_pb2.GetNodeRequest(), timeout=10).node
    return node


def update_node(channel: grpc.Channel, *, persist: bool = False, timeout: float = 10, **node: Any) -> node_pb2.Node:
    """Call UpdateNode with the given fields."""
    stub: Any = node_pb2_grpc.NodeServiceStub(channel)
    request = node_pb2.UpdateNodeRequest(node=node_pb2.Node(**node), persist=persist)
    changed: node_pb2.Node = stub.UpdateNode(request, timeout=timeout).node
    return changed


def refused_start(**settings: object) -> str:
    """Start a server that must refuse to start; return its exit code and one-line error."""
    done = subprocess.run(serve_command(**settings), env=environment(), capture_output=True, text=True, timeout=40)
    assert done.returncode != 0
    assert done.stdout == ""
    *before, last = map(json.loads, done.stderr.splitlines())
    assert {line["event"] for line in before} <= {"waiting_for_store"}
    assert (last["event"], last["exit_code"]) == ("not_started", done.returncode)
    return f"{done.returncode} {last['error']}"


@contextmanager
def channel_per_worker(server: Server, workers: int = 2) -> Iterator[list[grpc.Channel]]:
    """Open a channel to each worker, which is identified by its start timestamp."""
    with ExitStack() as channels:
        found: dict[int, grpc.Channel] = {}
        for _ in range(200):
            if len(found) == workers:
                break
            channel = channels.enter_context(connect(server))
            found.setdefault(get_node(channel).start_timestamp, channel)
        assert len(found) == workers, f"reached {len(found)} of {workers} workers"
        yield list(found.values())


def log_events(server: Server, event: str) -> list[dict[str, Any]]:
    """Return the log lines of an event; a line that is being written is left out."""
    complete, _, _ = server.log.read_text().rpartition("\n")
    lines = [json.loads(line) for line in complete.splitlines()]
    return [line for line in lines if line["event"] == event]


def lines_beside_audit(server: Server) -> list[str]:
    """Return the lines of the log that are not of the audit, of any form."""
    return [line for line in server.log.read_text().splitlines() if '"logger": "idalloc.audit"' not in line]


def worker_pids(server: Server) -> list[int]:
    """Return the process ids of all workers that were ever started."""
    return [line["pid"] for line in log_events(server, "worker_started")]


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
