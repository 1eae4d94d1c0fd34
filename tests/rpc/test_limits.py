"""What one caller may ask of a connection: the figures of README.md's "Limits", and that they are what decides."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Iterator

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.listen import transport as transports
from tests.rpc.conftest import Served, serving
from tests.support import http2
from tests.support.faults.floods import FLOODS
from tests.support.identities import bearer

KB = 1024
# HTTP/2's number for the most streams that a peer may open.
MAX_CONCURRENT_STREAMS = 3
# Of pings that come too often gRPC forgives two, and a few around frames of its own.
MANY_PINGS = 20


async def allocate(served: Served, request: pb.AllocateRangeRequest, metadata: int = 0) -> grpc.StatusCode:
    """How a call ends that comes with so many bytes of metadata."""
    try:
        await served.ids.AllocateRange(request, metadata=(("x-long", "x" * metadata),), timeout=20)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def allocates(served: Served, metadata: int) -> set[grpc.StatusCode]:
    """How several such calls end: where gRPC draws lots, it does so for each."""
    request = pb.AllocateRangeRequest(sequence="orders")
    return set(await asyncio.gather(*(allocate(served, request, metadata) for _ in range(20))))


class TestRequests:
    @pytest.mark.parametrize(
        ("size", "code"),
        [(256 * KB, grpc.StatusCode.INVALID_ARGUMENT), (256 * KB + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)],
    )
    async def test_are_looked_into_up_to_256_kb_and_no_further(
        self, served: Served, size: int, code: grpc.StatusCode
    ) -> None:
        request = pb.AllocateRangeRequest(sequence="x" * (size - 4))  # the rest says which field it is, and how long
        assert request.ByteSize() == size
        assert await allocate(served, request) == code
        assert await allocate(served, pb.AllocateRangeRequest(sequence="orders")) == grpc.StatusCode.OK


class TestMetadata:
    # gRPC has the same bounds by itself. With others, none but ours can be what decides.
    @pytest.mark.parametrize("times", [1, 4])
    async def test_up_to_8_kb_is_let_in_and_more_than_16_is_not(
        self, monkeypatch: pytest.MonkeyPatch, transport: str, times: int
    ) -> None:
        for name in ("MAX_METADATA_BYTES", "LARGEST_METADATA_BYTES"):
            monkeypatch.setattr(transports, name, getattr(transports, name) * times)
        async with serving(transport) as served:
            # gRPC's own headers count as well. Native draws no lots: what it may refuse, it refuses.
            let_in = 15 * KB if transport == "native" else 7 * KB
            assert await allocates(served, let_in * times) == {grpc.StatusCode.OK}
            # Native answers in HTTP's words, which a client of gRPC does not know.
            refused = grpc.StatusCode.UNKNOWN if transport == "native" else grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await allocates(served, 16 * KB * times) == {refused}
            assert await allocates(served, 0) == {grpc.StatusCode.OK}


class TestCallsOfAConnection:
    async def test_are_announced(self, served: Served, transport: str) -> None:
        """README's "Limits": a connection may have 1,250 calls under way, 100 with native."""
        announced = (await asyncio.to_thread(settings, served.address))[MAX_CONCURRENT_STREAMS]
        assert announced == (100 if transport == "native" else 1_250)

    @pytest.mark.parametrize("kind", ["rejected_calls", "resets_of_calls"])
    async def test_hold_up_another_connection_no_further(self, guarded: Served, transport: str, kind: str) -> None:
        """A connection that floods puts no more calls before another's than it may have under way."""
        method = guarded.metrics.method("/idalloc.v1.IdAllocatorService/AllocateRange")
        mine = bearer("allocate")
        await guarded.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), metadata=mine)  # is connected
        began = method.started
        batches = itertools.islice(FLOODS[kind], 40)
        with http2.connect(guarded.address, 2**31 - 1) as connection:
            # The event loop waits for this, so no call is begun before the server has read all of them.
            connection.sendall(b"".join(batches) + http2.frame(http2.PING, 0, 0, bytes(8)))
            until_answered(connection)
            await guarded.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), metadata=mine, timeout=30)
        assert method.started - began - 1 <= transports.MAX_STREAMS_PER_CONNECTION[transport]


def until_answered(connection: socket.socket) -> None:
    """Reads until the server answers a ping, or hangs up: it has read all that came before."""
    try:
        while True:
            kind, flags, *_ = http2.read_frame(connection)
            if kind == http2.PING and flags & http2.ACK:
                return
    except ConnectionError:
        return


def settings(address: str) -> dict[int, int]:
    """The settings that a server announces."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(http2.PREFACE + http2.settings(0))
        kind, _, _, payload = http2.read_frame(connection)
    assert kind == http2.SETTINGS
    return dict(struct.iter_unpack(">HI", payload))


class TestPings:
    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_that_come_too_often_have_the_connection_ended(self, served: Served) -> None:
        *_, (kind, reason) = await asyncio.to_thread(lambda: list(pings(served.address)))
        assert kind == http2.GOAWAY
        assert reason.endswith(b"too_many_pings")

    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_that_come_no_more_often_than_they_may_are_answered(
        self, monkeypatch: pytest.MonkeyPatch, transport: str
    ) -> None:
        monkeypatch.setattr(transports, "MIN_PING_SECONDS", 0)  # instead of waiting for 20 seconds, again and again
        async with serving(transport) as served:
            answers = await asyncio.to_thread(lambda: list(pings(served.address)))
        assert [kind for kind, _ in answers] == [http2.PING] * MANY_PINGS

    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_of_a_connection_without_calls_have_it_ended_however_often_they_may_come(
        self, monkeypatch: pytest.MonkeyPatch, transport: str
    ) -> None:
        monkeypatch.setattr(transports, "MIN_PING_SECONDS", 0)
        async with serving(transport) as served:
            *_, (kind, _) = await asyncio.to_thread(lambda: list(pings(served.address, idle=True)))
        assert kind == http2.GOAWAY

    @pytest.mark.parametrize("transport", ["native"])
    async def test_are_all_answered_by_native(self, served: Served) -> None:
        answers = await asyncio.to_thread(lambda: list(pings(served.address)))
        assert [kind for kind, _ in answers] == [http2.PING] * MANY_PINGS


def pings(address: str, *, idle: bool = False) -> Iterator[tuple[int, bytes]]:
    """Sends many, one after the other; gives what comes back of each, up to the end of the connection.

    Args:
        address: The server's.
        idle: Whether no stream waits for its reader meanwhile: gRPC takes hardly any pings then.
    """
    endless = pb.StreamRangesRequest(sequence="orders", total_id_count=2**60)
    with http2.connect(address, window=0) as connection:
        if not idle:
            connection.sendall(http2.headers(1, "StreamRanges") + http2.message(1, endless.SerializeToString()))
        for _ in range(MANY_PINGS):
            connection.sendall(http2.frame(http2.PING, 0, 0, b"are you?"))
            while True:
                kind, flags, _, payload = http2.read_frame(connection)
                if kind == http2.GOAWAY:
                    yield kind, payload
                    return
                if kind == http2.PING and flags & http2.ACK:
                    yield kind, payload
                    break
