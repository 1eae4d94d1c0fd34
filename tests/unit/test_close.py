"""What began before a stop is finished, also where its caller went away."""

import asyncio
from contextlib import suppress

from idalloc_server.domain.allocator import Allocator
from idalloc_server.domain.registry import Registry
from idalloc_server.domain.request_ids import RequestIds
from idalloc_server.domain.terms import Terms
from tests.fakes import FakeClock, MemoryStore

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
