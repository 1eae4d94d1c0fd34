"""Calls of the client for asyncio over one stream, one at a time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import idalloc
import idalloc.aio
from tests.support.fake_server import FakeServer
from tests.support.waiting import until

STREAM = "AllocateStream"


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[idalloc.aio.Client]:
    async with idalloc.aio.Client(server.target, timeout=20) as client:
        yield client


def requests_over_streams(server: FakeServer) -> int:
    return len(server.requests["AllocateStream of one"])


async def take(client: idalloc.aio.Client, *counts: int) -> list[range]:
    return [(await client.allocate_range("orders", n)).ids for n in counts]


async def test_calls_in_turn_share_one_stream(server: FakeServer, client: idalloc.aio.Client) -> None:
    """Calls that follow each other are requests of one stream."""
    assert await take(client, 1, 2, 3) == [range(1, 2), range(2, 4), range(4, 7)]
    assert (len(server.requests[STREAM]), requests_over_streams(server)) == (1, 3)


async def test_no_call_waits_behind_another_sequence(server: FakeServer, client: idalloc.aio.Client) -> None:
    """P10: a call that waits for its sequence delays no call for another one."""
    server.hold.clear()
    slow = asyncio.ensure_future(client.allocate_range("slow"))
    await until(lambda: requests_over_streams(server) == 1)
    other = asyncio.ensure_future(client.allocate_range("orders"))
    await until(lambda: len(client._coalescer._queues) == 2)
    server.hold.set()
    assert [list(await each) for each in (slow, other)] == [[1], [1]]
    assert requests_over_streams(server) == 1


async def test_a_call_of_a_broken_stream_is_repeated(server: FakeServer, client: idalloc.aio.Client) -> None:
    """A call whose stream ends is a unary call, and the next one opens another stream."""
    server.break_after = 1
    assert await take(client, 1, 2, 3) == [range(1, 2), range(2, 4), range(4, 7)]
    assert (len(server.requests[STREAM]), requests_over_streams(server)) == (2, 2)


async def test_a_server_without_streams_gets_unary_calls(server: FakeServer, client: idalloc.aio.Client) -> None:
    """With an older server all calls are unary, and the stream is not opened again at each call."""
    server.fail_next(STREAM, "", grpc.StatusCode.UNIMPLEMENTED, times=5)
    assert await take(client, 1, 2, 3) == [range(1, 2), range(2, 4), range(4, 7)]
    assert (len(server.requests[STREAM]), requests_over_streams(server)) == (1, 0)
    client._coalescer._stream._paused_until = 0.0
    server._failures[STREAM].clear()
    await take(client, 1)
    assert requests_over_streams(server) == 1


async def test_an_answer_that_comes_too_late_belongs_to_nobody(server: FakeServer) -> None:
    """P1: after a timeout the stream's answer gives its ids to no later call."""
    async with idalloc.aio.Client(server.target, timeout=0.3) as client:
        server.hold.clear()
        with pytest.raises(idalloc.DeadlineExceeded):
            await client.allocate_range("orders", 7)
        server.hold.set()
    async with idalloc.aio.Client(server.target, timeout=20) as client:
        await take(client, 1)
        server.hold.clear()
        cancelled = asyncio.ensure_future(client.allocate_range("orders", 7))
        await until(lambda: requests_over_streams(server) >= 3)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        server.hold.set()
        assert [len(each) for each in await take(client, 2, 3)] == [2, 3]


async def test_a_wrong_number_gives_its_ids_to_nobody(server: FakeServer, client: idalloc.aio.Client) -> None:
    """P1: after an answer under a wrong number the call is repeated as a unary one."""
    server.wrong_number = 1
    assert await take(client, 2) == [range(3, 5)]


async def test_errors_of_a_request_are_those_of_unary_calls(server: FakeServer, client: idalloc.aio.Client) -> None:
    """A lasting error is raised at once; an unavailable store is asked again."""
    server.last["short"] = 3
    with pytest.raises(idalloc.SequenceExhausted) as exhausted:
        await client.allocate_range("short", 5)
    assert exhausted.value.remaining == 3
    server.fail_next("AllocateRange", "QUOTA_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=0.5)
    with pytest.raises(idalloc.QuotaExceeded):
        await client.allocate_range("orders")
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, times=3, retry_after=0.01)
    assert await take(client, 2) == [range(1, 3)]


async def test_a_closed_client_makes_no_call(server: FakeServer) -> None:
    """After close the stream is closed, too."""
    client = idalloc.aio.Client(server.target)
    await take(client, 1)
    await client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        await take(client, 1)


async def test_closing_during_a_repeated_call_ends_it(server: FakeServer) -> None:
    """A unary call that replaces one of a broken stream ends, and close() closes the channel."""
    client = idalloc.aio.Client(server.target)
    server.fail_next(STREAM, "", grpc.StatusCode.UNIMPLEMENTED)
    server.hold.clear()
    running = asyncio.ensure_future(client.allocate_range("orders"))
    await until(lambda: server.authorizations["AllocateRange"], "the unary call arrives")
    channel = client._connection.stubs().channel
    await client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        await asyncio.wait_for(running, 10)
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_closing_between_a_request_and_its_answer(server: FakeServer) -> None:
    """A call whose request was just written when the client closes raises RuntimeError."""
    client = idalloc.aio.Client(server.target)
    rpcs = client._connection.stubs().rpcs
    rpc = rpcs[STREAM]

    async def close_after_one(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        yield await anext(requests)
        await asyncio.create_task(client.close())

    rpcs[STREAM] = lambda requests, metadata: rpc(close_after_one(requests), metadata=metadata)
    with pytest.raises(RuntimeError, match="the client is closed"):
        await take(client, 1)
