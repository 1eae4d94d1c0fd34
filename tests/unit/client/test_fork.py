"""Forks of a process with a connected client, each in a process of its own."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.fake_server import FakeServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

# Runs parent() and, in the child of a fork, child(); prints their results. A child that hangs is
# killed.
FORK = """
import asyncio, json, os, signal, sys, warnings
from itertools import islice
import idalloc
from tests.support.waiting import wait_until
warnings.simplefilter("ignore", DeprecationWarning)  # of forks where threads run, since 3.12
target = sys.argv[1]

def outcome(function):
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def fork(parent, child):
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        signal.alarm(15)
        os.write(write, json.dumps(outcome(child)).encode())
        os._exit(0)
    os.close(write)
    by_parent = outcome(parent)
    with os.fdopen(read) as pipe:
        by_child = pipe.read()
    print(json.dumps([by_parent, json.loads(by_child or "null"), os.waitpid(pid, 0)[1]]))
    os._exit(0)
"""


def run(server: FakeServer, script: str, *, fork_support: bool) -> tuple[Any, Any, int]:
    env = os.environ | {"GRPC_ENABLE_FORK_SUPPORT": str(int(fork_support)), "GRPC_VERBOSITY": "NONE"}
    done = subprocess.run(
        [sys.executable, "-c", FORK + script, server.target], env=env, capture_output=True, text=True, timeout=50
    )
    assert done.stdout, done.stderr
    parent, child, status = json.loads(done.stdout)
    return parent, child, status


SHARED_IDS = """
client = idalloc.Client(target)
ids = client.ids("orders")
loop = iter(ids)
before = list(islice(loop, 5000))
stream = client.stream_ranges("orders", 50, 10)
before += next(stream)
while ids._refills.current is None:  # the parent has a prefetched range when it forks
    before.append(next(loop))
wait_until(lambda: ids._refills.current.attempts.open[0].has_ended)
def take():
    one_by_one = [next(ids) for _ in range(3000)]
    rest = [value for ids in stream for value in ids]
    return [*before[-1:], *one_by_one, *islice(loop, 3000), *client.allocate_range("orders", 10), *rest]

fork(take, take)
"""


def test_a_child_never_returns_its_parents_ids(server: FakeServer) -> None:
    """P8: after a fork, parent and child never return the same id."""
    parent, child, status = run(server, SHARED_IDS, fork_support=True)
    assert status == 0
    assert len(parent) == len(child) == 1 + 3000 + 3000 + 10 + 40
    [before], parent, child = parent[:1], parent[1:], child[1:]
    assert before not in parent + child
    assert len({*parent, *child}) == len(parent) + len(child)


SEVERAL_CONNECTIONS = """
client = idalloc.Client(target)
streams = [client.stream_ranges("orders", 30, 10) for _ in range(3)]
before = [value for stream in streams for value in next(stream)]
assert len([connection for connection in client._connections if connection.streams]) == 3
fork(*[lambda: [value for stream in streams for ids in stream for value in ids]] * 2)
"""


def test_streams_on_several_connections_continue_in_the_child(server: FakeServer) -> None:
    """P8: streams on several connections continue in the child with ids of its own."""
    parent, child, status = run(server, SEVERAL_CONNECTIONS, fork_support=True)
    assert status == 0
    assert len(parent) == len(child) == 3 * 20
    assert len({*parent, *child}) == 6 * 20


SHARED_STREAM = """
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from idalloc._core.pipeline import Pipeline
sent, gate, send = Event(), Event(), Pipeline.send
def send_held(pipeline, pending, asked):
    if pending.call.request.sequence == "held":
        sent.set()
        gate.wait(10)
    return send(pipeline, pending, asked)
Pipeline.send = send_held
client = idalloc.Client(target)
stream = client.allocate_stream()
before = [*stream.allocate_range("orders", 10)]
waiting = []  # the negative ids of a request without an answer at the fork
thread = Thread(target=lambda: waiting.extend(-value for value in stream.allocate_range("held", 10)))
def take():
    gate.set()
    with ThreadPoolExecutor(3) as threads:
        ids = [value for each in threads.map(stream.allocate_range, ["orders"] * 20) for value in each]
    if thread.is_alive():
        thread.join()
    return [*before, *waiting, *ids]
def fork_while_a_request_waits():
    thread.start()
    sent.wait(10)
    fork(take, take)
