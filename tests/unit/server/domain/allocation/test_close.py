"""What began before a stop is finished, also where its caller went away."""

import asyncio
from contextlib import suppress

import pytest

from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation import allocator as allocator_module
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import ServerDraining
from idalloc_server.domain.idempotency.allocator import IdempotentAllocator
from idalloc_server.domain.sequences.model import Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import make, right_after_serving
from tests.unit.server.domain.idempotency.conftest import until

TERMS = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)


async def leave(task: "asyncio.Task[object]") -> None:
    """Has the caller go away while the store is asked."""
    await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_change_that_began_is_made(store: MemoryStore, clock: FakeClock) -> None:
    registry = SequenceService(store, clock, Allocator(store, clock, TERMS), store_timeout=5.0)
    gate = store.hold("create")
    await leave(asyncio.create_task(registry.create("orders", {}, registry.change_token("", b"1"))))
    closing = asyncio.create_task(registry.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    gate.set()
    await closing
    assert "orders" in store.rows


async def test_an_answer_that_is_being_written_down_stands_in_the_store(store: MemoryStore, clock: FakeClock) -> None:
    request_ids = IdempotentAllocator(
        Allocator(store, clock, TERMS), store, clock, node="n", window=3600.0, store_timeout=5.0
    )
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
    assert allocator.burned.by_cause == {BurnCause.NOT_RETURNED: (store.rows["orders"].last_value or 0) - 2}
    assert allocator.take("orders", 1) is None


async def test_where_no_time_is_left_what_is_being_written_down_is_counted(
    store: MemoryStore, clock: FakeClock
) -> None:
    allocator = Allocator(store, clock, TERMS)
    request_ids = IdempotentAllocator(allocator, store, clock, node="n", window=3600.0, store_timeout=5.0)
    gate = store.hold("record")
    await leave(asyncio.create_task(request_ids.allocate("orders", 3, "r", 0)))
    request_ids.abandon()
    assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 3}
    gate.set()
    await request_ids.close()
    assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 3}


class TestUnderWay:
    """What is under way where no time is left is counted, once, and whatever still comes changes nothing (P9)."""

    @pytest.mark.parametrize("ends", ["answered", "cancelled"])
    async def test_a_refill(self, store: MemoryStore, clock: FakeClock, ends: str) -> None:
        """P9: the ids of a write without an answer are of unknown outcome."""
        allocator = Allocator(store, clock, TERMS)
        await allocator.allocate("orders", 1)
        gate = store.hold("grant")
        caller = asyncio.create_task(allocator.allocate("orders", 30))
        await until(lambda: len(store.calls_of("grant")) > 2)
        allocator.abandon()
        wanted = store.calls_of("grant")[-1].arguments[1]
        assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: wanted}
        if ends == "answered":
            gate.set()
        else:
            caller.cancel()
        await asyncio.wait({caller})
        await asyncio.sleep(0.01)
        assert caller.cancelled() or isinstance(caller.exception(), ServerDraining)
        assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: wanted}

    async def test_a_tail_that_is_being_given_back(self, store: MemoryStore, clock: FakeClock) -> None:
        """P9: a tail whose return has no answer was not returned."""
        allocator = Allocator(store, clock, TERMS)
        make(store, "orders", Sequence(min_lease_size=100))
        await allocator.allocate("orders", 1)
        await allocator.allocate("orders", 1)
        gate = store.hold("give_back")
        closing = asyncio.create_task(allocator.close())
        await until(lambda: store.calls_of("give_back"))
        allocator.abandon()
        held = {BurnCause.NOT_RETURNED: (store.rows["orders"].last_value or 0) - 2}
        assert allocator.burned.by_cause == held
        gate.set()
        await closing
        assert allocator.burned.by_cause == held

    async def test_ids_whose_caller_has_not_run_yet(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P9: a caller who was served and did not run yet gets no ids that were counted."""
        allocator = Allocator(store, clock, TERMS)
        await allocator.allocate("orders", 1)
        right_after_serving(allocator._sequence_allocators["orders"], allocator.abandon, monkeypatch)
        with pytest.raises(ServerDraining):
            await allocator.allocate("orders", 30)
        assert allocator.burned.by_cause[BurnCause.CANCELLED] == 30
        assert allocator.burned.by_cause.total() == (store.rows["orders"].last_value or 0) - 1

    async def test_an_answer_whose_caller_has_not_run_yet(self, store: MemoryStore, clock: FakeClock) -> None:
        """P9: the same under a request id; a retry on another node still gets the ids."""
        allocator = Allocator(store, clock, TERMS)
        request_ids = IdempotentAllocator(allocator, store, clock, node="n", window=3600.0, store_timeout=5.0)
        caller = asyncio.create_task(request_ids.allocate("orders", 3, "r", 0))
        await until(lambda: request_ids._calls)
        request_ids._calls["r"].task.add_done_callback(lambda _: request_ids.abandon())
        with pytest.raises(ServerDraining):
            await caller
        assert allocator.burned.by_cause == {BurnCause.CANCELLED: 3}

    async def test_idle_lanes_whose_turn_had_not_come(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P9: tails of idle lanes that were not closed yet when the dropping was cancelled go back at the stop."""
        monkeypatch.setattr(allocator_module, "CLOSE_CONCURRENCY", 1)
        allocator = Allocator(store, clock, TERMS)
        for name in ("first", "second", "third"):
            make(store, name, Sequence(min_lease_size=100))
            await allocator.allocate(name, 1)
            await allocator.allocate(name, 1)
        await allocator.drop_idle_sequences()
        store.hold("give_back")
        dropping = asyncio.create_task(allocator.drop_idle_sequences())
        await until(lambda: store.calls_of("give_back"))
        dropping.cancel()
        await asyncio.wait({dropping})
        await allocator.close()
        values = sorted(store.rows[name].last_value or 0 for name in ("first", "second", "third"))
        assert values[:2] == [2, 2]
        assert allocator.burned.by_cause == {BurnCause.NOT_RETURNED: values[2] - 2}
