"""The last ids of a sequence: the nodes together issue every one, whatever they ask for and whoever is in between."""

import asyncio
import random

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.errors import SequenceExhausted
from idalloc_server.domain.sequences.model import Ordering, Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import TERMS, ids, make


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


async def test_callers_who_come_all_the_time_keep_nobody_from_the_last_ids(
    store: MemoryStore, clock: FakeClock
) -> None:
    node = Allocator(store, clock, TERMS)
    make(store, "s", Sequence(max_value=100))
    calls = [asyncio.create_task(node.allocate("s", 1)) for _ in range(200)]
    for _ in range(300):
        calls.append(asyncio.create_task(node.allocate("s", 1)))
        await asyncio.sleep(0)
    served = [call.result().first_id for call in calls if call.done() and not call.exception()]
    assert served == list(range(1, 101))  # though more of them come
    for outcome in (await asyncio.gather(*calls, return_exceptions=True))[len(served) :]:
        assert isinstance(outcome, SequenceExhausted)


async def test_one_who_wants_too_much_again_and_again_keeps_nobody_from_the_last_ids(
    store: MemoryStore, clock: FakeClock
) -> None:
    node = Allocator(store, clock, TERMS)
    make(store, "s", Sequence(max_value=100))
    served = asyncio.Event()

    async def want_too_much() -> None:
        while not served.is_set():
            with pytest.raises(SequenceExhausted):
                await node.allocate("s", 500)

    greedy = asyncio.create_task(want_too_much())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        taken = await asyncio.gather(*(node.allocate("s", 1) for _ in range(10)))
    served.set()
    await greedy
    assert ids(*taken) == list(range(1, 11))
