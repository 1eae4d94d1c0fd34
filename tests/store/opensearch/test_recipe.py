"""The recipe of OpenSearch's clients with a counter document, and what idalloc does instead."""

import pytest

from idalloc_server.domain.errors import StoreFailure
from idalloc_server.domain.sequences.sequence import Sequence
from tests.store.conftest import OPENSEARCH
from tests.support.opensearch.backend import RECIPE, OpenSearchBackend
from tests.support.store_backends import Opener
from tests.support.store_rows import ids_of, new_row

pytestmark = pytest.mark.parametrize("opener", OPENSEARCH, indirect=True)
BEFORE_WRAP = 2**31 - 3


async def take(backend: OpenSearchBackend, count: int) -> int:
    """Take ids by the recipe, as many a request as its clients do, and return the last one."""
    script = {"source": RECIPE, "lang": "painless", "params": {"n": count}}
    body = {"script": script, "upsert": {"last_value": count}}
    path = f"/{backend.alias}-recipe/_update/orders?_source=last_value&retry_on_conflict=10"
    status, answer = await backend.send("POST", path, body)
    assert status in (200, 201), answer
    return int(answer["get"]["_source"]["last_value"])


class TestRecipe:
    async def test_the_recipe_wraps_at_2_to_the_31(self, backend: OpenSearchBackend) -> None:
        """A number of 32 bits is an Integer in painless: after 2^31-1 ids are negative."""
        try:
            assert await take(backend, BEFORE_WRAP) == BEFORE_WRAP
            assert await take(backend, 10) == BEFORE_WRAP + 10 - 2**32
        finally:
            await backend.send("DELETE", f"/{backend.alias}-recipe")

    async def test_the_recipe_starts_over_in_a_missing_index(self, backend: OpenSearchBackend) -> None:
        """The recipe's write silently creates a missing index, and issues its first ids again."""
        try:
            assert [await take(backend, 10), await take(backend, 10)] == [10, 20]
            await backend.send("DELETE", f"/{backend.alias}-recipe")
            assert await take(backend, 10) == 10
        finally:
            await backend.send("DELETE", f"/{backend.alias}-recipe")


class TestStore:
    async def test_a_sequence_passes_2_to_the_31(self, opener: Opener) -> None:
        """P1: the ids of a sequence go on past 2^31, also in a row that keeps a small number."""
        store = await opener.open()
        await store.create(new_row("orders", Sequence(start=BEFORE_WRAP + 1)))
        granted = await store.grant("orders", 10, 1000)
        assert list(ids_of(granted)) == list(range(BEFORE_WRAP + 1, BEFORE_WRAP + 11))
        await opener.put("adopted", last_value=BEFORE_WRAP)
        assert list(ids_of(await store.grant("adopted", 10, 1000)))[-1] == BEFORE_WRAP + 10

    async def test_a_missing_index_is_refused_and_not_made(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """P1: a store whose index was deleted grants nothing, and makes no index in its place."""
        store = await opener.open()
        await store.create(new_row("orders"))
        await store.grant("orders", 10, 1000)
        status, _ = await backend.send("DELETE", f"/{backend.alias}-data")
        assert status == 200
        with pytest.raises(StoreFailure):
            await store.grant("orders", 10, 1000)
        with pytest.raises(StoreFailure):
            await store.create(new_row("invoices"))
        status, answer = await backend.send("GET", f"/{backend.alias}")
        assert (status, answer["error"]["type"]) == (404, "index_not_found_exception")
