"""The first use of a sequence: it creates the row with its ids granted, on each store."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import Refusal, SequenceDeleted, SequenceNotFound, StoreOutcomeUnknown, StoreRetired
from idalloc_server.domain.sequences.sequence import MAX_ID, Ordering, Reset, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row, RowChange
from idalloc_server.domain.store.retirement import RETIRED_BY, retirement_row
from tests.store.conftest import ALL
from tests.support.fake_store import FakeClock
from tests.support.sequence_allocators import ids
from tests.support.store_backends import Opener
from tests.support.store_rows import ids_of, new_row, read_row
from tests.support.waiting import until

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)
Creating = Callable[[Row], Awaitable[Row]]

pytestmark = pytest.mark.parametrize("opener", ALL, indirect=True)


class CountedStore:
    """The store of one node; counts the calls, and runs ``creating`` in place of a create."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[str] = []
        self.creating: Creating | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def grant(self, *arguments: Any, **named: Any) -> Any:
        self.calls.append("grant")
        return await self._store.grant(*arguments, **named)

    async def create(self, row: Row) -> Row:
        self.calls.append("create")
        creating, self.creating = self.creating, None
        return await (creating or self._store.create)(row)


class Node(Allocator):
    """A node with a store connection of its own."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.counted = CountedStore(store)
        super().__init__(cast("Store", self.counted), clock, CONFIG)


@pytest.fixture
async def other(opener: Opener) -> Store:
    """The store as another process uses it."""
    return await opener.open()


@pytest.fixture
def node(store: Store, clock: FakeClock) -> Node:
    return Node(store, clock)


async def test_a_first_use_costs_two_store_calls(node: Node, store: Store) -> None:
    """P1, P5: the first use looks for the row and creates it with its ids and the lease's TTL."""
    first = await node.issue("s", 3)
    assert (ids(first), first.created) == ([1, 2, 3], True)
    assert node.counted.calls == ["grant", "create"]
    row = await read_row(store, "s")
    assert (row.last_value, row.lease_ms, row.sequence, row.revision) == (3, 180_000, Sequence(), 0)
    second = await node.issue("s", 2)
    assert (ids(second), second.created) == ([4, 5], False)
    assert node.counted.calls == ["grant", "create", "grant"]


async def test_a_first_use_of_an_existing_row_costs_one_call(node: Node, other: Store) -> None:
    """A node's first use of an existing sequence costs one store call."""
    await other.create(new_row("s"))
    taken = await node.issue("s", 3)
    assert (ids(taken), taken.created) == ([1, 2, 3], False)
    assert node.counted.calls == ["grant"]


async def test_two_nodes_that_create_at_once_share_no_id(
    node: Node, other: Store, clock: FakeClock, store: Store
) -> None:
    """P1: of two nodes with one clock one creates the sequence, and both get distinct ids."""
    nodes = [node, Node(other, clock), Node(store, clock)]
    taken = await asyncio.gather(*(each.issue("s", 3) for each in nodes))
    assert sorted(ids(*taken)) == list(range(1, 10))
    assert [each.created for each in taken].count(True) == 1


@pytest.mark.parametrize("ids_before_replay", [0, 4])
async def test_a_replayed_creation_grants_its_own_ids(
    node: Node, store: Store, other: Store, ids_before_replay: int
) -> None:
    """P1: a replayed creation returns the creator's ids, even if another node got later ones."""
    granted: list[int] = []

    async def create_twice(row: Row) -> Row:
        await store.create(row)
        granted.extend(ids_of(await other.grant("s", ids_before_replay, 1000)))
        return await store.create(row)

    node.counted.creating = create_twice
    assert ids(await node.issue("s", 3)) == [1, 2, 3]
    assert granted == [4, 5, 6, 7][:ids_before_replay]
    assert ids(await node.issue("s", 1)) == [4 + ids_before_replay]


async def test_a_replay_after_a_change_burns_the_ids(node: Node, store: Store, other: Store) -> None:
    """P1, P5: if the sequence changed before the replay that answers, the creator gets new ids."""

    async def create_twice(row: Row) -> Row:
        await store.create(row)
        assert await other.revise("s", 0, RowChange(Sequence(), 9, "advance", 5.0, generation=row.generation + 1))
        return await store.create(row)

    node.counted.creating = create_twice
    taken = await node.issue("s", 3)
    assert (ids(taken), taken.generation) == ([10, 11, 12], (await read_row(other, "s")).generation)
    assert not taken.created


async def test_a_creation_without_an_answer_burns_its_ids(node: Node, store: Store) -> None:
    """P1, P9: the ids of a creation whose answer is lost are counted as burned, never issued."""

    async def lose_answer(row: Row) -> Row:
        await store.create(row)
        raise StoreOutcomeUnknown("the connection was reset")

    node.counted.creating = lose_answer
    with pytest.raises(StoreOutcomeUnknown):
        await node.issue("s", 3)
    assert node.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 3}
    taken = await node.issue("s", 2)
    assert (ids(taken), taken.created) == ([4, 5], False)