"""


@pytest.mark.parametrize("ending", ["fork(take, take)", "fork_while_a_request_waits()"], ids=["idle", "busy"])
def test_a_child_opens_a_stream_of_requests_of_its_own(server: FakeServer, ending: str) -> None:
    """P8: a child gets no answer to its parent's requests, and the parent's stream continues."""
    parent, child, status = run(server, SHARED_STREAM + ending, fork_support=True)
    assert status == 0
    assert parent[:10] == child[:10]
    parent, child = parent[10:], child[10:]
    assert (len(parent), len(child)) == (20 + 10 * ("wait" in ending), 20)
    assert len({*parent, *child}) == len(parent) + len(child)


def test_a_stream_of_requests_raises_without_fork_support(server: FakeServer) -> None:
    """P8: without gRPC's fork support, a call in the child raises instead of hanging."""
    _, child, status = run(server, SHARED_STREAM + "fork(take, take)", fork_support=False)
    assert child.startswith("RuntimeError: ")
    assert "GRPC_ENABLE_FORK_SUPPORT=1" in child
    assert status == 0


def test_a_closed_stream_of_requests_is_closed_in_the_child(server: FakeServer) -> None:
    """What the parent closed is closed in the child, and the child may close an open stream."""
    script = """
client = idalloc.Client(target)
closed, open_ = client.allocate_stream(), client.allocate_stream()
for stream in (closed, open_):
    stream.allocate_range("orders")
closed.close()
def use():
    open_.close()
    return [outcome(lambda: stream.allocate_range("orders").first_id) for stream in (closed, open_)]
fork(use, use)
"""
    parent, child, status = run(server, script, fork_support=True)
    assert parent == child == ["ClientClosed: the stream is closed"] * 2
    assert status == 0


def test_a_child_without_grpc_fork_support_gets_an_error(server: FakeServer) -> None:
    """P8: without gRPC's fork support, calls in the child raise instead of hanging."""
    parent, child, status = run(server, SHARED_IDS, fork_support=False)
    assert len(parent) == 6051
    assert child.startswith("RuntimeError: ")
    assert "GRPC_ENABLE_FORK_SUPPORT=1" in child
    assert status == 0


NEW_CLIENT = """
client = idalloc.Client(target)
client.node()
fork(lambda: 0, lambda: idalloc.Client(target).node().version)
"""


def test_a_new_client_in_the_child_gets_the_same_error(server: FakeServer) -> None:
    """A new client in the child raises without gRPC's fork support, and works with it."""
    _, child, _ = run(server, NEW_CLIENT, fork_support=False)
    assert child.startswith("RuntimeError: ")
    _, child, _ = run(server, NEW_CLIENT, fork_support=True)
    assert child == "1.2.3"


def test_an_unconnected_client_can_be_forked(server: FakeServer) -> None:
    """P8: a client that is not connected works in parent and child, with different ids."""
    script = """
client = idalloc.Client(target)
ids = client.ids("orders")
take = lambda: list(islice(ids, 100))
fork(take, take)
"""
    parent, child, status = run(server, script, fork_support=False)
    assert status == 0
    assert len({*parent, *child}) == 200


WARM_LOOP = """
async def use(client, ids):
    return [await anext(ids) for _ in range(1000)]

client = idalloc.aio.Client(target)
ids = client.ids("orders")
loop = asyncio.new_event_loop()
before = loop.run_until_complete(use(client, ids))
"""


def test_a_connected_asyncio_client_raises_in_the_child(server: FakeServer) -> None:
    """P8: a connected asyncio client raises in the child, and continues in the parent."""
    script = (
        WARM_LOOP + "fork(lambda: loop.run_until_complete(use(client, ids)), lambda: asyncio.run(use(client, ids)))"
    )
    parent, child, status = run(server, script, fork_support=False)
    assert parent == list(range(1001, 2001))
    assert child.startswith("RuntimeError: ")
    assert "asyncio" in child
    assert status == 0


def test_any_client_raises_after_a_fork_of_asyncio(server: FakeServer) -> None:
    """After a fork with a connected asyncio client, any client in the child raises."""
    _, child, _ = run(
        server,
        WARM_LOOP + "fork(lambda: 0, lambda: idalloc.Client(target).allocate_range('a').first_id)",
        fork_support=False,
    )
    assert child.startswith("RuntimeError: ")
