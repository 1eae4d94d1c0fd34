"""What is shown of sequences: how far they are, and when they end."""

import pytest

from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.domain.sequences.model import Kind, Sequence, name_of_period
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.memory_rows import Row
from tests.unit.server.domain.administration.conftest import Node, create_monthly, new


async def test_row_without_last_value_is_invalid_and_still_listed(node: Node, store: MemoryStore) -> None:
    store.rows["orders"] = Row(Sequence(), None)
    for call in (
        node.registry.get("orders"),
        node.registry.update("orders", {}, "", new()),
        node.registry.advance("orders", 5, "", "", new()),
    ):
        with pytest.raises(SequenceInvalid):
            await call
    shown, _ = await node.registry.list("", "", 10, deleted=False)
    assert (shown[0].last_value, shown[0].remaining) == (None, 0)


async def test_forecast_is_when_the_last_id_is_taken_at_the_rate(node: Node, other: Node, clock: FakeClock) -> None:
    await node.registry.create("orders", {"max_value": 1000}, new())
    assert (await node.registry.get("orders")).exhaust_time is None
    await node.take("orders", 50)
    clock.advance(10)
    await node.take("orders", 50)
    for each in (node, other):  # one that saw it, and one that did not
        shown = await each.registry.get("orders")
        used = shown.row.last_value
        assert used is not None
        assert shown.ids_per_second == pytest.approx((used - 50 * (each is node)) / 10)
        assert (shown.remaining, shown.used_ratio) == (1000 - used, used / 1000)
        assert shown.exhaust_time == pytest.approx(clock.wall() + shown.remaining / shown.ids_per_second)


async def test_the_first_ids_make_no_forecast(node: Node, other: Node, clock: FakeClock) -> None:
    await node.registry.create("orders", {"max_value": 9_999}, new())
    for _ in range(3):
        await node.take("orders", 5)
        clock.advance(3.0)
    for each in (node, other):
        shown = await each.registry.get("orders")
        assert (shown.ids_per_second, shown.exhaust_time) == (0.0, None)
    clock.advance(1.0)
    for each in (node, other):
        assert (await each.registry.get("orders")).ids_per_second > 0


async def test_an_exhausted_sequence_is_so_now_however_that_came(node: Node, clock: FakeClock) -> None:
    for name in ("used", "advanced"):
        await node.registry.create(name, {"max_value": 10}, new())
    await node.take("used", 10)
    await node.registry.advance("advanced", 10, "", "", new())
    for seconds in (0.0, 100.0):
        clock.advance(seconds)
        for name in ("used", "advanced"):
            shown = await node.registry.get(name)
            assert (shown.remaining, shown.exhaust_time) == (0, clock.wall())


async def test_a_deleted_sequence_is_not_exhausted(node: Node) -> None:
    await node.registry.create("gone", {"max_value": 10}, new())
    await node.take("gone", 10)
    await node.registry.delete("gone", "", new())
    [gone], _ = await node.registry.list("", "", 10, deleted=True)
    assert (gone.row.deleted, gone.remaining, gone.exhaust_time) == (True, 0, None)


async def test_forecast_beyond_the_year_9999_is_none(node: Node, clock: FakeClock) -> None:
    await node.registry.create("orders", {}, new())
    await node.take("orders", 100)
    clock.advance(10)
    assert (await node.registry.get("orders")).exhaust_time is None


async def test_forecast_of_a_period_ends_with_it(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    await create_monthly(node)
    clock.advance(100)
    counter = name_of_period("bills", "2023-11")
    store.rows[counter] = Row(store.rows["bills"].sequence, 10)
    slow = await node.registry.get("bills")
    assert slow.ids_per_second > 0
    assert slow.exhaust_time is None
    store.rows[counter].last_value = 900_000
    fast = await node.registry.get("bills")
    assert fast.remaining == 99_999
    assert fast.exhaust_time is not None


async def test_pages_go_on_behind_the_last_name(node: Node) -> None:
    for name in ("a", "b", "ba", "c"):
        await node.registry.create(name, {}, new())
    found, after = await node.registry.list("b", "", 1, deleted=False)
    assert ([shown.row.name for shown in found], after) == (["b"], "b")
    found, after = await node.registry.list("b", "b", 1, deleted=False)
    assert ([shown.row.name for shown in found], after) == (["ba"], "")


async def test_an_advance_and_the_time_of_timestamps_are_no_rate(node: Node, clock: FakeClock) -> None:
    await node.registry.create("ev", {"kind": Kind.TIMESTAMP_MS}, new())
    await node.take("ev", 2)
    clock.advance(100.0)
    await node.take("ev", 2)
    await node.take("orders", 2)
    await node.registry.advance("orders", 1_000_000, "", "", new())
    clock.advance(100.0)
    for name in ("ev", "orders"):
        shown = await node.registry.get(name)
        assert (shown.ids_per_second, shown.exhaust_time) == (0.0, None)


async def test_rate_of_a_sequence_with_a_reset_is_that_of_its_period(node: Node, clock: FakeClock) -> None:
    await create_monthly(node)
    await node.registry.update("bills", {"description": "seen once more"}, "", new())
    for _ in range(20):
        await node.take("bills", 10)
        clock.advance(1.0)
    shown = await node.registry.get("bills")
    assert 8 <= shown.ids_per_second <= 40  # what is held ahead is counted
