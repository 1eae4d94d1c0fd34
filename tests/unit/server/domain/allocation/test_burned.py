"""Ids that were burned are told by sequence, period and cause, each of them once (P9)."""

import asyncio

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import Burn, BurnCause, BurnedIds
from idalloc_server.domain.idempotency.allocator import IdempotentAllocator
from idalloc_server.domain.sequences.calendar import period_at
from idalloc_server.domain.sequences.model import Reset, Sequence
from idalloc_server.telemetry import logs
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import TERMS, make
from tests.unit.server.domain.idempotency.conftest import until

REQUEST_ID = "11111111-1111-4111-8111-111111111111"


def new(burned: BurnedIds) -> list[Burn]:
    return sorted(burned.pop_new())


async def held_of(allocator: Allocator, store: MemoryStore, name: str) -> int:
    """Uses a sequence until ids of it are held; returns how many."""
    last_ids = [(await allocator.allocate(name, 100)).last_id for _ in range(5)]
    await asyncio.sleep(0.001)
    last_value = store.rows[name].last_value
    assert last_value is not None
    return last_value - last_ids[-1]


class TestCounting:
    def test_by_sequence_period_and_cause_and_in_sum_by_cause(self) -> None:
        burned = BurnedIds()
        burned.add("orders", "", BurnCause.EXPIRED, 5)
        burned.add("orders", "", BurnCause.CANCELLED, 1)
        burned.add("orders", "", BurnCause.EXPIRED, 2)
        burned.add("invoices", "2026", BurnCause.EXPIRED, 3)
        burned.add("invoices", "2027", BurnCause.EXPIRED, 4)
        burned.add("idle", "", BurnCause.EXPIRED, 0)
        assert burned.by_cause == {BurnCause.EXPIRED: 14, BurnCause.CANCELLED: 1}
        assert new(burned) == [
            ("invoices", "2026", BurnCause.EXPIRED, 3),
            ("invoices", "2027", BurnCause.EXPIRED, 4),
            ("orders", "", BurnCause.CANCELLED, 1),
            ("orders", "", BurnCause.EXPIRED, 7),
        ]

    def test_what_was_told_is_not_told_again_and_not_kept(self) -> None:
        burned = BurnedIds()
        for number in range(10_000):
            burned.add(f"orders-{number}", "", BurnCause.EXPIRED, 1)
        assert len(new(burned)) == 10_000
        assert new(burned) == []
        burned.add("orders-7", "", BurnCause.EXPIRED, 2)
        assert new(burned) == [("orders-7", "", BurnCause.EXPIRED, 2)]
        assert burned.by_cause == {BurnCause.EXPIRED: 10_002}

    def test_what_is_burned_while_it_is_told_is_told_too(self) -> None:
        burned = BurnedIds()
        burned.add("orders", "", BurnCause.EXPIRED, 5)
        telling = burned.pop_new()
        assert next(telling).id_count == 5
        burned.add("orders", "", BurnCause.EXPIRED, 2)
        assert [burn.id_count for burn in telling] == [2]


class TestBurning:
    async def test_each_sequence_has_its_own(self, allocator: Allocator, store: MemoryStore, clock: FakeClock) -> None:
        held = {name: await held_of(allocator, store, name) for name in ("orders", "invoices")}
        clock.advance(TERMS.lease_ttl)
        await allocator.allocate("orders", 1)
        assert new(allocator.burned) == [("orders", "", BurnCause.EXPIRED, held["orders"])]
        await allocator.allocate("invoices", 1)
        assert new(allocator.burned) == [("invoices", "", BurnCause.EXPIRED, held["invoices"])]

    async def test_ids_of_a_period_are_burned_as_ids_of_that_period(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        sequence = Sequence(reset=Reset.YEARLY)
        make(store, "invoices", sequence)
        period = period_at(sequence, clock.wall())
        for _ in range(5):
            await allocator.allocate("invoices", 100)
        clock.advance(TERMS.lease_ttl)
        await allocator.allocate("invoices", 1)
        [(name, of, cause, count)] = new(allocator.burned)
        assert (name, of, cause) == ("invoices", period, BurnCause.EXPIRED)
        assert count == allocator.burned.by_cause[BurnCause.EXPIRED] > 0

    @pytest.mark.parametrize("reset", [Reset.NEVER, Reset.YEARLY])
    async def test_the_date_of_a_requests_texts_is_no_period(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock, reset: Reset
    ) -> None:
        sequence = Sequence(format="{year}-{value:06d}", max_value=999_999, reset=reset)
        make(store, "invoices", sequence)
        request_ids = IdempotentAllocator(allocator, store, clock, node="a", window=3600.0, store_timeout=2.0)
        await request_ids.allocate("invoices", 5, REQUEST_ID, 0)
        await request_ids.allocate("invoices", 5, REQUEST_ID, 0)
        period = "" if reset == Reset.NEVER else period_at(sequence, clock.wall())
        assert new(allocator.burned) == [("invoices", period, BurnCause.REPEATED, 5)]


class TestLogging:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A second takes no time, but others still come in between."""
        sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))

    async def test_a_line_tells_sequence_period_cause_and_ids(self) -> None:
        burned = BurnedIds()
        burned.add("orders", "", BurnCause.CANCELLED, 5)
        burned.add("invoices", "2026", BurnCause.EXPIRED, 7)
        with capture_logs() as lines:
            watching = asyncio.create_task(logs.watch_burned(burned.pop_new))
            await until(lambda: len(lines) == 2)
            watching.cancel()
        same = {"event": "burned", "log_level": "info"}
        assert sorted(lines, key=lambda line: str(line["sequence"])) == [
            {"sequence": "invoices", "period": "2026", "cause": "expired", "ids": 7, **same},
            {"sequence": "orders", "cause": "cancelled", "ids": 5, **same},
        ]

    async def test_very_many_lines_let_others_run_and_none_is_lost_where_it_ends_amid_them(self) -> None:
        burned = BurnedIds()
        for number in range(10 * logs.LINES_AT_ONCE):
            burned.add(f"orders-{number}", "", BurnCause.EXPIRED, 1)
        with capture_logs() as lines:
            watching = asyncio.create_task(logs.watch_burned(burned.pop_new))
            await until(lambda: lines)
            watching.cancel()
            await asyncio.wait({watching})
        assert 0 < len(lines) <= 3 * logs.LINES_AT_ONCE
        assert len(lines) + len(new(burned)) == 10 * logs.LINES_AT_ONCE
