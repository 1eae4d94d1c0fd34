"""Burned ids are counted by sequence, period and cause, and logged once (P9)."""

import asyncio
import re

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import Burn, BurnCause, BurnedIds
from idalloc_server.domain.errors import GrantLost
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.sequences.calendar import period_at
from idalloc_server.domain.sequences.sequence import Reset, Sequence
from idalloc_server.telemetry import logs
from tests.support.fake_store import FakeClock, Fault, MemoryStore
from tests.support.paths import ROOT
from tests.support.sequence_allocators import CONFIG, make
from tests.support.waiting import settle
from tests.unit.server.domain.idempotency.conftest import until

REQUEST_ID = "11111111-1111-4111-8111-111111111111"


def new(burned: BurnedIds) -> list[Burn]:
    return sorted(burned.pop_new())


async def use_until_prefetched(allocator: Allocator, store: MemoryStore, name: str) -> int:
    """Use a sequence; return how many ids the lease then has."""
    last_ids = [(await allocator.issue(name, 100)).last_id for _ in range(5)]
    await settle()
    last_value = store.rows[name].last_value
    assert last_value is not None
    return last_value - last_ids[-1]


class TestCounting:
    def test_counts_by_sequence_period_and_cause(self) -> None:
        """P9: burned ids are counted by sequence, period and cause, and in total by cause."""
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

    def test_counts_are_returned_once_and_removed(self) -> None:
        """P9: pop_new returns each count once and keeps none."""
        burned = BurnedIds()
        for number in range(10_000):
            burned.add(f"orders-{number}", "", BurnCause.EXPIRED, 1)
        assert len(new(burned)) == 10_000
        assert new(burned) == []
        burned.add("orders-7", "", BurnCause.EXPIRED, 2)
        assert new(burned) == [("orders-7", "", BurnCause.EXPIRED, 2)]
        assert burned.by_cause == {BurnCause.EXPIRED: 10_002}

    def test_ids_burned_during_iteration_are_returned_too(self) -> None:
        """P9: ids burned while pop_new is iterated are returned as well."""
        burned = BurnedIds()
        burned.add("orders", "", BurnCause.EXPIRED, 5)
        new_burns = burned.pop_new()
        assert next(new_burns).id_count == 5
        burned.add("orders", "", BurnCause.EXPIRED, 2)
        assert [burn.id_count for burn in new_burns] == [2]


class TestBurning:
    async def test_each_sequence_has_its_own_counts(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P9: ids of an expired lease count for their own sequence."""
        held = {name: await use_until_prefetched(allocator, store, name) for name in ("orders", "invoices")}
        clock.advance(CONFIG.lease_ttl)
        await allocator.issue("orders", 1)
        assert new(allocator.burned) == [("orders", "", BurnCause.EXPIRED, held["orders"])]
        await allocator.issue("invoices", 1)
        assert new(allocator.burned) == [("invoices", "", BurnCause.EXPIRED, held["invoices"])]

    async def test_ids_of_a_period_count_for_that_period(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P9: ids of a period's expired lease count for that period."""
        sequence = Sequence(reset=Reset.YEARLY)
        make(store, "invoices", sequence)
        period = period_at(sequence, clock.wall())
        for _ in range(5):
            await allocator.issue("invoices", 100)
        clock.advance(CONFIG.lease_ttl)
        await allocator.issue("invoices", 1)
        [(name, of, cause, count)] = new(allocator.burned)
        assert (name, of, cause) == ("invoices", period, BurnCause.EXPIRED)
        assert count == allocator.burned.by_cause[BurnCause.EXPIRED] > 0

    async def test_a_lost_grant_is_counted_and_repeated(self, allocator: Allocator, store: MemoryStore) -> None:
        """P9: a grant that the answer to several lacks is burned; its call gets other ids."""
        make(store, "orders", Sequence())
        store.next("grant", Fault(error=GrantLost("orders", "it is missing")))
        assert (await allocator.issue("orders", 5)).first_id == 6
        assert new(allocator.burned) == [("orders", "", BurnCause.UNKNOWN_OUTCOME, 5)]

    @pytest.mark.parametrize("reset", [Reset.NEVER, Reset.YEARLY])
    async def test_the_date_in_texts_is_no_period(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock, reset: Reset
    ) -> None:
        """P9: a date in the ids' texts is not counted as a period."""
        sequence = Sequence(format="{year}-{value:06d}", max_value=999_999, reset=reset)
        make(store, "invoices", sequence)
        request_ids = IdempotentAllocator(allocator, store, clock, node="a", window=3600.0)
        await request_ids.allocate_once("invoices", 5, REQUEST_ID, 0)
        await request_ids.allocate_once("invoices", 5, REQUEST_ID, 0)
        period = "" if reset == Reset.NEVER else period_at(sequence, clock.wall())
        assert new(allocator.burned) == [("invoices", period, BurnCause.REPEATED, 5)]


class TestLogging:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make sleeps yield to other tasks without taking time."""
        sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))

    async def test_a_log_line_has_sequence_period_cause_and_ids(self) -> None:
        """P9: the log has a line for each sequence, period and cause."""
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

    async def test_many_log_lines_yield_to_other_tasks_and_lose_none(self) -> None:
        """P9: logging yields to other tasks, and loses no count when it is cancelled."""
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


def test_the_page_on_leases_lists_each_cause() -> None:
    """The table of docs/explanation/leases-and-fencing.md has a row for each cause, in order."""
    page = (ROOT / "docs/explanation/leases-and-fencing.md").read_text()
    table = page.partition("## What is burned")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(BurnCause)
