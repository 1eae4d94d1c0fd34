"""The requests to OpenSearch: paths, bodies, and the readers of their answers."""

import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from idalloc_server.domain.errors import StoreExchanged
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.records import RowVersion
from idalloc_server.store.cluster.http_connections import Request
from idalloc_server.store.opensearch import scripts
from idalloc_server.store.opensearch.http import CONFLICT, ROW_MISSING, read_answer
from idalloc_server.store.opensearch.indices import SEQUENCES, Index
from idalloc_server.store.opensearch.results import (
    OpenedIndex,
    Outcome,
    Source,
    Tie,
    Written,
    check_refreshed,
    read_bulk,
    read_update,
    read_updates,
    reader,
)

# The primary's node tries again at once, without a pause. 10 are too few for 64 callers of one row.
_RETRIES = 100
# OpenSearch gives up a write before this process does: later it could still be applied.
_SHARE_OF_TIMEOUT = 0.9
# The most hits of one search, by default of ``index.max_result_window``.
MAX_HITS = 10_000
# A document without a row. Its write confirms that the row before it in a request is missing.
CONFIRMATION = "\x1fconfirm"
_MISSING = CONFIRMATION + "ed"  # the key of a document that does not exist

_T = TypeVar("_T")


class BulkItem(NamedTuple):
    """An item of ``_bulk``; ``body`` is None for an action without one."""

    key: str
    body: dict[str, Any] | None = None
    action: str = "update"
    options: Mapping[str, object] = {"_source": True, "retry_on_conflict": _RETRIES}


class RowUpdate(NamedTuple):
    """An update of the row of a sequence, of a request of its own or with others."""

    name: str
    body: dict[str, Any]
    fields: str  # the wanted fields of the row, with commas between them


