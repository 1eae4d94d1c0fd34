"""The counter of the next period, opened early, beside a restore, a replacement and a stop."""

import asyncio
from collections import Counter

import pytest

from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.errors import Refusal
from idalloc_server.domain.sequences.sequence import Reset, Sequence
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import make
from tests.support.steady_nodes import CONFIG
from tests.support.waiting import settle

DAY = 86_400.0
# Before midnight. A node opens the next day 180 to 270 s before.
LEAD = 400.0


class Nodes:
    """Two nodes with callers of a daily sequence, from ``LEAD`` seconds before midnight on."""

    def __init__(self, store: MemoryStore, clock: FakeClock) -> None:
        make(store, "s", Sequence(reset=Reset.DAILY))
        clock.wall_seconds += DAY - clock.wall_seconds % DAY - LEAD
        self.clock = clock
        self.allocators = [Allocator(store, clock, CONFIG, lambda count: bytes(count)) for _ in range(2)]
        self.service = SequenceService(store, clock, self.allocators[0])
        self.issued: Counter[tuple[str, int, int]] = Counter()

    async def run(self, seconds: float) -> int:
        """Make five calls a second on each node; return how many were refused."""
        refused = 0
        for _ in range(int(seconds * 5)):
            for allocator in self.allocators:
                try:
                    taken = allocator.issue_now("s", 1) or await allocator.issue("s", 1)
                except Refusal:
                    refused += 1
                else:
                    self.issued[taken.period, taken.generation, taken.first_id] += 1
            self.clock.advance(0.2)
            await settle()
        return refused

    async def advance(self, past: int) -> None:
        await self.service.advance("s", past, "", "", self.service.change_key("", b""))


@pytest.fixture
def nodes(store: MemoryStore, clock: FakeClock) -> Nodes:
    return Nodes(store, clock)


async def test_an_advance_after_a_restore_is_enough(nodes: Nodes, store: MemoryStore) -> None:
    """P3: a day that was opened early begins, although the store was restored to before that."""
    await nodes.run(100)
    backup = store.back_up()
    assert not await nodes.run(LEAD - 100 - 85)
    assert len(store.rows) == 3
    store.restore(backup)
    assert await nodes.run(50)  # they notice it
    await nodes.advance(max(row.last_value or 0 for row in store.rows.values()) + 5_000)
    await nodes.run(2)
    assert await nodes.run(60 + 30) == 0
    assert {period for period, *_ in nodes.issued} == {"2023-11-14", "2023-11-15"}


async def test_a_used_day_keeps_its_mark(nodes: Nodes, store: MemoryStore) -> None:
    """P1, P3: a day that was opened early and used does not start over after a restore."""
    await nodes.run(100)
    backup = store.back_up()
    await nodes.run(LEAD - 100 + 10)
    last = max(first for period, _, first in nodes.issued if period == "2023-11-15")
    store.restore(backup)
    await nodes.advance(last - 1)
    assert await nodes.run(2) == 10  # of the node that saw the advance
    await nodes.advance(5_000)
    await nodes.run(2)
    issued = Counter((period, first) for period, _, first in nodes.issued)
    assert set(issued.values()) == {1}
    assert max(issued) > ("2023-11-15", 5_000)


async def test_nodes_open_the_next_day_at_moments_of_their_own(
    nodes: Nodes, store: MemoryStore, clock: FakeClock
) -> None:
    """P10: the nodes of a cluster do not all write the next period's counter at once."""
    nodes.allocators = [Allocator(store, clock, CONFIG, part.__mul__) for part in (b"\x00", b"\x80", b"\xff")]

    def opened() -> int:
        return [call.arguments[0] for call in store.calls_of("open_period")].count("s\x1f2023-11-15")

    counts = []
    for seconds in (LEAD - 280, 30, 45, 45):
        await nodes.run(seconds)
        counts.append(opened())
    assert counts == [0, 1, 2, 3]


async def test_a_replaced_sequence_has_one_counter(nodes: Nodes, store: MemoryStore) -> None:
    """P1: a sequence without a reset that replaced a daily one has no counter of a period."""
    await nodes.run(LEAD - 30)
    store.rows.clear()
    await nodes.service.create("s", {}, nodes.service.change_key("", b""))
    await nodes.run(5)
    await nodes.advance(100)
    await nodes.run(60)
    of_new = {taken: times for taken, times in nodes.issued.items() if not taken[0]}
    assert len(of_new) > 100
    assert set(of_new.values()) == {1}
    assert "s\x1f" not in store.rows


async def test_a_call_during_a_stop_opens_no_period(nodes: Nodes, store: MemoryStore, clock: FakeClock) -> None:
    """P9: a call that resumes while the node stops opens no counter with ids that nobody counts."""
    await nodes.run(100)
    clock.advance(LEAD - 100 - 50)  # no call in the meantime: the next one would open the next day
    (node, _) = nodes.allocators
    gate = store.hold("grant")
    call = asyncio.create_task(node.issue("s", 1))
    await settle()
    stop = asyncio.create_task(node.return_leases())
    await settle()
    gate.set()
    await asyncio.wait([call, stop])
    await settle()
    assert len(store.rows) == 2
