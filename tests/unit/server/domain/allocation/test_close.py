"""A stop completes what is in progress, even for cancelled callers (P9)."""

import asyncio
from contextlib import suppress

import pytest

from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation import allocator as allocator_module
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import ServerDraining
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.fake_store import FakeClock, Fault, MemoryStore
from tests.support.sequence_allocators import make, own_counter, right_after_serving
from tests.support.waiting import settle
from tests.unit.server.domain.idempotency.conftest import until

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)


async def cancel(task: "asyncio.Task[object]", store: MemoryStore, held: str) -> None:
    """Cancel a caller during its store call, which is held."""
    await until(lambda: store.calls_of(held))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_change_in_progress_is_completed(store: MemoryStore, clock: FakeClock) -> None:
    """A change whose caller was cancelled is completed before the stop ends."""
    service = SequenceService(store, clock, Allocator(store, clock, CONFIG))
    gate = store.hold("create")
    await cancel(asyncio.create_task(service.create("orders", {}, service.change_key("", b"1"))), store, "create")
    closing = asyncio.create_task(service.finish_changes())
    await settle()
    assert not closing.done()
    gate.set()
    await closing
    assert "orders" in store.rows


async def test_a_record_in_progress_is_stored(store: MemoryStore, clock: FakeClock) -> None:
    """P7: the record of a request id in progress is stored before the stop ends."""
    request_ids = IdempotentAllocator(Allocator(store, clock, CONFIG), store, clock, node="n", window=3600.0)
    gate = store.hold("record")
    await cancel(asyncio.create_task(request_ids.allocate_once("orders", 3, "r", 0)), store, "record")
    closing = asyncio.create_task(request_ids.finish_recording())
    await settle()
    assert not closing.done()
    gate.set()
    await closing
    recorded = await store.recorded("r")
    assert recorded is not None
    assert recorded.id_count == 3


async def test_abandoned_leases_are_counted(store: MemoryStore, clock: FakeClock) -> None:
    """P9: abandon counts the ids held, and nothing is issued afterwards."""
    allocator = Allocator(store, clock, CONFIG)
    make(store, "orders", Sequence(min_lease_size=100))
    await allocator.issue("orders", 1)
    await allocator.issue("orders", 1)
    allocator.abandon()
    assert allocator.burned.by_cause == {BurnCause.NOT_RETURNED: (store.rows["orders"].last_value or 0) - 2}
    assert allocator.issue_now("orders", 1) is None


async def test_an_abandoned_record_is_counted_once(store: MemoryStore, clock: FakeClock) -> None:
    """P9: ids of a record in progress count once as of unknown outcome."""
    allocator = Allocator(store, clock, CONFIG)
    request_ids = IdempotentAllocator(allocator, store, clock, node="n", window=3600.0)
    gate = store.hold("record")
    await cancel(asyncio.create_task(request_ids.allocate_once("orders", 3, "r", 0)), store, "record")
    request_ids.abandon()
    assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 3}
    gate.set()
    await request_ids.finish_recording()
    assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 3}


