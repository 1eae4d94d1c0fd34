"""A restored store where a sequence is of another shape: nodes that saw the lost one stop until it is advanced (P3)."""

from collections.abc import Mapping
from typing import Any

import pytest

from idalloc_server.domain.errors import StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.sequences.model import Kind, Reset
from tests.support.fake_store import FakeClock, MemoryStore, unreachable
from tests.unit.server.domain.administration.conftest import Node, new

DAILY = {"reset": Reset.DAILY, "format": "{year}{month}{day}-{value}"}
DOWN = {"step": -1, "max_value": 60}
TIMESTAMPS = {"kind": Kind.TIMESTAMP_MS}


async def replace(
    store: MemoryStore, clock: FakeClock, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Node, Node]:
    """Returns a node that used the sequence that was lost, and one that made it anew."""
    old, fresh = Node(store, clock), Node(store, clock)
    await old.registry.create("s", before, new())
    await old.take("s", 50)
    store.rows.clear()
    clock.advance(400.0)
    await fresh.registry.create("s", after, new())
    return old, fresh


SHAPES = [({}, DAILY), (DAILY, {}), ({}, DOWN), (DOWN, {}), ({}, TIMESTAMPS), (TIMESTAMPS, {}), (DOWN, DAILY)]


@pytest.mark.parametrize(("before", "after"), SHAPES)
async def test_a_replaced_sequence_stops_until_it_is_advanced(
    store: MemoryStore, clock: FakeClock, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """P3: a node issues nothing of a sequence of another shape, until an operator has advanced it."""
    old, fresh = await replace(store, clock, before, after)
    for _ in range(3):
        with pytest.raises(StoreWentBackwards, match=r"of another sequence \(.*advanced past"):
            await old.take("s")
        clock.advance(1.0)
    await fresh.registry.advance("s", 55, "", "", new())
    clock.advance(1.0)
    first = (await old.take("s"))[0]
    assert first > 55 if after != DOWN else first < 55
    assert await old.take("s", 5)


async def test_a_replaced_sequence_is_never_made_anew(store: MemoryStore, clock: FakeClock) -> None:
    """P3: a node that let a replaced sequence go on still knows its name, also before it has written it."""
    old, fresh = await replace(store, clock, {}, DOWN)
    with pytest.raises(StoreWentBackwards):
        await old.take("s")
    await fresh.registry.advance("s", 55, "", "", new())
    clock.advance(1.0)
    store.next("grant", unreachable())
    with pytest.raises(StoreUnavailable):
        await old.take("s")
    store.rows.clear()
    with pytest.raises(StoreWentBackwards, match="found no such row"):
        await old.take("s")


async def test_a_replaced_reset_has_its_own_periods(store: MemoryStore, clock: FakeClock) -> None:
    """P1: a daily sequence that a monthly one replaced goes on in the counter of the month."""
    old, fresh = await replace(store, clock, DAILY, {"reset": Reset.MONTHLY, "format": "{year}{month}-{value}"})
    with pytest.raises(StoreWentBackwards, match="reset MONTHLY instead of DAILY"):
        await old.take("s")
    await fresh.registry.advance("s", 55, "", "", new())
    clock.advance(1.0)
    taken = await old.allocator.allocate("s", 1)
    assert (taken.period, taken.first_id) == ("2023-11", 56)


async def test_a_reset_whose_steps_differ_goes_on_once_advanced(store: MemoryStore, clock: FakeClock) -> None:
    """P3: the counters of periods follow their sequence, for which an operator has decided."""
    old, fresh = await replace(store, clock, DAILY, {**DAILY, **DOWN})
    with pytest.raises(StoreWentBackwards):
        await old.take("s")
    await fresh.registry.advance("s", 55, "", "", new())
    clock.advance(1.0)
    assert await old.take("s") == [54]


async def test_a_lost_change_of_step_does_not_block_a_reset(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """P3: the counter of a sequence with a reset is of no use itself, so it stops nobody."""
    await node.registry.create("s", DAILY, new())
    lost = {name: vars(row).copy() for name, row in store.rows.items()}
    await node.registry.update("s", {"step": 5}, "", new())
    await node.take("s")
    for name, columns in lost.items():
        vars(store.rows[name]).update(columns)
    clock.advance(181.0)
    with pytest.raises(StoreWentBackwards):
        await node.take("s")
    clock.advance(1.0)
    await node.registry.advance("s", 600, "", "", new())
    clock.advance(1.0)
    assert await node.take("s") == [601]


async def test_a_clock_set_back_forgets_no_later_period(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """P3: a period that a clock set back left comes again, and what was seen of it still counts."""
    await node.registry.create("s", DAILY, new())
    lost = {name: vars(row).copy() for name, row in store.rows.items()}
    await node.take("s", 50)
    clock.wall_seconds -= 86_400.0
    await node.take("s")
    for _ in range(3):
        await node.allocator.drop_idle_sequences()
    clock.wall_seconds += 86_400.0
    store.rows = {name: row for name, row in store.rows.items() if name in lost}
    with pytest.raises(StoreWentBackwards):
        await node.take("s")


async def test_ids_of_a_sequence_that_lost_its_reset_are_counted(store: MemoryStore, clock: FakeClock) -> None:
    """P9: where a sequence without a reset replaced one with it, an idle node gives back or counts what it holds."""
    old, fresh = await replace(store, clock, DAILY, {})
    with pytest.raises(StoreWentBackwards):
        await old.take("s")
    await fresh.registry.advance("s", 55, "", "", new())
    clock.advance(1.0)
    before = store.rows["s"].last_value or 0
    issued = 0
    for _ in range(100):
        issued += len(await old.take("s", 5))
        clock.advance(0.5)
    for _ in range(4):
        clock.advance(70.0)
        await old.allocator.drop_idle_sequences()
    await old.allocator.close()
    counted = sum(old.allocator.burned.by_cause.values())
    assert (store.rows["s"].last_value or 0) - before <= issued + counted
