"""Concurrent streams use separate connections, so that several server processes serve them."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import _GeneratorContextManager
from itertools import islice
from types import FrameType
from typing import Any

import grpc
import pytest
from grpc import _observability

import idalloc
from idalloc._transport.channel import MAX_CONNECTIONS
from tests.support.fake_server import FakeServer, serving


class Peers(FakeServer):
    """Records the connection of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: list[str] = []

    def _receive(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        self.peers.append(context.peer())
        super()._receive(method, request, context)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    monkeypatch.setattr("tests.support.fake_server.FakeServer", Peers)
    with serving() as server:
        assert isinstance(server, Peers)
        yield server


@pytest.fixture
def client(server: Peers) -> Iterator[idalloc.Client]:
    with idalloc.Client(server.target) as client:
        yield client


def test_concurrent_streams_use_separate_connections(server: Peers, client: idalloc.Client) -> None:
    """Concurrent streams use a connection each, up to MAX_CONNECTIONS."""
    streams = [
        *(client.stream_ranges("orders", 10**9, 1000) for _ in range(2)),
        *(client.stream_doc_ids(10**9, 1000) for _ in range(2)),
    ]
    for stream in streams:
        assert len(next(stream)) == 1000
    assert len(set(server.peers)) == 4 == MAX_CONNECTIONS


def test_further_streams_share_the_connections(server: Peers, client: idalloc.Client) -> None:
    """More streams than connections are spread evenly."""
    streams = [client.stream_ranges("orders", 10**9, 1000) for _ in range(2 * MAX_CONNECTIONS)]
    for stream in streams:
        next(stream)
    assert sorted(server.peers.count(peer) for peer in set(server.peers)) == [2] * MAX_CONNECTIONS


def test_sequential_calls_and_streams_use_one_connection(server: Peers, client: idalloc.Client) -> None:
    """Calls, and streams one at a time, use one connection."""
    for _ in range(3):
        assert [*client.stream_ranges("orders", 20, 10)] != []
        broken_off = client.stream_doc_ids(20, 10)
        next(broken_off)
        del broken_off
        client.allocate_range("orders")
    assert len(server.peers) == 9
    assert len(set(server.peers)) == 1


def test_closing_ends_the_streams_on_all_connections(client: idalloc.Client) -> None:
    """close() ends the streams on all connections."""
    streams = [client.stream_ranges("orders", 10**9, 1000) for _ in range(3)]
    for stream in streams:
        next(stream)
    client.close()
    for stream in streams:
        with pytest.raises(RuntimeError, match="closed"):
            list(islice(stream, 10_000))


async def test_asyncio_streams_are_spread_over_connections(server: Peers) -> None:
    """The asyncio client uses several connections for concurrent streams, otherwise one."""
    async with idalloc.aio.Client(server.target) as client:
        for _ in range(2):
            assert [each.ids async for each in client.stream_ranges("orders", 20, 10)] != []
        assert len(set(server.peers)) == 1
        streams = [client.stream_ranges("orders", 10**9, 1000) for _ in range(2 * MAX_CONNECTIONS)]
        for stream in streams:
            await anext(stream)
        running = server.peers[2:]
        assert sorted(running.count(peer) for peer in set(running)) == [2] * MAX_CONNECTIONS
    for stream in streams:
        with pytest.raises(RuntimeError, match="closed"):
            for _ in range(10_000):
                await anext(stream)


def test_an_interrupt_leaves_no_lock_of_all_channels_locked(client: idalloc.Client) -> None:
    """gRPC's lock of its plugins is free after a signal handler raised as its holder began."""
    connection = next(iter(client._connections))

    def raise_in_enter(frame: FrameType, event: str, called: object) -> None:
        if event == "c_return" and called is next and frame.f_code is _GeneratorContextManager.__enter__.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    def hold() -> None:
        with connection.abandon_if_interrupted(connection.stubs()):
            sys.setprofile(raise_in_enter)
            with _observability.get_plugin():
                raise AssertionError("it was interrupted before")

    with pytest.raises(KeyboardInterrupt) as interrupted:
        hold()
    assert interrupted.value.__traceback__  # which a program may keep
    with ThreadPoolExecutor(1) as other:
        assert other.submit(_observability._plugin_lock.acquire, timeout=30).result()
        other.submit(_observability._plugin_lock.release).result()
