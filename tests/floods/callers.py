"""Steady callers of a server and its probes, in a process of their own.

``python -m tests.floods.callers '{"seconds": 20, "token": …, "grpc": "127.0.0.1:50051", "http":
"https://…/", …}'``

Options: ``tls`` (a file with the authority of the server's certificate), ``grpc_tls`` (whether gRPC
has TLS), ``calls_http`` (whether a caller reads the page), ``calls_rid`` (whether one sends request
ids).
After a call of each caller it prints ``ready`` and waits for a line. Then it calls, and prints an
``Observed`` for each caller as JSON.

A call is due at a fixed time, whatever became of the calls before it, and its latency counts from
that time. Some calls are made on a new connection, which must be accepted, too.
"""

import asyncio
import json
import ssl
import sys
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import grpc.aio

from bench.turns import percentile
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc

RATE = 20
# Each such call is made on a new connection.
NEW_EVERY = 4
# How long a call may take, and an answer to a probe: Kubernetes' default.
CALL_SECONDS, PROBE_SECONDS = 5.0, 1.0
PROBES = ("livez", "readyz")

Call = Callable[[bool], Awaitable[None]]


@dataclass
class Observed:
    """What a caller saw."""

    # The seconds of each call from when it was due, also of failed ones.
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)  # the failed calls by reason

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the latencies in milliseconds; 0 without calls."""
        return (percentile(self.latencies, 99) or 0.0) * 1e3

    @property
    def failed(self) -> int:
        """How many calls failed."""
        return sum(self.errors.values())


async def pace(call: Call, rate: float, seconds: float, timeout: float) -> Observed:
    """Make calls at a steady rate, each when it is due.

    Args:
        call: Makes a call; its argument is whether on a new connection.
        rate: Calls a second.
        seconds: For how long.
        timeout: The most seconds of a call.
    """
    loop, seen = asyncio.get_running_loop(), Observed()

    async def make(due: float, is_new: bool) -> None:
        try:
            await asyncio.wait_for(call(is_new), timeout)
        except grpc.aio.AioRpcError as error:
            seen.errors[error.code().name] += 1
        except Exception as error:
            seen.errors[type(error).__name__] += 1
        seen.latencies.append(loop.time() - due)

    began = loop.time()
    async with asyncio.TaskGroup() as calls:
        for turn in range(int(rate * seconds)):
            due = began + turn / rate
            await asyncio.sleep(due - loop.time())
            calls.create_task(make(due, turn % NEW_EVERY == 0))
    return seen


class Callers:
    """The callers of a server, with their lasting connections; for ``async with``."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._tls = ssl.create_default_context(cafile=options["tls"]) if options.get("tls") else None
        self._metadata = [("authorization", f"Bearer {options['token']}")]
        self._stack = AsyncExitStack()
        self.calls: dict[str, Call] = {}

    async def __aenter__(self) -> Self:
        if "grpc" in self._options:
            self._channel = await self._stack.enter_async_context(self._new_channel())
            self.calls["grpc"] = self._call_grpc
        if self._options.get("calls_rid"):
            self.calls["rid"] = lambda is_new: self._allocate(self._channel, str(uuid.uuid4()))
        self._session = await self._stack.enter_async_context(self._new_session())
        if self._options.get("calls_http"):
            self.calls["http"] = self._call_http
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def probe(self, is_new: bool) -> None:
        """Ask for /livez and /readyz, each on a new connection and in time."""
        async with self._new_session() as session:
            for path in PROBES:
                timeout = aiohttp.ClientTimeout(PROBE_SECONDS)
                async with session.get(self._options["http"] + path, timeout=timeout) as answer:
                    answer.raise_for_status()

    def _new_channel(self) -> grpc.aio.Channel:
        own = [("grpc.use_local_subchannel_pool", 1)]
        if not self._options.get("grpc_tls"):
            return grpc.aio.insecure_channel(self._options["grpc"], own)
        trusted = grpc.ssl_channel_credentials(Path(self._options["tls"]).read_bytes())
        return grpc.aio.secure_channel(self._options["grpc"], trusted, own)

    async def _call_grpc(self, is_new: bool) -> None:
        if is_new:
            async with self._new_channel() as channel:
                await self._allocate(channel)
        else:
            await self._allocate(self._channel)

    async def _allocate(self, channel: grpc.aio.Channel, request_id: str = "") -> None:
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        request = pb.AllocateRangeRequest(sequence="steady", request_id=request_id)
        await stub.AllocateRange(request, timeout=CALL_SECONDS, metadata=self._metadata)

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._tls or True)
        return aiohttp.ClientSession(connector=connector, headers=dict(self._metadata))

    async def _call_http(self, is_new: bool) -> None:
        if is_new:
            async with self._new_session() as session:
                await self._get_page(session)
        else:
            await self._get_page(self._session)

    async def _get_page(self, session: aiohttp.ClientSession) -> None:
        async with session.get(self._options["http"]) as answer:
            answer.raise_for_status()
            await answer.read()


async def main(options: dict[str, Any], kind: type[Callers]) -> dict[str, Observed]:
    """Call as the options say; return what each caller saw, and ``probes``."""
    seconds = options["seconds"]
    async with kind(options) as callers:
        for call in callers.calls.values():
            await call(False)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        jobs = {name: pace(call, RATE, seconds, CALL_SECONDS) for name, call in callers.calls.items()}
        # Both probes of a turn; a failed one ends the turn.
        jobs["probes"] = pace(callers.probe, 1, seconds, len(PROBES) * PROBE_SECONDS)
        return dict(zip(jobs, await asyncio.gather(*jobs.values()), strict=True))


def run(kind: type[Callers]) -> None:
    """Run the program with a class of callers."""
    found = asyncio.run(main(json.loads(sys.argv[1]), kind))
    print(json.dumps({name: vars(each) for name, each in found.items()}))


if __name__ == "__main__":
    run(Callers)
