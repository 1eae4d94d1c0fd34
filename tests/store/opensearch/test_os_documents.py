"""Reading the counters of another program's index: all of them, or none."""

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from idalloc_server.backup.counter_index import read_documents
from idalloc_server.domain.errors import StartRefused, StoreFailure, StoreRefused, StoreUnavailable
from idalloc_server.store.urls import open_index
from tests.store.conftest import OPENSEARCH, REAL_OPENSEARCH
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.opensearch.pages import WRITABLE, Pages, page, serve_pages
from tests.support.opensearch.stand_in import OpenSearchStandIn

NEXT_STEP = "nothing was imported; when GET /_cluster/health/counters says green, import again"


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    async with serve_pages() as made:
        yield made


@pytest.fixture
async def host(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The HOST:PORT of the stand-in, or of a real OpenSearch."""
    if request.param != "opensearch":
        yield request.getfixturevalue("opensearch_host")(request.param)
        return
    async with OpenSearchStandIn() as stand_in:
        yield stand_in.host
        assert stand_in.unknown == []


class Index(OpenSearchBackend):
    """An index of counters, of a name of its own."""

    def __init__(self, host: str) -> None:
        self.host, self.name = host, f"recipe-{uuid.uuid4().hex[:12]}"
        super().__init__(host, self.name)

    async def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Send a request that must succeed."""
        status, answer = await self.send(method, path, body)
        assert status in (200, 201), answer
        return answer

    async def count(self, name: str, value: int) -> None:
        await self.ask("PUT", f"/{self.name}/_doc/{name}", {"last_value": value})


async def read(host: str, index: str, *, clients_stopped: bool = False) -> list[dict[str, Any]]:
    http, name = open_index(f"elasticsearch://{host}/{index}")
    try:
        return await read_documents(http, name, clients_stopped=clients_stopped)
    finally:
        await http.close()


class TestPages:
    async def test_all_pages_are_read(self, pages: Pages) -> None:
        """P1: a counter on a later page is not lost, and the scroll is freed."""
        assert [hit["_id"] for hit in await read(pages.host, "counters")] == ["a", "b", "c"]
        assert [(method, path) for method, path, _ in pages.requests] == [
            ("GET", "/counters/_settings"),
            ("POST", "/counters/_refresh"),
            ("POST", "/counters/_search"),
            ("POST", "/_search/scroll"),
            ("POST", "/_search/scroll"),
            ("DELETE", "/_search/scroll"),
            ("POST", "/counters/_refresh"),
            ("POST", "/counters/_search"),
        ]
        assert pages.requests[2][2]["track_total_hits"] is True
        assert pages.requests[3][2]["scroll_id"] == "next"
        assert pages.requests[5][2]["scroll_id"] == ["next"]

    @pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "second", "last"])
    @pytest.mark.parametrize(
        "wrong",
        [
            page(failed=1),
            page("c", failed=1),
            page("c", timed_out=True),
            page("c", timed_out=None),
            page("c", _shards=None),
            page("c", _shards={"successful": 1}),
            page("c", hits=None),
            page("c", hits={"total": 3, "hits": []}),
            page("c", hits={"total": {"value": 3, "relation": "gte"}, "hits": []}),
            page("c", hits={"total": {"value": "many", "relation": "eq"}, "hits": []}),
            page("c", hits={"hits": []}),
            page(total=4),
            {},
            [],
            "<html>bad gateway</html>",
        ],
        ids=str,
    )
    async def test_a_page_that_is_not_whole_is_refused(self, pages: Pages, wrong: Any, at: int) -> None:
        """P1: a page that lacks a shard, is cut short or is no answer does not end the counters."""
        pages.pages[at] = wrong
        with pytest.raises(StoreUnavailable, match=NEXT_STEP):
            await read(pages.host, "counters")

    @pytest.mark.parametrize("at", [0, -1])
    async def test_a_search_without_its_aggregation_is_refused(self, pages: Pages, at: int) -> None:
        """P1: without the sequence numbers a write during the import would not be noticed."""
        answers = [*pages.pages, pages.last]
        answers[at] = {name: value for name, value in answers[at].items() if name != "aggregations"}
        *pages.pages, pages.last = answers
        with pytest.raises(StoreUnavailable, match=NEXT_STEP):
            await read(pages.host, "counters")

    @pytest.mark.parametrize("rest", [[page()], [page("c", "d"), page()], [page("c"), page("d"), page("e")]], ids=str)
    async def test_as_many_counters_as_the_total_are_read(self, pages: Pages, rest: list[Any]) -> None:
        """P1: the number of counters read is the number that the index has."""
        pages.pages[1:] = rest
        with pytest.raises(StoreUnavailable, match=f"of 3 documents of index counters: {NEXT_STEP}"):
            await read(pages.host, "counters")
        assert ("DELETE", "/_search/scroll") in [(method, path) for method, path, _ in pages.requests]

    @pytest.mark.parametrize(
        "shards",
        [{"total": 2, "successful": 1, "failed": 1}, {"successful": 0, "failed": 0}, {"successful": 1}, {}, None],
        ids=str,
    )
    async def test_a_refresh_that_is_not_whole_is_refused(self, pages: Pages, shards: Any) -> None:
        """P1: without a refresh of all shards the counters of the last writes are missing."""
        pages.refresh = {} if shards is None else {"_shards": shards}
        with pytest.raises(StoreUnavailable, match=f"did not refresh all shards of index counters: .*{NEXT_STEP}"):
            await read(pages.host, "counters")

    @pytest.mark.parametrize(
        "last", [page(total=4), page(aggregations={"writes": {"sum": 9}})], ids=["added", "changed"]
    )
    async def test_an_index_written_meanwhile_is_refused(self, pages: Pages, last: Any) -> None:
        """P1: a counter that a client advances during the import is not imported as before."""
        pages.last = last
        with pytest.raises(StoreRefused, match="was written while it was read, so nothing was imported: stop"):
            await read(pages.host, "counters", clients_stopped=True)

    async def test_an_index_that_accepts_writes_is_refused(self, pages: Pages) -> None:
        """P1: beside clients that may still write nothing is read, unless the operator says that
        there are none.
        """
        pages.settings = WRITABLE
        with pytest.raises(StoreRefused) as refused:
            await read(pages.host, "counters")
        assert 'run PUT /counters/_settings {"index.blocks.write": true}; or confirm with --clients-stopped' in str(
            refused.value
        )
        assert len(pages.requests) == 1
        assert len(await read(pages.host, "counters", clients_stopped=True)) == 3

    @pytest.mark.parametrize("block", [{"write": "true"}, {"read_only": "true"}, {"write": True}], ids=str)
    async def test_either_block_of_writes_is_enough(self, pages: Pages, block: dict[str, Any]) -> None:
        """An index with a block of writes, or of all changes, is read."""
        pages.settings = {"counters": {"settings": {"index": {"blocks": block}}}}
        assert len(await read(pages.host, "counters")) == 3

    async def test_each_index_of_an_alias_must_be_blocked(self, pages: Pages) -> None:
        """P1: a client may write to any index of an alias."""
        blocked, writable = ({"settings": {"index": {"blocks": {"write": value}}}} for value in ("true", "false"))
        pages.settings = {"counters-1": blocked, "counters-2": writable, "counters-3": writable}
        with pytest.raises(StoreRefused, match="PUT /counters-2,counters-3/_settings"):
            await read(pages.host, "counters")

    @pytest.mark.parametrize("settings", [{}, {"counters": {}}, {"counters": {"settings": {"index": 1}}}, "<html>"])
    async def test_unreadable_settings_are_refused(self, pages: Pages, settings: Any) -> None:
        """An answer that is no settings is an error with the next step."""
        pages.settings = settings
        with pytest.raises(StoreUnavailable, match=NEXT_STEP):
            await read(pages.host, "counters")

    async def test_a_missing_privilege_is_named(self, pages: Pages) -> None:
        """Without the privilege to read the settings the error names it."""
        reason = "no permissions for [indices:monitor/settings/get] and User [name=alice]"
        pages.settings = {"error": {"type": "security_exception", "reason": reason}, "status": 403}
        pages.status = 403
        with pytest.raises(StoreRefused, match=r"grant the user indices:monitor/settings/get on counters"):
            await read(pages.host, "counters")

    async def test_a_wrong_password_is_named(self, pages: Pages) -> None:
        """A wrong password is not a cluster that is not green."""
        pages.settings, pages.status = "Unauthorized", 401
        with pytest.raises(StoreRefused, match="check the user and the password in the URL of the index"):
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


