"""Broken connections, hung servers and several servers, in both clients."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import pytest

import idalloc
import idalloc.aio
from idalloc._core import pipeline, resumption
from idalloc._transport.config import addresses
from tests.support.broken_transports import ROWS, breaking
from tests.support.fake_server import FakeServer, serving
from tests.support.waiting import wait_until
from tests.unit.client.clients import opened

HUNG = {"when": "call", "do": "nothing"}
# Far less than the clients' timeout of 30 s, in seconds; on a quiet machine it is about 0.75 s.
SOON = 15.0
UUID = "0190a4e2-7b1c-4d6e-8f00-000000000001"


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "INITIAL_BACKOFF", 0.001)
    monkeypatch.setattr(resumption, "INITIAL_BACKOFF", 0.001)


# The calls of a client; a pool waits for ``limit``, and so does the stream of a hasty client.
CALLS: list[Callable[[Any, Any, float], list[int]]] = [
    lambda client, hasty, limit: list(client.allocate_range("orders", 2)),
    lambda client, hasty, limit: list(client.allocate_range("orders", 2, idempotent=True)),
    lambda client, hasty, limit: [each for ids in client.stream_ranges("orders", 6, 2) for each in ids],
    lambda client, hasty, limit: list(islice(client.ids("orders", timeout=limit), 5)),
    lambda client, hasty, limit: list(hasty.allocate_stream().allocate_range("orders", 2)),
]
both = pytest.mark.parametrize("kind", ["threads", pytest.param("asyncio", marks=pytest.mark.test_long)])
rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])


def made(call: Callable[[Any, Any, float], list[int]], kind: str, target: str, limit: float) -> list[int]:
    """Make one of the calls."""
    with opened(kind, target, timeout=30) as client, opened(kind, target, timeout=limit) as hasty:
        return call(client, hasty, limit)


@both
@rows
def test_a_broken_transport_is_server_unreachable(row: dict[str, Any], kind: str, no_backoff: None) -> None:
    """Each way to break a connection is SERVER_UNREACHABLE, for each kind of call."""
    with breaking(row) as target:
        errors = [error_of(partial(made, call, kind, target)) for call in CALLS]
    assert {type(error) for error in errors} == {idalloc.ServerUnreachable}


def error_of(call: Callable[[float], object]) -> Exception | None:
    """Return the error of a call; on a busy machine, its first limit may end before a failure."""
    for limit in (0.3, 3, 30):
        try:
            call(limit)
        except idalloc.DeadlineExceeded:
            continue
        except idalloc.IdallocError as error:
            return error
    return None


@both
@rows
def test_calls_outlast_two_broken_connections(
    row: dict[str, Any], kind: str, server: FakeServer, no_backoff: None
) -> None:
    """P1: calls are made again over the next connection, streams go on, and no id comes twice."""
    seen: list[int] = []
    for call in CALLS[:4]:
        with breaking(row, server.target) as target:
            seen += made(call, kind, target, 30)
    assert len(seen) == len(set(seen)) == 15


class TestHungServer:
    def test_a_pool_asks_another_server(self, server: FakeServer) -> None:
        """A hung server costs a pool a short wait, not a timeout; later refills avoid it."""
        with breaking(HUNG) as hung, idalloc.Client(f"{hung},{server.target}", timeout=30) as client:
            ids, longest = client.ids("orders"), 0.0
            for _ in range(2000):
                began = time.monotonic()
                next(ids)
                longest = max(longest, time.monotonic() - began)
        assert longest < SOON
        assert client._servers.all[0].is_suspect

    @pytest.mark.parametrize("targets", ["{0},{1}", "{1},{0}", "{0},{0},{1}"])
    def test_a_call_with_a_request_id_asks_another(self, targets: str, server: FakeServer) -> None:
        """A call with a request id does not wait for its timeout; one more server is asked."""
        with breaking(HUNG) as hung, idalloc.Client(targets.format(hung, server.target), timeout=30) as client:
            for _ in range(2):
                began = time.monotonic()
                assert list(client.allocate_range("orders", 2, request_id=UUID)) == [1, 2]
                assert time.monotonic() - began < SOON
        assert len(server.requests["AllocateRange"]) <= 2

    async def test_asyncio_asks_another(self, server: FakeServer) -> None:
        """The client for asyncio does the same."""
        with breaking(HUNG) as hung:
            async with idalloc.aio.Client(f"{hung},{server.target}", timeout=30) as client, asyncio.timeout(SOON):
                for _ in range(2):
                    await client.allocate_range("orders", 2, request_id=UUID)
                ids = client.ids("lines")
                assert [await anext(ids) for _ in range(100)] == list(range(1, 101))

    def test_behind_one_address_a_new_connection_asks(self, server: FakeServer) -> None:
        """If the first connection hangs, the second attempt opens another one."""
        with breaking(HUNG, server.target, broken=1) as target, idalloc.Client(target, timeout=30) as client:
            assert list(client.allocate_range("orders", 2, request_id=UUID)) == [1, 2]

    def test_a_slow_store_is_waited_for(self, server: FakeServer) -> None:
        """While all servers wait for their store, a call is sent once."""
        with serving() as other, idalloc.Client(f"{server.target},{other.target}", timeout=30) as client:
            for each in (server, other):
                each.hold.clear()
                threading.Timer(1.2, each.hold.set).start()
            assert list(client.allocate_range("orders", 2, request_id=UUID)) == [1, 2]
            assert len(server.requests["AllocateRange"]) + len(other.requests["AllocateRange"]) == 1
            assert client.dropped_ids == 0

    def test_each_thread_waits_for_its_own_time(self) -> None:
        """Eight threads that share a pool wait together, not one after another."""
        with breaking(HUNG) as hung, idalloc.Client(hung, timeout=30) as client, ThreadPoolExecutor(8) as threads:
            ids, began = client.ids("orders", timeout=2), time.monotonic()
            waiting = [threads.submit(next, ids) for _ in range(8)]
            assert {type(each.exception(30)) for each in waiting} == {idalloc.DeadlineExceeded}
            assert time.monotonic() - began < 10  # one after another, they would take 16 s


class TestServers:
    def test_a_list_with_a_dead_server_serves_all_calls(self, server: FakeServer) -> None:
        """A server that refuses connections costs no call; a name may be in the list."""
        port = server.target.rpartition(":")[2]
        with idalloc.Client(f"127.0.0.1:1,localhost:{port}") as client:
            assert [client.allocate_range("orders")[0] for _ in range(20)] == list(range(1, 21))

    def test_a_name_with_two_addresses_is_two_servers(
        self, kind: str, server: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name is resolved by the client; calls use the address that answers."""
        hosts = ["127.0.0.2", "127.0.0.1"]
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda _, port, *args, **kwargs: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, port)) for h in hosts],
        )
        target = f"idalloc.test:{server.target.rpartition(':')[2]}"
        with opened(kind, target) as client:
            assert [client.allocate_range("orders")[0] for _ in range(4)] == [1, 2, 3, 4]
            assert client._servers.distinct == 2

    def test_addresses_of_one_family_count(self) -> None:
        """Two IPv4 addresses are two servers; one of each family is one server, for gRPC."""
        four, six = socket.AF_INET, socket.AF_INET6
        both = [(six, 0, 0, "", ("::1", 1)), (four, 0, 0, "", ("10.0.0.1", 1)), (four, 0, 0, "", ("10.0.0.2", 1))]
        assert addresses(("a", 7), both) == ["ipv4:10.0.0.1:7", "ipv4:10.0.0.2:7"]
        assert addresses(("a", 7), both[:2]) == []


def test_no_id_comes_after_close(server: FakeServer) -> None:
    """After close(), next() of all threads raises ClientClosed, and returns no id."""
    for _ in range(5):
        client = idalloc.Client(server.target)
        ids = client.ids("orders")
        closed = threading.Event()

        def take(ids: idalloc.Ids = ids, closed: threading.Event = closed) -> bool:
            while not closed.is_set():
                next(ids)
            return bool(next(ids))

        with ThreadPoolExecutor(4) as threads:
            runs = [threads.submit(take) for _ in range(4)]
            wait_until(lambda: len(server.requests["AllocateRange"]) > 3, "ranges are in use")
            client.close()
            closed.set()
        assert [type(run.exception()) for run in runs] == [idalloc.ClientClosed] * 4
