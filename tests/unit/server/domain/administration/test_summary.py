"""Summaries of sequences: usage, rate and forecast."""

import pytest

from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.domain.sequences.calendar import period_end
from idalloc_server.domain.sequences.sequence import Kind, Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.memory_rows import Row
from tests.unit.server.domain.administration.conftest import Node, create_monthly, new_token


async def test_a_row_without_last_value_is_invalid_but_listed(node: Node, store: MemoryStore) -> None:
    """An adopted row without last_value is rejected, but a list shows it."""
    store.rows["orders"] = Row(Sequence(), None)
    for call in (
        node.service.get("orders"),
        node.service.update("orders", {}, "", new_token()),
        node.service.advance("orders", 5, "", "", new_token()),
    ):
        with pytest.raises(SequenceInvalid):
            await call
    summary, _ = await node.service.list("", "", 10, with_deleted=False)
    assert (summary[0].last_value, summary[0].remaining) == (None, 0)


async def use(node: Node, clock: FakeClock, name: str, count: int, seconds: int) -> None:
    """Take ids once a second, with a sample after each, as a server does."""
    for _ in range(seconds):
        await node.take(name, count)
        clock.advance(1.0)
        for _ in node.allocator.pop_issued():
            pass


async def test_the_forecast_extrapolates_the_rate(node: Node, other: Node, clock: FakeClock) -> None:
    """exhaust_time is when this server's rate has used the remaining ids; None without a rate."""
    await node.service.create("orders", {"max_value": 1_000_000}, new_token())
    assert (await node.service.get("orders")).exhaust_time is None
    await use(node, clock, "orders", 50, 10)
    summary = await node.service.get("orders")
    assert summary.ids_per_second == pytest.approx(50.0)
    assert summary.row.last_value is not None
    assert summary.remaining == 1_000_000 - summary.row.last_value
    assert summary.exhaust_time == pytest.approx(clock.wall() + summary.remaining / 50)
    idle = await other.service.get("orders")
    assert (idle.ids_per_second, idle.exhaust_time) == (0.0, None)


async def test_the_rate_and_the_forecast_end_with_the_use(node: Node, clock: FakeClock) -> None:
    """A sequence that nobody has used for a minute has neither."""
    await use(node, clock, "orders", 50, 10)
    clock.advance(60.0)
    summary = await node.service.get("orders")
    assert (summary.ids_per_second, summary.exhaust_time) == (0.0, None)


async def test_rates_are_those_of_the_whole_server(store: MemoryStore, clock: FakeClock, node: Node) -> None:
    """The service asks for the rates of all processes, also for lists."""
    asked: list[list[str]] = []

    async def rates(counters: list[str]) -> dict[str, float]:
        asked.append(counters)
        return {"orders": 70.0}

    await node.take("bills")
    await node.take("orders")
    service = SequenceService(store, clock, node.allocator, rates=rates)
    found, _ = await service.list("", "", 10, with_deleted=False)
    assert [each.ids_per_second for each in found] == [0.0, 70.0]
    assert (await service.get("orders")).ids_per_second == 70.0
    assert asked == [["bills", "orders"], ["orders"]]


async def test_an_exhausted_sequence_is_exhausted_now(node: Node, clock: FakeClock) -> None:
    """An exhausted sequence has the current time as exhaust_time, also after an advance."""
    for name in ("used", "advanced"):
        await node.service.create(name, {"max_value": 10}, new_token())
    await node.take("used", 10)
    await node.service.advance("advanced", 10, "", "", new_token())
    for seconds in (0.0, 100.0):
        clock.advance(seconds)
        for name in ("used", "advanced"):
            summary = await node.service.get(name)
            assert (summary.remaining, summary.exhaust_time) == (0, clock.wall())


async def test_a_deleted_sequence_has_no_forecast(node: Node) -> None:
    """A deleted sequence has no exhaust_time."""
    await node.service.create("gone", {"max_value": 10}, new_token())
    await node.take("gone", 10)
    await node.service.delete("gone", "", new_token())
    [gone], _ = await node.service.list("", "", 10, with_deleted=True)
    assert (gone.row.deleted, gone.remaining, gone.exhaust_time) == (True, 0, None)


async def test_a_forecast_beyond_the_year_9999_is_none(node: Node, clock: FakeClock) -> None:
    """A forecast that no timestamp can express is None."""
    await node.service.create("orders", {}, new_token())
    await node.take("orders", 100)
    clock.advance(10)
    assert (await node.service.get("orders")).exhaust_time is None


async def test_a_forecast_ends_with_its_period(node: Node, clock: FakeClock) -> None:
    """A sequence that lasts until its period ends has no exhaust_time."""
    await create_monthly(node)
    await use(node, clock, "bills", 1, 10)
    slow = await node.service.get("bills")
    assert slow.ids_per_second == pytest.approx(1.0)
    assert slow.exhaust_time is not None
    clock.wall_seconds = period_end(slow.row.sequence, clock.wall()) - 100
    assert (await node.service.get("bills")).exhaust_time is None


async def test_advances_and_timestamps_do_not_count_as_rate(node: Node, clock: FakeClock) -> None:
    """Neither skipped ids nor the time in timestamps count as a rate."""
    await node.service.create("ev", {"kind": Kind.TIMESTAMP_MS}, new_token())
    await node.take("ev", 2)
    clock.advance(100.0)
    await node.take("ev", 2)
    await node.take("orders", 2)
    await node.service.advance("orders", 1_000_000, "", "", new_token())
    clock.advance(100.0)
    for name in ("ev", "orders"):
        summary = await node.service.get(name)
        assert (summary.ids_per_second, summary.exhaust_time) == (0.0, None)


async def test_the_rate_with_a_reset_is_that_of_its_period(node: Node, clock: FakeClock) -> None:
    """A sequence with a reset has the rate of its current period."""
    await create_monthly(node)
    await use(node, clock, "bills", 10, 20)
    assert (await node.service.get("bills")).ids_per_second == pytest.approx(10.0)
    assert (await node.service.get("bills", "2023-10")).ids_per_second == 0.0
