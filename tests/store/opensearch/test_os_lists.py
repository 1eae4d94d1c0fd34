"""Lists and exports on OpenSearch leave out no served row, whatever an operator sets."""

import re
from collections.abc import AsyncIterator

import pytest

from idalloc_server.domain.errors import SequenceInvalid, StoreRefused
from idalloc_server.domain.sequences.sequence import name_of_period
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation
from idalloc_server.domain.store.retention import Retention
from tests.store.conftest import OPENSEARCH
from tests.store.opensearch.test_os_refusals import run, send
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.store_backends import Opener
from tests.support.store_rows import grant, requested_row

pytestmark = pytest.mark.parametrize("opener", OPENSEARCH, indirect=True)

NAMES = ["a", "b", "ba", "bb", "c", "ä", "日本"]


@pytest.fixture
async def frugal(backend: OpenSearchBackend) -> AsyncIterator[None]:
    """The cluster allows no expensive queries."""
    await send(backend, "PUT", "/_cluster/settings", {"persistent": {"search.allow_expensive_queries": False}})
    yield
    await send(backend, "PUT", "/_cluster/settings", {"persistent": {"search.allow_expensive_queries": None}})


async def names(
    store: Store, prefix: str = "", after: str = "", limit: int = 100, *, periods: bool = True
) -> list[str]:
    rows = await store.list(prefix, after, limit, with_deleted=True, with_periods=periods)
    return [row.name for row in rows if row.name != IDENTITY]


class TestEditedNames:
    @pytest.mark.parametrize("edited", [{}, {"name": None}, {"name": "z"}, {"name": ""}, {"name": ["s", "t"]}], ids=str)
    async def test_a_row_without_its_name_is_not_left_out(
        self, opener: Opener, backend: OpenSearchBackend, edited: dict[str, object]
    ) -> None:
        """SEQUENCE_INVALID: a list names a row that lacks its name, and the repairing request."""
        store = await opener.open()
        for name in ("a", "t"):
            await store.create(requested_row(name))
        await backend.put_document("s", {"last_value": 41, **edited})
        assert (await grant(store, "s", 1)).last_value == 42
        with pytest.raises(SequenceInvalid, match="'s' cannot be used: its field name") as caught:
            await names(store)
        await run(backend, str(caught.value))
        assert await names(store) == ["a", "s", "t"]
        assert (await grant(store, "s", 1)).last_value == 43

    async def test_a_period_without_its_field_is_no_sequence(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """A key with a period in it is a counter of a period, whatever its fields say."""
        store = await opener.open()
        await store.create(requested_row("orders"))
        period = name_of_period("orders", "2026")
        await backend.put_document(period, {"name": period, "last_value": 41, "mode": "period"})
        assert await names(store, periods=False) == ["orders"]
        assert await names(store) == ["orders", period]

    async def test_the_confirmation_is_no_row(self, opener: Opener) -> None:
        """The document that confirms a missing retirement is listed by nobody."""
        store = await opener.open()
        await store.create(requested_row("s"))
        await store.claim_start(3, 1000, "me", 60.0)
        assert await names(store) == ["s"]


class TestSettings:
    async def test_a_list_is_complete_in_small_pages(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """A list longer than ``index.max_result_window`` is complete, in byte order."""
        store = await opener.open()
        for index in ("sequences", "starts", "allocations"):
            path = f"/{backend.alias.removesuffix('sequences')}{index}/_settings"
            await send(backend, "PUT", path, {"index.max_result_window": 2})
        store = await opener.open()
        await assert_complete(store)

    @pytest.mark.usefixtures("frugal")
    async def test_a_list_needs_no_expensive_queries(self, opener: Opener) -> None:
        """All searches work with ``search.allow_expensive_queries: false``."""
        await assert_complete(await opener.open())

    async def test_a_smaller_window_is_refused_by_name(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """STORE_REFUSED: a window that shrinks while a server runs is named with the next step."""
        store = await opener.open()
        await send(backend, "PUT", "/{}/_settings", {"index.max_result_window": 2})
        with pytest.raises(StoreRefused, match=r"Result window is too large.*; restart this server") as caught:
            await names(store)
        assert re.search(f"index.max_result_window of {backend.alias}", str(caught.value))
        assert await names(await opener.open()) == []


async def assert_complete(store: Store) -> None:
    """Assert that each search of a store finds all that it must."""
    for name in NAMES:
        await store.create(requested_row(name))
    assert await names(store) == NAMES
    assert await names(store, "b") == ["b", "ba", "bb"]
    assert await names(store, "b", after="a") == ["b", "ba", "bb"]
    assert await names(store, "b", after="b") == ["ba", "bb"]
    assert await names(store, after="bb", limit=2) == ["c", "ä"]
    for prefix in range(3):
        await store.raise_start(prefix, 1000 + prefix)
    assert await store.claimed_starts() == {0: 1000, 1: 1001, 2: 1002}
    await store.record([RecordedAllocation(f"r{each}", "s", 1, 10, 1, 1, "", 0, "node") for each in range(3)])
    assert await store.count_recorded(100) == 3
    newest = await store.newest_recorded()
    assert newest
    retention, forgotten = Retention([(newest, 1e6)], 1.0), 0
    while deleted := await store.forget_recorded(retention, 10):
        forgotten += deleted
    assert forgotten == 3
