"""Concurrent calls for ranges in one client for asyncio share calls: against a server in memory."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

import idalloc
from idalloc.aio._coalescing import _split
from tests.support.fake_server import FakeServer, serving


class Gate(threading.Event):
    """The server's ``hold``, which also lets single calls through."""

    def __init__(self) -> None:
        super().__init__()
        self.set()
        self.held = 0
        self._passes = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        self.held += 1
        return self._passes.acquire(timeout=timeout)

    def let_one_through(self) -> None:
        self.held -= 1
        self._passes.release()

    def set(self) -> None:
        super().set()
        while getattr(self, "held", 0):
            self.let_one_through()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def server(gate: Gate) -> Iterator[FakeServer]:
    with serving() as server:
        server.hold = gate
        yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[idalloc.aio.Client]:
    async with idalloc.aio.Client(server.target, timeout=20) as client:
        yield client
        assert client._coalescer._queues == {}, "someone is waited for who is gone"
        assert not client._tasks


def counts(server: FakeServer) -> list[int]:
    return [request.id_count for request in server.requests["AllocateRange"]]


def start(*calls: Coroutine[Any, Any, range]) -> list[asyncio.Task[range]]:
    return [asyncio.create_task(call) for call in calls]


async def held(gate: Gate, calls: int) -> None:
    """Waits until so many calls are held."""
    async with asyncio.timeout(10):
        while gate.held != calls:  # noqa: ASYNC110  # it is threads that hold them
            await asyncio.sleep(0.01)


@asynccontextmanager
async def under_way(gate: Gate, client: idalloc.aio.Client, sequence: str = "orders") -> AsyncIterator[None]:
    """Within the block, a call for one id is held; then it is answered, and the next ones are held until ``set``."""
    gate.clear()
    [first] = start(client.allocate_range(sequence))
    await held(gate, 1)
    yield
    await asyncio.sleep(0)  # for tasks of the block to begin
    gate.let_one_through()
    with suppress(idalloc.IdallocError):
        await first


