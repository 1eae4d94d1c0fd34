"""What began before a stop is finished, also where its caller went away."""

import asyncio
from contextlib import suppress

from idalloc_server.domain.allocator import Allocator
from idalloc_server.domain.burned import Cause
from idalloc_server.domain.registry import Registry
from idalloc_server.domain.request_ids import RequestIds
from idalloc_server.domain.sequence import Sequence
from idalloc_server.domain.terms import Terms
from tests.fakes import FakeClock, MemoryStore
from tests.unit.lanes import make

TERMS = Terms(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)


async def leave(task: "asyncio.Task[object]") -> None:
    """Has the caller go away while the store is asked."""
    await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_change_that_began_is_made(store: MemoryStore, clock: FakeClock) -> None:
    registry = Registry(store, clock, Allocator(store, clock, TERMS), store_timeout=5.0)
    gate = store.hold("create")
    await leave(asyncio.create_task(registry.create("orders", {}, registry.author("", b"1"))))
    closing = asyncio.create_task(registry.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    gate.set()
    await closing
    assert "orders" in store.rows


async def test_an_answer_that_is_being_written_down_stands_in_the_store(store: MemoryStore, clock: FakeClock) -> None:
    request_ids = RequestIds(Allocator(store, clock, TERMS), store, clock, node="n", window=3600.0, store_timeout=5.0)
    gate = store.hold("record")
    await leave(asyncio.create_task(request_ids.allocate("orders", 3, "r", 0)))
    closing = asyncio.create_task(request_ids.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    gate.set()
    await closing
    stands = await store.recorded("r")
    assert stands is not None
    assert stands.id_count == 3


async def test_where_no_time_is_left_what_was_held_is_counted(store: MemoryStore, clock: FakeClock) -> None:
    allocator = Allocator(store, clock, TERMS)
    make(store, "orders", Sequence(min_lease_size=100))
    await allocator.allocate("orders", 1)
    await allocator.allocate("orders", 1)
    allocator.abandon()
    assert allocator.burned.by_cause == {Cause.NOT_RETURNED: (store.rows["orders"].last_value or 0) - 2}
    assert allocator.take("orders", 1) is None


async def test_where_no_time_is_left_what_is_being_written_down_is_counted(
    store: MemoryStore, clock: FakeClock
) -> None:
    allocator = Allocator(store, clock, TERMS)
    request_ids = RequestIds(allocator, store, clock, node="n", window=3600.0, store_timeout=5.0)
    gate = store.hold("record")
    await leave(asyncio.create_task(request_ids.allocate("orders", 3, "r", 0)))
    request_ids.abandon()
    assert allocator.burned.by_cause == {Cause.UNKNOWN_OUTCOME: 3}
    gate.set()
    await request_ids.close()
    assert allocator.burned.by_cause == {Cause.UNKNOWN_OUTCOME: 3}