@pytest.mark.parametrize("host", OPENSEARCH, indirect=True)
class TestIndex:
    async def test_all_counters_of_a_blocked_index_are_read(self, host: str) -> None:
        """P1: all counters, also of the last second, are read in pages that the index allows."""
        index = Index(host)
        with pytest.raises(StoreRefused, match="check the name of the index"):
            await read(host, index.name)
        await index.ask("PUT", f"/{index.name}", {"settings": {"max_result_window": 4}})
        for number in range(9):
            await index.count(f"counter-{number}", number)
        with pytest.raises(StoreRefused, match=f"PUT /{index.name}/_settings"):
            await read(host, index.name)
        assert len(await read(host, index.name, clients_stopped=True)) == 9
        await index.ask("PUT", f"/{index.name}/_settings", {"index.blocks.write": True})
        found = await read(host, index.name)
        assert {hit["_id"]: hit["_source"]["last_value"] for hit in found} == {f"counter-{at}": at for at in range(9)}
        await index.ask("DELETE", f"/{index.name}")

    async def test_the_request_of_the_runbook_blocks_writes(self, host: str) -> None:
        """The block that waits for running updates is found too; an empty index is read."""
        index = Index(host)
        await index.ask("PUT", f"/{index.name}", {"settings": {"number_of_shards": 1}})
        await index.ask("PUT", f"/{index.name}/_block/write")
        assert await read(host, index.name) == []
        await index.ask("DELETE", f"/{index.name}")

    async def test_an_update_changes_what_is_compared(self, host: str) -> None:
        """P1: an update during the read is noticed, also with an equal number of counters."""
        index = Index(host)
        await index.count("a", 1)
        body = {"size": 0, "track_total_hits": True, "aggs": {"writes": {"stats": {"field": "_seq_no"}}}}
        seen = []
        for value in (1, 2):
            await index.count("a", value)
            await index.ask("POST", f"/{index.name}/_refresh")
            seen.append((await index.ask("POST", f"/{index.name}/_search", body))["aggregations"])
        assert seen[0] != seen[1]
        await index.ask("DELETE", f"/{index.name}")


