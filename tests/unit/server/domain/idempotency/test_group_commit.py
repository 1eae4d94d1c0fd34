"""Group commit: concurrent calls that need a write share it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.sequences.sequence import Ordering, Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import CONFIG, make

ROUNDS = 20


async def drive(store: MemoryStore, method: str, callers: int, call: Callable[[], Awaitable[object]]) -> int:
    """Run concurrent callers for ``ROUNDS`` writes; return the number of completed calls.

    The store answers one write at a time, after all callers have progressed as far as they can.
    """
    completed = 0

    async def call_repeatedly() -> None:
        nonlocal completed
        while True:
            await call()
            completed += 1

    gates = [store.hold(method) for _ in range(ROUNDS)]
    tasks = [asyncio.create_task(call_repeatedly()) for _ in range(callers)]
    for count, gate in enumerate(gates, start=1):
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.calls_of(method)) == count  # never two at a time
        gate.set()
    for _ in range(20):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return completed


@pytest.mark.parametrize("callers", [1, 10, 100])
async def test_rising_allocations_share_writes(store: MemoryStore, clock: FakeClock, callers: int) -> None:
    """Concurrent callers of a rising sequence share each grant."""
    make(store, "s", Sequence(ordering=Ordering.RISING))
    allocator = Allocator(store, clock, CONFIG)
    completed = await drive(store, "grant", callers, lambda: allocator.issue("s", 1))
    assert completed >= callers * (ROUNDS - 1)


@pytest.mark.parametrize("callers", [1, 10, 100])
async def test_recorded_answers_share_writes(store: MemoryStore, clock: FakeClock, callers: int) -> None:
    """Concurrent callers with request ids share each write of answers."""
    make(store, "s", Sequence(min_lease_size=10_000))
    request_ids = IdempotentAllocator(Allocator(store, clock, CONFIG), store, clock, node="n", window=3600.0)
    numbers = iter(range(1_000_000))
    await request_ids.allocate_once("s", 1, "first", 0)
    before = len(store.calls_of("record"))
    store.calls.clear()
    assert before == 1
    completed = await drive(store, "record", callers, lambda: request_ids.allocate_once("s", 1, f"r{next(numbers)}", 0))
    assert completed >= callers * (ROUNDS - 2)
