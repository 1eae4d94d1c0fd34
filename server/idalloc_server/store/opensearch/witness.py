"""The witness in an OpenSearch cluster."""

from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement
from idalloc_server.store.opensearch import scripts, setup
from idalloc_server.store.opensearch.http import OpenSearchHttp
from idalloc_server.store.opensearch.indices import WITNESS
from idalloc_server.store.opensearch.requests import BulkItem, Requests, script, upsert
from idalloc_server.store.opensearch.results import hits_of
from idalloc_server.store.witness import parse_mark, refused_as_witness


@dataclass(eq=False)
class OpenSearchWitness:
    """A witness in a cluster of OpenSearch, or of Elasticsearch (not tested); see ``Witness``.

    ``read`` writes the marks unchanged, since a read by id is confirmed by no other copy.
    """

    address: str  # the cluster's address for people, without secrets
    http: OpenSearchHttp
    prefix: str  # the beginning of the alias's name
    timeout: float  # of a call, in seconds

    def __post_init__(self) -> None:
        self._requests = Requests(self.prefix, self.timeout)

    async def open(self) -> None:
        with refused_as_witness():
            nodes = await setup.check_cluster(self.http)
            await setup.inspect(self.http, self._requests, WITNESS, nodes=nodes)
            await setup.set_up(self.http, self._requests, WITNESS, nodes=nodes, store="")
            self.http.connections.identity_check = self._requests.identity_check()

    async def read(self, names: Collection[str]) -> dict[str, Mark]:
        touch = script(scripts.MARK, row={}, seen="")
        *found, _ = await self.http.send_write(self._requests.touch_confirmed(WITNESS, names, touch))
        return {name: _mark(name, source) for name, source in zip(names, found, strict=True) if source is not None}

    async def replace(self, replacements: Many[Replacement]) -> set[str]:
        # A mark that has another token is written unchanged.
        items = [
            BulkItem(name, upsert(scripts.MARK, row={"name": name, **mark._asdict()}, seen=seen))
            for name, mark, seen in replacements
        ]
        found = await self.http.send_write(self._requests.bulk(WITNESS, items))
        return {
            name
            for (name, mark, _), source in zip(replacements, found, strict=True)
            if source is not None and source.get("token") == mark.token
        }

    async def list(self, after: str, limit: int) -> list[tuple[str, Mark]]:
        await self.http.send_read(self._requests.refresh(WITNESS))
        marks: list[tuple[str, Mark]] = []
        while len(marks) < limit:
            size = min(limit - len(marks), self._requests.page(WITNESS))
            body = {
                "size": size,
                "query": {"bool": {"filter": [{"exists": {"field": "name"}}]}},
                "sort": [{"name": "asc"}],
                "_source": True,
                **({"search_after": [after]} if after else {}),
            }
            hits = await self.http.send_read(self._requests.search(WITNESS, body, hits_of))
            marks += [(hit.id, _mark(hit.id, hit.source)) for hit in hits]
            if len(hits) < size:
                break
            after = hits[-1].id
        return marks

    async def forget(self, names: Collection[str]) -> int:
        items = [BulkItem(name, action="delete", options={}) for name in names]
        deleted = await self.http.send_write(self._requests.bulk(WITNESS, items))
        return sum(source is not None for source in deleted)

    async def close(self) -> None:
        await self.http.close()


def _mark(name: str, source: dict[str, Any]) -> Mark:
    return parse_mark(name, [source.get(field) for field in Mark._fields])
