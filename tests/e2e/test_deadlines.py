"""Callers with short deadlines beside a steady caller, on real servers."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from idalloc.aio import Client
from tests.e2e.test_http import LOOPBACK, get
from tests.rpc.test_deadlines import CALLS_OF, Stubs
from tests.support.processes import Server, locked, running_beside
from tests.support.waiting import hold_for_async

pytestmark = [pytest.mark.test_long, pytest.mark.timeout(240)]

CALLS_PER_SECOND = 45
DEADLINE = 0.05
SECONDS = 1


def outcome_of(reply: object) -> str:
    """Return a call's status; of a batch, that of its only request."""
    if isinstance(reply, BaseException):
        assert isinstance(reply, grpc.aio.AioRpcError), reply
        return reply.code().name
    results = getattr(reply, "results", [])
    return "UNAVAILABLE" if any(each.HasField("error") for each in results) else "OK"


async def call_at_rate(stubs: Stubs, rpc: str, sequence: str) -> Counter[str]:
    """Call an RPC 45 times in a second, each on a sequence without a lease; return the outcomes."""
    began, calls = time.monotonic(), []
    for number in range(CALLS_PER_SECOND * SECONDS):
        due = began + number / CALLS_PER_SECOND
        await hold_for_async(due - time.monotonic(), "the rate of calls")
        calls.append(asyncio.ensure_future(CALLS_OF[rpc](stubs, f"{sequence}-{number}", DEADLINE)))
    return Counter(map(outcome_of, await asyncio.gather(*calls, return_exceptions=True)))


@asynccontextmanager
async def watched(server: Server) -> AsyncIterator[list[str]]:
    """Watch the health, and allocate steadily; yield what went wrong."""
    problems: list[str] = []

    async def watch() -> None:
        while True:
            for path, expected in (("readyz", "ok\n"), ("metrics", "\nidalloc_store_up 1.0\n")):
                status, text = await asyncio.to_thread(get, server, path)
                if status != 200 or expected not in text:
                    problems.append(f"{path}: {status} {text if path == 'readyz' else 'idalloc_store_up'}")
            await hold_for_async(0.2, "the health is evaluated once a second")

    async def allocate() -> None:
        async with Client(server.address, timeout=10) as client:
            while True:
                await client.allocate_range("steady", 1)
                await hold_for_async(0.01, "the rate of the steady caller")

    tasks = [asyncio.create_task(watch()), asyncio.create_task(allocate())]
    await hold_for_async(2.5, "the rate that a reserve needs")
    yield problems
    await hold_for_async(2.5, "two evaluations of the health")
    for task in tasks:
        assert not task.done(), task.exception()
        task.cancel()


@pytest.mark.parametrize("transport", ["grpcio", "native"])
async def test_short_deadlines_on_a_real_server(tmp_path: Path, transport: str) -> None:
    """45 calls of 50 ms a second get their replies, or leave health alone if the store is late."""
    async with (
        running_beside(tmp_path, transport=transport, http_listen=LOOPBACK) as server,
        grpc.aio.insecure_channel(server.address) as channel,
        watched(server) as problems,
    ):
        stubs = Stubs(channel)
        async with Client(server.address) as client:
            for rpc in ("GetSequence", "UpdateSequence", "DeleteSequence", "AdvanceSequence", "ParseId"):
                for number in range(CALLS_PER_SECOND * SECONDS):
                    await client.allocate_range(f"{rpc}-{number}", 1)
        for rpc in CALLS_OF:
            outcomes = await call_at_rate(stubs, rpc, rpc)
            print(transport, rpc, dict(outcomes))
            # All, unless a busy disk delays the store; a request_id waits for three commits.
            assert outcomes["OK"] > outcomes.total() / 5, (rpc, outcomes)
        slow: Counter[str] = Counter()
        for rpc in CALLS_OF:
            with locked(tmp_path / "ids.db"):  # no write ends meanwhile
                slow += await call_at_rate(stubs, rpc, f"slow-{rpc}")
            # SQLite answers with an error if it finds the file locked for 5 s.
            await CALLS_OF["AllocateRange"](stubs, f"after-{rpc}", 10)
        print(transport, "slow", dict(slow))
        assert slow["DEADLINE_EXCEEDED"] > CALLS_PER_SECOND
        assert slow["UNAVAILABLE"] > CALLS_PER_SECOND // 2  # of batches
        assert not problems
