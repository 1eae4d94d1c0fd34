"""Recorded answers are removed after their window, by the boot clock of the pruner (P7)."""

import asyncio

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.idempotency import idempotent_allocator as allocator_module
from idalloc_server.domain.idempotency.idempotent_allocator import PRUNE_BATCH_ROWS
from idalloc_server.domain.store.records import RecordedAllocation
from idalloc_server.domain.store.retention import RecordPosition, SeenRecords
from tests.support.fake_store import FakeClock, MemoryStore, unreachable
from tests.unit.server.domain.idempotency.conftest import ONE, OTHER, WINDOW, Node, until

HOUR = 3600.0


async def prune(node: Node) -> None:
    await node.request_ids.prune()


class TestPruning:
    async def test_batches_remove_all_and_continue_after_errors(self, store: MemoryStore, clock: FakeClock) -> None:
        """P7: the pruner removes all answers whose window has passed, also after an error."""
        node = Node(store, clock)
        node.request_ids.window = 0.05
        many = [
            RecordedAllocation(str(i), "orders", 1, 1, 1, 1, "", 0, "a", 50) for i in range(2 * PRUNE_BATCH_ROWS + 1)
        ]
        await store.record(many)
        store.next("forget_recorded", unreachable())
        task = asyncio.create_task(node.request_ids.prune_answers())
        await until(lambda: store.calls_of("newest_recorded"))
        await asyncio.sleep(0)
        clock.advance(1.0)
        await store.record([RecordedAllocation("young", "orders", 1, 1, 1, 1, "", 0, "a", 50)])
        await until(lambda: list(store.allocations) == ["young"])
        task.cancel()
        assert len(store.calls_of("forget_recorded")) >= 4

    async def test_after_the_window_a_request_id_is_new(self, node: Node, clock: FakeClock) -> None:
        """P7: an answer is kept for its window, and then removed."""
        await node.take(5)
        await prune(node)
        clock.advance(WINDOW - 1)
        await prune(node)
        assert (await node.take(5)).first_id == 1
        clock.advance(1)
        await prune(node)
        assert (await node.take(5)).first_id > 10

    @pytest.mark.parametrize("seconds", [365 * 86400.0, -365 * 86400.0])
    async def test_setting_the_wall_clock_has_no_effect(self, node: Node, clock: FakeClock, seconds: float) -> None:
        """P7: only the boot clock counts."""
        await node.take(5)
        await prune(node)
        clock.wall_seconds += seconds
        clock.boot_seconds += WINDOW - 1
        await prune(node)
        assert (await node.take(5)).first_id == 1
        clock.boot_seconds += 1
        await prune(node)
        assert (await node.take(5)).first_id > 5

    async def test_the_window_of_the_row_counts(self, node: Node, other_node: Node, clock: FakeClock) -> None:
        """P7: a node with a shorter window keeps the answers of one with a longer window."""
        other_node.request_ids.window = 1.0
        await node.take(5, ONE)
        await other_node.take(5, OTHER)
        await prune(other_node)
        clock.advance(WINDOW - 1)
        await prune(other_node)
        assert (await node.take(5, ONE)).first_id == 1
        assert (await other_node.take(5, OTHER)).first_id > 10  # its own second had passed
        clock.advance(1)
        await prune(other_node)
        assert (await node.take(5, ONE)).first_id > 10

    async def test_a_row_without_a_window_is_kept_for_the_default(
        self, node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P7: a row without a window is kept for the default or the node's own, the longer one."""
        node.request_ids.window = 1.0
        await store.record([RecordedAllocation(ONE, "orders", 1, 5, 1, 1, "", 7, "a")])
        await prune(node)
        clock.advance(HOUR - 1)
        await prune(node)
        assert ONE in store.allocations
        clock.advance(1)
        await prune(node)
        assert ONE not in store.allocations

    async def test_a_restart_starts_a_new_window(self, node: Node, store: MemoryStore, clock: FakeClock) -> None:
        """P7: a process removes only what it has seen for a whole window."""
        await node.take(5)
        await prune(node)
        clock.advance(WINDOW - 1)
        again = Node(store, clock, "again")
        await prune(again)
        clock.advance(WINDOW - 1)
        await prune(again)
        assert (await again.take(5)).first_id == 1

    async def test_a_replaced_table_starts_a_new_window(self, node: Node, store: MemoryStore, clock: FakeClock) -> None:
        """P7: positions seen before the table was replaced or restored do not count."""
        for number in range(3):
            await node.take(5, f"{number:08x}-0000-4000-8000-000000000000")
        await prune(node)
        store.allocations.clear()
        store._records = 0
        await node.take(5)
        clock.advance(WINDOW)
        await prune(node)
        assert ONE in store.allocations


class TestSeenRecords:
    def test_few_positions_are_kept(self) -> None:
        """P7: memory is bounded, and an answer is removed at most a fifth of its window late."""
        seen, now, step = SeenRecords(), 0.0, 0.1
        for number in range(50_000):
            now += step
            seen.note(RecordPosition(number), now)
        assert len(seen._seen) < 300
        for window in (1.0, 60.0, 3600.0):
            retention = seen.retention(now, window)
            assert retention
            late = now - window - (retention.last.number + 1) * step
            assert 0 <= late + 1e-6 <= window / 5
            assert not retention.is_over(retention.last.number + 1, 0, int(window * 1000))
            assert retention.is_over(retention.last.number, 0, int(window * 1000))

    def test_a_row_of_a_later_term_is_later(self) -> None:
        """P7: after a failover of CrateDB, numbers may repeat in a higher term."""
        seen = SeenRecords()
        seen.note(RecordPosition(105, term=1), 0.0)
        retention = seen.retention(HOUR, 1.0)
        assert retention
        assert retention.is_over(101, 1, 1000)
        assert not retention.is_over(101, 2, 1000)


class TestPilingUp:
    async def test_very_many_answers_log_one_warning(
        self, node: Node, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P7: many recorded answers log one warning."""
        monkeypatch.setattr(allocator_module, "WARNING_ROWS", 2)
        await node.take(5, ONE)
        with capture_logs() as lines:
            await node.request_ids._warn_if_many()
            await node.take(5, OTHER)
            await node.request_ids._warn_if_many()  # within the same minute
            assert not lines
            for _ in range(3):
                clock.advance(61)
                await node.request_ids._warn_if_many()
        [line] = lines
        assert (line["event"], line["rows"], line["log_level"]) == ("request_ids_piling_up", 2, "warning")
        assert len(store.calls_of("count_recorded")) == 4
