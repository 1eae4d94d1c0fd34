"""Contenders that use the Python client in this process, and the memory of idle streams."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

import grpc

import idalloc
import idalloc.aio
from bench.drivers import in_threads, loop
from bench.servers import Server
from bench.turns import Turn, percentile
from idalloc._core.calls import allocate_range
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

AT_ONCE = 1_000
IDLE_STREAMS = 1_000
# Native allows 100 streams on a connection; one is open before these.
_STREAMS_A_CONNECTION = 90
_DOC_IDS = 1_000_000


def ids(client: idalloc.Client, threads: int = 1) -> Callable[[float], Turn]:
    """Take ids one by one with ``ids()``, one iterator per thread."""
    every = [client.ids("sdk") for _ in range(threads)]
    takes = [lambda one=one: sum(1 for _ in islice(one, 10_000)) for one in every]
    return lambda seconds: in_threads(takes, seconds, 0)  # type: ignore[arg-type]


def ranges(client: idalloc.Client, threads: int) -> Callable[[float], Turn]:
    """Take one id per call, in several threads."""
    takes = [lambda: len(client.allocate_range("sdk"))] * threads
    return lambda seconds: in_threads(takes, seconds)


def doc_ids(client: idalloc.Client) -> Callable[[float], Turn]:
    """Take document ids with ``stream_doc_ids``, which requests runs and formats the texts."""
    return lambda seconds: loop(lambda: sum(map(len, client.stream_doc_ids(_DOC_IDS))), seconds, 0)


def doc_id_texts(address: str) -> Callable[[float], Turn]:
    """Take document ids as texts on the wire, decoded by the generated code."""
    request = pb.StreamDocIdsRequest(total_id_count=_DOC_IDS, view=pb.DOC_ID_VIEW_IDS)

    def turn(seconds: float) -> Turn:
        with grpc.insecure_channel(address) as channel:
            stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            return loop(lambda: sum(len(reply.doc_ids) for reply in stub.StreamDocIds(request)), seconds, 0)

    return turn


def shared_calls(address: str, *, shared: bool) -> Callable[[float], Turn]:
    """Make 1,000 concurrent calls with an asyncio client; it coalesces them if ``shared``."""

    async def drive(seconds: float) -> Turn:
        latencies: list[float] = []
        async with idalloc.aio.Client(address, timeout=30) as client:

            async def alone(sequence: str) -> idalloc.Range:
                return await client._call(allocate_range(sequence, 1))

            take: Callable[[str], Awaitable[idalloc.Range]] = client.allocate_range if shared else alone

            async def timed() -> None:
                before = time.perf_counter()
                await take("asyncio")
                latencies.append(time.perf_counter() - before)

            await take("asyncio")
            cpu, began = time.process_time(), time.perf_counter()
            while time.perf_counter() - began < seconds:
                await asyncio.gather(*(timed() for _ in range(AT_ONCE)))
            elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
        count = len(latencies)
        return Turn(count, count, elapsed, percentile(latencies, 50), percentile(latencies, 99), cpu)

    return lambda seconds: asyncio.run(drive(seconds))


def idle_stream_kb(server: Server) -> float:
    """Return the server memory of a stream whose client does not read, in kB."""
    # With a window of a few bytes one chunk arrives, and the next one waits in the server.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 64), ("grpc.http2.bdp_probe", 0)]
    request = pb.StreamRangesRequest(sequence="idle", total_id_count=10**9, chunk_id_count=1)
    connections = IDLE_STREAMS // _STREAMS_A_CONNECTION

    async def measure() -> float:
        channels = [grpc.aio.insecure_channel(server.address, options=options) for _ in range(connections)]
        stubs = [id_allocator_pb2_grpc.IdAllocatorServiceStub(channel) for channel in channels]

        async def open_stream(number: int) -> Any:
            stream = stubs[number % connections].StreamRanges(request)
            await stream.read()
            return stream

        try:
            warm = [await open_stream(number) for number in range(connections)]
            before = server.resident_mb
            streams = [await open_stream(number) for number in range(IDLE_STREAMS)]
            used = server.resident_mb - before
            for stream in [*warm, *streams]:
                stream.cancel()
            return used * 1e3 / IDLE_STREAMS
        finally:
            for channel in channels:
                await channel.close()

    return asyncio.run(asyncio.wait_for(measure(), 60))
