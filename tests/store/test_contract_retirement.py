"""The contract of every store: a retired store."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from idalloc_server.domain.errors import SequenceDeleted, StoreRetired
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row, RowChange
from idalloc_server.domain.store.retirement import RETIRED_BY, RETIREMENT, retirement_row, retiring_change
from tests.store.conftest import ALL
from tests.support.store_backends import Opener
from tests.support.store_rows import new_row

AT = 1_700_000_000.0
RETIREMENT_ROW = retirement_row("db1, schema idalloc", f"{RETIRED_BY}me", AT)


def change(by: str, *, deleted: bool = False) -> RowChange:
    return RowChange(Sequence(), 0, by, AT, deleted=deleted)


def claim(store: Store) -> Awaitable[object]:
    return store.claim_start(7, 1000, "me", 60)


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestRetiredStore:
    @pytest.mark.parametrize(
        "call",
        [
            lambda store: store.create(new_row("new")),
            lambda store: store.create(new_row("old")),
            lambda store: store.revise("old", 1, change("again")),
            lambda store: store.revise("live", 0, change("update")),
            lambda store: store.grant("old", 1, 1000),
            claim,
        ],
        ids=["create", "create again", "revive", "update", "grant", "claim"],
    )
    async def test_a_retired_store_refuses_and_changes_nothing(
        self, store: Store, call: Callable[[Store], Awaitable[object]]
    ) -> None:
        """P1, P6: nothing is created, revived or claimed in a retired store."""
        await claim(store)
        await store.create(new_row("old"))
        await store.revise("old", 0, change("end", deleted=True))
        await store.create(new_row("live"))
        await store.create(RETIREMENT_ROW)
        before = await self.rows(store)
        with pytest.raises(StoreRetired, match=r"retired on 2023-11-14T22:13:20\+00:00; use instead: db1, schema"):
            await call(store)
        assert await self.rows(store) == before
        assert await store.get("new") is None

    async def rows(self, store: Store) -> list[Row]:
        """Return all rows without lease_ms, which CrateDB stores even if nothing was granted."""
        return [row._replace(lease_ms=0) for row in await store.list("", "", 9, with_deleted=True, with_periods=True)]

    async def test_live_sequences_are_granted_until_they_are_deleted(self, store: Store) -> None:
        """P1: a live sequence of a retired store grants ids until the retirement deletes it."""
        await store.create(new_row("live"))
        await store.grant("live", 1, 1000)
        await store.create(RETIREMENT_ROW)
        grant = await store.grant("live", 1, 1000)
        assert grant is not None
        assert grant.granted == 1
        ended = await store.revise("live", 0, change("end", deleted=True))
        assert ended is not None
        assert ended.deleted

    async def test_the_retirement_row_is_not_listed(self, store: Store) -> None:
        """The retirement row is not in the list of sequences."""
        await store.create(RETIREMENT_ROW)
        assert await store.list("", "", 9, with_deleted=True, with_periods=False) == []
        assert await store.get(RETIREMENT) == RETIREMENT_ROW

    async def test_a_deleted_row_ends_the_retirement(self, store: Store) -> None:
        """A tombstone of the retirement row undoes the retirement; the row can be written again."""
        await store.create(RETIREMENT_ROW)
        await store.revise(RETIREMENT, 0, RowChange(RETIREMENT_ROW.sequence, 0, "undo", AT, deleted=True))
        assert await store.create(new_row("new")) == new_row("new")
        await claim(store)
        await store.revise(RETIREMENT, 1, RowChange(RETIREMENT_ROW.sequence, 0, "again", AT))
        with pytest.raises(StoreRetired):
            await store.create(new_row("newer"))

    async def test_creates_racing_with_a_retirement_are_refused_or_listed(self, store: Store, opener: Opener) -> None:
        """P1: a create that races with a retirement is refused, or precedes the retirement row."""
        other = await opener.open()

        async def create(n: int) -> str:
            try:
                return (await (store, other)[n % 2].create(new_row(f"s{n:02d}"))).name
            except StoreRetired:
                return ""

        *created, _ = await asyncio.gather(*(create(n) for n in range(20)), store.create(RETIREMENT_ROW))
        rows = await store.list("", "", 99, with_deleted=False, with_periods=False)
        assert {row.name for row in rows} == set(filter(None, created))


def test_an_ended_row_is_exported_as_moved() -> None:
    """P1: a row that a retirement ends is the retirement's tombstone of the next generation."""
    ended = retiring_change(Row("s", 5, Sequence(), 7), RETIREMENT_ROW)
    assert (ended.deleted, ended.generation, ended.by.startswith(RETIRED_BY)) == (True, 8, True)
    assert issubclass(StoreRetired, SequenceDeleted)  # the allocator drops its lease
