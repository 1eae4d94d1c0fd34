"""Coalescing of concurrent allocate_range calls in the client for asyncio, with a fake server."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

import idalloc
from idalloc.aio._coalescing import _split
from tests.support.fake_server import FakeServer
from tests.support.logged import lines_of
from tests.support.waiting import hold_for_async, until


class Gate(threading.Event):
    """The server's ``hold``, which can also release single calls."""

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

    def release_one(self) -> None:
        self.held -= 1
        self._passes.release()

    def set(self) -> None:
        super().set()
        while getattr(self, "held", 0):
            self.release_one()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def server(server: FakeServer, gate: Gate) -> FakeServer:
    server.hold = gate
    return server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[idalloc.aio.Client]:
    async with idalloc.aio.Client(server.target, timeout=20) as client:
        yield client
        assert client._coalescer._queues == {}, "a queue is left"
        assert client._tasks <= {client._coalescer._stream._task}


def counts(server: FakeServer) -> list[int]:
    return [request.id_count for request in server.requests["AllocateRange"]]


def start(*calls: Coroutine[Any, Any, idalloc.Range]) -> list[asyncio.Task[idalloc.Range]]:
    return [asyncio.create_task(call) for call in calls]


async def wait_for_held(gate: Gate, calls: int) -> None:
    """Wait until the gate holds so many calls."""
    await until(lambda: gate.held == calls, "the server's threads hold the calls")


@asynccontextmanager
async def call_in_flight(gate: Gate, client: idalloc.aio.Client, sequence: str = "orders") -> AsyncIterator[None]:
    """Hold a call for one id during the block, then answer it and hold the next until ``set``."""
    gate.clear()
    [first] = start(client.allocate_range(sequence))
    await wait_for_held(gate, 1)
    yield
    await asyncio.sleep(0)  # lets the tasks of the block start
    gate.release_one()
    with suppress(idalloc.IdallocError):
        await first


async def allocate_during_a_call(
    gate: Gate, client: idalloc.aio.Client, *numbers: int, sequence: str = "orders"
) -> list[range | BaseException]:
    """Return the results of callers that request these counts while a call is in flight."""
    async with call_in_flight(gate, client, sequence):
        waiting = start(*(client.allocate_range(sequence, n) for n in numbers))
    gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    return [each.ids if isinstance(each, idalloc.Range) else each for each in results]


