"""Reads all documents of another program's index, or fails: it never returns a part of them."""

import json
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from idalloc_server.domain.errors import StoreFailure, StoreRefused, StoreUnavailable
from idalloc_server.store.cluster.http_connections import Request, one_line
from idalloc_server.store.opensearch.http import INDEX_MISSING, OpenSearchHttp, read_answer

_PAGE = 1_000
_SCROLL = "1m"
# Each write to the index changes these statistics.
_WRITES = {"track_total_hits": True, "aggs": {"writes": {"stats": {"field": "_seq_no"}}}}
_BLOCKS = ("write", "read_only")
_UNAUTHORIZED = 401
_NOT_FOUND = 404


class _Page(NamedTuple):
    """A page of a search, of all shards."""

    hits: list[dict[str, Any]]
    total: int  # the number of documents of the index
    writes: object  # the aggregation of ``_WRITES``; None in later pages of a scroll
    scroll_id: str  # the id of the next page; only in a scroll


async def read_documents(http: OpenSearchHttp, index: str, *, clients_stopped: bool = False) -> list[dict[str, Any]]:
    """Return all hits of an index, or of an alias, as of now. Works from Elasticsearch 7 on.

    The index may accept writes only if ``clients_stopped``; one during the call is an error in any
    case.

    Raises:
        StoreRefused: The index is missing, accepts writes, or was written meanwhile.
        StoreFailure: The index cannot be read completely.
    """
    try:
        page_size, writable = await _read_settings(http, index)
        if writable and not clients_stopped:
            # A client that still runs would take ids that were imported.
            raise StoreRefused(
                f"index {', '.join(writable)} accepts writes, so nothing was imported: a client of {index} that still "
                "runs would take ids that were imported. Stop the clients, and run "
                f'PUT /{",".join(writable)}/_settings {{"index.blocks.write": true}}; or confirm with '
                "--clients-stopped that none runs"
            )
        await _refresh(http, index)
        hits, first = await _read_pages(http, index, page_size)
        await _refresh(http, index)
        last = await _search(http, index, "", {"size": 0, **_WRITES})
        if (last.total, last.writes) != (first.total, first.writes):
            raise StoreRefused(
                f"index {index} was written while it was read, so nothing was imported: stop its clients and import "
                "again"
            )
    except StoreFailure as error:
        if error.http_status == _UNAUTHORIZED:
            raise StoreRefused(f"{error}: check the user and the password in the URL of the index") from error
        # Without its index, a 404 is a scroll that ended: after a minute, or with its node.
        if isinstance(error, StoreRefused) and error.http_status != _NOT_FOUND:
            raise
        raise StoreUnavailable(
            f"{error}: nothing was imported; when GET /_cluster/health/{index} says green, import again"
        ) from error
    return hits


async def _read_settings(http: OpenSearchHttp, index: str) -> tuple[int, list[str]]:
    """Return the most hits of a page, and the names of the indices that accept writes.

    They are those of the index, or of all indices of an alias.
    """
    answer = await _send(http, index, "GET", f"/{index}/_settings")
    page_size = _PAGE  # ``index.max_result_window`` limits it
    writable: list[str] = []
    try:
        for name, each in answer.items():
            settings = each["settings"]["index"]
            page_size = min(page_size, int(settings.get("max_result_window", page_size)))
            blocks = settings.get("blocks", {})
            if not any(str(blocks.get(block)).lower() == "true" for block in _BLOCKS):
                writable.append(name)
    except (KeyError, TypeError, ValueError, AttributeError):
        answer = {}
    if not answer:
        raise StoreUnavailable(f"OpenSearch did not return the settings of index {index}")
    return page_size, writable


async def _refresh(http: OpenSearchHttp, index: str) -> None:
    """Make all writes visible to searches, on each shard."""
    answer = await _send(http, index, "POST", f"/{index}/_refresh")
    shards = answer.get("_shards")
    # A refresh that finds no shard answers with none that failed.
    if not isinstance(shards, dict) or shards.get("failed") != 0 or not shards.get("successful"):
        raise StoreUnavailable(f"OpenSearch did not refresh all shards of index {index}: {one_line(answer)}")


async def _read_pages(http: OpenSearchHttp, index: str, size: int) -> tuple[list[dict[str, Any]], _Page]:
    """Return all hits, and the first page."""
    page = first = await _search(http, index, f"&scroll={_SCROLL}", {"size": size, **_WRITES})
    hits = list(page.hits)
    try:
        while page.hits and len(hits) <= first.total:
            body = {"scroll": _SCROLL, "scroll_id": page.scroll_id}
            page = _whole_page(index, await _send(http, index, "POST", "/_search/scroll", body=body))
            hits += page.hits
    finally:
        with suppress(StoreFailure):
            await _send(http, index, "DELETE", "/_search/scroll", body={"scroll_id": [page.scroll_id]})
    if not len(hits) == first.total == page.total:
        raise StoreUnavailable(f"OpenSearch returned {len(hits)} of {first.total} documents of index {index}")
    return hits, first


async def _search(http: OpenSearchHttp, index: str, options: str, body: object) -> _Page:
    """Return the first page of a search for ``_WRITES``."""
    path = f"/{index}/_search?allow_partial_search_results=false{options}"
    page = _whole_page(index, await _send(http, index, "POST", path, body=body))
    if page.writes is None:
        raise StoreUnavailable(f"OpenSearch returned no aggregation of index {index}")
    return page


def _whole_page(index: str, answer: dict[str, Any]) -> _Page:
    """Return a page that is of all shards.

    A page of a scroll may lack some, and have no hits for that reason.
    """
    try:
        hits = answer["hits"]["hits"]
        total = answer["hits"]["total"]
        if answer["_shards"]["failed"] == 0 and answer["timed_out"] is False and total["relation"] == "eq":
            return _Page(list(hits), int(total["value"]), answer.get("aggregations"), answer.get("_scroll_id", ""))
    except (KeyError, TypeError, ValueError):
        pass
    what = {"_shards": answer.get("_shards"), "timed_out": answer.get("timed_out")}
    raise StoreUnavailable(f"OpenSearch returned a part of index {index} only: {one_line(what)}")


async def _send(http: OpenSearchHttp, index: str, method: str, path: str, body: object = None) -> dict[str, Any]:
    content = None if body is None else json.dumps(body).encode()
    read = partial(read_answer, parse=_json_object, subject=index, none_for=(INDEX_MISSING,))
    request = Request[dict[str, Any] | None](method, path, content, read=read, subject=index)
    answer = await http.send_read(request)
    if answer is None:
        raise StoreRefused(f"OpenSearch has no index {index}: check the name of the index")
    return answer


def _json_object(answer: object) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise TypeError("not a JSON object")
    return answer
