"""Summaries of sequences: usage, rate and forecast."""

import pytest

from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.domain.sequences.model import Kind, Sequence, name_of_period
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
    summary, _ = await node.service.list("", "", 10, deleted=False)
    assert (summary[0].last_value, summary[0].remaining) == (None, 0)


async def test_the_forecast_extrapolates_the_rate(node: Node, other: Node, clock: FakeClock) -> None:
    """exhaust_time is when the remaining ids are used at the current rate."""
    await node.service.create("orders", {"max_value": 1000}, new_token())
    assert (await node.service.get("orders")).exhaust_time is None
    await node.take("orders", 50)
    clock.advance(10)
    await node.take("orders", 50)
    for each in (node, other):  # one that allocated, and one that did not
        summary = await each.service.get("orders")
        used = summary.row.last_value
        assert used is not None
        issued = used - 50 - node.allocator.ids_in_memory("orders") if each is node else used
        assert summary.ids_per_second == pytest.approx(issued / 10)
        assert (summary.remaining, summary.used_ratio) == (1000 - used, used / 1000)
        assert summary.exhaust_time == pytest.approx(clock.wall() + summary.remaining / summary.ids_per_second)


async def test_the_first_seconds_give_no_forecast(node: Node, other: Node, clock: FakeClock) -> None:
    """A rate needs ten seconds of observation."""
    await node.service.create("orders", {"max_value": 9_999}, new_token())
    for _ in range(3):
        await node.take("orders", 5)
        clock.advance(3.0)
    for each in (node, other):
        summary = await each.service.get("orders")
        assert (summary.ids_per_second, summary.exhaust_time) == (0.0, None)
    clock.advance(1.0)
    for each in (node, other):
        assert (await each.service.get("orders")).ids_per_second > 0


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
    [gone], _ = await node.service.list("", "", 10, deleted=True)
    assert (gone.row.deleted, gone.remaining, gone.exhaust_time) == (True, 0, None)


async def test_a_forecast_beyond_the_year_9999_is_none(node: Node, clock: FakeClock) -> None:
    """A forecast that no timestamp can express is None."""
    await node.service.create("orders", {}, new_token())
    await node.take("orders", 100)
    clock.advance(10)
    assert (await node.service.get("orders")).exhaust_time is None


async def test_a_forecast_ends_with_its_period(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """A sequence that lasts until its period ends has no exhaust_time."""
    await create_monthly(node)
    clock.advance(100)
    counter = name_of_period("bills", "2023-11")
    store.rows[counter] = Row(store.rows["bills"].sequence, 10)
    slow = await node.service.get("bills")
    assert slow.ids_per_second > 0
    assert slow.exhaust_time is None
    store.rows[counter].last_value = 900_000
    fast = await node.service.get("bills")
    assert fast.remaining == 99_999
    assert fast.exhaust_time is not None


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
    await node.service.update("bills", {"description": "changed"}, "", new_token())
    for _ in range(20):
        await node.take("bills", 10)
        clock.advance(1.0)
    summary = await node.service.get("bills")
    assert 8 <= summary.ids_per_second <= 40  # leased ids count as used
