"""The last ids of a sequence: the nodes together issue every one, whatever they ask for and whoever is in between."""

import asyncio
import random

import pytest

from idalloc_server.domain.allocator import Allocator
from idalloc_server.domain.errors import SequenceExhausted
from idalloc_server.domain.sequence import Ordering, Sequence
from tests.fakes import FakeClock, MemoryStore
from tests.unit.lanes import TERMS, ids, make


async def take_all(node: Allocator) -> list[int]:
    """Takes ids one by one until there is none."""
    taken = []
    try:
        while True:
            taken += ids(await node.allocate("s", 1))
    except SequenceExhausted:
        return taken


@pytest.mark.parametrize("ordering", Ordering)
async def test_requests_that_ask_for_too_much_at_once_take_nothing_away(
    store: MemoryStore, clock: FakeClock, ordering: Ordering
) -> None:
    nodes = [Allocator(store, clock, TERMS) for _ in range(2)]
    make(store, "s", Sequence(max_value=5, ordering=ordering))
    refused = await asyncio.gather(*(node.allocate("s", 10) for node in nodes), return_exceptions=True)
    assert all(isinstance(each, SequenceExhausted) and each.metadata["remaining"] == "5" for each in refused)
    assert await take_all(nodes[0]) + await take_all(nodes[1]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("ordering", Ordering)
@pytest.mark.parametrize("seed", range(10))
async def test_callers_who_go_smaller_when_refused_get_every_id(
    store: MemoryStore, clock: FakeClock, ordering: Ordering, seed: int
) -> None:
    random_source = random.Random(seed)
    make(store, "s", Sequence(start=100, step=-3, min_value=-900, max_value=100, ordering=ordering))
    issued: list[int] = []

    async def use(node: Allocator) -> None:
        size = random_source.choice((16, 64))
        while size:
            try:
                issued.extend(ids(await node.allocate("s", size)))
            except SequenceExhausted as refusal:
                size = min(int(refusal.metadata["largest_range"]), size // 2)
            await asyncio.sleep(0)

    nodes = [Allocator(store, clock, TERMS) for _ in range(3)]
    await asyncio.gather(*(use(node) for node in nodes for _ in range(3)))
    for node in nodes:
        issued += await take_all(node)
    assert sorted(issued, reverse=True) == list(range(100, -901, -3))


async def test_who_fits_into_what_is_left_is_served_though_others_are_refused(
    store: MemoryStore, clock: FakeClock
) -> None:
    node = Allocator(store, clock, TERMS)
    make(store, "s", Sequence(max_value=10))
    results = await asyncio.gather(*(node.allocate("s", count) for count in (4, 20, 5, 3)), return_exceptions=True)
    assert [ids(each) for each in results if not isinstance(each, BaseException)] == [[1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert [each.metadata["remaining"] for each in results if isinstance(each, SequenceExhausted)] == ["6", "1"]
    assert await take_all(node) == [10]