class TestInFlight:
    """P9: ids in flight when the allocator is abandoned count once, whatever arrives later."""

    @pytest.mark.parametrize("ends", ["answered", "cancelled"])
    async def test_an_abandoned_refill_is_counted_once(self, store: MemoryStore, clock: FakeClock, ends: str) -> None:
        """P9: the ids of a refill in flight count once as of unknown outcome."""
        allocator = Allocator(store, clock, CONFIG)
        await allocator.issue("orders", 1)
        gate = store.hold("grant")
        caller = asyncio.create_task(allocator.issue("orders", 30))
        await until(lambda: len(store.calls_of("grant")) > 1)
        allocator.abandon()
        wanted = store.calls_of("grant")[-1].arguments[1]
        assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: wanted}
        if ends == "answered":
            gate.set()
        else:
            caller.cancel()
        await asyncio.wait({caller})
        await settle()
        assert caller.cancelled() or isinstance(caller.exception(), ServerDraining)
        assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: wanted}

    async def test_a_refill_abandoned_before_it_began_fails_callers(self, store: MemoryStore, clock: FakeClock) -> None:
        """A caller whose refill is abandoned before its first step is refused at once."""
        allocator = Allocator(store, clock, CONFIG)
        caller = asyncio.create_task(allocator.issue("orders", 3))
        await asyncio.sleep(0)
        allocator.abandon()
        await asyncio.wait({caller}, timeout=5)
        assert caller.done()
        assert isinstance(caller.exception(), ServerDraining)
        assert not store.calls_of("grant")
        assert not allocator.burned.by_cause

    async def test_an_abandoned_return_of_a_tail_is_counted_once(self, store: MemoryStore, clock: FakeClock) -> None:
        """P9: a tail whose return is in flight counts once as not returned."""
        allocator = Allocator(store, clock, CONFIG)
        make(store, "orders", Sequence(min_lease_size=100))
        await allocator.issue("orders", 1)
        await allocator.issue("orders", 1)
        gate = store.hold("give_back")
        closing = asyncio.create_task(allocator.return_leases())
        await until(lambda: store.calls_of("give_back"))
        allocator.abandon()
        held = {BurnCause.NOT_RETURNED: (store.rows["orders"].last_value or 0) - 2}
        assert allocator.burned.by_cause == held
        gate.set()
        await closing
        assert allocator.burned.by_cause == held

    async def test_ids_of_a_served_caller_are_counted_once(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P9: a served caller that has not resumed gets no ids that abandon has counted."""
        allocator = Allocator(store, clock, CONFIG)
        await allocator.issue("orders", 1)
        right_after_serving(own_counter(allocator, "orders"), allocator.abandon, monkeypatch)
        with pytest.raises(ServerDraining):
            await allocator.issue("orders", 30)
        assert allocator.burned.by_cause[BurnCause.CANCELLED] == 30
        assert allocator.burned.by_cause.total() == (store.rows["orders"].last_value or 0) - 1

    async def test_ids_of_an_answered_request_id_are_counted_once(self, store: MemoryStore, clock: FakeClock) -> None:
        """P9: a caller with a request id that has not resumed gets no ids that abandon counted."""
        allocator = Allocator(store, clock, CONFIG)
        request_ids = IdempotentAllocator(allocator, store, clock, node="n", window=3600.0)
        caller = asyncio.create_task(request_ids.allocate_once("orders", 3, "r", 0))
        await until(lambda: request_ids._calls)
        request_ids._calls["r"].task.add_done_callback(lambda _: request_ids.abandon())
        with pytest.raises(ServerDraining):
            await caller
        assert allocator.burned.by_cause == {BurnCause.CANCELLED: 3}

    async def test_idle_sequences_not_closed_yet_are_closed_at_the_stop(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P9: tails of idle sequences whose close was cancelled are given back at the stop."""
        monkeypatch.setattr(allocator_module, "CLOSE_CONCURRENCY", 1)
        allocator = Allocator(store, clock, CONFIG)
        for name in ("first", "second", "third"):
            make(store, name, Sequence(min_lease_size=100))
            await allocator.issue(name, 1)
            await allocator.issue(name, 1)
        await allocator.check_idle_sequences()
        store.hold("give_back")
        dropping = asyncio.create_task(allocator.check_idle_sequences())
        await until(lambda: store.calls_of("give_back"))
        dropping.cancel()
        await asyncio.wait({dropping})
        await allocator.return_leases()
        values = sorted(store.rows[name].last_value or 0 for name in ("first", "second", "third"))
        assert values[:2] == [2, 2]
        assert allocator.burned.by_cause == {BurnCause.NOT_RETURNED: values[2] - 2}


@pytest.mark.parametrize("hanging", ["grant", "give_back"], ids=["killed in a refill", "slow to stop"])
async def test_a_node_that_ends_delays_no_other(store: MemoryStore, clock: FakeClock, hanging: str) -> None:
    """P10: while a node ends, calls of other nodes wait for no timer, lease or other node."""
    ending, staying, started = (Allocator(store, clock, CONFIG) for _ in range(3))
    for _ in range(5):
        await ending.issue("orders", 10)
        await staying.issue("orders", 10)
    await settle()
    gate = store.hold(hanging)
    hangs = ending.issue("orders", 100_000) if hanging == "grant" else ending.return_leases()
    end = asyncio.create_task(hangs)
    await settle()
    assert staying.issue_now("orders", 1) is not None
    calls = [asyncio.create_task(each.issue("orders", 100_000)) for each in (staying, started)]
    await settle()  # which ends when all tasks wait for something
    assert [call.done() for call in calls] == [True, True]
    assert not end.done()
    gate.set()
    await end


async def test_a_stopped_allocator_issues_nothing(store: MemoryStore, clock: FakeClock) -> None:
    """P3: a call after the stop is refused: the last refill does not look like a restore to it."""
    allocator = Allocator(store, clock, CONFIG)
    await allocator.issue("orders", 1)
    answered = asyncio.Event()
    store.next("grant", Fault(after=answered))
    late = asyncio.create_task(allocator.issue("orders", 5))
    await settle()
    stop = asyncio.create_task(allocator.return_leases())
    await settle()
    with pytest.raises(ServerDraining):
        await allocator.issue("orders", 5)
    answered.set()
    assert (await late).id_count == 5
    await stop
