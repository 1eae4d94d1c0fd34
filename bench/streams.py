"""AllocateStream beside unary calls and beside a no-op echo: part of `make load`.

Each stream has one request in flight, as each caller of unary calls has: a round trip an id range.
The client is grpc.aio, which uses more CPU than the servers. So the CPU time of a server's request
says more than the requests a second.
"""

import asyncio
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import grpc
import uvloop

import idalloc.aio
from bench.servers import Server, running
from bench.turns import percentile
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

CONNECTIONS = 4
STREAMS = (1, 8, 64)
# Unary callers whose latency is measured, the streams or callers beside them, and the requests a
# second of these.
_BESIDE = 8
_RATE = 1_000

Ask = Callable[[], Awaitable[Any]]


class Figure(NamedTuple):
    """A figure with its target."""

    name: str
    value: float
    target: float
    most: bool = False  # whether the target is a maximum


class Turn(NamedTuple):
    """The result of one turn."""

    rate: float  # requests a second
    cost: float  # the server's CPU seconds a request


def measure_streams(server: Server, noop: Server, rounds: int, requests: int) -> list[Figure]:
    """Compare requests over streams with unary calls and with a no-op echo; print the rates.

    Args:
        server: A whole server.
        noop: A server that answers each request with a constant, on the same transport.
        rounds: How often each takes its turn; one more turn is discarded.
        requests: The requests of a turn.

    """
    contenders = {"stream": (server, _open_stream), "echo": (noop, _open_stream), "unary": (server, _open_unary)}
    figures: list[Figure] = []
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
    figures += _measure_beside(server, rounds, requests)
    return figures + _measure_client(server, rounds, requests)


def _ratios(turns: Mapping[str, list[Turn]], streams: int) -> list[Figure]:
    def ratio(above: str, below: str, of: Callable[[Turn], float]) -> float:
        return statistics.median(of(a) / of(b) for a, b in zip(turns[above], turns[below], strict=True))

    figures = [
        Figure(f"{streams} streams: requests/s / echo's", ratio("stream", "echo", lambda turn: turn.rate), 0.85),
        Figure(f"{streams} streams: echo's CPU / ours", ratio("echo", "stream", lambda turn: turn.cost), 0.85),
    ]
    if streams == _BESIDE:
        rates = ratio("stream", "unary", lambda turn: turn.rate)
        figures.append(Figure(f"{streams} streams: requests/s / unary", rates, 1.8))
    return figures


async def _take_turn(
    server: Server, opened: Callable[[Any, AsyncExitStack], Awaitable[Ask]], callers: int, requests: int
) -> Turn:
    async with AsyncExitStack() as stack:
        asks = await _open(server.address, opened, callers, stack)
        cpu, began = server.cpu_seconds, time.perf_counter()
        await asyncio.gather(*(_repeat(ask, requests // callers) for ask in asks))
        seconds = time.perf_counter() - began
        done = requests // callers * callers
        return Turn(done / seconds, (server.cpu_seconds - cpu) / done)


async def _open(
    address: str, opened: Callable[[Any, AsyncExitStack], Awaitable[Ask]], callers: int, stack: AsyncExitStack
) -> list[Ask]:
    """Return a function for each caller that makes one request; its first one is made already."""
    stubs = []
    for _ in range(min(CONNECTIONS, callers)):
        channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
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


def _measure_beside(server: Server, rounds: int, requests: int) -> list[Figure]:
    """Compare the p99 of unary callers beside a steady load of streams with that of others.

    The load is of a process of its own, and has the same requests a second from streams as from
    unary callers.
    """
    ratios: dict[str, list[float]] = {"alone": [], "unary": []}
    for _ in range(rounds):
        p99 = {"alone": uvloop.run(_unary_p99(server, requests))}
        for kind in _KINDS:
            with running("bench.streams", kind, server.address):
                p99[kind] = uvloop.run(_unary_p99(server, requests))
        for other, found in ratios.items():
            found.append(p99["stream"] / p99[other])
    name = f"p99 of {_BESIDE} unary callers, beside {_RATE:,} requests/s of streams /"
    return [
        Figure(f"{name} {other}", statistics.median(found), 1.3, most=True)
        for other, found in (("alone", ratios["alone"]), ("of unary calls", ratios["unary"]))
    ]


async def _unary_p99(server: Server, requests: int) -> float:
    latencies: list[float] = []

    async def call_in_turn(ask: Ask) -> None:
        for _ in range(requests // _BESIDE):
            before = time.perf_counter()
            await ask()
            latencies.append(time.perf_counter() - before)

    async with AsyncExitStack() as stack:
        await asyncio.gather(*map(call_in_turn, await _open(server.address, _open_unary, _BESIDE, stack)))
    return percentile(latencies, 99) or math.nan


async def _load(kind: str, address: str) -> None:
    """Make requests until the process is stopped."""

    async def repeat(ask: Ask, start: float) -> None:
        for n in itertools.count():
            await asyncio.sleep(start + n * _BESIDE / _RATE - time.perf_counter())
            await ask()

    async with AsyncExitStack() as stack:
        asks = await _open(address, _KINDS[kind], _BESIDE, stack)
        print(json.dumps({"address": address}), flush=True)
        now = time.perf_counter()
        await asyncio.gather(*(repeat(ask, now + n / _RATE) for n, ask in enumerate(asks)))


_KINDS = {"stream": _open_stream, "unary": _open_unary}


def _measure_client(server: Server, rounds: int, requests: int) -> list[Figure]:
    """Compare the asyncio client's calls for one id, coalesced, over a stream and unary."""
    figures: list[Figure] = []
    for callers in STREAMS:
        ratios = []
        for _ in range(rounds):
            stream, unary = (
                uvloop.run(_client_rate(server, callers, requests, pause=pause)) for pause in (0.0, math.inf)
            )
            ratios.append(stream / unary)
        name = f"asyncio client, {callers} callers: calls/s over a stream / unary"
        figures.append(Figure(name, statistics.median(ratios), 1.0))
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


if __name__ == "__main__":
    uvloop.run(_load(*sys.argv[1:]))
