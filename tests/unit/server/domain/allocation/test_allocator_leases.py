"""The end of a lease: expiry, generation, stop, store that went backwards, fork (P3, P4, P8)."""

import asyncio
import os

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.counter_allocator import RECHECK_SECONDS
from idalloc_server.domain.errors import StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.fork import OsProcess
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.fake_process import FakeProcess
from tests.support.fake_store import FakeClock, MemoryStore, lost_reply
from tests.support.sequence_allocators import CONFIG, close_idle, ids, make, own_counter, right_after_serving
from tests.support.waiting import settle


class TestWentBackwards:
    @pytest.fixture
    async def seen(self, allocator: Allocator) -> None:
        await allocator.issue("orders", 100)

    @pytest.mark.usefixtures("seen")
    @pytest.mark.parametrize("change", ["value", "generation", "missing"])
    async def test_only_that_sequence_stops(self, allocator: Allocator, store: MemoryStore, change: str) -> None:
        """P3: a sequence behind its high-water mark issues nothing; others continue."""
        if change == "value":
            store.rows["orders"].last_value = 50
        elif change == "generation":
            store.rows["orders"].generation = 0
        else:
            del store.rows["orders"]
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("orders", 1_000)
        calls = len(store.calls)
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("orders", 1)
        assert len(store.calls) == calls  # rejected without a store call
        assert (await allocator.issue("invoices", 1)).first_id == 1

    @pytest.mark.usefixtures("seen")
    async def test_ids_in_memory_are_not_issued(self, allocator: Allocator, store: MemoryStore) -> None:
        """P3: ids in memory are burned when the store went backwards."""
        await allocator.issue("orders", 1)
        held = allocator.lease_count
        assert held == 1
        store.rows["orders"].last_value = 3
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("orders", 1_000_000)
        assert allocator.issue_now("orders", 1) is None
        assert allocator.burned.by_cause[BurnCause.WENT_BACKWARDS] > 0

    @pytest.mark.usefixtures("seen")
    async def test_it_is_detected_after_an_idle_sequence_was_closed(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        """P3: the high-water mark outlives the allocator of an idle sequence."""
        await allocator.check_idle_sequences()
        await allocator.check_idle_sequences()
        store.rows["orders"].last_value = 99
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("orders", 1)

    @pytest.mark.usefixtures("seen")
    async def test_an_advance_below_the_mark_is_not_accepted(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P3: a sequence that was advanced, but not past its mark, is read and not written."""
        row = store.rows["orders"]
        row.last_value = 50
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("orders", 1)
        writes = len(store.calls_of("grant"))
        row.generation += 1
        for _ in range(3):
            clock.advance(RECHECK_SECONDS)
            with pytest.raises(StoreWentBackwards):
                await allocator.issue("orders", 1)
        assert len(store.calls_of("get")) == 3
        assert len(store.calls_of("grant")) == writes
        row.last_value = 100
        clock.advance(RECHECK_SECONDS)
        assert (await allocator.issue("orders", 1)).first_id == 101

    @pytest.mark.usefixtures("seen")
    async def test_a_returned_tail_is_no_backward_step(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P3: a counter that moved back by this node's own tail is accepted."""
        await allocator.issue("orders", 1)  # prefetches ids
        await close_idle(allocator)
        assert store.rows["orders"].last_value == 101
        assert (await allocator.issue("orders", 1)).first_id == 102

    async def test_a_descending_sequence_is_checked_in_its_direction(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        """P3: for a descending sequence a larger value is behind."""
        make(store, "down", Sequence(start=-1, step=-1, min_value=-1_000, max_value=-1))
        assert ids(await allocator.issue("down", 3)) == [-1, -2, -3]
        assert ids(await allocator.issue("down", 3)) == [-4, -5, -6]
        store.rows["down"].last_value = 0
        with pytest.raises(StoreWentBackwards):
            await allocator.issue("down", 100)


class TestExpiry:
    async def test_no_id_is_issued_from_an_expired_lease(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P4: an expired lease issues nothing; its ids are burned."""
        await allocator.issue("orders", 1)
        await allocator.issue("orders", 1)
        held = (store.rows["orders"].last_value or 0) - 2
        assert held > 0
        clock.advance(CONFIG.lease_ttl)
        assert allocator.issue_now("orders", 1) is None
        assert (await allocator.issue("orders", 1)).first_id == 3 + held
        assert allocator.burned.by_cause == {BurnCause.EXPIRED: held}

    async def test_the_ttl_starts_before_the_store_call(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P4: a lease expires lease_ttl after the store call was sent, not answered."""
        await allocator.issue("orders", 1)
        gate = store.hold("grant")
        call = asyncio.create_task(allocator.issue("orders", 1))
        await settle()
        asked_at = clock.boot()
        clock.advance(30)
        gate.set()
        assert (await call).expires_at == asked_at + CONFIG.lease_ttl

    async def test_a_pause_before_the_reply_burns_expired_ids(
        self, allocator: Allocator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P4: ids whose lease expires between taking and replying are not issued."""
        await allocator.issue("orders", 1)
        call = asyncio.create_task(allocator.issue("orders", 5))
        right_after_serving(own_counter(allocator, "orders"), lambda: clock.advance(CONFIG.lease_ttl + 1), monkeypatch)
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert allocator.burned.by_cause[BurnCause.EXPIRED] >= 5

    async def test_a_lease_in_use_is_renewed_without_moving_the_counter(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P4: a lease in use is renewed in time, by writes that grant nothing."""
        for _ in range(6):
            await allocator.issue("orders", 100)
        last_values = []
        for _ in range(10):
            clock.advance(CONFIG.lease_ttl / 2)
            assert allocator.issue_now("orders", 1) is not None
            await settle()
            last_values.append(store.rows["orders"].last_value)
        assert len(set(last_values)) == 1  # the first renewal knows the rate of the calls before
        assert not allocator.burned.by_cause

    async def test_a_failed_renewal_is_invisible_to_callers(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P4: calls are served while a renewal fails; it is retried after a second."""
        for _ in range(6):
            await allocator.issue("orders", 100)
        clock.advance(CONFIG.lease_ttl / 2)
        store.down = True
        calls = len(store.calls)
        for _ in range(50):
            assert allocator.issue_now("orders", 1) is not None
            await asyncio.sleep(0)
        assert len(store.calls) - calls == 1  # not retried at once
        store.down = False
        clock.advance(2)
        assert allocator.issue_now("orders", 1) is not None
        await settle()
        clock.advance(CONFIG.lease_ttl * 0.9)
        assert allocator.issue_now("orders", 1) is not None

    async def test_a_new_generation_ends_the_lease_of_the_old_one(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P5: a renewal that finds a newer generation burns the old lease."""
        for _ in range(6):
            await allocator.issue("orders", 100)
        row = store.rows["orders"]
        held = (row.last_value or 0) - 600
        assert held > 0
        row.generation, row.last_value = row.generation + 1, 1_000_000
        clock.advance(CONFIG.lease_ttl / 2)
        allocator.issue_now("orders", 1)
        await settle()
        taken = await allocator.issue("orders", 1)
        assert (taken.generation, taken.first_id) == (row.generation, 1_000_001)
        assert allocator.burned.by_cause == {BurnCause.GENERATION: held - 1}

    async def test_the_row_stores_the_lease_ttl(self, allocator: Allocator, store: MemoryStore) -> None:
        """P5: the row stores the TTL of its leases as lease_ms."""
        await allocator.issue("orders", 1)
        assert store.rows["orders"].lease_ms == CONFIG.lease_ttl * 1_000


class TestTails:
    async def test_a_stop_gives_the_unused_tail_back(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P2: a stop gives the unused tail back, and the next node continues there."""
        for _ in range(5):
            await allocator.issue("orders", 100)
        assert (store.rows["orders"].last_value or 0) > 500
        await close_idle(allocator)
        assert store.rows["orders"].last_value == 500
        assert not allocator.burned.by_cause
        assert (await Allocator(store, clock, CONFIG).issue("orders", 1)).first_id == 501

    async def test_a_tail_before_another_nodes_ids_is_burned(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P2: a tail is burned if another node has advanced the counter."""
        for _ in range(5):
            await allocator.issue("orders", 100)
        held = (store.rows["orders"].last_value or 0) - 500
        await Allocator(store, clock, CONFIG).issue("orders", 1)
        await settle()
        last_value = store.rows["orders"].last_value
        await close_idle(allocator)
        assert store.rows["orders"].last_value == last_value
        assert allocator.burned.by_cause == {BurnCause.NOT_RETURNED: held}

    async def test_a_lost_answer_to_a_returned_tail_is_harmless(self, allocator: Allocator, store: MemoryStore) -> None:
        """P1: a tail whose return has no answer is not issued by this node again."""
        for _ in range(5):
            await allocator.issue("orders", 100)
        store.next("give_back", lost_reply())
        await close_idle(allocator)
        assert (await allocator.issue("orders", 1)).first_id == 501

    async def test_idle_sequences_are_closed_and_busy_ones_stay(self, allocator: Allocator, store: MemoryStore) -> None:
        """Idle sequences give their ids back; those in use keep their lease."""
        for name in ("idle", "busy"):
            for _ in range(3):
                await allocator.issue(name, 10)
        await allocator.check_idle_sequences()
        await allocator.issue("busy", 1)
        await allocator.check_idle_sequences()
        assert set(allocator._sequence_allocators) == {"busy"}
        assert store.rows["idle"].last_value == 30
        assert (await allocator.issue("idle", 1)).first_id == 31

    async def test_names_used_once_leave_no_allocator(self, allocator: Allocator) -> None:
        """Sequences used once are closed when idle, and use no memory afterwards."""
        await asyncio.gather(*(allocator.issue(f"s{n}", 1) for n in range(2_000)))
        await allocator.check_idle_sequences()
        await allocator.check_idle_sequences()
        assert not allocator._sequence_allocators


class TestFork:
    async def test_a_fork_issues_none_of_its_parents_ids(self, store: MemoryStore, clock: FakeClock) -> None:
        """P8: a forked child issues none of its parent's ids, even with a repeated pid."""
        process = OsProcess()
        process.pid = lambda: 1  # as in containers: only the hook helps
        allocator = Allocator(store, clock, CONFIG, process=process)
        for _ in range(5):
            await allocator.issue("orders", 10)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            outcome = b"took"
            try:
                if allocator.issue_now("orders", 1) is None:
                    allocator.issue("orders", 1).send(None)
            except StoreUnavailable:
                outcome = b"refused"
            finally:
                os.write(writer, outcome)
                os._exit(0)
        os.waitpid(pid, 0)  # noqa: ASYNC222
        assert os.read(reader, 10) == b"refused"
        os.close(reader)
        os.close(writer)
        assert allocator.issue_now("orders", 1) is not None

    async def test_another_pid_is_rejected_without_the_fork_hook(self, store: MemoryStore, clock: FakeClock) -> None:
        """P8: a process with another pid issues nothing, even if the fork hook did not run."""
        process = FakeProcess()
        allocator = Allocator(store, clock, CONFIG, process=process)
        for _ in range(5):
            await allocator.issue("orders", 10)
        process.fork(is_noticed=False)
        assert allocator.issue_now("orders", 1) is None
        with pytest.raises(StoreUnavailable):
            await allocator.issue("orders", 1)


async def test_a_counter_behind_its_mark_is_not_advanced(store: MemoryStore, clock: FakeClock) -> None:
    """P3: a node behind its mark does not advance the counter past the mark of another node."""
    much, little = Allocator(store, clock, CONFIG), Allocator(store, clock, CONFIG)
    await little.issue("orders", 10)
    await much.issue("orders", 100_000)
    await close_idle(little)
    await close_idle(much)
    store.rows["orders"].last_value = 5
    with pytest.raises(StoreWentBackwards):
        await much.issue("orders", 1_000)
    assert store.rows["orders"].last_value == 5
    with pytest.raises(StoreWentBackwards):
        await little.issue("orders", 10)