class Requests:
    """The requests on the indices of one prefix.

    Every write is one request, and needs an alias: nothing is created.

    Args:
        prefix: The beginning of the aliases.
        timeout: The timeout of a call, in seconds.
    """

    def __init__(self, prefix: str, timeout: float) -> None:
        self.prefix = prefix
        self.opened: dict[str, OpenedIndex] = {}  # the opened indices by alias, which answers are compared with
        self.keeps_demand = True  # whether the index of the sequences has a field for the demand
        self.windows: dict[str, int] = {}  # ``index.max_result_window`` of each index, by its suffix
        self._write = f"require_alias=true&timeout={int(timeout * 1000 * _SHARE_OF_TIMEOUT)}ms"

    def page(self, index: Index) -> int:
        """Return the most hits of one search of an index."""
        return min(MAX_HITS, self.windows.get(index.suffix, MAX_HITS))

    def update(
        self, index: Index, key: str, body: dict[str, Any], fields: str = "true", *, version: RowVersion | None = None
    ) -> Request[Written | None]:
        """Update a row; None if it does not exist, or was written since ``version``.

        Args:
            index: The index of the row.
            key: The key of the row.
            body: Has a script; see ``script`` and ``upsert``.
            fields: The wanted fields, with commas between them; "true" for all.
            version: The number of the write and the term that the row must have; None for any.
        """
        alias = index.alias(self.prefix)
        tie = self._tie(alias, key)
        source = f"{fields},nonce" if tie.nonce and fields not in ("true", "false") else fields
        condition = f"retry_on_conflict={_RETRIES}"
        none_for: tuple[str, ...] = (ROW_MISSING,)
        if version is not None:
            condition = f"if_seq_no={version[0]}&if_primary_term={version[1]}"
            none_for = (ROW_MISSING, CONFLICT)
        path = f"/{alias}/_update/{quote(key, safe='')}?{self._write}&_source={source}&{condition}"
        read = partial(read_update, tie=tie, none_for=none_for)
        return Request("POST", path, json.dumps(tie.added_to(body)).encode(), read=read, subject=alias)

    def update_rows(self, updates: Sequence[RowUpdate]) -> Request[list[Outcome]]:
        """Update rows of sequences, each with its own outcome."""
        # A list of fields is refused in the options.
        items = [
            BulkItem(
                update.name,
                {**update.body, "_source": [*update.fields.split(","), "nonce"]},
                options={"retry_on_conflict": _RETRIES},
            )
            for update in updates
        ]
        return self._bulk(SEQUENCES, items, read_updates)

    def bulk(
        self,
        index: Index,
        items: Sequence[BulkItem],
        expected: Collection[str] = (ROW_MISSING, CONFLICT),
        *,
        is_whole: bool = False,
    ) -> Request[list[Source | None]]:
        """Write rows; None for one that failed, see ``read_bulk``."""
        return self._bulk(index, items, partial(read_bulk, expected=expected, is_whole=is_whole))

    def touch_confirmed(
        self, index: Index, keys: Collection[str], body: dict[str, Any]
    ) -> Request[list[Source | None]]:
        """Write rows by a script that leaves them unchanged; None for a missing one.

        Another document is last: its write confirms them.
        """
        items = [*(BulkItem(key, body) for key in keys), BulkItem(CONFIRMATION, {**body, "upsert": {}})]
        return self.bulk(index, items, expected=(ROW_MISSING,), is_whole=True)

    def change_missing(self, index: Index) -> tuple[Request[Any], Request[Any]]:
        """Write a row that does not exist in all ways, which changes nothing.

        OpenSearch has a privilege for an update, and one each for an update, a replacement and a
        deletion by ``_bulk``, and for that.
        """
        touch = script(scripts.TOUCH)
        written = {"if_seq_no": 0, "if_primary_term": 1}
        items = [
            BulkItem(_MISSING, touch, options={}),
            BulkItem(_MISSING, {}, "index", written),
            BulkItem(_MISSING, None, "delete", written),
        ]
        return self.update(index, _MISSING, touch, "false"), self.bulk(index, items, is_whole=True)

    def naming(self, key: str, index: Index = SEQUENCES) -> str:
        """Return the request by which an operator sets a row's name, or prefix, to its key."""
        body = json.dumps({"doc": {"name": key} if index is SEQUENCES else {"prefix": int(key)}})
        return f"POST /{index.alias(self.prefix)}/_update/{quote(key, safe='')} {body}"

    def count(self, index: Index) -> Request[int]:
        """Count the rows as of the last refresh; the store's name and the confirmation are none."""
        excluded = [{"ids": {"values": [IDENTITY, CONFIRMATION]}}]
        body = {"size": 0, "query": {"bool": {"must_not": excluded}}, "track_total_hits": True}
        return self.search(index, body, lambda answer: int(answer["hits"]["total"]["value"]))

    def refresh(self, index: Index) -> Request[None]:
        """Make all acknowledged writes of an index visible to searches."""
        alias = index.alias(self.prefix)
        return Request("POST", f"/{alias}/_refresh", None, read=reader(check_refreshed, alias), subject=alias)

    def search(self, index: Index, body: Mapping[str, object], parse: Callable[[Any], _T]) -> Request[_T]:
        """Return a search as of the last refresh; it counts all hits only if its body says so."""
        alias = index.alias(self.prefix)

        def parse_checked(answer: Any) -> _T:
            if opened := self.opened.get(alias):
                opened.mark.floor()
                for found in {str(hit["_index"]) for hit in answer["hits"]["hits"]} - {opened.name}:
                    raise StoreExchanged(f"{opened} behind the alias {alias}", f"the index {found}")
            return parse(answer)

        path = f"/{alias}/_search?allow_partial_search_results=false"
        content = json.dumps({"track_total_hits": False, **body}).encode()
        return Request("POST", path, content, read=reader(parse_checked, alias), subject=alias)

    def identity_check(self) -> Request[None]:
        """Return the request that reads and checks the indices behind all aliases.

        Its reader raises ``StoreExchanged`` if one is another than the opened one. A missing one is
        left to the writes, which name it.
        """
        aliases = ",".join(self.opened)
        path = f"/{aliases}?local=true&ignore_unavailable=true&filter_path=*.settings.index.uuid,*.aliases"
        read = partial(read_answer, parse=self._check_identity, subject=aliases)
        return Request("GET", path, None, read=read, subject=aliases)

    def _check_identity(self, answer: Mapping[str, Any]) -> None:
        for alias, opened in self.opened.items():
            found = [
                f"the index {name} ({index['settings']['index']['uuid']})"
                for name, index in sorted(answer.items())
                if alias in index.get("aliases", ())
            ]
            if found and found != [str(opened)]:
                raise StoreExchanged(f"{opened} behind the alias {alias}", " and ".join(found))

    def _tie(self, alias: str, key: str, *, has_script: bool = True) -> Tie:
        """Return what the answer to a write must repeat; only a script can write a nonce.

        Raises:
            StoreExchanged: The index repeated the number of a write before.
        """
        opened = self.opened.get(alias)
        has_nonce = has_script and opened is not None and opened.has_nonce
        nonce = secrets.token_hex(8) if has_nonce else ""
        return Tie(alias, opened, key, nonce=nonce, floor=opened.mark.floor() if opened else -1)

    def _bulk(self, index: Index, items: Sequence[BulkItem], read: Callable[..., _T]) -> Request[_T]:
        """Return a ``_bulk``; ``read`` gets as ``ties`` what its items must repeat."""
        alias = index.alias(self.prefix)
        ties = [self._tie(alias, item.key, has_script=item.action == "update") for item in items]
        lines: list[object] = []
        for item, tie in zip(items, ties, strict=True):
            lines.append({item.action: {"_id": item.key, **item.options}})
            if item.body is not None:
                lines.append(tie.added_to(item.body))
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        read = partial(read, alias=alias, ties=ties)
        return Request("POST", f"/{alias}/_bulk?{self._write}", content, read=read, subject=alias)


def script(source: str, **parameters: object) -> dict[str, Any]:
    """Return the body of an update of a row by a script."""
    return {"script": {"source": source, "lang": "painless", "params": parameters}}


def upsert(source: str, **parameters: object) -> dict[str, Any]:
    """Return the body of an update of a row, or of its creation, by a script."""
    return {"scripted_upsert": True, "upsert": {}, **script(source, **parameters)}
