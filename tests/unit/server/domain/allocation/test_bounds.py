"""The last ids of a sequence: the nodes together issue every one of them."""

import asyncio
import random

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.errors import SequenceExhausted
from idalloc_server.domain.sequences.sequence import Ordering, Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import CONFIG, ids, make


async def take_all(node: Allocator) -> list[int]:
    """Take ids one by one until the sequence is exhausted."""
    taken = []
    try:
        while True:
            taken += ids(await node.issue("s", 1))
    except SequenceExhausted:
        return taken


@pytest.mark.parametrize("ordering", Ordering)
async def test_oversized_requests_take_no_ids(store: MemoryStore, clock: FakeClock, ordering: Ordering) -> None:
    """Concurrent requests for too many ids fail, and all ids remain available."""
    nodes = [Allocator(store, clock, CONFIG) for _ in range(2)]
    make(store, "s", Sequence(max_value=5, ordering=ordering))
    refused = await asyncio.gather(*(node.issue("s", 10) for node in nodes), return_exceptions=True)
    assert all(isinstance(each, SequenceExhausted) and each.metadata["remaining"] == "5" for each in refused)
    assert await take_all(nodes[0]) + await take_all(nodes[1]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("ordering", Ordering)
@pytest.mark.parametrize("seed", range(10))
async def test_callers_that_reduce_their_requests_get_every_id(
    store: MemoryStore, clock: FakeClock, ordering: Ordering, seed: int
) -> None:
    """P1: callers that follow largest_range get every id exactly once."""
    random_source = random.Random(seed)
    make(store, "s", Sequence(start=100, step=-3, min_value=-900, max_value=100, ordering=ordering))
    issued: list[int] = []

    async def use(node: Allocator) -> None:
        size = random_source.choice((16, 64))
        while size:
            try:
                issued.extend(ids(await node.issue("s", size)))
            except SequenceExhausted as refusal:
                size = min(int(refusal.metadata["largest_range"]), size // 2)
            await asyncio.sleep(0)

    nodes = [Allocator(store, clock, CONFIG) for _ in range(3)]
    await asyncio.gather(*(use(node) for node in nodes for _ in range(3)))
    for node in nodes:
        issued += await take_all(node)
    assert sorted(issued, reverse=True) == list(range(100, -901, -3))


async def test_requests_that_fit_are_served_among_rejected_ones(store: MemoryStore, clock: FakeClock) -> None:
    """At the bound each request that fits is served in FIFO order; the others fail."""
    node = Allocator(store, clock, CONFIG)
    make(store, "s", Sequence(max_value=10))
    results = await asyncio.gather(*(node.issue("s", count) for count in (4, 20, 5, 3)), return_exceptions=True)
    assert [ids(each) for each in results if not isinstance(each, BaseException)] == [[1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert [each.metadata["remaining"] for each in results if isinstance(each, SequenceExhausted)] == ["6", "1"]
    assert await take_all(node) == [10]


async def test_a_constant_stream_of_callers_gets_the_last_ids(store: MemoryStore, clock: FakeClock) -> None:
    """New callers at the bound do not delay those that wait for the last ids."""
    node = Allocator(store, clock, CONFIG)
    make(store, "s", Sequence(max_value=100))
    calls = [asyncio.create_task(node.issue("s", 1)) for _ in range(200)]
    for _ in range(300):
        calls.append(asyncio.create_task(node.issue("s", 1)))
        await asyncio.sleep(0)
    served = [call.result().first_id for call in calls if call.done() and not call.exception()]
    assert served == list(range(1, 101))
    for outcome in (await asyncio.gather(*calls, return_exceptions=True))[len(served) :]:
        assert isinstance(outcome, SequenceExhausted)


async def test_repeated_oversized_requests_starve_nobody(store: MemoryStore, clock: FakeClock) -> None:
    """Repeated requests for too many ids do not starve small ones."""
    node = Allocator(store, clock, CONFIG)
    make(store, "s", Sequence(max_value=100))
    served = asyncio.Event()

    async def want_too_much() -> None:
        while not served.is_set():
            with pytest.raises(SequenceExhausted):
                await node.issue("s", 500)

    greedy = asyncio.create_task(want_too_much())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        taken = await asyncio.gather(*(node.issue("s", 1) for _ in range(10)))
    served.set()
    await greedy
    assert ids(*taken) == list(range(1, 11))