async def during_a_call(
    gate: Gate, client: idalloc.aio.Client, *numbers: int, sequence: str = "orders"
) -> list[range | BaseException]:
    """What callers get who ask for so many ids each while a call for one is under way."""
    async with under_way(gate, client, sequence):
        waiting = start(*(client.allocate_range(sequence, n) for n in numbers))
    gate.set()
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_who_comes_during_a_call_shares_the_next_one(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    assert await during_a_call(gate, client, 3, 1, 5) == [range(2, 5), range(5, 6), range(6, 11)]
    assert counts(server) == [1, 9]


async def test_calls_one_after_another_are_their_own(server: FakeServer, client: idalloc.aio.Client) -> None:
    assert [await client.allocate_range("orders", n) for n in (2, 3)] == [range(1, 3), range(3, 6)]
    assert counts(server) == [2, 3]


async def test_parts_have_the_sequences_step(server: FakeServer, gate: Gate, client: idalloc.aio.Client) -> None:
    server.step = -3
    first, second = await during_a_call(gate, client, 2, 2)
    assert (first, second) == (range(-6, -10, -3), range(-12, -16, -3))


def test_parts_end_within_64_bits() -> None:
    largest = 2**63 - 2
    *_, last = _split(range(largest - 3000, largest + 1, 1000), [1, 3])
    assert list(last) == [largest - 2000, largest - 1000, largest]
    assert last.stop == 2**63 - 1


async def test_no_id_comes_twice_or_is_lost_among_many_callers(server: FakeServer, client: idalloc.aio.Client) -> None:
    async def take(n: int) -> list[int]:
        taken: list[int] = []
        for _ in range(20):
            taken += await client.allocate_range("orders", n % 7 + 1)
        return taken

    runs = await asyncio.gather(*(take(n) for n in range(200)))
    assert all(run == sorted(run) for run in runs)
    total = sum(map(len, runs))
    assert sorted(value for run in runs for value in run) == list(range(1, total + 1))
    assert len(counts(server)) < 200


async def test_who_starts_after_an_answer_gets_larger_ids(server: FakeServer, client: idalloc.aio.Client) -> None:
    answered = 0

    async def take(n: int) -> None:
        nonlocal answered
        for _ in range(50):
            before = answered
            ids = await client.allocate_range("orders", n % 3 + 1)
            assert ids[0] > before
            answered = max(answered, ids[-1])

    await asyncio.gather(*(take(n) for n in range(40)))
    assert answered == sum(counts(server))


async def test_a_shared_call_stays_within_the_servers_limit(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    numbers = [400_000, 400_000, 400_000, 1_000_000, 7]
    taken = await during_a_call(gate, client, *numbers)
    assert [len(ids) for ids in taken if isinstance(ids, range)] == numbers
    assert sorted(counts(server)) == [1, 7, 400_000, 800_000, 1_000_000]


async def test_who_asks_for_more_than_the_limit_is_told_so_alone(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    few, too_many, more = await during_a_call(gate, client, 2, 1_000_001, 3)
    assert isinstance(too_many, idalloc.InvalidRequest)
    assert [len(ids) for ids in (few, more) if isinstance(ids, range)] == [2, 3]
    assert sorted(counts(server)) == [1, 2, 3, 1_000_001]


async def test_a_lower_limit_of_the_server_is_learned(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    server.limit = 100
    for _ in range(2):
        server.requests.clear()
        taken = await during_a_call(gate, client, 50, 50, 50, 50)
        assert [len(ids) for ids in taken if isinstance(ids, range)] == [50, 50, 50, 50]
    assert counts(server) == [1, 100, 100]


async def test_a_lower_limit_is_that_of_one_sequence(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    server.limit = 100
    await during_a_call(gate, client, 50, 50, 50, 50, sequence="ticks")
    server.limit = 1_000_000
    server.requests.clear()
    await during_a_call(gate, client, 50, 50, 50, 50)
    assert counts(server) == [1, 200]


async def test_what_is_left_goes_to_those_it_is_enough_for(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    server.last["orders"] = 11
    first, too_many, second = await during_a_call(gate, client, 4, 20, 6)
    assert isinstance(too_many, idalloc.SequenceExhausted)
    assert isinstance(first, range)
    assert isinstance(second, range)
    assert sorted([*first, *second]) == list(range(2, 12))


async def test_timestamps_that_are_too_many_for_all_go_to_each(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    async with under_way(gate, client):
        waiting = start(*(client.allocate_range("orders", 4) for _ in range(2)))
    await held(gate, 1)
    # gRPC itself tries five times.
    server.fail_next("AllocateRange", "SEQUENCE_AHEAD_OF_CLOCK", grpc.StatusCode.UNAVAILABLE, times=5)
    gate.set()
    assert sorted(ids[0] for ids in await asyncio.gather(*waiting)) == [2, 6]
    assert counts(server) == [1, 8, 8, 8, 8, 8, 4, 4]


async def test_an_error_that_no_smaller_count_mends_is_everyones(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    async with under_way(gate, client):
        waiting = start(*(client.allocate_range("orders", n) for n in (1, 2)))
    await held(gate, 1)
    server.fail_next("AllocateRange", "SEQUENCE_INVALID", grpc.StatusCode.FAILED_PRECONDITION, sequence="orders")
    gate.set()
    one, other = await asyncio.gather(*waiting, return_exceptions=True)
    for error in (one, other):
        assert isinstance(error, idalloc.SequenceInvalid)
        assert error.metadata == {"sequence": "orders"}
        assert error.code is grpc.StatusCode.FAILED_PRECONDITION
        assert str(error) == "SEQUENCE_INVALID it is"
    assert one is not other
    assert counts(server) == [1, 3]


async def test_an_error_of_the_call_under_way_is_its_own_callers(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    server.fail_next("AllocateRange", "INTERNAL", grpc.StatusCode.INTERNAL)
    assert await during_a_call(gate, client, 2) == [range(1, 3)]


async def test_who_is_cancelled_while_it_waits_takes_no_id(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    async with under_way(gate, client):
        one, cancelled, other = start(*(client.allocate_range("orders", 2) for _ in range(3)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        [line] = client._coalescer._queues.values()
        assert len(line.waiting) == 2
    gate.set()
    await asyncio.wait([one, cancelled, other])
    assert cancelled.cancelled()
    assert [one.result(), other.result()] == [range(2, 4), range(4, 6)]


async def test_who_is_cancelled_during_the_shared_call_leaves_a_gap(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    async with under_way(gate, client):
        one, cancelled, other = start(*(client.allocate_range("orders", 2) for _ in range(3)))
    await held(gate, 1)
    cancelled.cancel()
    gate.set()
    await asyncio.wait([one, cancelled, other])
    assert cancelled.cancelled()
    assert [one.result(), other.result()] == [range(2, 4), range(6, 8)]
    assert await client.allocate_range("orders") == range(8, 9)


async def test_the_caller_of_the_call_under_way_may_be_cancelled(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    gate.clear()
    first, *others = start(*(client.allocate_range("orders", 2) for _ in range(3)))
    await held(gate, 1)
    first.cancel()
    await asyncio.wait([first])
    gate.set()
    one, other = await asyncio.gather(*others)
    assert first.cancelled()
    assert one.stop == other.start


async def test_each_has_a_timeout_of_its_own(server: FakeServer, gate: Gate) -> None:
    async with idalloc.aio.Client(server.target, timeout=2) as client:
        gate.clear()
        [first] = start(client.allocate_range("orders"))
        await held(gate, 1)
        await asyncio.sleep(1)
        clock = asyncio.get_running_loop().time
        began = clock()
        waiting = start(*(client.allocate_range("orders") for _ in range(2)))
        done, _ = await asyncio.wait([first, *waiting], timeout=10)
        assert [type(call.exception()) for call in done] == [idalloc.DeadlineExceeded] * 3
        assert 1.9 < clock() - began < 2.9  # with the whole of the shared call's timeout after the first's: 3
        gate.set()
        assert len(await client.allocate_range("orders", 3)) == 3


async def test_other_sequences_and_request_ids_do_not_wait(gate: Gate, client: idalloc.aio.Client) -> None:
    gate.clear()
    calls = start(
        client.allocate_range("orders"),
        client.allocate_range("others"),
        client.allocate_range("orders", exactly_once=True),
        client.allocate_range("orders", request_id="7bd1b7ec-9d44-4ea1-8dd5-8e1eb2a1c1f5"),
    )
    await held(gate, 4)
    gate.set()
    assert sorted(ids[0] for ids in await asyncio.gather(*calls)) == [1, 1, 2, 3]


async def test_what_is_wrong_with_one_request_is_not_the_others_fault(gate: Gate, client: idalloc.aio.Client) -> None:
    one, none, beyond, other = await during_a_call(gate, client, 2, 0, 2**70, 3)
    assert (one, other) == (range(2, 4), range(4, 7))
    assert isinstance(none, ValueError)
    assert isinstance(beyond, ValueError)


async def test_closing_the_client_ends_those_who_wait(
    server: FakeServer, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    client = idalloc.aio.Client(server.target, timeout=30)
    gate.clear()
    first, *waiting = start(*(client.allocate_range("orders") for _ in range(3)))
    await held(gate, 1)
    await close(client, first, *waiting)
    assert [str(call.exception()) for call in waiting] == ["the client is closed"] * 2
    del first, waiting
    gc.collect()  # a task that failed, and that nobody asked for its error, says so now
    assert not caplog.records


async def test_closing_the_client_ends_a_shared_call(
    server: FakeServer, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    client = idalloc.aio.Client(server.target, timeout=30)
    async with under_way(gate, client):
        waiting = start(*(client.allocate_range("orders") for _ in range(3)))
    await held(gate, 1)
    waiting += start(client.allocate_range("orders"))
    await asyncio.sleep(0)
    await close(client, *waiting)
    assert [str(call.exception()) for call in waiting] == ["the client is closed"] * 4
    assert not caplog.records


async def test_closing_the_client_before_the_shared_call_is_sent(gate: Gate, server: FakeServer) -> None:
    client = idalloc.aio.Client(server.target, timeout=30)
    async with under_way(gate, client):
        waiting = start(*(client.allocate_range("orders") for _ in range(3)))
    await close(client, *waiting)
    assert [str(call.exception()) for call in waiting] == ["the client is closed"] * 3


async def close(client: idalloc.aio.Client, *calls: asyncio.Task[range]) -> None:
    """Closes the client, which ends these calls and leaves nothing behind."""
    async with asyncio.timeout(10):
        await client.close()
        await asyncio.wait([*calls, *client._tasks])
    assert client._coalescer._queues == {}
    assert not client._tasks


def test_a_loop_that_ends_leaves_nothing_behind(
    server: FakeServer, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    client = idalloc.aio.Client(server.target, timeout=30)

    async def leave() -> None:
        gate.clear()
        start(*(client.allocate_range("orders") for _ in range(3)))
        await held(gate, 1)

    asyncio.run(leave())
    assert client._coalescer._queues == {}
    assert not client._tasks
    assert not caplog.records
