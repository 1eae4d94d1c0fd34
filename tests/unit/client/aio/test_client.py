"""The client for asyncio, with a fake server."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import pytest

import idalloc
from idalloc._sync import sequences
from idalloc.aio import _sequences
from tests.support.fake_server import FakeServer
from tests.support.logged import lines_of
from tests.support.waiting import hold_for_async, settle, until


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[idalloc.aio.Client]:
    async with idalloc.aio.Client(server.target) as client:
        yield client


async def take(ids: idalloc.aio.Ids, n: int) -> list[int]:
    return [await anext(ids) for _ in range(n)]


def test_both_clients_have_the_same_methods() -> None:
    """Both clients have the same public methods and parameters."""

    def methods(kind: type) -> dict[str, list[inspect.Parameter]]:
        public = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_") and name != "dropped_ids"}
        signatures = {name: inspect.signature(member) for name, member in public.items()}
        return {name: list(signature.parameters.values()) for name, signature in signatures.items()}

    assert methods(idalloc.Client) == methods(idalloc.aio.Client)
    assert {"allocate_range", "close"} <= methods(idalloc.Client).keys()
    assert methods(idalloc.AllocateStream) == methods(idalloc.aio.AllocateStream)
    assert methods(sequences.Sequences) == methods(_sequences.Sequences)


async def test_each_method_returns_its_ids(client: idalloc.aio.Client) -> None:
    """Each method of the asyncio client returns the server's ids."""
    assert (await client.allocate_range("orders", 5)).ids == range(1, 6)
    assert await client.doc_ids(2) == ["00076553f1000000000000000001", "00076553f1000000000000000002"]
    assert (await client.node()).prefix == 7
    assert [each.ids async for each in client.stream_ranges("others", 5, 2)] == [range(1, 3), range(3, 5), range(5, 6)]
    assert [len(ids) async for ids in client.stream_doc_ids(25, 10)] == [10, 10, 5]


async def test_errors_are_translated(server: FakeServer, client: idalloc.aio.Client) -> None:
    """gRPC's errors are raised as the client's exceptions, and invalid arguments as ValueError."""
    server.fail_next("AllocateRange", "SEQUENCE_NOT_FOUND", grpc.StatusCode.NOT_FOUND, sequence="nope")
    with pytest.raises(idalloc.SequenceNotFound) as caught:
        await client.allocate_range("nope")
    assert caught.value.metadata == {"sequence": "nope"}
    with pytest.raises(ValueError, match="at least 1"):
        client.stream_ranges("orders", 0)


async def test_unavailable_is_retried(server: FakeServer, client: idalloc.aio.Client) -> None:
    """A call that fails with UNAVAILABLE is retried within its timeout."""
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, times=2)
    assert (await client.allocate_range("orders", 5)).ids == range(1, 6)
    assert len(server.requests["AllocateRange"]) == 3


async def test_calls_cancelled_by_a_draining_server_are_retried(server: FakeServer, client: idalloc.aio.Client) -> None:
    """A call and a stream that a draining server has not begun are sent again."""
    for method in ("AllocateStream", "AllocateRange", "StreamRanges"):
        server.fail_next(method, "", grpc.StatusCode.CANCELLED, times=2)
    assert (await client.allocate_range("orders", 5)).ids == range(1, 6)
    assert [each.ids async for each in client.stream_ranges("orders", 5)] == [range(6, 11)]


async def test_a_broken_stream_requests_the_missing_ids(server: FakeServer, client: idalloc.aio.Client) -> None:
    """P1: a broken stream requests only the missing ids, and yields no id twice."""
    server.break_after = 2
    ranges = [each.ids async for each in client.stream_ranges("orders", 50, 10)]
    assert ranges == [range(first, first + 10) for first in range(1, 51, 10)]
    assert [request.total_id_count for request in server.requests["StreamRanges"]] == [50, 30]


async def test_closing_a_stream_cancels_it_on_the_server(server: FakeServer, client: idalloc.aio.Client) -> None:
    """Closing a stream's iterator cancels the call on the server."""
    stream = client.stream_ranges("orders", 10**9, 1)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    taken = -1
    async with asyncio.timeout(60):
        while taken != (taken := (await client.allocate_range("orders")).first_id) - 1:
            await hold_for_async(0.02, "the server may continue the stream")


async def test_calls_end_at_their_timeout(server: FakeServer) -> None:
    """A call and ids() raise DeadlineExceeded at the timeout."""
    server.hold.clear()
    async with idalloc.aio.Client(server.target, timeout=0.2) as client:
        with pytest.raises(idalloc.DeadlineExceeded):
            await client.allocate_range("orders")
        with pytest.raises(idalloc.DeadlineExceeded):
            await anext(client.ids("orders"))


async def test_ids_prefetches_so_that_most_ids_cost_no_call(server: FakeServer, client: idalloc.aio.Client) -> None:
    """ids() returns all ids in order, in few calls."""
    taken = []
    async for value in client.ids("orders"):
        taken.append(value)
        if len(taken) == 10_000:
            break
    assert taken == list(range(1, 10_001))
    assert len(server.requests["AllocateRange"]) < 20


