"""Sequences are advanced while real nodes hold leases (P5)."""

import asyncio

import pytest

from idalloc_server.domain.errors import InvalidRequest, StoreOutcomeUnknown
from idalloc_server.domain.sequences.model import MAX_ID, Kind, Sequence, name_of_period
from tests.support.fake_store import FakeClock, MemoryStore, lost_request
from tests.support.memory_rows import Row
from tests.unit.server.domain.administration.conftest import EFFECTIVE_IN, Node, create_monthly, new, reached


async def test_after_an_advance_is_effective_no_node_issues_what_lies_before(
    node: Node, other: Node, clock: FakeClock
) -> None:
    await node.warm("orders", clock)
    await other.warm("orders", clock)
    advanced = await node.registry.advance("orders", 5000, "", "", new())
    assert advanced.effective_delay == EFFECTIVE_IN
    assert advanced.effective_at == clock.wall() + EFFECTIVE_IN
    assert advanced.summary.last_value == 5000
    assert await node.take("orders") == [5001]
    assert (await other.take("orders"))[0] < 5000  # still its right
    clock.advance(advanced.effective_delay)
    for _ in range(5):
        assert min(await other.take("orders", 40) + await node.take("orders", 40)) > 5000


async def test_advance_never_lowers_and_still_ends_leases(node: Node, other: Node, clock: FakeClock) -> None:
    await other.warm("orders", clock)
    before = (await node.registry.get("orders")).row
    advanced = await node.registry.advance("orders", 3, "", "", new())
    assert advanced.summary.row.last_value == before.last_value
    assert advanced.summary.row.generation > before.generation


@pytest.mark.parametrize(
    ("given", "past", "following"),
    [
        ({"step": 10}, 15, 21),
        ({"step": 10}, 21, 31),
        ({"step": -1, "max_value": 100}, 42, 41),
        ({"step": -3, "min_value": -10, "max_value": 20}, 19, 17),
        ({"min_value": -50, "start": -50}, -50, -49),
        ({"start": 100}, 7, 100),
        ({"step": 10, "max_value": 95}, 90, 91),
    ],
)
async def test_advance_lands_on_the_lattice(node: Node, given: dict[str, int], past: int, following: int) -> None:
    await node.registry.create("orders", given, new())
    await node.registry.advance("orders", past, "", "", new())
    assert await node.take("orders") == [following]


@pytest.mark.parametrize(
    ("given", "past"),
    [({}, MAX_ID + 1), ({"max_value": 99}, 100), ({"step": -1, "min_value": 5, "max_value": 9}, 4)],
)
async def test_advance_beyond_the_bound_is_refused(node: Node, given: dict[str, int], past: int) -> None:
    await node.registry.create("orders", given, new())
    with pytest.raises(InvalidRequest) as refused:
        await node.registry.advance("orders", past, "", "", new())
    assert refused.value.field == "past"


async def test_advance_to_the_bound_leaves_nothing(node: Node) -> None:
    await node.registry.create("wide", {"step": 2**60}, new())
    advanced = await node.registry.advance("wide", MAX_ID, "", "", new())
    assert (advanced.summary.remaining, advanced.summary.used_ratio) == (0, 1.0)
    assert advanced.summary.row.last_value is not None
    assert advanced.summary.row.last_value <= MAX_ID


async def test_period_of_a_sequence_without_reset_is_refused(node: Node) -> None:
    await node.take("orders")
    with pytest.raises(InvalidRequest) as refused:
        await node.registry.advance("orders", 5, "2026", "", new())
    assert refused.value.field == "period"


async def test_advance_moves_the_counter_of_one_period(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    await create_monthly(node)
    later = await node.registry.advance("bills", 70, "2031-05", "", new())
    assert (later.summary.last_value, later.summary.period) == (70, "2031-05")
    now = await node.registry.advance("bills", 30, "", "", new())
    assert (now.summary.last_value, now.summary.period) == (30, "2023-11")
    parent, period = store.rows["bills"], store.rows[name_of_period("bills", "2023-11")]
    assert period.generation < parent.generation  # the next who opens it does so behind what was advanced past
    assert parent.last_value == 0
    assert store.rows[name_of_period("bills", "2031-05")].last_value == 70


async def test_node_that_opens_the_period_meanwhile_cannot_undo_an_advance(node: Node, store: MemoryStore) -> None:
    await create_monthly(node)
    counter = name_of_period("bills", "2023-11")
    gate = store.hold("revise")
    advancing = asyncio.create_task(node.registry.advance("bills", 30, "", "", new()))
    await reached(lambda: bool(store.calls_of("revise")))
    row = store.rows["bills"]
    await store.open_period(counter, row.sequence, row.sequence.before_start, row.generation)
    gate.set()
    await advancing
    row = store.rows["bills"]
    await store.open_period(counter, row.sequence, row.sequence.before_start, row.generation)
    assert store.rows[counter].last_value == 30


async def test_two_advances_of_a_period_at_once_both_hold(node: Node, other: Node, store: MemoryStore) -> None:
    await create_monthly(node)
    await asyncio.gather(
        *(each.registry.advance("bills", past, "", "", new()) for each, past in ((node, 30), (other, 500), (node, 77)))
    )
    assert store.rows[name_of_period("bills", "2023-11")].last_value == 500
    assert store.rows[name_of_period("bills", "2023-11")].generation <= store.rows["bills"].generation


async def test_restored_store_goes_on_after_an_advance(node: Node, store: MemoryStore) -> None:
    await node.take("orders", 100)
    await node.registry.advance("orders", 200, "", "", new())
    await node.take("orders", 100)
    store.rows["orders"] = Row(Sequence(), 50)
    with pytest.raises(Exception, match="went backwards"):
        await node.take("orders")
    await node.registry.advance("orders", 1000, "", "", new())
    assert await node.take("orders") == [1001]


async def test_timestamps_are_not_advanced_far_ahead_of_the_clock(node: Node, clock: FakeClock) -> None:
    await node.registry.create("ev", {"kind": Kind.TIMESTAMP_MS}, new())
    in_microseconds = int(clock.wall() * 1_000_000)
    with pytest.raises(InvalidRequest) as refused:
        await node.registry.advance("ev", in_microseconds, "", "", new())
    assert refused.value.field == "past"
    await node.registry.advance("ev", int(clock.wall() * 1000) + 50_000, "", "", new())


async def test_settings_of_an_update_between_the_two_writes_of_an_advance_hold_in_the_period_too(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock
) -> None:
    await create_monthly(node)
    assert await other.take("bills", 2) == [1, 2]
    gate = store.hold("open_period")
    advance = asyncio.create_task(node.registry.advance("bills", 600, "", "", new()))
    await asyncio.sleep(0.001)
    changed = await other.registry.update("bills", {"step": 10}, "", new())
    gate.set()
    advanced = await advance
    clock.advance(max(changed.effective_delay, advanced.effective_delay))
    assert await node.take("bills", 2) == [611, 621]
    assert await other.take("bills", 2) == [631, 641]


async def test_settings_of_an_update_hold_though_an_advance_broke_off_before_it(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock
) -> None:
    await create_monthly(node)
    store.next("revise", lost_request())
    with pytest.raises(StoreOutcomeUnknown):
        await node.registry.advance("bills", 600, "", "", new())
    changed = await other.registry.update("bills", {"step": 10}, "", new())
    clock.advance(changed.effective_delay)
    assert await node.take("bills", 2) == [611, 621]
    assert await other.take("bills", 2) == [631, 641]
