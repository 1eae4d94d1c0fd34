"""The limits of a connection, as docs/reference/limits.md states them."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import sequences_pb2
from idalloc_server.domain.sequences.validation import MAX_DESCRIPTION
from idalloc_server.listen import transport as transports
from tests.rpc.conftest import Served, serving
from tests.support import http2
from tests.support.faults.floods import CANCEL, FLOODS
from tests.support.identities import bearer

KB = 1024
# The identifier of SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113).
MAX_CONCURRENT_STREAMS = 3
# gRPC tolerates two early pings, and a few more around frames of its own.
MANY_PINGS = 20
# native answers with HTTP status 431 and resets the stream. gRPC clients report the one that they
# see first.
REFUSALS = {
    "grpcio": {grpc.StatusCode.RESOURCE_EXHAUSTED},
    "native": {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL},
}


async def allocate(served: Served, request: pb.AllocateRangeRequest, metadata: int = 0) -> grpc.StatusCode:
    """Return the status of a call with this many bytes of metadata."""
    try:
        await served.ids.AllocateRange(request, metadata=(("x-long", "x" * metadata),), timeout=20)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def allocate_many(served: Served, metadata: int) -> set[grpc.StatusCode]:
    """Return the statuses of several such calls: gRPC may reject some of them at random."""
    request = pb.AllocateRangeRequest(sequence="orders")
    return set(await asyncio.gather(*(allocate(served, request, metadata) for _ in range(20))))


async def list_all(served: Served, prefix: str) -> sequences_pb2.ListSequencesResponse:
    """Return the reply with all sequences whose names have this prefix."""
    request = sequences_pb2.ListSequencesRequest(page_size=1000, name_prefix=prefix)
    return await served.sequences.ListSequences(request, timeout=20)


async def allocate_in_turn(served: Served) -> grpc.StatusCode:
    """Return the first status of two successive calls that is not OK, or OK."""
    request = pb.AllocateRangeRequest(sequence="orders")
    codes = [await allocate(served, request) for _ in range(2)]
    return next((code for code in codes if code != grpc.StatusCode.OK), grpc.StatusCode.OK)


class TestRequests:
    @pytest.mark.parametrize(
        ("size", "code"),
        [(256 * KB, grpc.StatusCode.INVALID_ARGUMENT), (256 * KB + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)],
    )
    async def test_larger_than_256_kb_are_rejected_before_decoding(
        self, served: Served, size: int, code: grpc.StatusCode
    ) -> None:
        """A request of up to 256 kB is decoded; a larger one is RESOURCE_EXHAUSTED."""
        request = pb.AllocateRangeRequest(sequence="x" * (size - 4))  # the rest says which field it is, and how long
        assert request.ByteSize() == size
        assert await allocate(served, request) == code
        assert await allocate(served, pb.AllocateRangeRequest(sequence="orders")) == grpc.StatusCode.OK


class TestReplies:
    async def test_of_64_kb_and_a_few_bytes_arrive(self, served: Served) -> None:
        """Replies of 65,530 to 65,540 bytes, around HTTP/2's first window of 65,535, are whole."""
        long = sequences_pb2.Sequence(name="0-00", description="x" * MAX_DESCRIPTION)
        await served.sequences.CreateSequence(sequences_pb2.CreateSequenceRequest(sequence=long))
        row = served.store.rows["0-00"].stored("0-00")
        count = 65_540 // (await list_all(served, "0-")).ByteSize() + 1
        for number in range(1, count):
            await served.store.create(row._replace(name=f"0-{number:02}"))
        more = (await list_all(served, "0-")).ByteSize() - 65_540
        sizes = []
        # The description of the first one of many sequences tunes the size of their list.
        for turn in range(1, 12):
            tuned = replace(row.sequence, description="x" * (MAX_DESCRIPTION - more + 1 - turn))
            await served.store.create(row._replace(name=f"{turn:x}-00", sequence=tuned))
            for number in range(1, count):
                await served.store.create(row._replace(name=f"{turn:x}-{number:02}"))
            sizes.append((await list_all(served, f"{turn:x}-")).ByteSize())
        assert sizes == list(range(65_540, 65_529, -1))