async def test_a_creation_that_arrives_late_changes_nothing(node: Node, store: Store) -> None:
    """P1: a creation that the store applies after the node recreated the row grants nothing."""
    late: list[Row] = []

    async def delay(row: Row) -> Row:
        late.append(row)
        raise StoreOutcomeUnknown("the store did not answer")

    node.counted.creating = delay
    with pytest.raises(StoreOutcomeUnknown):
        await node.issue("s", 3)
    assert ids(await node.issue("s", 2)) == [1, 2]
    stored = await store.create(late[0])
    assert stored.revised_by != late[0].revised_by
    assert ids(await node.issue("s", 2)) == [3, 4]


async def test_a_node_that_was_paused_issues_nothing(node: Node, store: Store, other: Store, clock: FakeClock) -> None:
    """P4, P9: the ids of a creation are burned if a pause of the process outlasts their lease."""

    async def pause(row: Row) -> Row:
        stored = await store.create(row)
        await other.grant("s", 4, 1000)
        clock.advance(CONFIG.lease_ttl)
        return stored

    node.counted.creating = pause
    assert ids(await node.issue("s", 3)) == [8, 9, 10]
    assert node.burned.by_cause == {BurnCause.EXPIRED: 3}


async def test_a_sequence_deleted_in_between_is_deleted(node: Node, store: Store, other: Store) -> None:
    """P5: a creation that finds a tombstone issues nothing."""

    async def find_tombstone(row: Row) -> Row:
        await other.create(new_row("s", deleted=True, revised_by="delete"))
        return await store.create(row)

    node.counted.creating = find_tombstone
    with pytest.raises(SequenceDeleted):
        await node.issue("s", 3)
    assert (await read_row(other, "s")).last_value == 0
    assert not node.burned.by_cause


async def test_a_store_retired_in_between_refuses(node: Node, store: Store, other: Store) -> None:
    """P1, P9: a creation in a store that was retired in between is refused."""

    async def find_retirement(row: Row) -> Row:
        await other.create(retirement_row("db1", f"{RETIRED_BY}me", 5.0))
        return await store.create(row)

    node.counted.creating = find_retirement
    with pytest.raises(StoreRetired):
        await node.issue("s", 3)
    assert await store.get("s") is None
    assert not node.burned.by_cause


@pytest.mark.parametrize(
    "sequence",
    [
        Sequence(start=100, step=10),
        Sequence(ordering=Ordering.RISING),
        Sequence(reset=Reset.DAILY, format="{day}{value}"),
    ],
    ids=["step", "rising", "reset"],
)
async def test_a_row_created_in_between_is_used(node: Node, store: Store, other: Store, sequence: Sequence) -> None:
    """P1: a creation that finds another request's row uses that row, with its settings."""

    async def find_row(row: Row) -> Row:
        await other.create(new_row("s", sequence, revised_by="another"))
        return await store.create(row)

    node.counted.creating = find_row
    taken = await node.issue("s", 3)
    assert (taken.sequence, taken.first_id, taken.step) == (sequence, sequence.start, sequence.step)
    assert not taken.created


async def test_ids_of_a_creation_that_nobody_got_are_counted(node: Node, store: Store) -> None:
    """P2, P9: ids of a creation that nobody got count at the stop, as the version is unknown."""
    waiting: list[asyncio.Task[Any]] = []

    async def cancel_caller(row: Row) -> Row:
        waiting[0].cancel()
        return await store.create(row)

    node.counted.creating = cancel_caller
    waiting.append(asyncio.create_task(node.issue("s", 3)))
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    await until(lambda: node.lease_count, "a lease")
    await node.return_leases()
    assert node.burned.by_cause == {BurnCause.NOT_RETURNED: 3}
    assert (await read_row(store, "s")).last_value == 3


async def test_more_ids_than_any_sequence_has_create_the_row(node: Node, store: Store) -> None:
    """P1: a first call for more ids than there are is refused and takes none."""
    with pytest.raises(Refusal) as refused:
        await node.issue("s", MAX_ID + 1)
    assert refused.value.reason == "SEQUENCE_EXHAUSTED"
    assert (await read_row(store, "s")).last_value == 0
    assert not node.burned.by_cause


async def test_without_auto_create_nothing_is_created(store: Store, clock: FakeClock) -> None:
    """A first use creates no sequence if auto_create_sequences is off."""
    config = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=False)
    with pytest.raises(SequenceNotFound, match="auto_create_sequences is off"):
        await Allocator(store, clock, config).issue("s", 3)
    assert await store.get("s") is None
