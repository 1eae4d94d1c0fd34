"""Advance of sequences while nodes hold leases (P5)."""

import asyncio

import pytest

from idalloc_server.domain.errors import InvalidRequest, StoreOutcomeUnknown
from idalloc_server.domain.sequences.sequence import MAX_ID, Kind, Sequence, name_of_period
from tests.support.fake_store import FakeClock, MemoryStore, lost_request
from tests.support.memory_rows import Row
from tests.support.waiting import settle
from tests.unit.server.domain.administration.conftest import EFFECTIVE_IN, Node, create_monthly, new_token, wait_until


async def test_no_node_issues_ids_before_an_effective_advance(node: Node, other: Node, clock: FakeClock) -> None:
    """P5: once an advance is effective, no node issues an id at or before its value."""
    await node.warm("orders", clock)
    await other.warm("orders", clock)
    advanced = await node.service.advance("orders", 50_000, "", "", new_token())
    assert advanced.effective_delay == EFFECTIVE_IN
    assert advanced.effective_at == clock.wall() + EFFECTIVE_IN
    assert advanced.summary.last_value == 50_000
    assert await node.take("orders") == [50_001]
    assert (await other.take("orders"))[0] < 50_000  # allowed before effective_at
    clock.advance(advanced.effective_delay)
    for _ in range(5):
        assert min(await other.take("orders", 40) + await node.take("orders", 40)) > 50_000


async def test_advance_never_lowers_the_counter_and_ends_leases(node: Node, other: Node, clock: FakeClock) -> None:
    """P2: an advance to a passed value keeps the counter, and ends leases."""
    await other.warm("orders", clock)
    before = (await node.service.get("orders")).row
    advanced = await node.service.advance("orders", 3, "", "", new_token())
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
async def test_the_first_id_after_an_advance_is_on_the_lattice(
    node: Node, given: dict[str, int], past: int, following: int
) -> None:
    """P5: an advance keeps start and step, in both directions."""
    await node.service.create("orders", given, new_token())
    await node.service.advance("orders", past, "", "", new_token())
    assert await node.take("orders") == [following]


@pytest.mark.parametrize(
    ("given", "past"),
    [({}, MAX_ID + 1), ({"max_value": 99}, 100), ({"step": -1, "min_value": 5, "max_value": 9}, 4)],
)
async def test_advance_beyond_the_bound_is_rejected(node: Node, given: dict[str, int], past: int) -> None:
    """An advance beyond max_value, or min_value, names the field ``past``."""
    await node.service.create("orders", given, new_token())
    with pytest.raises(InvalidRequest) as refused:
        await node.service.advance("orders", past, "", "", new_token())
    assert refused.value.field == "past"


async def test_advance_to_the_bound_exhausts_the_sequence(node: Node) -> None:
    """An advance to the bound leaves no ids, without overflow."""
    await node.service.create("wide", {"step": 2**60}, new_token())
    advanced = await node.service.advance("wide", MAX_ID, "", "", new_token())
    assert (advanced.summary.remaining, advanced.summary.used_ratio) == (0, 1.0)
    assert advanced.summary.row.last_value is not None
    assert advanced.summary.row.last_value <= MAX_ID


async def test_advance_of_a_period_without_a_reset_is_rejected(node: Node) -> None:
    """A sequence without a reset has no period to advance."""
    await node.take("orders")
    with pytest.raises(InvalidRequest) as refused:
        await node.service.advance("orders", 5, "2026", "", new_token())
    assert refused.value.field == "period"