class TestMetadata:
    # gRPC's defaults are the same limits. With times 4 only the server's own settings can apply.
    @pytest.mark.parametrize("times", [1, 4])
    async def test_up_to_8_kb_is_accepted_and_over_16_kb_is_not(
        self, monkeypatch: pytest.MonkeyPatch, transport: str, times: int
    ) -> None:
        """Metadata of up to 8 kB is always accepted, and of more than 16 kB never."""
        for name in ("MAX_METADATA_BYTES", "LARGEST_METADATA_BYTES"):
            monkeypatch.setattr(transports, name, getattr(transports, name) * times)
        async with serving(transport) as served:
            # gRPC's own headers count, too. native rejects no call at random.
            accepted = 15 * KB if transport == "native" else 7 * KB
            assert await allocate_many(served, accepted * times) == {grpc.StatusCode.OK}
            assert await allocate_many(served, 16 * KB * times) <= REFUSALS[transport]
            assert await allocate_many(served, 0) == {grpc.StatusCode.OK}


class TestCallsOfAConnection:
    async def test_limit_is_announced(self, served: Served) -> None:
        """A connection may have 100 open calls, as the documented limits say."""
        announced = (await asyncio.to_thread(announced_settings, served.address))[MAX_CONCURRENT_STREAMS]
        assert announced == 100

    async def test_more_callers_than_the_limit_are_served(self, served: Served) -> None:
        """Callers of one connection are never refused, also when more call than the limit."""
        codes = await asyncio.gather(
            *(allocate_in_turn(served) for _ in range(3 * transports.MAX_STREAMS_PER_CONNECTION))
        )
        assert set(codes) == {grpc.StatusCode.OK}

    @pytest.mark.parametrize("kind", ["rejected_calls", "resets_of_calls"])
    async def test_flood_delays_other_connections_by_its_limit_only(
        self, secured: Served, transport: str, kind: str
    ) -> None:
        """A flood has no more calls ahead of another connection than its limit of open calls."""
        method = secured.metrics.method("/idalloc.v1.IdAllocatorService/AllocateRange")
        mine = bearer("allocate")
        await secured.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), metadata=mine)  # is connected
        began = method.started
        batches = itertools.islice(FLOODS[kind], 40)
        with http2.connect(secured.address, 2**31 - 1) as connection:
            # This blocks the event loop, so the server has read all calls before it starts one.
            connection.sendall(b"".join(batches) + http2.frame(http2.PING, 0, 0, bytes(8)))
            read_until_ping_ack(connection)
            await secured.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), metadata=mine, timeout=30)
        beside = transports.MAX_ENDED_STREAMS if transport == "grpcio" else 0
        assert method.started - began - 1 <= transports.MAX_STREAMS_PER_CONNECTION + beside + 1


def read_until_ping_ack(connection: socket.socket) -> None:
    """Read until the server acknowledges a ping or close: it has then read all earlier frames."""
    try:
        while True:
            kind, flags, *_ = http2.read_frame(connection)
            if kind == http2.PING and flags & http2.ACK:
                return
    except ConnectionError:
        return


