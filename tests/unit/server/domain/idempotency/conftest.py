"""Nodes that share a store, for the tests of request ids."""

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.errors import Refusal
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.store_calls import proxied
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.waiting import until as until

ONE = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
WINDOW = 3600.0
LEASE_TTL = 180.0
CONFIG = AllocationConfig(LEASE_TTL, store_timeout=3.0, auto_create_sequences=True)


class Node:
    """A process with its allocators."""

    def __init__(self, store: MemoryStore, clock: FakeClock, name: str = "a") -> None:
        timed = proxied(store, Store, CONFIG.store_timeout)
        self.allocator = Allocator(timed, clock, CONFIG)
        self.request_ids = IdempotentAllocator(self.allocator, timed, clock, node=name, window=WINDOW)

    async def take(self, count: int = 5, request_id: str = ONE, sequence: str = "orders", prefix: int = 7) -> IdRange:
        taken, _ = await self.request_ids.allocate_once(sequence, count, request_id, prefix)
        return taken

    async def refused(self, count: int = 5, request_id: str = ONE, sequence: str = "orders") -> Refusal:
        with pytest.raises(Refusal) as refused:
            await self.take(count, request_id, sequence)
        return refused.value

    @property
    def burned(self) -> dict[BurnCause, int]:
        return dict(self.allocator.burned.by_cause)


@pytest.fixture
def node(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


@pytest.fixture
def other_node(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock, "b")


def settings_changed(store: MemoryStore, sequence: Sequence | None = None) -> None:
    """Change the row as an update of the sequence does."""
    row = store.rows["orders"]
    row.generation += 1
    row.sequence = sequence or row.sequence


async def warm(node: Node) -> None:
    """Allocate until the node holds a lease, so that the next ids need no store call."""
    for _ in range(5):
        await node.allocator.issue("orders", 100)
    assert node.allocator.issue_now("orders", 1)
