"""Reading the counters of another program's index, page by page."""

import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from idalloc_server.domain.errors import StartRefused, StoreFailure, StoreRefused
from idalloc_server.store.opensearch.documents import read_documents
from idalloc_server.store.urls import open_index
from tests.store.conftest import REAL_OPENSEARCH
from tests.support.opensearch.backend import OpenSearchBackend


def page(*names: str, failed: int = 0) -> dict[str, Any]:
    hits = [{"_id": name, "_source": {"last_value": 7}} for name in names]
    return {"_scroll_id": "next", "_shards": {"failed": failed}, "hits": {"hits": hits}}


class Pages:
    """An index whose pages are given.

    Attributes:
        pages: The answers to the search and to each scroll.
        requests: The paths and bodies of all requests.
    """

    def __init__(self) -> None:
        self.host = ""
        self.pages: list[dict[str, Any]] = []
        self.requests: list[tuple[str, Any]] = []

    async def answer(self, request: web.BaseRequest) -> web.Response:
        text = await request.text()
        self.requests.append((request.path, json.loads(text) if text else None))
        if request.path.endswith("_refresh"):
            return web.json_response({"_shards": {"successful": 1, "failed": 0}})
        return web.json_response(self.pages.pop(0))


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    made = Pages()
    runner = web.ServerRunner(web.Server(made.answer), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.host = "127.0.0.1:{1}".format(*runner.addresses[0])
    yield made
    await runner.cleanup()


async def read(host: str, index: str) -> list[dict[str, Any]]:
    http, name = open_index(f"elasticsearch://{host}/{index}")
    try:
        return await read_documents(http, name)
    finally:
        await http.close()


async def test_all_pages_are_read(pages: Pages) -> None:
    """P1: a counter on a later page is not lost."""
    pages.pages = [page("a", "b"), page("c"), page()]
    assert [hit["_id"] for hit in await read(pages.host, "counters")] == ["a", "b", "c"]
    assert [path for path, _ in pages.requests] == [
        "/counters/_refresh",
        "/counters/_search",
        "/_search/scroll",
        "/_search/scroll",
    ]
    assert pages.requests[2][1]["scroll_id"] == "next"


async def test_a_part_of_an_index_is_refused(pages: Pages) -> None:
    """P1: with a failed shard some counters are missing, so nothing is imported."""
    pages.pages = [page("a", failed=1)]
    with pytest.raises(StoreFailure, match="returned a part of index counters only"):
        await read(pages.host, "counters")


@pytest.mark.parametrize("url", ["https://h/counters", "http://h/counters", "crate://h/counters", "h/counters"])
def test_another_kind_of_url_is_refused(url: str) -> None:
    """A password is never sent to a URL whose kind is unknown."""
    with pytest.raises(StartRefused, match=r"begins with opensearch:// or elasticsearch://"):
        open_index(url)


@pytest.mark.parametrize("url", ["opensearch://h", "opensearch://h/_all", "opensearch://h/a/b", "opensearch://h/a,b"])
def test_a_url_without_one_index_is_refused(url: str) -> None:
    """The URL names one index."""
    with pytest.raises(StartRefused, match="ends with the name of the index"):
        open_index(url)


@pytest.mark.parametrize("version", REAL_OPENSEARCH)
async def test_an_index_of_a_real_opensearch_is_read(version: str, opensearch_host: Callable[[str], str]) -> None:
    """P1: all counters are read, with those of the last second and past the size of a page."""
    host, index = opensearch_host(version), f"recipe-{uuid.uuid4().hex[:12]}"
    backend = OpenSearchBackend(host, index)
    with pytest.raises(StoreRefused, match="check the name of the index"):
        await read(host, index)
    for number in range(1_001):
        status, _ = await backend.send("PUT", f"/{index}/_doc/counter-{number}", {"last_value": number})
        assert status == 201
    found = await read(host, index)
    await backend.send("DELETE", f"/{index}")
    assert {hit["_id"]: hit["_source"]["last_value"] for hit in found} == {
        f"counter-{number}": number for number in range(1_001)
    }
