"""A restored store replaced a sequence by another one: nodes stop until it is advanced (P3)."""

from collections.abc import Mapping
from typing import Any

import pytest

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Kind, Reset
from tests.support.fake_store import FakeClock, MemoryStore, unreachable
from tests.unit.server.domain.administration.conftest import Node, new_token

DAILY = {"reset": Reset.DAILY, "format": "{year}{month}{day}-{value}"}
DOWN = {"step": -1, "max_value": 60}
TIMESTAMPS = {"kind": Kind.TIMESTAMP_MS}


async def replace(
    store: MemoryStore, clock: FakeClock, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Node, Node]:
    """Return a node that used the lost sequence, and one that created its replacement."""
    old, fresh = Node(store, clock), Node(store, clock)
    await old.service.create("s", before, new_token())
    await old.take("s", 50)
    store.rows.clear()
    clock.advance(400.0)
    await fresh.service.create("s", after, new_token())
    return old, fresh


FIXED_SETTINGS = [({}, DAILY), (DAILY, {}), ({}, DOWN), (DOWN, {}), ({}, TIMESTAMPS), (TIMESTAMPS, {}), (DOWN, DAILY)]


@pytest.mark.parametrize(("before", "after"), FIXED_SETTINGS)
async def test_a_replaced_sequence_stops_until_it_is_advanced(
    store: MemoryStore, clock: FakeClock, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """P3: a node issues no ids of a sequence with other fixed settings until it is advanced."""
    old, fresh = await replace(store, clock, before, after)
    for _ in range(3):
        with pytest.raises(StoreWentBackwards, match=r"of another sequence \(.*advanced past"):
            await old.take("s")
        clock.advance(1.0)
    await fresh.service.advance("s", 55, "", "", new_token())
    clock.advance(1.0)
    first = (await old.take("s"))[0]
    assert first > 55 if after != DOWN else first < 55
    assert await old.take("s", 5)


async def test_ids_that_the_replacement_granted_are_counted(store: MemoryStore, clock: FakeClock) -> None:
    """P9: ids that a node was granted from another sequence are burned, and counted."""
    old, _ = await replace(store, clock, {}, {"step": -1, "max_value": 10_000})
    with pytest.raises(StoreWentBackwards):
        await old.take("s", 7)
    granted = 10_001 - (store.rows["s"].last_value or 0)
    assert granted >= 7
    assert old.allocator.burned.by_cause == {BurnCause.WENT_BACKWARDS: granted}


async def test_a_replaced_sequence_is_never_auto_created(store: MemoryStore, clock: FakeClock) -> None:
    """P3: a node that resumed a replaced sequence does not create it again if it is lost."""
    old, fresh = await replace(store, clock, {}, DOWN)
    with pytest.raises(StoreWentBackwards):
        await old.take("s")
    await fresh.service.advance("s", 55, "", "", new_token())
    clock.advance(1.0)
    store.next("grant", unreachable())
    with pytest.raises(StoreUnavailable):
        await old.take("s")
    store.rows.clear()
    with pytest.raises(StoreWentBackwards, match="found no such row"):
        await old.take("s")


async def test_a_replaced_reset_has_its_own_periods(store: MemoryStore, clock: FakeClock) -> None:
    """P1: a monthly sequence that replaced a daily one uses the counter of the month."""
    old, fresh = await replace(store, clock, DAILY, {"reset": Reset.MONTHLY, "format": "{year}{month}-{value}"})
    with pytest.raises(StoreWentBackwards, match="reset MONTHLY instead of DAILY"):
        await old.take("s")
    await fresh.service.advance("s", 55, "", "", new_token())
    clock.advance(1.0)
    taken = await old.allocator.issue("s", 1)
    assert (taken.period, taken.first_id) == ("2023-11", 56)


async def test_a_reset_with_another_step_resumes_after_an_advance(store: MemoryStore, clock: FakeClock) -> None:
    """P3: an advance of a sequence also resumes its periods."""
    old, fresh = await replace(store, clock, DAILY, {**DAILY, **DOWN})
    with pytest.raises(StoreWentBackwards):
        await old.take("s")
    await fresh.service.advance("s", 55, "", "", new_token())
    clock.advance(1.0)
    assert await old.take("s") == [54]


async def test_a_lost_change_of_step_does_not_block_a_reset(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """P3: the unused counter of a sequence with a reset does not stop a node."""
    await node.service.create("s", DAILY, new_token())
    lost = {name: vars(row).copy() for name, row in store.rows.items()}
    await node.service.update("s", {"step": 5}, "", new_token())
    await node.take("s")
    for name, columns in lost.items():
        vars(store.rows[name]).update(columns)
    clock.advance(181.0)
    with pytest.raises(StoreWentBackwards):
        await node.take("s")
    clock.advance(1.0)
    await node.service.advance("s", 600, "", "", new_token())
    clock.advance(1.0)
    assert await node.take("s") == [601]


async def test_setting_the_clock_back_keeps_marks_of_later_periods(
    node: Node, store: MemoryStore, clock: FakeClock
) -> None:
    """P3: high-water marks of a period survive a clock that is set back."""
    await node.service.create("s", DAILY, new_token())
    lost = {name: vars(row).copy() for name, row in store.rows.items()}
    await node.take("s", 50)
    clock.wall_seconds -= 86_400.0
    await node.take("s")
    for _ in range(3):
        await node.allocator.check_idle_sequences()
    clock.wall_seconds += 86_400.0
    store.rows = {name: row for name, row in store.rows.items() if name in lost}
    with pytest.raises(StoreWentBackwards):
        await node.take("s")


async def test_ids_of_a_replaced_reset_are_counted_as_burned(store: MemoryStore, clock: FakeClock) -> None:
    """P9: an idle node returns or counts what it holds of a sequence that lost its reset."""
    old, fresh = await replace(store, clock, DAILY, {})
    with pytest.raises(StoreWentBackwards):
        await old.take("s")
    await fresh.service.advance("s", 55, "", "", new_token())
    clock.advance(1.0)
    before = store.rows["s"].last_value or 0
    issued = 0
    for _ in range(100):
        issued += len(await old.take("s", 5))
        clock.advance(0.5)
    for _ in range(4):
        clock.advance(70.0)
        await old.allocator.check_idle_sequences()
    await old.allocator.return_leases()
    counted = sum(old.allocator.burned.by_cause.values())
    assert (store.rows["s"].last_value or 0) - before <= issued + counted
