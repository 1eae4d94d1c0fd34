"""The unused tail that a lease gives back to a real store."""

import pytest

from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RowChange
from idalloc_server.store.cratedb.statements import Statements
from tests.store.conftest import ALL, BACKENDS, CRATEDB
from tests.support.fake_store import FakeClock
from tests.support.store_backends import CrateBackend, Opener
from tests.support.store_rows import grant, new_row, read_row

LEASE_MS = 180_000
NAMES = ["a", "b", "c", "d"]


class Node:
    """One sequence on one node: its lease, and the issued ids."""

    def __init__(self, store: Store, name: str = "s") -> None:
        self.issued: list[int] = []
        # The counter after the node's last write; the store must never return a lower one.
        self.seen = 0
        self.store = store
        self._name = name
        self._lease = Lease()

    async def grant(self, wanted: int) -> None:
        """Add ids to the lease; 0 renews it."""
        granted = await grant(self.store, self._name, wanted, LEASE_MS)
        assert granted.value_before >= self.seen, "the store went backwards"
        self.seen = granted.last_value
        self._lease.add(granted, expires_at=1.0)

    def issue(self, count: int) -> None:
        """Take ids from the lease."""
        taken = self._lease.issue(count, now=0.0)
        assert taken is not None
        self.issued += range(taken.first_id, taken.last_id + 1)

    @property
    def held(self) -> int:
        return self._lease.left

    async def stop(self) -> int:
        """Give the tail back; return the number of burned ids."""
        lease, self._lease = self._lease, Lease()
        value, count, version = lease.tail()
        if not count or not await self.store.give_back(self._name, count, version):
            return lease.left
        self.seen = value
        return lease.left - count


async def counter(store: Store, name: str = "s") -> int:
    value = (await read_row(store, name)).last_value
    assert value is not None
    return value


async def issued_twice(opener: Opener, *issued: list[int]) -> list[int]:
    """Issue more ids than any node held, on a new node, and return the repeated ids."""
    fresh = Node(await opener.open())
    await fresh.grant(100)
    fresh.issue(100)
    every = [value for ids in (*issued, fresh.issued) for value in ids]
    return sorted({value for value in every if every.count(value) > 1})


@pytest.mark.parametrize("opener", ALL, indirect=True)
async def test_a_single_node_gives_every_unused_id_back(opener: Opener) -> None:
    """P9: a clean stop burns nothing if no other node wrote the rows of any sequence."""
    store = await opener.open()
    nodes = {name: Node(store, name) for name in NAMES}
    for name in NAMES:
        await store.create(new_row(name))
    for wanted in (10, 20, 0, 5, 0):  # grants and renewals of each, between those of the others
        for node in nodes.values():
            await node.grant(wanted)
            node.issue(2)
    assert [node.held for node in nodes.values()] == [25] * len(NAMES)
    assert [await node.stop() for node in nodes.values()] == [0] * len(NAMES)
    assert [await counter(store, name) for name in NAMES] == [10] * len(NAMES)


@pytest.mark.parametrize("opener", ALL, indirect=True)
async def test_a_tail_ends_at_another_nodes_renewal(opener: Opener) -> None:
    """P2: the counter never goes below what a renewal of another node returned."""
    node, other = Node(await opener.open()), Node(await opener.open())
    await node.store.create(new_row("s"))
    await node.grant(10)
    node.issue(2)
    await other.grant(0)
    await node.grant(10)
    assert await node.stop() == 8
    assert await counter(node.store) == other.seen == 10
    await other.grant(5)
    other.issue(5)
    assert await issued_twice(opener, node.issued, other.issued) == []


@pytest.mark.parametrize("opener", ALL, indirect=True)
async def test_a_tail_ends_at_another_nodes_give_back(opener: Opener) -> None:
    """P2: the counter never goes below a value that another node remembers."""
    node, other = Node(await opener.open()), Node(await opener.open())
    await node.store.create(new_row("s"))
    await node.grant(10)
    node.issue(2)
    await other.grant(5)
    assert await other.stop() == 0
    assert await counter(node.store) == other.seen == 10
    await node.grant(10)
    assert await node.stop() == 8
    assert await counter(node.store) == other.seen
    assert await issued_twice(opener, node.issued) == []


