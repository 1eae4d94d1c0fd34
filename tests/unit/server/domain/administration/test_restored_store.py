"""A restored store reuses no generation that a live node saw: old leases and tails end (P3)."""

import copy

import pytest

from idalloc_server.backup.export_file import read_export
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.memory_rows import Row
from tests.support.sequence_allocators import own_counter
from tests.support.waiting import settle
from tests.unit.server.domain.administration.conftest import Node, create_monthly, new_token

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
# Restoring a store takes at least this long.
RESTORE_SECONDS = 60.0


def backup_of(store: MemoryStore) -> dict[str, Row]:
    return {name: copy.copy(row) for name, row in store.rows.items()}


async def allocate_until_leased(allocator: Allocator) -> None:
    held = 0
    while held < 20:
        await allocator.issue("s", 1)
        await settle()
        held = own_counter(allocator, "s").state.held_ids


@pytest.mark.parametrize("repair", ["advance", "import"])
async def test_after_a_repair_no_node_issues_ids_from_before_it(
    store: MemoryStore, clock: FakeClock, repair: str
) -> None:
    """P3: after an advance or import repaired a restored store, no node issues ids from before."""
    old = Allocator(store, clock, CONFIG)
    await old.issue("s", 10)
    backup = backup_of(store)
    service = SequenceService(store, clock, old)
    await service.advance("s", 20, "", "", new_token())  # which the backup does not have
    await allocate_until_leased(old)
    store.rows = backup
    clock.advance(RESTORE_SECONDS)
    fresh = Allocator(store, clock, CONFIG)
    for _ in range(30):
        await fresh.issue("s", 1)
    if repair == "advance":
        service = SequenceService(store, clock, fresh)
        effective_delay = (await service.advance("s", 1_000, "", "", new_token())).effective_delay
    else:
        line = b'{"sequence": "s", "last_value": "1000", "generation": "1", "settings": {}}'
        importer = Importer(store, clock)
        await importer.run(read_export([b'{"idalloc_export": 1}', line]))
        assert importer.raised == 1, importer.problems
        assert importer.effective_at is not None
        effective_delay = importer.effective_at - clock.wall()
    for _ in range(5):
        clock.advance((effective_delay + 1) / 5)
        await old.issue("s", 1)  # in use, so that its lease is renewed
        await settle()
    assert (await old.issue("s", 1)).first_id > 1_000


@pytest.mark.parametrize("again", ["created", "created by first use", "imported"])
async def test_a_recreated_sequence_has_a_new_generation(store: MemoryStore, clock: FakeClock, again: str) -> None:
    """P3: a sequence that is created again in a restored store gets a new generation."""
    old, fresh = (Node(store, clock) for _ in range(2))
    await old.take("s")
    lost = store.rows.pop("s")
    clock.advance(RESTORE_SECONDS)
    if again == "created":
        await fresh.service.create("s", {}, new_token())
    elif again == "created by first use":
        await fresh.take("s")
    else:
        importer = Importer(store, clock)
        line = b'{"sequence": "s", "last_value": "1", "generation": "1", "settings": {}}'
        await importer.run(read_export([b'{"idalloc_export": 1}', line]))
        assert importer.created == 1, importer.problems
    assert store.rows["s"].generation > lost.generation


async def test_a_recreated_period_has_a_new_generation(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """P3: an advance of a period in a restored store gets a new generation."""
    await create_monthly(node)
    backup = backup_of(store)
    await node.service.advance("bills", 30, "", "", new_token())
    seen = {name: row.generation for name, row in store.rows.items()}
    store.rows = backup
    clock.advance(0.01)
    fresh = Node(store, clock)
    await fresh.service.advance("bills", 30, "", "", new_token())
    counter = name_of_period("bills", "2023-11")
    assert seen[counter] < seen["bills"] < store.rows[counter].generation < store.rows["bills"].generation


async def test_a_tail_from_before_a_restore_is_not_returned(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """P2: an unused tail from before a restore does not move the counter back."""
    await node.take("s")
    backup = backup_of(store)
    await node.warm("s", clock)
    row = store.rows["s"]
    version, value = row.version, row.last_value
    assert value is not None
    store.rows = backup
    clock.advance(RESTORE_SECONDS)
    fresh = Node(store, clock)
    await fresh.service.advance("s", value, "", "", new_token())
    # The restored store may reach the same version and counter again.
    assert (store.rows["s"].last_value, store.rows["s"].version <= version) == (value, True)
    store.rows["s"].version = version
    await node.allocator.return_leases()
    assert (await fresh.take("s"))[0] > value


@pytest.mark.parametrize("reset", [Reset.NEVER, Reset.DAILY])
def test_a_generation_grows_when_the_clock_steps_back(clock: FakeClock, reset: Reset) -> None:
    """P3: generations grow whatever the clock does."""
    sequence = Sequence(reset=reset)
    generations = [0]
    for seconds in (0.0, 0.0, 5.0, -86_400.0, 1.0, 86_400.0, -clock.wall() - 90_000.0):
        clock.advance(seconds)
        generations.append(generation_after(sequence, generations[-1], clock))
        assert generations[-1] >= clock.wall() * 1000 - 1
    assert generations == sorted(set(generations))
    assert reset == Reset.NEVER or all(generation % 2 for generation in generations[1:])