@pytest.mark.parametrize("version", REAL_OPENSEARCH)
class TestRealIndex:
    async def test_an_alias_of_several_indices_is_read(
        self, version: str, opensearch_host: Callable[[str], str]
    ) -> None:
        """P1: all shards of all indices of an alias are read, once all of them are blocked."""
        index = Index(opensearch_host(version))
        names = [f"{index.name}-{at}" for at in range(2)]
        for at, name in enumerate(names):
            settings = {"number_of_shards": 3, "max_result_window": 50 + at}
            await index.ask("PUT", f"/{name}", {"settings": settings, "aliases": {index.name: {}}})
            for number in range(60):
                await index.ask("PUT", f"/{name}/_doc/{at}-{number}", {"last_value": number})
        await index.ask("PUT", f"/{names[0]}/_block/write")
        with pytest.raises(StoreRefused, match=f"PUT /{names[1]}/_settings"):
            await read(index.host, index.name)
        await index.ask("PUT", f"/{names[1]}/_settings", {"index.blocks.read_only": True})
        assert {hit["_id"] for hit in await read(index.host, index.name)} == {
            f"{at}-{number}" for at in range(2) for number in range(60)
        }
        await index.ask("PUT", f"/{names[1]}/_settings", {"index.blocks.read_only": None})
        await index.ask("DELETE", f"/{','.join(names)}")

    async def test_a_scroll_that_ended_is_refused(self, version: str, opensearch_host: Callable[[str], str]) -> None:
        """P1: a scroll that ended, with its node or after a minute, does not end the counters."""
        index = Index(opensearch_host(version))
        for number in range(3):
            await index.count(f"counter-{number}", number)
        await index.ask("PUT", f"/{index.name}/_settings", {"index.max_result_window": 1, "index.blocks.write": True})
        http, name = open_index(f"opensearch://{index.host}/{index.name}")
        send_read = http.send_read

        async def send(request: Any) -> Any:
            if request.path == "/_search/scroll" and request.method == "POST":
                await index.ask("DELETE", "/_search/scroll/_all")
            return await send_read(request)

        http.send_read = send  # type: ignore[method-assign]
        with pytest.raises(StoreFailure, match=f"nothing was imported; when GET /_cluster/health/{name} says green"):
            await read_documents(http, name)
        await http.close()
        await index.ask("DELETE", f"/{index.name}")
