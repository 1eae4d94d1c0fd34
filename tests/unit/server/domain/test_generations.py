"""Moving a period's counter ends all leases with earlier ids, under concurrent changes (P5)."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from copy import copy

import pytest

from idalloc_server.backup.export_file import read_export
from idalloc_server.backup.exporter import export_lines
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.generations import advance_period, generation_after, repeat_until_held
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.store.retirement import RETIREMENT
from tests.support.fake_store import FakeClock, MemoryStore, lost_request
from tests.support.sequence_allocators import make
from tests.support.waiting import settle

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True, outage_reserve=0.0)
DAILY = Sequence(reset=Reset.DAILY, min_lease_size=20, format="{year}{month}{day}-{value}")
# Where the later change moves the counter: into the lease that a node gets after the earlier one.
PAST = 89


async def take(node: Allocator, count: int) -> int:
    """Return the first id of a range."""
    return (node.issue_now("t", count) or await node.issue("t", count)).first_id


async def by_advance(store: MemoryStore, clock: FakeClock) -> float:
    service = SequenceService(store, clock, Allocator(store, clock, CONFIG))
    return (await service.advance("t", PAST, "", "", service.change_key("", b"late"))).effective_at


async def by_import(store: MemoryStore, clock: FakeClock) -> float:
    lines = [json.loads(line) async for line in export_lines(store)]
    for line in lines:
        if "period" in line:
            line["last_value"] = PAST
    importer = Importer(store, clock)
    await importer.run(read_export(json.dumps(line).encode() for line in lines))
    assert not importer.problems
    assert importer.effective_at is not None
    return importer.effective_at


@pytest.mark.parametrize("move", [by_advance, by_import])
async def test_a_concurrent_advance_gets_a_newer_generation(
    move: Callable[[MemoryStore, FakeClock], Coroutine[None, None, float]],
) -> None:
    """P5: an advance or import that lost a race opens the counter again in a newer generation."""
    clock = FakeClock()
    clock.wall_seconds -= clock.wall_seconds % 86_400  # far from midnight
    store = MemoryStore(clock)
    make(store, "t", DAILY)
    user, other = (Allocator(store, clock, CONFIG) for _ in range(2))
    last = [await take(user, 1) for _ in range(30)][-1]
    gate = store.hold("open_period")
    late = asyncio.create_task(move(store, clock))
    await settle()
    store.next("revise", lost_request())
    earlier = SequenceService(store, clock, other)
    with pytest.raises(StoreUnavailable):  # it opened the counter, but did not change the sequence
        await earlier.advance("t", last + 50, "", "", earlier.change_key("", b"earlier"))
    for count in (10, 10, 10, 3):
        with suppress(StoreUnavailable):
            await take(user, count)
    gate.set()
    effective_at = await late
    issued = []
    for _ in range(8):  # in constant use, so that leases are renewed
        issued.append((clock.wall(), await take(user, 1)))
        await settle()
        clock.advance(70.0)
    assert min(value for at, value in issued if at >= effective_at) > PAST


async def test_the_furthest_of_two_equal_advances_applies(store: MemoryStore, clock: FakeClock) -> None:
    """P5: of two advances that chose one generation, the one that lost opens the counter again."""
    counter = name_of_period("t", "2023-11-14")
    opened = await asyncio.gather(*(advance_period(store, clock, counter, DAILY, past, 1) for past in (50, 500)))
    assert opened[0] < opened[1]
    assert store.rows[counter].last_value == 500


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("t", "sequence 't'"),
        (name_of_period("t", "2026"), "period 2026 of sequence 't'"),
        (RETIREMENT, "the retirement"),
    ],
)
async def test_attempts_end(store: MemoryStore, name: str, what: str) -> None:
    """A change that loses each race is an error, which names the row."""
    lost = 0

    async def lose(row: Row | None) -> bool:
        nonlocal lost
        assert row is None
        lost += 1
        return False

    with pytest.raises(StoreUnavailable, match=f"^{what} was changed during each of 10 attempts"):
        await repeat_until_held(store, name, lose)
    assert lost == 10


@pytest.mark.parametrize("generation", [10**13, 10**13 + 1])
async def test_a_counter_is_advanced_in_a_generation_of_its_own(
    store: MemoryStore, clock: FakeClock, generation: int
) -> None:
    """P5: an advance opens a period's counter in a generation that no sequence can have."""
    opened = await advance_period(store, clock, name_of_period("t", "2023-11-14"), DAILY, 50, generation)
    sequences = {generation_after(DAILY, seen, clock) for seen in range(generation, opened + 2)}
    assert generation < opened < max(sequences)
    assert opened not in sequences


@pytest.mark.parametrize("sequence", [Sequence(min_lease_size=20), DAILY], ids=["plain", "period"])
async def test_an_import_of_equal_counters_ends_leases(sequence: Sequence) -> None:
    """P5: ids in memory that a restored store issued once more are not issued after an import."""
    clock = FakeClock()
    clock.wall_seconds -= clock.wall_seconds % 86_400  # far from midnight
    store = MemoryStore(clock)
    make(store, "t", sequence)
    user, other = (Allocator(store, clock, CONFIG) for _ in range(2))
    for _ in range(30):
        await take(user, 1)
    restored = {name: copy(row) for name, row in store.rows.items()}
    lines = [line.encode() async for line in export_lines(store)]
    counter = max(row.last_value or 0 for row in store.rows.values())
    for row in restored.values():
        row.last_value = min(row.last_value or 0, 30)
    store.rows.clear()
    store.rows.update(restored)
    in_use = range(31, await take(other, counter - 30) + counter - 30)
    importer = Importer(store, clock)
    await importer.run(read_export(lines))
    assert not importer.problems
    assert importer.effective_at is not None
    issued = 0
    while clock.wall() < importer.effective_at:
        clock.advance(50.0)  # in constant use, so that leases are renewed
        issued = await take(user, 1)
        await settle()
    assert issued not in in_use
    assert issued > counter


@pytest.mark.parametrize("lower_by", [0, 3], ids=["equal", "refused"])
@pytest.mark.parametrize("sequence", [Sequence(min_lease_size=20), DAILY], ids=["plain", "period"])
async def test_no_tail_is_given_back_past_imported_counters(sequence: Sequence, lower_by: int) -> None:
    """P2: a stop after an import, even a rejected line, gives back no id up to its counter."""
    clock = FakeClock()
    clock.wall_seconds -= clock.wall_seconds % 86_400  # far from midnight
    store = MemoryStore(clock)
    make(store, "t", sequence)
    node, other = (Allocator(store, clock, CONFIG) for _ in range(2))
    for _ in range(30):
        await take(node, 1)
    lines = [line.encode() async for line in export_lines(store)]
    counter = max(row.last_value or 0 for row in store.rows.values())
    imported = counter - lower_by
    assert imported > 30  # the node holds ids
    lines = [
        line.replace(f'"last_value": "{counter}"'.encode(), f'"last_value": "{imported}"'.encode()) for line in lines
    ]
    importer = Importer(store, clock)
    await importer.run(read_export(lines))
    assert bool(importer.problems) == bool(lower_by)
    await node.return_leases()
    assert importer.effective_at is not None
    clock.advance(importer.effective_at - clock.wall())
    assert await take(other, 1) > imported
