"""A restored store comes to no generation that a live node saw before: old leases and tails end all the same."""

import asyncio
import copy

import pytest

from idalloc_server.backup.export_file import read
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.sequence_allocator import SequenceAllocator
from idalloc_server.domain.generations import generation_after
from idalloc_server.domain.sequences.model import Reset, Sequence, name_of_period
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.memory_rows import Row
from tests.unit.server.domain.administration.conftest import Node, create_monthly, new

TERMS = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
# Nobody restores a store in less.
A_WHILE = 60.0


def backup_of(store: MemoryStore) -> dict[str, Row]:
    return {name: copy.copy(row) for name, row in store.rows.items()}


async def hold_some(allocator: Allocator) -> None:
    held = 0
    while held < 20:
        await allocator.allocate("s", 1)
        await asyncio.sleep(0.0005)
        sequence_allocator = allocator._sequence_allocators["s"]
        assert isinstance(sequence_allocator, SequenceAllocator)
        held = sequence_allocator._lease.left


@pytest.mark.parametrize("mend", ["advance", "import"])
async def test_after_the_mend_no_node_goes_on_with_ids_from_before(
    store: MemoryStore, clock: FakeClock, mend: str
) -> None:
    old = Allocator(store, clock, TERMS)
    await old.allocate("s", 10)
    backup = backup_of(store)
    registry = SequenceService(store, clock, old, store_timeout=5.0)
    await registry.advance("s", 20, "", "", new())  # which the backup does not have
    await hold_some(old)
    store.rows = backup
    clock.advance(A_WHILE)
    fresh = Allocator(store, clock, TERMS)
    for _ in range(30):
        await fresh.allocate("s", 1)
    if mend == "advance":
        registry = SequenceService(store, clock, fresh, store_timeout=5.0)
        effective_delay = (await registry.advance("s", 1_000, "", "", new())).effective_delay
    else:
        line = b'{"sequence": "s", "last_value": "1000", "generation": "1", "settings": {}}'
        bring = Importer(store, clock)
        await bring.run(read([b'{"idalloc_export": 1}', line]))
        assert bring.raised == 1, bring.problems
        assert bring.effective_at is not None
        effective_delay = bring.effective_at - clock.wall()
    for _ in range(5):
        clock.advance((effective_delay + 1) / 5)
        await old.allocate("s", 1)  # in use, so that its lease is renewed
        await asyncio.sleep(0.001)
    assert (await old.allocate("s", 1)).first_id > 1_000


@pytest.mark.parametrize("again", ["created by people", "created by its first use", "imported"])
async def test_a_sequence_that_is_created_once_more_has_no_generation_of_before(
    store: MemoryStore, clock: FakeClock, again: str
) -> None:
    old, fresh = (Node(store, clock) for _ in range(2))
    await old.take("s")
    lost = store.rows.pop("s")
    clock.advance(A_WHILE)
    if again == "created by people":
        await fresh.registry.create("s", {}, new())
    elif again == "created by its first use":
        await fresh.take("s")
    else:
        bring = Importer(store, clock)
        line = b'{"sequence": "s", "last_value": "1", "generation": "1", "settings": {}}'
        await bring.run(read([b'{"idalloc_export": 1}', line]))
        assert bring.created == 1, bring.problems
    assert store.rows["s"].generation > lost.generation


async def test_the_counter_of_a_period_is_opened_in_no_generation_of_before(
    node: Node, store: MemoryStore, clock: FakeClock
) -> None:
    await create_monthly(node)
    backup = backup_of(store)
    await node.registry.advance("bills", 30, "", "", new())
    seen = {name: row.generation for name, row in store.rows.items()}
    store.rows = backup
    clock.advance(0.01)
    fresh = Node(store, clock)
    await fresh.registry.advance("bills", 30, "", "", new())
    counter = name_of_period("bills", "2023-11")
    assert seen[counter] < seen["bills"] < store.rows[counter].generation < store.rows["bills"].generation


async def test_no_tail_from_before_goes_back_to_where_the_sequence_was_advanced_to(
    node: Node, store: MemoryStore, clock: FakeClock
) -> None:
    await node.take("s")
    backup = backup_of(store)
    await node.warm("s", clock)
    row = store.rows["s"]
    version, value = row.version, row.last_value
    assert value is not None
    store.rows = backup
    clock.advance(A_WHILE)
    fresh = Node(store, clock)
    await fresh.registry.advance("s", value, "", "", new())
    # As a store's own count of writes may come to the same, and the highest id in use is what it is advanced past.
    assert (store.rows["s"].last_value, store.rows["s"].version <= version) == (value, True)
    store.rows["s"].version = version
    await node.allocator.close()
    assert (await fresh.take("s"))[0] > value


@pytest.mark.parametrize("reset", [Reset.NEVER, Reset.DAILY])
def test_a_generation_grows_also_where_the_clock_steps_back(clock: FakeClock, reset: Reset) -> None:
    sequence = Sequence(reset=reset)
    generations = [0]
    for seconds in (0.0, 0.0, 5.0, -86_400.0, 1.0, 86_400.0, -clock.wall() - 90_000.0):
        clock.advance(seconds)
        generations.append(generation_after(sequence, generations[-1], clock))
        assert generations[-1] >= clock.wall() * 1000 - 1
    assert generations == sorted(set(generations))
    assert reset == Reset.NEVER or all(generation % 2 for generation in generations[1:])
