"""Nodes with callers at a steady rate, for tests of the reserve (P10)."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.lease import IdRange
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import ids

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)


class SteadyNodes:
    """Nodes on one fake clock that share the sequence ``s``, each with callers at a steady rate."""

    def __init__(
        self, store: MemoryStore, clock: FakeClock, how_many: int, sizes: Sequence[int], rate: int = 20
    ) -> None:
        self.store = store
        self.clock = clock
        self.rate = rate  # the calls a second of each node
        self.allocators = [Allocator(store, clock, CONFIG) for _ in range(how_many)]
        self._issued: dict[Allocator, list[tuple[str, int]]] = defaultdict(list)
        # The sizes of consecutive calls, in ids, which each node begins elsewhere.
        self._sizes = [cycle([*sizes[turn:], *sizes[:turn]]) for turn in range(how_many)]

    async def run(self, seconds: float) -> int:
        """Make ``rate`` calls a second on every node; return how many waited for the store."""
        waited = 0
        for _ in range(int(seconds * self.rate)):
            for node, allocator in enumerate(self.allocators):
                size = next(self._sizes[node])
                taken = allocator.issue_now("s", size)
                if taken is None:
                    waited += 1
                    taken = await allocator.issue("s", size)
                self._count(allocator, taken)
            self.clock.advance(1 / self.rate)
            for _ in range(4):
                await asyncio.sleep(0)
        return waited

    async def run_without_store(self, seconds: float) -> int:
        """Make calls from memory only; return how many of them could not be served."""
        refused = 0
        for _ in range(int(seconds * self.rate)):
            for node, allocator in enumerate(self.allocators):
                taken = allocator.issue_now("s", next(self._sizes[node]))
                if taken is None:
                    refused += 1
                else:
                    self._count(allocator, taken)
            self.clock.advance(1 / self.rate)
            await asyncio.sleep(0)
        return refused

    def restart(self, node: int) -> None:
        """Kill a node, which burns what it holds, and start another one in its place."""
        self.allocators[node].abandon()
        self.allocators[node] = Allocator(self.store, self.clock, CONFIG)

    @property
    def held_ids(self) -> int:
        """The ids that all nodes hold."""
        return sum(allocator.held_ids for allocator in self.allocators)

    @property
    def issued_ids(self) -> int:
        """The ids that all nodes issued, also nodes that were killed."""
        return sum(len(issued) for issued in self._issued.values())

    def check(self) -> None:
        """Assert that no id was issued twice, and that the ids of each node rise."""
        everything = [taken for issued in self._issued.values() for taken in issued]
        assert len(everything) == len(set(everything))
        for issued in self._issued.values():
            assert issued == sorted(issued)

    def _count(self, allocator: Allocator, taken: IdRange) -> None:
        self._issued[allocator] += [(taken.period, i) for i in ids(taken)]