@pytest.mark.parametrize("opener", BACKENDS, indirect=True)
@pytest.mark.parametrize("renewed", [False, True])
async def test_a_tail_ends_at_a_recipe_clients_write(opener: Opener, renewed: bool) -> None:
    """P1: a recipe client moves the value between two grants, and counts no write."""
    node = Node(await opener.open())
    await node.store.create(new_row("s"))
    await node.grant(10)
    node.issue(2)
    foreign = await opener.backend.take_as_recipe_client("s")
    if renewed:
        await node.grant(0)
    else:
        await node.grant(10)
    assert await node.stop() == 8
    assert await counter(node.store) == foreign == 11
    assert await issued_twice(opener, node.issued, [foreign]) == []


@pytest.mark.parametrize("opener", BACKENDS, indirect=True)
async def test_a_tail_ends_at_a_recipe_client_and_a_give_back(opener: Opener) -> None:
    """P1: a recipe client takes an id, and another node gives some of the next ones back."""
    node, other = Node(await opener.open()), Node(await opener.open())
    await node.store.create(new_row("s"))
    await node.grant(10)
    node.issue(2)
    foreign = await opener.backend.take_as_recipe_client("s")
    await other.grant(5)
    assert await other.stop() == 0
    await node.grant(10)
    assert await node.stop() == 8
    assert await counter(node.store) == foreign == other.seen
    assert await issued_twice(opener, node.issued, [foreign]) == []


@pytest.mark.parametrize("opener", CRATEDB, indirect=True)
@pytest.mark.parametrize("wanted", [0, 7])
@pytest.mark.parametrize("answered", ["first", "second"])
async def test_a_tail_ends_at_a_replayed_grant(opener: Opener, wanted: int, answered: str) -> None:
    """P1: a grant that the cluster applied twice counts as another node's, for either answer."""
    node = Node(await opener.open())
    await node.store.create(new_row("s"))
    await node.grant(10)
    node.issue(2)
    if answered == "first":
        await node.grant(wanted)
        await replay(opener, wanted)
    else:
        await replay(opener, wanted)
        await node.grant(wanted)
    held = node.held
    await node.grant(10)
    burned = await node.stop()
    assert burned == (held if answered == "first" else held - wanted)
    assert await counter(node.store) == 10 + 2 * wanted - (wanted if answered == "second" else 0)
    assert await issued_twice(opener, node.issued) == []


@pytest.mark.parametrize("opener", CRATEDB, indirect=True)
async def test_a_replay_after_the_last_answer_burns_the_tail(opener: Opener) -> None:
    """P1: nothing is given back if the cluster applied the last grant again after its answer."""
    node = Node(await opener.open())
    await node.store.create(new_row("s"))
    await node.grant(10)
    node.issue(2)
    await replay(opener, 10)
    assert await node.stop() == 8
    assert await counter(node.store) == 20


async def replay(opener: Opener, wanted: int) -> None:
    """Apply a grant without its answer."""
    backend = opener.backend
    assert isinstance(backend, CrateBackend)
    await backend.sql(Statements(backend.schema).grant, wanted, LEASE_MS, "s", 0, -(2**63) + 1, 2**63 - 2, None)


@pytest.mark.parametrize("opener", ALL, indirect=True)
async def test_every_write_of_the_row_is_counted(opener: Opener, clock: FakeClock) -> None:
    """P2: each write of idalloc adds one to the row's count of writes, and to no other row's."""
    store, other = await opener.open(), await opener.open()
    await store.create(new_row("s"))
    await store.create(new_row("t"))
    first = await grant(store, "s", 5)
    await grant(store, "t", 5)
    await store.create(new_row("u"))
    await store.claim_start(3, 1000, "me", 60)
    assert (await grant(store, "s", 0)).writes == first.writes + 1
    last = await grant(other, "s", 3)
    assert last.writes == first.writes + 2
    assert await other.give_back("s", 1, last.version)
    assert (await grant(store, "s", 1)).writes == first.writes + 4
    change = RowChange((await read_row(store, "s")).sequence, 0, "me", clock.wall(), ends_leases=False)
    await store.revise("s", 0, change)
    await store.revise("s", 0, change)  # made before
    await store.create(new_row("s"))
    assert (await grant(store, "s", 1)).writes == first.writes + 6


@pytest.mark.parametrize("opener", BACKENDS, indirect=True)
async def test_an_adopted_row_counts_writes_from_zero(opener: Opener) -> None:
    """P2: the count of writes is NULL in an adopted row, and NULL counts as 0."""
    store = await opener.open()
    await opener.put("s", last_value=41)
    assert [(await grant(store, "s", wanted)).writes for wanted in (5, 0, 5)] == [1, 2, 3]