async def test_tasks_can_share_ids(client: idalloc.aio.Client) -> None:
    """P1: tasks that share one Ids get each id once and in ascending order."""
    ids = client.ids("orders")
    runs = await asyncio.gather(*(take(ids, 500) for _ in range(50)))
    assert all(run == sorted(run) for run in runs)
    assert sorted(value for run in runs for value in run) == list(range(1, 25_001))


def open_attempts(ids: Any) -> list[Any]:
    return ids._refills.current.attempts.open if ids._refills.current else []


async def test_expired_ids_are_discarded(server: FakeServer, client: idalloc.aio.Client) -> None:
    """P4: prefetched ids that are older than their ttl are not returned."""
    server.ttl = 0.3
    ids = client.ids("orders")
    taken = await take(ids, 100)
    await until(lambda: all(each.has_ended for each in open_attempts(ids)), "the last prefetch ends")
    await hold_for_async(0.35, "the ttl of the ids ends")
    asked = sum(request.id_count for request in server.requests["AllocateRange"])
    assert asked > taken[-1]
    assert await anext(ids) == asked + 1
    assert taken == sorted(set(taken))


async def test_ids_end_exactly_at_the_last_id(server: FakeServer, client: idalloc.aio.Client) -> None:
    """ids() returns all ids up to the last one, then raises SequenceExhausted."""
    server.last["orders"] = 1000
    ids = client.ids("orders")
    assert await take(ids, 1000) == list(range(1, 1001))
    with pytest.raises(idalloc.SequenceExhausted):
        await anext(ids)
    server.last["orders"] = 1001
    assert await anext(ids) == 1001


async def test_a_task_cancelled_while_waiting_takes_no_id(server: FakeServer, client: idalloc.aio.Client) -> None:
    """A task that is cancelled while it waits takes no id."""
    ids = client.ids("orders")
    server.hold.clear()
    waiting = [asyncio.create_task(anext(ids)) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    server.hold.set()
    assert await asyncio.gather(*waiting[1:]) == [1, 2]
    assert await anext(ids) == 3


async def test_a_failed_prefetch_raises_nothing(
    server: FakeServer, client: idalloc.aio.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of a prefetch is not raised; the range is requested again."""
    ids = client.ids("orders")
    server.fail_next("AllocateRange", "INTERNAL", grpc.StatusCode.INTERNAL)
    with pytest.raises(idalloc.InternalError):
        await anext(ids)
    assert await anext(ids) == 1
    await until(lambda: len(server.requests["AllocateRange"]) == 3, "the prefetch is sent")
    server.fail_next("AllocateRange", "INTERNAL", grpc.StatusCode.INTERNAL)
    assert await take(ids, 50) == list(range(2, 52))
    await client.close()
    assert not lines_of(caplog.records)


async def test_a_closed_client_rejects_calls_and_leaves_no_task(client: idalloc.aio.Client) -> None:
    """After close(), all methods raise RuntimeError, and no task is left."""
    ids = client.ids("orders")
    stream = client.stream_ranges("orders", 100, 1)
    await take(ids, 100)
    await anext(stream)
    await client.close()
    assert not [task for task in asyncio.all_tasks() if "_send" in repr(task)]
    for call in (lambda: anext(ids), client.node, lambda: client.allocate_range("orders")):
        with pytest.raises(RuntimeError, match="closed"):
            await call()
    await client.close()


async def _ids_of(client: idalloc.aio.Client) -> object:
    return await anext(client.ids("orders"))


async def _range_stream_of(client: idalloc.aio.Client) -> object:
    return [each async for each in client.stream_ranges("orders", 10)]


async def _allocate_stream_of(client: idalloc.aio.Client) -> object:
    async with client.allocate_stream() as stream:
        return await stream.allocate_range("orders")


@pytest.mark.parametrize(
    "run",
    [
        lambda client: client.allocate_range("orders"),
        lambda client: client.allocate_range("orders", idempotent=True),
        _ids_of,
        _range_stream_of,
        _allocate_stream_of,
    ],
    ids=["allocate_range", "a unary call", "ids", "stream_ranges", "allocate_stream"],
)
@pytest.mark.parametrize("step", [0.0, 0.0002])
async def test_closing_the_client_ends_a_call_at_any_moment(
    server: FakeServer, run: Callable[[idalloc.aio.Client], Coroutine[Any, Any, object]], step: float
) -> None:
    """A call that close() ends raises RuntimeError; CancelledError would hide in a task group."""
    server.hold.clear()
    for steps in range(1, 31):
        client = idalloc.aio.Client(server.target, timeout=30)
        running = asyncio.create_task(run(client))
        for _ in range(steps):
            await hold_for_async(step, "the call proceeds; close() may come at any moment of it")
        await client.close()
        with pytest.raises(RuntimeError, match=r"the (client|stream) is closed"):
            await asyncio.wait_for(running, 10)


async def test_closing_cancels_a_prefetch(server: FakeServer) -> None:
    """close() cancels a prefetch that a task waits for."""
    client = idalloc.aio.Client(server.target, timeout=30)
    ids = client.ids("orders")
    assert await anext(ids) == 1
    server.hold.clear()
    waiting = asyncio.create_task(take(ids, 100))
    await settle()
    assert [task for task in asyncio.all_tasks() if "_send" in repr(task)]
    await asyncio.wait_for(client.close(), 5)
    with pytest.raises(RuntimeError, match="closed"):
        await asyncio.wait_for(waiting, 5)
