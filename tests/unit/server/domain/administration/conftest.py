"""Nodes that administer sequences and issue ids, for the tests of administration."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from idalloc_server.domain.administration.change_keys import ChangeKey
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.generations import MARGIN_SECONDS
from idalloc_server.domain.sequences.sequence import Reset
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import CONFIG, ids
from tests.support.waiting import settle

EFFECTIVE_IN = CONFIG.lease_ttl + MARGIN_SECONDS
_requests = itertools.count()


class Node:
    """A node with its allocator and its service of sequences."""

    def __init__(self, store: MemoryStore, clock: FakeClock) -> None:
        self.allocator = Allocator(store, clock, CONFIG)
        self.service = SequenceService(store, clock, self.allocator)

    async def warm(self, name: str, clock: FakeClock) -> list[int]:
        """Allocate until the node holds a lease; return the ids."""
        taken = []
        for _ in range(8):
            taken += ids(await self.allocator.issue(name, 10))
            clock.advance(0.1)
            await settle()  # lets a background refill finish
        assert self.allocator.lease_count
        return taken

    async def take(self, name: str, count: int = 1) -> list[int]:
        return ids(await self.allocator.issue(name, count))


@pytest.fixture
def node(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


@pytest.fixture
def other(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


async def wait_until(state: Callable[[], bool]) -> None:
    for _ in range(100):
        if state():
            return
        await asyncio.sleep(0)
    raise AssertionError("the state was not reached")


def new_token() -> ChangeKey:
    return ChangeKey(f"00000000-0000-4000-8000-{next(_requests):012d}", "digest")


async def create_monthly(node: Node) -> None:
    given = {"reset": Reset.MONTHLY, "format": "{year}-{month}-{value:06d}"}
    await node.service.create("bills", given, new_token())
