"""Draining under load: each kind of call is answered or refused while a real server stops."""

import asyncio
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.support import http2
from tests.support.processes import running
from tests.support.server_calls import log_events
from tests.support.waiting import hold_for, until

pytestmark = pytest.mark.test_long

CALLERS, CONNECTIONS = 64, 8
STOPPING = (
    grpc.StatusCode.UNAVAILABLE,
    "the server is stopping; try again: another server, or this one after its restart, answers",
)
NO_ERROR = 0
transports = pytest.mark.parametrize("transport", ["grpcio", "native"])


class Load:
    """Concurrent callers that call in a loop without pauses, also after errors."""

    def __init__(self, address: str) -> None:
        self.ended: Counter[tuple[grpc.StatusCode, str]] = Counter()  # completed calls, by status and details
        self._busy = asyncio.Event()
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection per channel
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CONNECTIONS)]
        self._callers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Load":
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        self._callers = [asyncio.create_task(self._call(self._channels[n % CONNECTIONS])) for n in range(CALLERS)]
        await self._busy.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def _call(self, channel: grpc.aio.Channel) -> None:
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        while True:
            try:
                await stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=30)
                self.ended[grpc.StatusCode.OK, ""] += 1
                if self.ended.total() > 10 * CALLERS:
                    self._busy.set()
            except grpc.aio.AioRpcError as error:
                self.ended[error.code(), str(error.details())] += 1


async def ended(process: "subprocess.Popen[str]") -> int:
    return await asyncio.to_thread(process.wait, 30)


@transports
@pytest.mark.parametrize("workers", [1, 2])
async def test_64_calls_in_flight_are_served_or_refused(tmp_path: Path, transport: str, workers: int) -> None:
    """During a drain each call is answered or refused with UNAVAILABLE, and none is cancelled."""
    with running(tmp_path, transport=transport, workers=workers) as server:
        async with Load(server.address) as load:
            server.send(signal.SIGTERM)
            assert await ended(server.process) == 0
    assert {code for code, _ in load.ended} == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    assert [text for _, text in load.ended if "Cancelling" in text] == []


@transports
async def test_callers_of_a_draining_worker_are_not_cancelled(tmp_path: Path, transport: str) -> None:
    """A worker that drains alone refuses calls with UNAVAILABLE, and cancels none."""
    with running(tmp_path, transport=transport, workers=2) as server:
        async with Load(server.address) as load:
            os.kill(log_events(server, "worker_started")[0]["pid"], signal.SIGTERM)
            await until(lambda: len(log_events(server, "worker_started")) == 3)
    assert {code for code, _ in load.ended} <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


async def test_a_call_is_refused_before_its_deadline(tmp_path: Path) -> None:
    """During a drain a new call is refused before its deadline."""
    with running(tmp_path) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            health: Any = health_pb2_grpc.HealthStub(channel)
            # Nobody reads the stream, so it stays open.
            stream = stub.StreamRanges(pb.StreamRangesRequest(sequence="a", total_id_count=10**6, chunk_id_count=1))
            await stream.read()
            watch = health.Watch(health_pb2.HealthCheckRequest())
            await watch.read()
            server.send(signal.SIGTERM)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=0.6)
            assert (failed.value.code(), failed.value.details()) == STOPPING
            stream.cancel()


def replies(connection: socket.socket) -> Iterator[bytes]:
    """Yield GOAWAY and DATA frames until the connection ends; answer pings after the last reply."""
    pings, at_end = [], False
    with suppress(ConnectionError):
        while True:
            kind, flags, _, payload = http2.read_frame(connection)
            if kind == http2.PING and not flags & http2.ACK:
                pings.append(payload)
            at_end |= kind == http2.HEADERS and bool(flags & http2.END_STREAM)
            if kind in (http2.DATA, http2.GOAWAY):
                yield bytes([kind]) + payload
            while at_end and pings:
                hold_for(0.5, "a server that does not wait closes the connection")
                connection.sendall(http2.frame(http2.PING, http2.ACK, 0, pings.pop()))
    assert at_end


def messages_in(data: bytes) -> int:
    """Count length-prefixed gRPC messages."""
    count = 0
    while data:
        data = data[5 + int.from_bytes(data[1:5], "big") :]
        count += 1
    return count


@transports
def test_a_slow_client_gets_all_replies_before_goaway(tmp_path: Path, transport: str) -> None:
    """A draining connection closes without an error after its client has read the last reply."""
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=300, chunk_id_count=1)
    with running(tmp_path, transport=transport) as server, http2.connect(server.address) as connection:
        connection.sendall(http2.headers(1, "StreamRanges") + http2.message(1, request.SerializeToString()))
        coming = replies(connection)
        received = [next(coming)]
        server.send(signal.SIGTERM)
        received += coming
        assert server.process.wait(30) == 0
    assert messages_in(b"".join(each[1:] for each in received if each[0] == http2.DATA)) == 300
    errors = [int.from_bytes(each[5:9], "big") for each in received if each[0] == http2.GOAWAY]
    assert set(errors) <= {NO_ERROR}


@transports
def test_unread_answers_delay_no_stop(tmp_path: Path, transport: str) -> None:
    """A client that reads no answers of AllocateStream delays a stop by drain_timeout at most."""
    texts = pb.AllocateRangeRequest(sequence="orders", id_count=10_000, view=pb.RANGE_VIEW_TEXTS)
    request = pb.AllocateStreamRequest(allocate_range=texts).SerializeToString()
    with (
        running(tmp_path, transport=transport, drain_timeout="2s") as server,
        http2.connect(server.address, window=0) as connection,
    ):
        requests = [http2.message(1, request, is_last=False)] * 400
        connection.sendall(http2.headers(1, "AllocateStream") + b"".join(requests))
        while http2.read_frame(connection)[0] != http2.HEADERS:
            pass
        hold_for(0.5, "the server answers until its buffers are full")
        server.send(signal.SIGTERM)
        assert server.process.wait(30) == 0
    [draining], [stopped] = log_events(server, "draining"), log_events(server, "stopped")
    times = [datetime.fromisoformat(each["timestamp"]) for each in (draining, stopped)]
    assert 1 < (times[1] - times[0]).total_seconds() < 4
    assert stopped["burned"]["cancelled"] >= 10_000, "no answer waited"


@transports
async def test_open_ended_streams_are_refused_after_a_drain(tmp_path: Path, transport: str) -> None:
    """Health watches and reflection streams end with UNAVAILABLE at the end of a drain."""

    async def questions() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        await asyncio.Event().wait()

    with running(tmp_path, transport=transport) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
            streams = [health.Watch(health_pb2.HealthCheckRequest()), reflection.ServerReflectionInfo(questions())]
            for stream in streams:
                await stream.read()
            server.send(signal.SIGTERM)
            assert (await streams[0].read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            for stream in streams:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await stream.read()
                assert (failed.value.code(), failed.value.details()) == STOPPING
            assert await ended(server.process) == 0
