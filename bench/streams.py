"""AllocateStream beside unary calls and beside a no-op echo: part of `make load`.

Each stream has one request in flight, as each caller of unary calls has: a round trip an id range.
The client is grpc.aio, which uses more CPU than the servers. So the CPU time of a server's request
says more than the requests a second.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import grpc
import uvloop

import idalloc.aio
from bench.servers import Server
from bench.turns import percentile
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

CONNECTIONS = 4
STREAMS = (1, 8, 64)
# The streams, and the unary callers beside them, whose latency is compared.
_BESIDE = 8

Ask = Callable[[], Awaitable[Any]]


class Turn(NamedTuple):
    """The result of one turn."""

    rate: float  # requests a second
    cost: float  # the server's CPU seconds a request


def measure_streams(server: Server, noop: Server, rounds: int, requests: int) -> list[tuple[str, float, float, bool]]:
    """Compare requests over streams with unary calls and with a no-op echo; print the rates.

    Args:
        server: A whole server.
        noop: A server that answers each request with a constant, on the same transport.
        rounds: How often each takes its turn; one more turn is discarded.
        requests: The requests of a turn.

    Returns:
        For each figure with a target: its name, its value, the target, and whether that is a
        maximum.
    """
    contenders = {"stream": (server, _open_stream), "echo": (noop, _open_stream), "unary": (server, _open_unary)}
    figures = []
    for streams in STREAMS:
        turns: dict[str, list[Turn]] = {name: [] for name in contenders}
        for turn in range(rounds + 1):
            for name, (one, opened) in contenders.items():
                result = uvloop.run(_take_turn(one, opened, streams, requests))
                if turn:
                    turns[name].append(result)
        print(f"AllocateStream, {streams} streams with one request in flight each, driven by grpc.aio:")
        for name, results in turns.items():
            rate, cost = (statistics.median(values) for values in zip(*results, strict=True))
            print(f"  {name:12} {rate:8,.0f} requests/s  {cost * 1e6:5.0f} us of CPU a request")
        figures += _ratios(turns, streams)
    figures.append(_measure_beside(server, rounds, requests))
    return figures + _measure_client(server, rounds, requests)


def _ratios(turns: Mapping[str, list[Turn]], streams: int) -> list[tuple[str, float, float, bool]]:
    def ratio(above: str, below: str, of: Callable[[Turn], float]) -> float:
        return statistics.median(of(a) / of(b) for a, b in zip(turns[above], turns[below], strict=True))

    figures = [
        (f"{streams} streams: requests/s / echo's", ratio("stream", "echo", lambda turn: turn.rate), 0.85, False),
        (f"{streams} streams: echo's CPU / ours", ratio("echo", "stream", lambda turn: turn.cost), 0.85, False),
    ]
    if streams == _BESIDE:
        figures.append(
            (f"{streams} streams: requests/s / unary", ratio("stream", "unary", lambda t: t.rate), 1.8, False)
        )
    return figures


async def _take_turn(
    server: Server, opened: Callable[[Any, AsyncExitStack], Awaitable[Ask]], callers: int, requests: int
) -> Turn:
    async with AsyncExitStack() as stack:
        asks = await _open(server, opened, callers, stack)
        cpu, began = server.cpu_seconds, time.perf_counter()
        await asyncio.gather(*(_repeat(ask, requests // callers) for ask in asks))
        seconds = time.perf_counter() - began
        done = requests // callers * callers
        return Turn(done / seconds, (server.cpu_seconds - cpu) / done)


async def _open(
    server: Server, opened: Callable[[Any, AsyncExitStack], Awaitable[Ask]], callers: int, stack: AsyncExitStack
) -> list[Ask]:
    """Return a function for each caller that makes one request; its first one is made already."""
    stubs = []
    for _ in range(min(CONNECTIONS, callers)):
        channel = grpc.aio.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
        stubs.append(id_allocator_pb2_grpc.IdAllocatorServiceStub(await stack.enter_async_context(channel)))
    asks = [await opened(stubs[n % len(stubs)], stack) for n in range(callers)]
    await asyncio.gather(*(ask() for ask in asks))
    return asks


async def _open_stream(stub: Any, stack: AsyncExitStack) -> Ask:
    call = stub.AllocateStream()
    stack.callback(call.cancel)
    request = pb.AllocateStreamRequest(number=1, allocate_range=pb.AllocateRangeRequest(sequence="load"))

    async def ask() -> None:
        await call.write(request)
        answer = await call.read()
        assert answer.allocate_range.range.id_count == 1, answer

    return ask


async def _open_unary(stub: Any, stack: AsyncExitStack) -> Ask:
    request = pb.AllocateRangeRequest(sequence="load")

    async def ask() -> None:
        reply = await stub.AllocateRange(request)
        assert reply.range.id_count == 1, reply

    return ask


async def _repeat(ask: Ask, times: int) -> None:
    for _ in range(times):
        await ask()


def _measure_beside(server: Server, rounds: int, requests: int) -> tuple[str, float, float, bool]:
    """Compare the p99 of unary callers beside streams, and beside as many unary callers."""
    ratios = []
    for _ in range(rounds):
        streams, unary = (uvloop.run(_p99_beside(server, opened, requests)) for opened in (_open_stream, _open_unary))
        ratios.append(streams / unary)
    return f"p99 of {_BESIDE} unary callers beside {_BESIDE} streams / unary", statistics.median(ratios), 1.3, True


async def _p99_beside(server: Server, opened: Any, requests: int) -> float:
    latencies: list[float] = []
    async with AsyncExitStack() as stack:
        others = [asyncio.ensure_future(_repeat(ask, requests)) for ask in await _open(server, opened, _BESIDE, stack)]

        async def call_in_turn(ask: Ask) -> None:
            for _ in range(requests // _BESIDE):
                before = time.perf_counter()
                await ask()
                latencies.append(time.perf_counter() - before)

        await asyncio.gather(*map(call_in_turn, await _open(server, _open_unary, _BESIDE, stack)))
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return percentile(latencies, 99) or math.nan


def _measure_client(server: Server, rounds: int, requests: int) -> list[tuple[str, float, float, bool]]:
    """Compare the asyncio client's calls for one id, coalesced, over a stream and unary."""
    figures = []
    for callers in STREAMS:
        ratios = []
        for _ in range(rounds):
            stream, unary = (
                uvloop.run(_client_rate(server, callers, requests, pause=pause)) for pause in (0.0, math.inf)
            )
            ratios.append(stream / unary)
        name = f"asyncio client, {callers} callers: calls/s over a stream / unary"
        figures.append((name, statistics.median(ratios), 1.0, False))
    return figures


async def _client_rate(server: Server, callers: int, requests: int, *, pause: float) -> float:
    async with idalloc.aio.Client(server.address) as client:
        client._coalescer._stream._paused_until = pause  # unary calls until then

        async def ask() -> None:
            await client.allocate_range("load")

        await ask()
        began = time.perf_counter()
        await asyncio.gather(*(_repeat(ask, requests // callers) for _ in range(callers)))
        return requests // callers * callers / (time.perf_counter() - began)
