"""The requests to OpenSearch: paths, bodies, and the readers of their answers."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.records import GrantFloor, RowVersion
from idalloc_server.domain.store.retirement import RETIREMENT
from idalloc_server.store.bounds import clamp_to_bigint
from idalloc_server.store.cluster.connections import Request
from idalloc_server.store.opensearch import scripts
from idalloc_server.store.opensearch.http import CONFLICT, ROW_MISSING
from idalloc_server.store.opensearch.indices import ALLOCATIONS, SEQUENCES, START_TIMESTAMPS, WITNESS, Index
from idalloc_server.store.opensearch.results import (
    Hit,
    OpenedIndices,
    Outcome,
    Source,
    Tie,
    Written,
    check_refreshed,
    hits_of,
    newest_of,
    read_bulk,
    read_update,
    read_updates,
    reader,
)

_GRANT_FIELDS = "last_value,granted,step,min_value,max_value,settings,mode,generation,writes"
# The primary's node tries again at once, without a pause. 10 are too few for 64 callers of one row.
_RETRIES = 100
# OpenSearch gives up a write before this process does: later it could still be applied.
_SHARE_OF_TIMEOUT = 0.9
# The most hits of one search, by default of ``index.max_result_window``.
MAX_HITS = 10_000
_LAST = 2**63 - 1
# A document without a row. Its write confirms that the row before it in a request is missing.
_CONFIRMATION = "\x1fconfirm"

_T = TypeVar("_T")


class _Item(NamedTuple):
    """An item of ``_bulk``; ``body`` is None for an action without one."""

    action: str
    key: str
    options: Mapping[str, object]
    body: dict[str, Any] | None = None


class RowUpdate(NamedTuple):
    """An update of the row of a sequence, of a request of its own or with others."""

    name: str
    script: dict[str, Any]
    fields: str  # the wanted fields of the row, with commas between them


class Requests:
    """The requests on the indices of one prefix.

    Every write is one request, and needs an alias: nothing is created.

    Args:
        prefix: The beginning of the aliases.
        timeout: The timeout of a call, in seconds.
    """

    def __init__(self, prefix: str, timeout: float) -> None:
        self.opened = OpenedIndices()  # the opened indices, which answers are compared with
        self.keeps_demand = True  # whether the index of the sequences has a field for the demand
        self._prefix = prefix
        self._sequences = SEQUENCES.alias(prefix)
        self._starts = START_TIMESTAMPS.alias(prefix)
        self._allocations = ALLOCATIONS.alias(prefix)
        self._marks = WITNESS.alias(prefix)
        self._windows: dict[str, int] = {}
        self._write = f"require_alias=true&timeout={int(timeout * 1000 * _SHARE_OF_TIMEOUT)}ms"

    def set_window(self, index: Index, hits: int) -> None:
        """Set the most hits of one search of an index: its ``index.max_result_window``."""
        self._windows[index.suffix] = hits

    def page(self, index: Index) -> int:
        """Return the most hits of one search of an index."""
        return min(MAX_HITS, self._windows.get(index.suffix, MAX_HITS))

    def grant(self, name: str, wanted: int, lease_ms: int, floor: GrantFloor, demand: str | None) -> RowUpdate:
        """Advance a counter."""
        written = {"demand": demand} if demand and self.keeps_demand else {}
        script = _script(scripts.GRANT, wanted=wanted, lease_ms=lease_ms, **_floor(floor), **written)
        return RowUpdate(name, script, f"{_GRANT_FIELDS},demand")

    def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: GrantFloor
    ) -> RowUpdate:
        """Advance a counter of timestamps."""
        script = _script(scripts.STAMPS, wanted=wanted, lease_ms=lease_ms, now=now, ahead=ahead, **_floor(floor))
        return RowUpdate(name, script, _GRANT_FIELDS)

    def update_row(self, update: RowUpdate) -> Request[Written | None]:
        """Update one row; None if it does not exist."""
        return self._update(self._sequences, update.name, {"script": update.script}, update.fields)

    def update_rows(self, updates: Sequence[RowUpdate]) -> Request[list[Outcome]]:
        """Update rows, each with its own outcome."""
        items = [
            # A list of fields is refused in the options.
            _Item(
                "update",
                update.name,
                {"retry_on_conflict": _RETRIES},
                {"script": update.script, "_source": [*update.fields.split(","), "nonce"]},
            )
            for update in updates
        ]
        body, ties = self._bulk_body(self._sequences, items)
        read = partial(read_updates, alias=self._sequences, ties=ties)
        return Request("POST", f"/{self._sequences}/_bulk?{self._write}", body, read, self._sequences)

    def give_back(self, name: str, count: int, version: RowVersion) -> Request[Written | None]:
        """Move a counter back; None if the row was written since."""
        seq_no, term, generation = version
        script = _script(scripts.BACK, count=count, generation=generation)
        return self._update(
            self._sequences,
            name,
            {"script": script},
            "generation,last_value",
            f"if_seq_no={seq_no}&if_primary_term={term}",
            none_for=(ROW_MISSING, CONFLICT),
        )

    def create(self, row: Source) -> Request[Written | None]:
        """Insert a row, or write the existing one unchanged."""
        body = {"script": _script(scripts.TOUCH), "upsert": row}
        return self._update(self._sequences, row["name"], body, "true")

    def get(self, name: str) -> Request[Written | None]:
        """Write a row unchanged: only a write is confirmed by the other copies."""
        return self._update(self._sequences, name, {"script": _script(scripts.TOUCH)}, "true")

    def retirement(self) -> Request[list[Source | None]]:
        """Write the retirement row unchanged, if there is one.

        Another document is last: its write confirms the row.
        """
        touch = {"script": _script(scripts.TOUCH)}
        items = [_update_item(RETIREMENT, touch), _update_item(_CONFIRMATION, {**touch, "upsert": {}})]
        return self._bulk(self._sequences, items, expected=(ROW_MISSING,), is_whole=True)

    def revise(self, name: str, **parameters: object) -> Request[Written | None]:
        """Change a row, with the parameters of ``scripts.REVISE``."""
        script = _script(scripts.REVISE, **parameters)
        return self._update(self._sequences, name, {"script": script}, "true")

    def open_period(self, name: str, **parameters: object) -> Request[Written | None]:
        """Create the counter of a period, or move it, with the parameters of ``scripts.PERIOD``."""
        body = _upsert(scripts.PERIOD, **parameters)
        return self._update(self._sequences, name, body, "generation,last_value")

    def list_rows(
        self, prefix: str, after: str, limit: int, *, with_deleted: bool, with_periods: bool
    ) -> Request[list[Hit]]:
        """Find rows as of the last refresh, by name: those after a name, from a prefix on.

        A cluster may refuse a range or a prefix of names (``search.allow_expensive_queries``), but
        no ``search_after``.
        """
        start = [after, _LAST] if after and after.encode() >= prefix.encode() else [prefix, -1]
        excluded: list[object] = [] if with_deleted else [{"term": {"mode": "deleted"}}]
        if not with_periods:
            excluded.append({"term": {"period": True}})
        body = {
            "size": limit,
            "query": {"bool": {"filter": [{"exists": {"field": "name"}}], "must_not": excluded}},
            "sort": [{"name": "asc"}, {"_seq_no": "asc"}],
            "search_after": start,
            "_source": True,
        }
        return self._search(self._sequences, body, hits_of)

    def unnamed(self) -> Request[list[Hit]]:
        """Find one row without a name as of the last refresh; the confirmation is none."""
        excluded = [{"exists": {"field": "name"}}, {"ids": {"values": [_CONFIRMATION]}}]
        body = {"size": 1, "query": {"bool": {"must_not": excluded}}, "_source": ["name"]}
        return self._search(self._sequences, body, hits_of)

    def naming(self, key: str, index: Index = SEQUENCES) -> str:
        """Return the request by which an operator sets a row's name, or prefix, to its key."""
        body = json.dumps({"doc": {"name": key} if index is SEQUENCES else {"prefix": int(key)}})
        return f"POST /{index.alias(self._prefix)}/_update/{quote(key, safe='')} {body}"

    def claim(self, prefix: int, at_least: int, holder: str, stale_ms: int) -> Request[Written | None]:
        """Claim a start timestamp."""
        body = _upsert(scripts.CLAIM, prefix=prefix, at_least=at_least, holder=holder, stale_ms=stale_ms)
        return self._update(self._starts, str(prefix), body, "true")

    def keep(self, prefix: int, holder: str, stale_ms: int) -> Request[Written | None]:
        """Refresh a holder."""
        body = {"script": _script(scripts.KEEP, holder=holder, stale_ms=stale_ms)}
        return self._update(self._starts, str(prefix), body, "prefix")

    def release(self, prefix: int, holder: str) -> Request[Written | None]:
        """Remove a holder."""
        body = {"script": _script(scripts.RELEASE, holder=holder)}
        return self._update(self._starts, str(prefix), body, "prefix")

    def raise_start(self, prefix: int, to: int) -> Request[Written | None]:
        """Raise the last start timestamp of a prefix."""
        body = _upsert(scripts.RAISE, prefix=prefix, to=to)
        return self._update(self._starts, str(prefix), body, "last_start")

    def starts(self, after: int | None) -> Request[list[Hit]]:
        """Find start timestamps as of the last refresh, by prefix."""
        body: dict[str, object] = {
            "size": self.page(START_TIMESTAMPS),
            "sort": [{"prefix": "asc"}],
            "_source": ["prefix", "last_start"],
            "query": {"match_all": {}},
        }
        if after is not None:
            body["search_after"] = [after]
        return self._search(self._starts, body, hits_of)

    def record(self, rows: Sequence[Source]) -> Request[list[Source | None]]:
        """Record allocations, or write earlier ones unchanged; None for an unknown outcome."""
        items = [_update_item(row["request_id"], _upsert(scripts.RECORD, row=row)) for row in rows]
        return self._bulk(self._allocations, items)

    def recorded(self, request_id: str) -> Request[Written | None]:
        """Write a recorded allocation unchanged; None if there is none."""
        body = {"script": _script(scripts.RECORD, row={})}
        return self._update(self._allocations, request_id, body, "true")

    def newest(self) -> Request[tuple[Hit, int] | None]:
        """Find the newest record as of the last refresh, and the latest ``written_at`` of all."""
        body = {
            "size": 1,
            "sort": [{"_seq_no": "desc"}],
            "_source": False,
            "seq_no_primary_term": True,
            "aggs": {"written_at": {"max": {"field": "written_at"}}},
        }
        return self._search(self._allocations, body, newest_of)

    def count(self, index: Index) -> Request[int]:
        """Count the rows as of the last refresh; the store's name and the confirmation are none."""
        excluded = [{"ids": {"values": [IDENTITY, _CONFIRMATION]}}]
        body = {"size": 0, "query": {"bool": {"must_not": excluded}}, "track_total_hits": True}
        return self._search(index.alias(self._prefix), body, lambda answer: int(answer["hits"]["total"]["value"]))

    def oldest(self, written_at_ms: int, limit: int) -> Request[list[Hit]]:
        """Find the oldest records as of the last refresh."""
        body = {
            "size": min(limit, self.page(ALLOCATIONS)),
            "query": {"range": {"written_at": {"lte": written_at_ms}}},
            "sort": [{"_seq_no": "asc"}],
            "_source": ["window_ms"],
            "seq_no_primary_term": True,
        }
        return self._search(self._allocations, body, hits_of)

    def recorded_after(self, seq_no: int) -> Request[list[Hit]]:
        """Find records as of the last refresh, by the number of their write."""
        body = {
            "size": self.page(ALLOCATIONS),
            "query": {"match_all": {}},
            "sort": [{"_seq_no": "asc"}],
            "search_after": [seq_no],
            "seq_no_primary_term": True,
        }
        return self._search(self._allocations, body, hits_of)

    def forget(self, hits: Sequence[Hit]) -> Request[list[Source | None]]:
        """Delete records that were not written since; None for one that was, or is gone."""
        items = [_Item("delete", hit.id, {"if_seq_no": hit.seq_no, "if_primary_term": hit.term}) for hit in hits]
        return self._bulk(self._allocations, items)

    def read_marks(self, names: Collection[str]) -> Request[list[Source | None]]:
        """Write marks unchanged; None for a missing one.

        Another document is last: its write confirms them.
        """
        touch = {"script": _script(scripts.MARK, row={}, seen="")}
        items = [_update_item(name, touch) for name in names]
        items.append(_update_item(_CONFIRMATION, {**touch, "upsert": {}}))
        return self._bulk(self._marks, items, expected=(ROW_MISSING,), is_whole=True)

    def replace_marks(self, marks: Sequence[tuple[Source, str]]) -> Request[list[Source | None]]:
        """Replace marks that have the token, write others unchanged; None if that is unknown."""
        items = [_update_item(row["name"], _upsert(scripts.MARK, row=row, seen=seen)) for row, seen in marks]
        return self._bulk(self._marks, items)

    def list_marks(self, after: str, limit: int) -> Request[list[Hit]]:
        """Find marks as of the last refresh, by name."""
        body: dict[str, object] = {
            "size": limit,
            "query": {"bool": {"filter": [{"exists": {"field": "name"}}]}},
            "sort": [{"name": "asc"}],
            "_source": True,
        }
        if after:
            body["search_after"] = [after]
        return self._search(self._marks, body, hits_of)

    def forget_marks(self, names: Collection[str]) -> Request[list[Source | None]]:
        """Delete marks; None for a missing one."""
        return self._bulk(self._marks, [_Item("delete", name, {}) for name in names])

    def touch_missing(self, index: Index) -> Request[Written | None]:
        """Write a row that does not exist, which changes nothing."""
        return self._update(
            index.alias(self._prefix), _CONFIRMATION + "ed", {"script": _script(scripts.TOUCH)}, "false"
        )

    def change_missing(self, index: Index) -> Request[list[Source | None]]:
        """Update, replace and delete a row that does not exist by ``_bulk``, which changes nothing.

        OpenSearch has a privilege for each of the four.
        """
        key, written = _CONFIRMATION + "ed", {"if_seq_no": 0, "if_primary_term": 1}
        items = [
            _Item("update", key, {}, {"script": _script(scripts.TOUCH)}),
            _Item("index", key, written, {}),
            _Item("delete", key, written),
        ]
        return self._bulk(index.alias(self._prefix), items, is_whole=True)

    def refresh(self, index: Index) -> Request[None]:
        """Make all acknowledged writes of an index visible to searches."""
        alias = index.alias(self._prefix)
        return Request("POST", f"/{alias}/_refresh", None, reader(check_refreshed, alias), alias)

    def _search(self, alias: str, body: Mapping[str, object], parse: Callable[[Any], _T]) -> Request[_T]:
        """Return a search, which counts all hits only if its body asks for that."""

        def parse_checked(answer: Any) -> _T:
            self.opened.check_hits(alias, answer)
            return parse(answer)

        path = f"/{alias}/_search?allow_partial_search_results=false"
        return Request(
            "POST", path, json_body({"track_total_hits": False, **body}), reader(parse_checked, alias), alias
        )

    def _update(
        self,
        alias: str,
        key: str,
        body: dict[str, Any],
        fields: str,
        condition: str = f"retry_on_conflict={_RETRIES}",
        none_for: Collection[str] = (ROW_MISSING,),
    ) -> Request[Written | None]:
        tie = self.opened.tie(alias, key)
        source = f"{fields},nonce" if tie.nonce and fields not in ("true", "false") else fields
        path = f"/{alias}/_update/{quote(key, safe='')}?{self._write}&_source={source}&{condition}"
        read = partial(read_update, tie=tie, none_for=none_for)
        return Request("POST", path, json_body(tie.added_to(body)), read, alias)

    def _bulk(
        self,
        alias: str,
        items: Sequence[_Item],
        expected: Collection[str] = (ROW_MISSING, CONFLICT),
        *,
        is_whole: bool = False,
    ) -> Request[list[Source | None]]:
        body, ties = self._bulk_body(alias, items)
        read = partial(read_bulk, alias=alias, ties=ties, expected=expected, is_whole=is_whole)
        return Request("POST", f"/{alias}/_bulk?{self._write}", body, read, alias)

    def _bulk_body(self, alias: str, items: Sequence[_Item]) -> tuple[bytes, list[Tie]]:
        """Return the body of a ``_bulk``, and what the answer to each item must repeat."""
        ties = [self.opened.tie(alias, item.key, has_script=item.action == "update") for item in items]
        lines: list[object] = []
        for item, tie in zip(items, ties, strict=True):
            lines.append({item.action: {"_id": item.key, **item.options}})
            if item.body is not None:
                lines.append(tie.added_to(item.body))
        return b"".join(json_body(line) + b"\n" for line in lines), ties


def _script(source: str, **parameters: object) -> dict[str, Any]:
    return {"source": source, "lang": "painless", "params": parameters}


def _update_item(key: str, body: dict[str, Any]) -> _Item:
    return _Item("update", key, {"_source": True, "retry_on_conflict": _RETRIES}, body)


def _upsert(source: str, **parameters: object) -> dict[str, Any]:
    return {"scripted_upsert": True, "upsert": {}, "script": _script(source, **parameters)}


def _floor(floor: GrantFloor) -> dict[str, int]:
    return {
        "generation": floor.generation,
        "least": clamp_to_bigint(floor.least),
        "most": clamp_to_bigint(floor.most),
    }


def json_body(body: object) -> bytes:
    """Return a body, or a line of one."""
    return json.dumps(body).encode()
