"""The contract of every store: the list of sequences."""

import pytest

from idalloc_server.domain.sequences.sequence import Kind, Sequence, name_of_period
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.protocol import Store
from tests.store.conftest import ALL
from tests.support.store_rows import ALL_SETTINGS, PERIOD, YEARLY, new_row


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestList:
    async def names(self, store: Store, prefix: str = "", after: str = "", limit: int = 100, **more: bool) -> list[str]:
        rows = await store.list(prefix, after, limit, **({"with_deleted": False, "with_periods": False} | more))
        return [row.name for row in rows if row.name != IDENTITY]

    async def test_listed_rows_are_complete_and_current(self, store: Store) -> None:
        """A list has every value of the rows, and every acknowledged write."""
        await store.create(new_row("a", ALL_SETTINGS, generation=3, created_at=1_700_000_000.5))
        await store.create(new_row("b"))
        await store.grant("b", 5, 2000)
        rows = await store.list("", "", 10, with_deleted=False, with_periods=False)
        assert rows == [await store.get("a"), await store.get("b")]

    async def test_rows_are_listed_in_byte_order_page_by_page(self, store: Store) -> None:
        """Pages are in the order of the names' bytes, without gaps or repetitions."""
        names = ["B", "a", "aa", "ab", "b", "ä", "\uff5a", "日本", "😀", "a b", "a%", "a_", "a\\", "*", "'"]
        for name in names:
            await store.create(new_row(name))
        names.sort(key=str.encode)
        assert await self.names(store) == names
        pages, after = [], ""
        while page := await self.names(store, after=after, limit=4):
            pages += page
            after = page[-1]
        assert pages == names

    async def test_a_prefix_is_literal(self, store: Store) -> None:
        """A prefix has no wildcards and is case-sensitive."""
        names = ["a%b", "a_b", "aXb", "A%b", "a\\%", "ab", "a", "ä", "😀a", "😀b", "a*c"]
        for name in names:
            await store.create(new_row(name))
        for prefix in ("a", "A", "a%", "a_", "a\\", "ä", "😀", "a*", "zz", "a%b"):
            expected = sorted((name for name in names if name.startswith(prefix)), key=str.encode)
            assert await self.names(store, prefix) == expected
        assert await self.names(store, "a", after="a%b") == ["a*c", "aXb", "a\\%", "a_b", "ab"]

    async def test_tombstones_and_periods_are_listed_on_request(self, store: Store) -> None:
        """Tombstones and counters of periods are listed only on request."""
        await store.create(new_row("orders", YEARLY))
        await store.open_period(PERIOD, YEARLY, 5, 1)
        await store.create(new_row("gone", deleted=True))
        await store.create(new_row(name_of_period("gone", "2026"), deleted=True))
        await store.create(new_row("times", Sequence(kind=Kind.TIMESTAMP_US)))
        gone = name_of_period("gone", "2026")
        assert await self.names(store) == ["orders", "times"]
        assert await self.names(store, with_deleted=True) == ["gone", "orders", "times"]
        assert await self.names(store, with_periods=True) == ["orders", PERIOD, "times"]
        assert await self.names(store, with_deleted=True, with_periods=True) == [
            "gone",
            gone,
            "orders",
            PERIOD,
            "times",
        ]

    async def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        """An empty store has an empty list."""
        assert await self.names(store) == []
