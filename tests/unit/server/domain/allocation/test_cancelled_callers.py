"""A cancelled caller does not end a store call that other callers of the sequence share."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.counter_allocator import RECHECK_SECONDS
from idalloc_server.domain.errors import StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from tests.support.fake_store import FakeClock, Fault, MemoryStore, unreachable
from tests.support.sequence_allocators import CONFIG, make
from tests.support.waiting import settle

DAILY = Sequence(reset=Reset.DAILY)


@pytest.fixture
def allocator(store: MemoryStore, clock: FakeClock) -> Allocator:
    return Allocator(store, clock, CONFIG)


async def call_and_leave(allocator: Allocator) -> None:
    """Call, and cancel the call while it waits for the store."""
    call = asyncio.create_task(allocator.issue("s", 1))
    await settle()
    assert not call.done()
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


async def test_a_recheck_outlives_its_caller(allocator: Allocator, store: MemoryStore, clock: FakeClock) -> None:
    """P3: callers with short deadlines do not prevent that a sequence resumes after an advance."""
    row = make(store, "s", Sequence())
    await allocator.issue("s", 100)
    row.last_value = 5
    with pytest.raises(StoreWentBackwards):
        await allocator.issue("s", 1)
    row.last_value, row.generation = 1_000, row.generation + 1
    clock.advance(RECHECK_SECONDS)
    gate = store.hold("get")
    await call_and_leave(allocator)
    with pytest.raises(StoreWentBackwards):  # as before: at most one read a second
        await allocator.issue("s", 1)
    clock.advance(RECHECK_SECONDS)
    await call_and_leave(allocator)
    assert len(store.calls_of("get")) == 1
    gate.set()
    await settle()
    assert (await allocator.issue("s", 1)).first_id == 1_001
    assert len(store.calls_of("get")) == 1


@pytest.mark.parametrize("fault", [Fault(), unreachable()], ids=["ok", "unreachable"])
async def test_a_completion_outlives_its_caller(
    allocator: Allocator, store: MemoryStore, clock: FakeClock, fault: Fault
) -> None:
    """P5: an interrupted advance is completed although its caller leaves; no failure is logged."""
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    make(store, "s", DAILY).generation = 1
    await allocator.issue("s", 3)
    await store.open_period(name_of_period("s", allocator._sequence_allocators["s"]._period), DAILY, 50, 2)
    await allocator.drop_lease("s")
    with pytest.raises(StoreUnavailable, match="being changed"):
        await allocator.issue("s", 1)
    clock.advance(CONFIG.store_timeout)
    gate = asyncio.Event()
    store.next("revise", replace(fault, before=gate))
    await call_and_leave(allocator)
    gate.set()
    await settle()
    assert (logged, store.rows["s"].generation > 2) == ([], fault.error is None)
    clock.advance(CONFIG.store_timeout)
    with suppress(StoreUnavailable):  # until this call completes the advance
        await allocator.issue("s", 1)
    assert (await allocator.issue("s", 1)).first_id > 50