async def test_advance_moves_the_counter_of_one_period(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """P5: an advance moves the counter of its period, and no other one."""
    await create_monthly(node)
    later = await node.service.advance("bills", 70, "2031-05", "", new_token())
    assert (later.summary.last_value, later.summary.period) == (70, "2031-05")
    now = await node.service.advance("bills", 30, "", "", new_token())
    assert (now.summary.last_value, now.summary.period) == (30, "2023-11")
    parent, period = store.rows["bills"], store.rows[name_of_period("bills", "2023-11")]
    assert period.generation < parent.generation  # a node that opens the period later continues after the advance
    assert parent.last_value == 0
    assert store.rows[name_of_period("bills", "2031-05")].last_value == 70


async def test_opening_the_period_does_not_undo_an_advance(node: Node, store: MemoryStore) -> None:
    """P5: a node that opens the period during an advance does not lower its counter."""
    await create_monthly(node)
    counter = name_of_period("bills", "2023-11")
    gate = store.hold("revise")
    advancing = asyncio.create_task(node.service.advance("bills", 30, "", "", new_token()))
    await wait_until(lambda: bool(store.calls_of("revise")))
    row = store.rows["bills"]
    await store.open_period(counter, row.sequence, row.sequence.before_start, row.generation)
    gate.set()
    await advancing
    row = store.rows["bills"]
    await store.open_period(counter, row.sequence, row.sequence.before_start, row.generation)
    assert store.rows[counter].last_value == 30


async def test_concurrent_advances_of_a_period_all_apply(node: Node, other: Node, store: MemoryStore) -> None:
    """P5: of concurrent advances of a period, the furthest applies."""
    await create_monthly(node)
    await asyncio.gather(
        *(
            each.service.advance("bills", past, "", "", new_token())
            for each, past in ((node, 30), (other, 500), (node, 77))
        )
    )
    assert store.rows[name_of_period("bills", "2023-11")].last_value == 500
    assert store.rows[name_of_period("bills", "2023-11")].generation <= store.rows["bills"].generation


async def test_an_advance_resumes_a_restored_sequence(node: Node, store: MemoryStore) -> None:
    """P3: a node that stopped on a restored store issues again after an advance."""
    await node.take("orders", 100)
    await node.service.advance("orders", 200, "", "", new_token())
    await node.take("orders", 100)
    store.rows["orders"] = Row(Sequence(), 50)
    with pytest.raises(Exception, match="went backwards"):
        await node.take("orders")
    await node.service.advance("orders", 1000, "", "", new_token())
    assert await node.take("orders") == [1001]


async def test_timestamps_cannot_be_advanced_beyond_max_clock_skew(node: Node, clock: FakeClock) -> None:
    """An advance of timestamps is limited to max_clock_skew ahead of the clock."""
    await node.service.create("ev", {"kind": Kind.TIMESTAMP_MS}, new_token())
    in_microseconds = int(clock.wall() * 1_000_000)
    with pytest.raises(InvalidRequest) as refused:
        await node.service.advance("ev", in_microseconds, "", "", new_token())
    assert refused.value.field == "past"
    await node.service.advance("ev", int(clock.wall() * 1000) + 50_000, "", "", new_token())


async def test_an_update_during_an_advance_applies_to_the_period(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock
) -> None:
    """P5: an update between the two writes of an advance applies to the period, too."""
    await create_monthly(node)
    assert await other.take("bills", 2) == [1, 2]
    gate = store.hold("open_period")
    advance = asyncio.create_task(node.service.advance("bills", 600, "", "", new_token()))
    await settle()
    changed = await other.service.update("bills", {"step": 10}, "", new_token())
    gate.set()
    advanced = await advance
    clock.advance(max(changed.effective_delay, advanced.effective_delay))
    assert await node.take("bills", 2) == [611, 621]
    assert await other.take("bills", 2) == [631, 641]


async def test_an_update_after_a_failed_advance_applies_to_the_period(
    node: Node, other: Node, store: MemoryStore, clock: FakeClock
) -> None:
    """P5: an update applies to a period whose advance failed halfway."""
    await create_monthly(node)
    store.next("revise", lost_request())
    with pytest.raises(StoreOutcomeUnknown):
        await node.service.advance("bills", 600, "", "", new_token())
    changed = await other.service.update("bills", {"step": 10}, "", new_token())
    clock.advance(changed.effective_delay)
    assert await node.take("bills", 2) == [611, 621]
    assert await other.take("bills", 2) == [631, 641]
