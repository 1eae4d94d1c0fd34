"""How leases end: with time, a newer generation, a stop, a store that went backwards, a fork (P3, P4, P8)."""

import asyncio
import os

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.sequences.model import Sequence
from tests.support.fake_store import FakeClock, MemoryStore, lost_reply
from tests.support.sequence_allocators import TERMS, ids, make, right_after_serving


class TestWentBackwards:
    @pytest.fixture
    async def seen(self, allocator: Allocator) -> None:
        await allocator.allocate("orders", 100)

    @pytest.mark.usefixtures("seen")
    @pytest.mark.parametrize("change", ["value", "generation", "missing"])
    async def test_that_sequence_stops_and_others_go_on(
        self, allocator: Allocator, store: MemoryStore, change: str
    ) -> None:
        if change == "value":
            store.rows["orders"].last_value = 50
        elif change == "generation":
            store.rows["orders"].generation = 0
        else:
            del store.rows["orders"]
        with pytest.raises(StoreWentBackwards):
            await allocator.allocate("orders", 1_000)
        calls = len(store.calls)
        with pytest.raises(StoreWentBackwards):
            await allocator.allocate("orders", 1)
        assert len(store.calls) == calls  # refused without moving the counter any further
        assert (await allocator.allocate("invoices", 1)).first_id == 1

    @pytest.mark.usefixtures("seen")
    async def test_ids_in_memory_are_not_issued_either(self, allocator: Allocator, store: MemoryStore) -> None:
        await allocator.allocate("orders", 1)
        held = allocator.lease_count
        assert held == 1
        store.rows["orders"].last_value = 3
        with pytest.raises(StoreWentBackwards):
            await allocator.allocate("orders", 10_000)
        assert allocator.take("orders", 1) is None
        assert allocator.burned.by_cause[BurnCause.WENT_BACKWARDS] > 0

    @pytest.mark.usefixtures("seen")
    async def test_it_is_noticed_also_after_the_lane_was_dropped(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        await allocator.drop_idle_sequences()
        await allocator.drop_idle_sequences()
        store.rows["orders"].last_value = 99
        with pytest.raises(StoreWentBackwards):
            await allocator.allocate("orders", 1)

    @pytest.mark.usefixtures("seen")
    async def test_a_tail_that_was_given_back_is_not_taken_for_it(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        await allocator.allocate("orders", 1)  # holds some ahead
        await allocator.close()
        assert store.rows["orders"].last_value == 101
        assert (await allocator.allocate("orders", 1)).first_id == 102

    async def test_a_sequence_that_counts_down_is_watched_in_its_own_direction(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        make(store, "down", Sequence(start=-1, step=-1, min_value=-1_000, max_value=-1))
        assert ids(await allocator.allocate("down", 3)) == [-1, -2, -3]
        assert ids(await allocator.allocate("down", 3)) == [-4, -5, -6]
        store.rows["down"].last_value = 0
        with pytest.raises(StoreWentBackwards):
            await allocator.allocate("down", 100)


class TestLeaseLife:
    async def test_no_id_is_issued_from_a_lease_that_ended(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        await allocator.allocate("orders", 1)
        await allocator.allocate("orders", 1)
        held = (store.rows["orders"].last_value or 0) - 2
        assert held > 0
        clock.advance(TERMS.lease_ttl)
        assert allocator.take("orders", 1) is None
        assert (await allocator.allocate("orders", 1)).first_id == 3 + held
        assert allocator.burned.by_cause == {BurnCause.EXPIRED: held}

    async def test_the_end_counts_from_before_the_store_was_asked(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        await allocator.allocate("orders", 1)
        gate = store.hold("grant")
        call = asyncio.create_task(allocator.allocate("orders", 1))
        await asyncio.sleep(0.01)
        asked_at = clock.boot()
        clock.advance(30)
        gate.set()
        assert (await call).expires_at == asked_at + TERMS.lease_ttl

    async def test_a_pause_longer_than_the_lease_between_taking_and_answering_is_noticed(
        self, allocator: Allocator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await allocator.allocate("orders", 1)
        call = asyncio.create_task(allocator.allocate("orders", 5))
        right_after_serving(
            allocator._sequence_allocators["orders"], lambda: clock.advance(TERMS.lease_ttl + 1), monkeypatch
        )
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert allocator.burned.by_cause[BurnCause.EXPIRED] >= 5

    async def test_a_lease_in_use_is_renewed_without_moving_the_counter(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        for _ in range(6):
            await allocator.allocate("orders", 100)
        last_value = store.rows["orders"].last_value
        for _ in range(10):
            clock.advance(TERMS.lease_ttl / 2)
            assert allocator.take("orders", 1) is not None
            await asyncio.sleep(0.01)
        assert store.rows["orders"].last_value == last_value
        assert not allocator.burned.by_cause

    async def test_a_renewal_that_fails_costs_no_caller_anything(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        for _ in range(6):
            await allocator.allocate("orders", 100)
        clock.advance(TERMS.lease_ttl / 2)
        store.down = True
        calls = len(store.calls)
        for _ in range(50):
            assert allocator.take("orders", 1) is not None
            await asyncio.sleep(0)
        assert len(store.calls) - calls == 1  # not tried again at once
        store.down = False
        clock.advance(2)
        assert allocator.take("orders", 1) is not None
        await asyncio.sleep(0.01)
        clock.advance(TERMS.lease_ttl * 0.9)
        assert allocator.take("orders", 1) is not None

    async def test_a_new_generation_ends_what_is_held_of_the_old_one(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        for _ in range(6):
            await allocator.allocate("orders", 100)
        row = store.rows["orders"]
        held = (row.last_value or 0) - 600
        assert held > 0
        row.generation, row.last_value = row.generation + 1, 1_000_000
        clock.advance(TERMS.lease_ttl / 2)
        allocator.take("orders", 1)
        await asyncio.sleep(0.01)
        taken = await allocator.allocate("orders", 1)
        assert (taken.generation, taken.first_id) == (row.generation, 1_000_001)
        assert allocator.burned.by_cause == {BurnCause.GENERATION: held - 1}

    async def test_the_row_remembers_how_long_leases_live(self, allocator: Allocator, store: MemoryStore) -> None:
        await allocator.allocate("orders", 1)
        assert store.rows["orders"].lease_ms == TERMS.lease_ttl * 1_000


class TestTails:
    async def test_a_stop_gives_the_unused_tail_back(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        for _ in range(5):
            await allocator.allocate("orders", 100)
        assert (store.rows["orders"].last_value or 0) > 500
        await allocator.close()
        assert store.rows["orders"].last_value == 500
        assert not allocator.burned.by_cause
        assert (await Allocator(store, clock, TERMS).allocate("orders", 1)).first_id == 501

    async def test_a_tail_behind_another_nodes_ids_is_burned(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        for _ in range(5):
            await allocator.allocate("orders", 100)
        held = (store.rows["orders"].last_value or 0) - 500
        other = await Allocator(store, clock, TERMS).allocate("orders", 1)
        await allocator.close()
        assert store.rows["orders"].last_value == other.last_id
        assert allocator.burned.by_cause == {BurnCause.NOT_RETURNED: held}

    async def test_a_lost_answer_to_a_tail_is_harmless(self, allocator: Allocator, store: MemoryStore) -> None:
        for _ in range(5):
            await allocator.allocate("orders", 100)
        store.next("give_back", lost_reply())
        await allocator.close()
        assert (await allocator.allocate("orders", 1)).first_id == 501

    async def test_idle_lanes_are_dropped_and_busy_ones_stay(self, allocator: Allocator, store: MemoryStore) -> None:
        for name in ("idle", "busy"):
            for _ in range(3):
                await allocator.allocate(name, 10)
        await allocator.drop_idle_sequences()
        await allocator.allocate("busy", 1)
        await allocator.drop_idle_sequences()
        assert set(allocator._sequence_allocators) == {"busy"}
        assert store.rows["idle"].last_value == 30
        assert (await allocator.allocate("idle", 1)).first_id == 31

    async def test_many_names_used_once_leave_no_lane(self, allocator: Allocator) -> None:
        await asyncio.gather(*(allocator.allocate(f"s{n}", 1) for n in range(2_000)))
        await allocator.drop_idle_sequences()
        await allocator.drop_idle_sequences()
        assert not allocator._sequence_allocators


class TestFork:
    async def test_a_fork_issues_none_of_its_parents_ids(self, allocator: Allocator) -> None:
        for _ in range(5):
            await allocator.allocate("orders", 10)
        reader, writer = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            outcome = b"took"
            os.getpid = lambda: parent  # numbers come back, as 1 does in every container: the hook must do
            try:
                if allocator.take("orders", 1) is None:
                    allocator.allocate("orders", 1).send(None)
            except StoreUnavailable:
                outcome = b"refused"
            finally:
                os.write(writer, outcome)
                os._exit(0)
        os.waitpid(pid, 0)  # noqa: ASYNC222
        assert os.read(reader, 10) == b"refused"
        os.close(reader)
        os.close(writer)
        assert allocator.take("orders", 1) is not None

    async def test_a_process_of_another_number_is_refused_also_where_no_hook_ran(
        self, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(5):
            await allocator.allocate("orders", 10)
        monkeypatch.setattr(os, "getpid", lambda: -5)
        assert allocator.take("orders", 1) is None
        with pytest.raises(StoreUnavailable):
            await allocator.allocate("orders", 1)


async def test_a_node_that_saw_more_does_not_move_the_counter_past_what_another_saw(
    store: MemoryStore, clock: FakeClock
) -> None:
    much, little = Allocator(store, clock, TERMS), Allocator(store, clock, TERMS)
    await little.allocate("orders", 10)
    await much.allocate("orders", 100_000)
    await little.close()
    await much.close()
    store.rows["orders"].last_value = 5
    with pytest.raises(StoreWentBackwards):
        await much.allocate("orders", 1_000)
    assert store.rows["orders"].last_value == 5
    with pytest.raises(StoreWentBackwards):
        await little.allocate("orders", 10)
