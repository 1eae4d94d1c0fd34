"""The indices of one prefix, read and written without idalloc."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.store.opensearch.indices import INDICES
from tests.support.waiting import hold_for_async

_LONG = {"type": "long", "coerce": False}
_FEWEST_FIELDS: dict[str, dict[str, Any]] = {
    "sequences": {"name": {"type": "keyword"}, "last_value": _LONG | {"index": False, "doc_values": False}},
    "starts": {"prefix": _LONG},
    "allocations": {"written_at": _LONG},
}
# As in the guides of Elasticsearch: the script adds the number, and a missing row is created.
RECIPE = "ctx._source.last_value += params.n"


class OpenSearchBackend:
    """The indices of a prefix in a real OpenSearch or in the stand-in.

    Args:
        host: HOST:PORT.
        prefix: The beginning of the names.
        advance: Advances the clock of the stand-in; by default ``advance`` waits.
    """

    def __init__(self, host: str, prefix: str, advance: Callable[[float], None] | None = None) -> None:
        self.url = f"opensearch://{host}/?prefix={prefix}"  # for ``open_store``
        self.alias = f"{prefix}-sequences"  # of the index with the sequences
        self._host = host
        self._prefix = prefix
        self._advance = advance

    async def send(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Send a request, and return the status and the answer."""
        async with aiohttp.ClientSession() as session:
            url = URL(f"http://{self._host}{path}", encoded=True)
            async with session.request(method, url, json=body) as response:
                return response.status, await response.json(content_type=None)

    async def make_guide_table(self) -> None:
        """Make the indices with the fewest fields: a store adds the others."""
        settings = {"auto_expand_replicas": "0-2", "refresh_interval": "-1"}
        for index, properties in _FEWEST_FIELDS.items():
            alias = f"{self._prefix}-{index}"
            mappings = {"dynamic": "strict", "properties": properties}
            body = {"settings": {"index": settings}, "mappings": mappings}
            await self._write("PUT", f"/{alias}-data", {**body, "aliases": {alias: {"is_write_index": True}}})

    async def make_older_indices(self) -> None:
        """Make the indices as servers before the nonce did: each could be rolled over."""
        for index in INDICES.values():
            definition = index.definition(self._prefix)
            for field in index.optional:
                del definition["mappings"]["properties"][field]
            definition["aliases"][index.alias(self._prefix)] = {"is_write_index": True}
            await self._write("PUT", f"/{index.alias(self._prefix)}-1", definition)

    async def put(self, name: str, columns: Mapping[str, int | str | None]) -> None:
        await self.put_document(name, {"name": name, **columns})

    async def put_document(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a whole row."""
        await self._write("PUT", f"/{self.alias}/_doc/{quote(name, safe='')}?require_alias=true", document)

    async def change_settings(self, name: str, packed: str) -> None:
        await self.put_document(name, {**(await self.row(name) or {}), "settings": packed})

    async def row(self, name: str) -> Mapping[str, Any] | None:
        status, answer = await self.send("GET", f"/{self.alias}/_doc/{quote(name, safe='')}")
        return dict(answer["_source"]) if status == 200 else None

    async def advance(self, seconds: float) -> None:
        if self._advance is None:
            await hold_for_async(seconds, "the clock of a real OpenSearch")
        else:
            self._advance(seconds)

    async def set_back(self, seconds: float) -> None:
        if self._advance is not None:
            self._advance(-seconds)

    async def take_as_recipe_client(self, name: str) -> int:
        path = f"/{self.alias}/_update/{quote(name, safe='')}?_source=last_value&retry_on_conflict=10"
        script = {"source": RECIPE, "lang": "painless", "params": {"n": 1}}
        while True:
            status, answer = await self.send("POST", path, {"script": script})
            if status == 200:
                return int(answer["get"]["_source"]["last_value"])
            assert status == 409, answer

    async def lose(self, part: str) -> None:
        await self._write("DELETE", f"/{INDICES[part].alias(self._prefix)}-data")

    async def empty(self, part: str) -> None:
        """Make the index again under its name, with its mapping."""
        alias = INDICES[part].alias(self._prefix)
        _, found = await self.send("GET", f"/{alias}")
        ((name, index),) = found.items()
        await self._write("DELETE", f"/{name}")
        await self._write("PUT", f"/{name}", {"mappings": index["mappings"], "aliases": {alias: {}}})

    async def make_again(self) -> None:
        """Delete the index of sequences, and create it under its name."""
        await self.empty("sequences")

    async def forget_name(self) -> None:
        for index in INDICES.values():
            await self._write("PUT", f"/{index.alias(self._prefix)}/_mapping", {"_meta": {}})
        await self._write("DELETE", f"/{self.alias}/_doc/{quote(IDENTITY, safe='')}")

    async def exchange(self) -> None:
        _, found = await self.send("GET", f"/{self.alias}")
        ((name, index),) = found.items()
        other = f"{self.alias}-other"
        await self._write("PUT", f"/{other}", {"mappings": index["mappings"]})
        actions = [{"remove": {"index": name, "alias": self.alias}}, {"add": {"index": other, "alias": self.alias}}]
        await self._write("POST", "/_aliases", {"actions": actions})

    def beside(self) -> "OpenSearchBackend":
        return OpenSearchBackend(self._host, f"{self._prefix}-beside", self._advance)

    async def close(self) -> None:
        _, found = await self.send("GET", f"/{self._prefix}-*?filter_path=*.settings.index.uuid")
        if found:
            await self._write("DELETE", f"/{','.join(found)}")

    async def _write(self, method: str, path: str, body: object = None) -> None:
        status, answer = await self.send(method, path, body)
        assert status in (200, 201), answer