def announced_settings(address: str) -> dict[int, int]:
    """Return the HTTP/2 settings that a server announces."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(http2.PREFACE + http2.settings(0))
        kind, _, _, payload = http2.read_frame(connection)
    assert kind == http2.SETTINGS
    return dict(struct.iter_unpack(">HI", payload))


class TestResets:
    @pytest.mark.parametrize("transport", ["native"])
    @pytest.mark.parametrize(("calls", "closes"), [(20, False), (21, True)])
    async def test_native_closes_after_many_unbegun_resets(self, served: Served, calls: int, closes: bool) -> None:
        """native closes a connection with more than 20 calls that are reset before they begin."""
        kind, reason = await asyncio.to_thread(reset_at_once, served.address, calls)
        assert kind == (http2.GOAWAY if closes else http2.PING)
        assert reason.endswith(b"too_many_resets") == closes
        assert await allocate(served, pb.AllocateRangeRequest(sequence="orders")) == grpc.StatusCode.OK

    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_grpcio_tolerates_many_resets(self, served: Served) -> None:
        """grpcio keeps a connection whose calls are reset before they begin."""
        assert (await asyncio.to_thread(reset_at_once, served.address, 100))[0] == http2.PING


def reset_at_once(address: str, calls: int) -> tuple[int, bytes]:
    """Open and reset calls in one write; return the frame that shows what the server did."""
    with http2.connect(address) as connection:
        cancel = struct.pack(">I", CANCEL)
        streams = range(1, 2 * calls, 2)
        frames = [
            http2.headers(each, "AllocateRange") + http2.frame(http2.RST_STREAM, 0, each, cancel) for each in streams
        ]
        connection.sendall(b"".join(frames) + http2.frame(http2.PING, 0, 0, bytes(8)))
        while True:
            kind, flags, _, payload = http2.read_frame(connection)
            if kind == http2.GOAWAY or (kind == http2.PING and flags & http2.ACK):
                return kind, payload


class TestConnections:
    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_silent_ones_end_after_handshake_seconds(
        self, monkeypatch: pytest.MonkeyPatch, transport: str
    ) -> None:
        """A connection without HTTP/2's first frame ends after HANDSHAKE_SECONDS, not 2 minutes."""
        monkeypatch.setattr(transports, "HANDSHAKE_SECONDS", 0.1)
        async with serving(transport) as served:
            host, _, port = served.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            async with asyncio.timeout(20):
                while await reader.read(4096):
                    pass  # the server's own settings
            writer.close()
            assert await allocate(served, pb.AllocateRangeRequest(sequence="orders")) == grpc.StatusCode.OK


class TestPings:
    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_too_frequent_pings_close_the_connection(self, served: Served) -> None:
        """A connection whose pings come too often is closed with too_many_pings."""
        *_, (kind, reason) = await asyncio.to_thread(lambda: list(send_pings(served.address)))
        assert kind == http2.GOAWAY
        assert reason.endswith(b"too_many_pings")

    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_pings_within_the_limit_are_answered(self, monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
        """Pings within MIN_PING_SECONDS are answered while a stream is open."""
        monkeypatch.setattr(transports, "MIN_PING_SECONDS", 0)  # instead of waiting for 20 seconds, again and again
        async with serving(transport) as served:
            answers = await asyncio.to_thread(lambda: list(send_pings(served.address)))
        assert [kind for kind, _ in answers] == [http2.PING] * MANY_PINGS

    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_pings_without_calls_close_the_connection(
        self, monkeypatch: pytest.MonkeyPatch, transport: str
    ) -> None:
        """Frequent pings on a connection without calls close it, for any MIN_PING_SECONDS."""
        monkeypatch.setattr(transports, "MIN_PING_SECONDS", 0)
        async with serving(transport) as served:
            *_, (kind, _) = await asyncio.to_thread(lambda: list(send_pings(served.address, idle=True)))
        assert kind == http2.GOAWAY

    @pytest.mark.parametrize("transport", ["native"])
    async def test_native_answers_all_pings(self, served: Served) -> None:
        """native answers all pings."""
        answers = await asyncio.to_thread(lambda: list(send_pings(served.address)))
        assert [kind for kind, _ in answers] == [http2.PING] * MANY_PINGS


def send_pings(address: str, *, idle: bool = False) -> Iterator[tuple[int, bytes]]:
    """Send MANY_PINGS pings, and yield the frame that answers each, until a GOAWAY.

    Args:
        address: The server's address.
        idle: Whether no stream is open meanwhile: gRPC then accepts only a few pings.
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
