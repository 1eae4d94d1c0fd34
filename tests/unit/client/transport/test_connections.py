"""Streams that run at the same time have connections of their own, so that several processes of a server serve them."""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

import grpc
import pytest

import idalloc
from idalloc._transport.channel import MAX_CONNECTIONS
from tests.support.fake_server import FakeServer, serving


class Peers(FakeServer):
    """Remembers which connection each call came by."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: list[str] = []

    def _arrived(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        self.peers.append(context.peer())
        super()._arrived(method, request, context)


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


def test_streams_that_run_at_the_same_time_have_connections_of_their_own(server: Peers, client: idalloc.Client) -> None:
    streams = [
        *(client.stream_ranges("orders", 10**9, 1000) for _ in range(2)),
        *(client.stream_doc_ids(10**9, 1000) for _ in range(2)),
    ]
    for stream in streams:
        assert len(next(stream)) == 1000
    assert len(set(server.peers)) == 4 == MAX_CONNECTIONS


def test_more_streams_share_them(server: Peers, client: idalloc.Client) -> None:
    streams = [client.stream_ranges("orders", 10**9, 1000) for _ in range(2 * MAX_CONNECTIONS)]
    for stream in streams:
        next(stream)
    assert sorted(server.peers.count(peer) for peer in set(server.peers)) == [2] * MAX_CONNECTIONS


def test_calls_and_streams_one_at_a_time_share_one_connection(server: Peers, client: idalloc.Client) -> None:
    for _ in range(3):
        assert [*client.stream_ranges("orders", 20, 10)] != []
        broken_off = client.stream_doc_ids(20, 10)
        next(broken_off)
        del broken_off
        client.allocate_range("orders")
    assert len(server.peers) == 9
    assert len(set(server.peers)) == 1


def test_a_closed_client_ends_the_streams_on_all_connections(client: idalloc.Client) -> None:
    streams = [client.stream_ranges("orders", 10**9, 1000) for _ in range(3)]
    for stream in streams:
        next(stream)
    client.close()
    for stream in streams:
        with pytest.raises((RuntimeError, idalloc.IdallocError)):
            list(islice(stream, 10_000))


async def test_the_client_for_asyncio_does_the_same(server: Peers) -> None:
    async with idalloc.aio.Client(server.target) as client:
        for _ in range(2):
            assert [ids async for ids in client.stream_ranges("orders", 20, 10)] != []
        assert len(set(server.peers)) == 1
        streams = [client.stream_ranges("orders", 10**9, 1000) for _ in range(2 * MAX_CONNECTIONS)]
        for stream in streams:
            await anext(stream)
        running = server.peers[2:]
        assert sorted(running.count(peer) for peer in set(running)) == [2] * MAX_CONNECTIONS
    for stream in streams:
        with pytest.raises(asyncio.CancelledError):
            for _ in range(10_000):
                await anext(stream)
