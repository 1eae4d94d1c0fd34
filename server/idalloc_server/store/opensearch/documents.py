"""Reads all documents of an index of another program."""

import json
from functools import partial
from typing import Any

from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.store.connections import Request
from idalloc_server.store.opensearch.answers import read_answer
from idalloc_server.store.opensearch.http import OpenSearchHttp

_PAGE = 1_000


async def read_documents(http: OpenSearchHttp, index: str) -> list[dict[str, Any]]:
    """Returns all hits of an index, as of now. Works from Elasticsearch 7 on.

    Raises:
        StoreFailure: The index is missing, or cannot be read completely.
    """
    await http.send_read(_request(f"/{index}/_refresh"))
    page = await http.send_read(
        _request(f"/{index}/_search?scroll=1m&allow_partial_search_results=false", {"size": _PAGE})
    )
    hits: list[dict[str, Any]] = []
    while page["hits"]["hits"]:
        if page["_shards"]["failed"]:
            raise StoreUnavailable(f"OpenSearch returned a part of index {index} only: try again")
        hits += page["hits"]["hits"]
        page = await http.send_read(_request("/_search/scroll", {"scroll": "1m", "scroll_id": page["_scroll_id"]}))
    return hits


def _request(path: str, body: object = None) -> Request[Any]:
    content = None if body is None else json.dumps(body).encode()
    return Request("POST", path, content, partial(read_answer, parse=dict))