async def test_calls_during_a_call_share_the_next_one(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    """Calls that arrive during a call share the next one, in the order of arrival."""
    assert await allocate_during_a_call(gate, client, 3, 1, 5) == [range(2, 5), range(5, 6), range(6, 11)]
    assert counts(server) == [1, 9]


async def test_sequential_calls_are_not_coalesced(server: FakeServer, client: idalloc.aio.Client) -> None:
    """Sequential calls are sent one by one."""
    assert [(await client.allocate_range("orders", n)).ids for n in (2, 3)] == [range(1, 3), range(3, 6)]
    assert counts(server) == [2, 3]


async def test_shared_ranges_keep_the_sequences_step(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    """The parts of a shared range have the sequence's step."""
    server.step = -3
    first, second = await allocate_during_a_call(gate, client, 2, 2)
    assert (first, second) == (range(-6, -10, -3), range(-12, -16, -3))


def test_parts_end_within_64_bits() -> None:
    """A part that ends at the largest id stops at 2^63-1."""
    largest = 2**63 - 2
    allocated = idalloc.Range(first_id=largest - 3000, last_id=largest, step=1000, id_count=4, created=True)
    first, last = _split(allocated, [1, 3])
    assert list(last) == [largest - 2000, largest - 1000, largest]
    assert last.ids.stop == 2**63 - 1
    assert (first.created, last.created) == (True, False)


async def test_many_callers_get_each_id_once(server: FakeServer, client: idalloc.aio.Client) -> None:
    """P1: many concurrent callers get each id once, and no id is lost."""

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


async def test_a_call_after_an_answer_gets_larger_ids(server: FakeServer, client: idalloc.aio.Client) -> None:
    """A caller that starts after another one was answered gets larger ids."""
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
    """A shared call requests at most the server's default limit."""
    numbers = [400_000, 400_000, 400_000, 1_000_000, 7]
    taken = await allocate_during_a_call(gate, client, *numbers)
    assert [len(ids) for ids in taken if isinstance(ids, range)] == numbers
    assert sorted(counts(server)) == [1, 7, 400_000, 800_000, 1_000_000]


async def test_a_call_above_the_limit_fails_alone(server: FakeServer, gate: Gate, client: idalloc.aio.Client) -> None:
    """A call above the server's limit fails alone; the others succeed."""
    few, too_many, more = await allocate_during_a_call(gate, client, 2, 1_000_001, 3)
    assert isinstance(too_many, idalloc.InvalidRequest)
    assert [len(ids) for ids in (few, more) if isinstance(ids, range)] == [2, 3]
    assert sorted(counts(server)) == [1, 2, 3, 1_000_001]


async def test_a_lower_server_limit_is_learned(server: FakeServer, gate: Gate, client: idalloc.aio.Client) -> None:
    """After a shared call above a lower limit failed, later shared calls stay below the limit."""
    server.limit = 100
    for _ in range(2):
        server.requests.clear()
        taken = await allocate_during_a_call(gate, client, 50, 50, 50, 50)
        assert [len(ids) for ids in taken if isinstance(ids, range)] == [50, 50, 50, 50]
    assert counts(server) == [1, 100, 100]


async def test_a_learned_limit_applies_to_one_sequence(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    """A learned limit does not apply to other sequences."""
    server.limit = 100
    await allocate_during_a_call(gate, client, 50, 50, 50, 50, sequence="ticks")
    server.limit = 1_000_000
    server.requests.clear()
    await allocate_during_a_call(gate, client, 50, 50, 50, 50)
    assert counts(server) == [1, 200]


async def test_remaining_ids_go_to_the_calls_that_fit(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    """If a sequence has too few ids for all callers, the calls that fit succeed."""
    server.last["orders"] = 11
    first, too_many, second = await allocate_during_a_call(gate, client, 4, 20, 6)
    assert isinstance(too_many, idalloc.SequenceExhausted)
    assert isinstance(first, range)
    assert isinstance(second, range)
    assert sorted([*first, *second]) == list(range(2, 12))


async def test_calls_ahead_of_the_clock_are_sent_singly(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    """After SEQUENCE_AHEAD_OF_CLOCK for a shared call, each call is sent by itself."""
    async with call_in_flight(gate, client):
        waiting = start(*(client.allocate_range("orders", 4) for _ in range(2)))
    await wait_for_held(gate, 1)
    # gRPC itself makes five attempts.
    server.fail_next("AllocateRange", "SEQUENCE_AHEAD_OF_CLOCK", grpc.StatusCode.UNAVAILABLE, times=6)
    gate.set()
    assert sorted(ids[0] for ids in await asyncio.gather(*waiting)) == [2, 6]
    assert counts(server) == [1, 8, 8, 8, 8, 8, 8, 4, 4]


async def test_each_caller_gets_a_copy_of_other_errors(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    """An error that does not depend on the count is raised in each caller, as a copy."""
    async with call_in_flight(gate, client):
        waiting = start(*(client.allocate_range("orders", n) for n in (1, 2)))
    await wait_for_held(gate, 1)
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


async def test_an_error_is_raised_in_its_own_call_only(
    server: FakeServer, gate: Gate, client: idalloc.aio.Client
) -> None:
    """An error of the call in flight is not raised in the waiters."""
    server.fail_next("AllocateRange", "INTERNAL", grpc.StatusCode.INTERNAL)
    assert await allocate_during_a_call(gate, client, 2) == [range(1, 3)]


async def test_a_caller_cancelled_while_waiting_takes_no_id(gate: Gate, client: idalloc.aio.Client) -> None:
    """A caller that is cancelled before the shared call is sent takes no id."""
    async with call_in_flight(gate, client):
        one, cancelled, other = start(*(client.allocate_range("orders", 2) for _ in range(3)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        [queue] = client._coalescer._queues.values()
        assert len(queue.waiting) == 2
    gate.set()
    await asyncio.wait([one, cancelled, other])
    assert cancelled.cancelled()
    assert [one.result().ids, other.result().ids] == [range(2, 4), range(4, 6)]


async def test_a_caller_cancelled_in_flight_leaves_a_gap(gate: Gate, client: idalloc.aio.Client) -> None:
    """P1: the ids of a caller that is cancelled during the shared call go to no other caller."""
    async with call_in_flight(gate, client):
        one, cancelled, other = start(*(client.allocate_range("orders", 2) for _ in range(3)))
    await wait_for_held(gate, 1)
    cancelled.cancel()
    gate.set()
    await asyncio.wait([one, cancelled, other])
    assert cancelled.cancelled()
    assert [one.result().ids, other.result().ids] == [range(2, 4), range(6, 8)]
    assert (await client.allocate_range("orders")).ids == range(8, 9)


async def test_cancelling_the_first_caller_serves_the_others(gate: Gate, client: idalloc.aio.Client) -> None:
    """If the caller of the call in flight is cancelled, the waiters are served."""
    gate.clear()
    first, *others = start(*(client.allocate_range("orders", 2) for _ in range(3)))
    await wait_for_held(gate, 1)
    first.cancel()
    await asyncio.wait([first])
    gate.set()
    one, other = await asyncio.gather(*others)
    assert first.cancelled()
    assert one.last_id + 1 == other.first_id


async def test_each_caller_has_its_own_timeout(server: FakeServer, gate: Gate) -> None:
    """A waiter's timeout counts from its own start, not from that of the shared call."""
    async with idalloc.aio.Client(server.target, timeout=2) as client:
        gate.clear()
        [first] = start(client.allocate_range("orders"))
        await wait_for_held(gate, 1)
        await hold_for_async(1, "half of the timeout")
        clock = asyncio.get_running_loop().time
        began = clock()
        waiting = start(*(client.allocate_range("orders") for _ in range(2)))
        done, _ = await asyncio.wait([first, *waiting], timeout=10)
        assert [type(call.exception()) for call in done] == [idalloc.DeadlineExceeded] * 3
        assert 1.9 < clock() - began < 2.9  # 3 if the shared call's timeout began after the first call
        gate.set()
        assert len(await client.allocate_range("orders", 3)) == 3


async def test_other_sequences_and_request_ids_do_not_wait(gate: Gate, client: idalloc.aio.Client) -> None:
    """Calls for other sequences and calls with a request id are sent at once."""
    gate.clear()
    calls = start(
        client.allocate_range("orders"),
        client.allocate_range("others"),
        client.allocate_range("orders", idempotent=True),
        client.allocate_range("orders", request_id="7bd1b7ec-9d44-4ea1-8dd5-8e1eb2a1c1f5"),
    )
    await wait_for_held(gate, 4)
    gate.set()
    assert sorted(ids[0] for ids in await asyncio.gather(*calls)) == [1, 1, 2, 3]


async def test_an_invalid_count_fails_alone(gate: Gate, client: idalloc.aio.Client) -> None:
    """A call with an invalid count raises ValueError; the others succeed."""
    one, none, beyond, other = await allocate_during_a_call(gate, client, 2, 0, 2**70, 3)
    assert (one, other) == (range(2, 4), range(4, 7))
    assert isinstance(none, ValueError)
    assert isinstance(beyond, ValueError)


async def test_closing_the_client_ends_waiters(
    server: FakeServer, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """close() raises RuntimeError in the caller of a call in flight, and in those that wait."""
    client = idalloc.aio.Client(server.target, timeout=30)
    gate.clear()
    first, *waiting = start(*(client.allocate_range("orders") for _ in range(3)))
    await wait_for_held(gate, 1)
    await close(client, first, *waiting)
    assert [str(call.exception()) for call in (first, *waiting)] == ["the client is closed"] * 3
    del first, waiting
    gc.collect()  # a failed task whose error was not retrieved is reported now
    assert not lines_of(caplog.records)


async def test_closing_the_client_ends_a_shared_call(
    server: FakeServer, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """close() raises RuntimeError in all callers of a shared call in flight."""
    client = idalloc.aio.Client(server.target, timeout=30)
    async with call_in_flight(gate, client):
        waiting = start(*(client.allocate_range("orders") for _ in range(3)))
    await wait_for_held(gate, 1)
    waiting += start(client.allocate_range("orders"))
    await asyncio.sleep(0)
    await close(client, *waiting)
    assert [str(call.exception()) for call in waiting] == ["the client is closed"] * 4
    assert not lines_of(caplog.records)


async def test_closing_the_client_before_the_shared_call_is_sent(gate: Gate, server: FakeServer) -> None:
    """close() raises RuntimeError in callers whose shared call has not been sent."""
    client = idalloc.aio.Client(server.target, timeout=30)
    async with call_in_flight(gate, client):
        waiting = start(*(client.allocate_range("orders") for _ in range(3)))
    await close(client, *waiting)
    assert [str(call.exception()) for call in waiting] == ["the client is closed"] * 3


async def close(client: idalloc.aio.Client, *calls: asyncio.Task[idalloc.Range]) -> None:
    """Close the client, and check that its calls end and that no queue or task is left."""
    async with asyncio.timeout(10):
        await client.close()
        await asyncio.wait([*calls, *client._tasks])
    assert client._coalescer._queues == {}
    assert not client._tasks


def test_an_ended_event_loop_leaves_no_queue(server: FakeServer, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """An event loop that ends during calls leaves no queue and no task."""
    client = idalloc.aio.Client(server.target, timeout=30)

    async def leave() -> None:
        gate.clear()
        start(*(client.allocate_range("orders") for _ in range(3)))
        await wait_for_held(gate, 1)

    asyncio.run(leave())
    assert client._coalescer._queues == {}
    assert not client._tasks
    assert not lines_of(caplog.records)
