"""Calls that each need a write share it: the more callers, the more answers from each write of the store."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.idempotency.request_ids import IdempotentAllocator
from idalloc_server.domain.sequences.model import Ordering, Sequence
from tests.support import sequence_allocators
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import make

ROUNDS = 20
TERMS = replace(sequence_allocators.CONFIG, store_timeout=30.0)


async def drive(store: MemoryStore, method: str, callers: int, call: Callable[[], Awaitable[object]]) -> int:
    """Has so many callers call until the store was written ``ROUNDS`` times; returns how many calls were answered.

    The store answers one write at a time, when everything else stands still: its latency is a round.
    """
    answered = 0

    async def use() -> None:
        nonlocal answered
        while True:
            await call()
            answered += 1

    gates = [store.hold(method) for _ in range(ROUNDS)]
    tasks = [asyncio.create_task(use()) for _ in range(callers)]
    for written, gate in enumerate(gates, start=1):
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.calls_of(method)) == written  # never two at a time
        gate.set()
    for _ in range(20):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return answered


@pytest.mark.parametrize("callers", [1, 10, 100])
async def test_allocations_of_a_rising_sequence(store: MemoryStore, clock: FakeClock, callers: int) -> None:
    make(store, "s", Sequence(ordering=Ordering.RISING))
    allocator = Allocator(store, clock, TERMS)
    answered = await drive(store, "grant", callers, lambda: allocator.allocate("s", 1))
    assert answered >= callers * (ROUNDS - 1)


@pytest.mark.parametrize("callers", [1, 10, 100])
async def test_answers_that_are_written_down(store: MemoryStore, clock: FakeClock, callers: int) -> None:
    make(store, "s", Sequence(min_lease_size=10_000))
    request_ids = IdempotentAllocator(
        Allocator(store, clock, TERMS), store, clock, node="n", window=3600.0, store_timeout=TERMS.store_timeout
    )
    numbers = iter(range(1_000_000))
    await request_ids.allocate("s", 1, "first", 0)
    before = len(store.calls_of("record"))
    store.calls.clear()
    assert before == 1
    answered = await drive(store, "record", callers, lambda: request_ids.allocate("s", 1, f"r{next(numbers)}", 0))
    assert answered >= callers * (ROUNDS - 2)
