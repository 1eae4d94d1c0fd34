"""The searches of idalloc, over what an index shows."""

import itertools
from typing import Any

from tests.support.opensearch.indices import Document, Index
from tests.support.opensearch.refusals import Refusal, UnknownRequest

_KEYS = {"size", "query", "sort", "track_total_hits", "_source", "seq_no_primary_term", "search_after", "aggs"}
_BOUNDS = {
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
}
_MAX_WINDOW = 10_000


def search(index: Index, body: dict[str, Any], *, is_frugal: bool = False) -> dict[str, Any]:
    """Return the answer to ``_search``; ``is_frugal`` if the cluster allows no expensive queries.

    Raises:
        UnknownRequest: The stand-in does not know this form.
    """
    if unknown := body.keys() - _KEYS:
        raise UnknownRequest(f"a search with {', '.join(sorted(unknown))}")
    size = body.get("size", 10)
    if size > (window := _window(index)):
        raise _too_large(window, size)
    return _search(index, body, size, is_frugal=is_frugal)


def _window(index: Index) -> int:
    return int(index.settings.get("index.max_result_window", _MAX_WINDOW))


def _search(index: Index, body: dict[str, Any], size: int | None, *, is_frugal: bool = False) -> dict[str, Any]:
    query = body.get("query", {"match_all": {}})
    if is_frugal:
        _refuse_expensive(query, body.get("sort", []))
    found = [(key, each) for key, each in index.searchable() if _matches(query, key, each)]
    hits: dict[str, Any] = {}
    if body.get("track_total_hits", True):
        hits["total"] = {"value": len(found), "relation": "eq"}
    hits["max_score"] = None
    score = 0.0 if "bool" in query else 1.0
    if "sort" not in body and found and size:
        hits["max_score"] = score
    answer: dict[str, Any] = {"took": 1, "timed_out": False}
    answer["_shards"] = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
    shown = _sorted(found, body)[:size]
    hits["hits"] = [_hit(index, key, each, body, score) for key, each in shown]
    answer["hits"] = hits
    if "aggs" in body:
        answer["aggregations"] = {name: _aggregated(found, each) for name, each in body["aggs"].items()}
    return answer


class Scroll:
    """A scroll: the hits of a search as of its start, in pages.

    Args:
        body: Of the search.
        keep_alive: How long it is kept between two pages.
    """

    _ids = itertools.count(1)

    def __init__(self, index: Index, body: dict[str, Any], keep_alive: str) -> None:
        window = _window(index)
        if unknown := body.keys() - {"size", "query", "track_total_hits", "aggs"} or keep_alive != "1m":
            raise UnknownRequest(f"a scroll with {unknown}")
        if body["size"] > window:
            raise _too_large_page(body["size"], window)
        self.id = f"scroll-{next(self._ids)}"
        self._size = body["size"]
        self._answer = {"_scroll_id": self.id, **_search(index, body, None)}
        self._left = self._answer["hits"]["hits"]

    def next_page(self) -> dict[str, Any]:
        """Return the answer with the next hits; only the first one has aggregations."""
        page, self._left = self._left[: self._size], self._left[self._size :]
        answer = {**self._answer, "hits": {**self._answer["hits"], "hits": page}}
        self._answer.pop("aggregations", None)
        return answer


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Missing values are last; texts are in the order of their bytes."""
    return value is None, value.encode() if isinstance(value, str) else value or 0


def _sort_of(body: dict[str, Any]) -> tuple[list[str], bool]:
    pairs = [pair for each in body["sort"] for pair in each.items()]
    orders = {order for _, order in pairs}
    if orders not in ({"asc"}, {"desc"}):
        raise UnknownRequest(f"a search sorted by {body['sort']}")
    return [name for name, _ in pairs], orders == {"desc"}


def _sort_keys(names: list[str], key: str, found: Document) -> list[tuple[bool, Any]]:
    return [_sort_key(_value(key, found, name)) for name in names]


def _value(key: str, found: Document, name: str) -> Any:
    if name.startswith("_"):
        return {"_seq_no": found.seq_no, "_id": key}[name]
    value = found.source.get(name)
    return min(value) if isinstance(value, list) else value


def _sorted(found: list[tuple[str, Document]], body: dict[str, Any]) -> list[tuple[str, Document]]:
    if "sort" not in body:
        return found
    names, is_descending = _sort_of(body)
    ordered = sorted(found, key=lambda each: _sort_keys(names, *each), reverse=is_descending)
    if "search_after" in body:
        if is_descending:
            raise UnknownRequest("search_after in descending order")
        after = [_sort_key(value) for value in body["search_after"]]
        ordered = [each for each in ordered if _sort_keys(names, *each) > after]
    return ordered


def _hit(index: Index, key: str, found: Document, body: dict[str, Any], score: float) -> dict[str, Any]:
    hit: dict[str, Any] = {"_index": index.name, "_id": key}
    if body.get("seq_no_primary_term"):
        hit |= {"_seq_no": found.seq_no, "_primary_term": found.term}
    hit["_score"] = None if "sort" in body else score
    wanted = body.get("_source", True)
    if wanted is not False:
        hit["_source"] = filtered(found.source, wanted)
    if "sort" in body:
        hit["sort"] = [_value(key, found, name) for name in _sort_of(body)[0]]
    return hit


def filtered(source: dict[str, Any], wanted: bool | list[str]) -> dict[str, Any]:
    """Return the fields of a source that a request wants; True for all."""
    if wanted is True:
        return source
    if wanted is False or any("*" in name or "." in name for name in wanted):
        raise UnknownRequest(f"_source {wanted}")
    return {name: value for name, value in source.items() if name in wanted}


def _aggregated(found: list[tuple[str, Document]], aggregation: dict[str, Any]) -> dict[str, Any]:
    if aggregation != {"stats": {"field": "_seq_no"}}:
        return _maximum(found, aggregation)
    values = [float(each.seq_no) for _, each in found]
    if not values:
        return {"count": 0, "min": None, "max": None, "avg": None, "sum": 0.0}
    least, most, total = min(values), max(values), sum(values)
    return {"count": len(values), "min": least, "max": most, "avg": total / len(values), "sum": total}


def _maximum(found: list[tuple[str, Document]], aggregation: dict[str, Any]) -> dict[str, Any]:
    if list(aggregation) != ["max"] or list(aggregation["max"]) != ["field"]:
        raise UnknownRequest(f"the aggregation {aggregation}")
    values = [each.source.get(aggregation["max"]["field"]) for _, each in found]
    return {"value": max((float(value) for value in values if value is not None), default=None)}


def _matches(query: dict[str, Any], key: str, found: Document) -> bool:
    ((kind, inner),) = query.items()
    if kind == "match_all" and not inner:
        return True
    if kind == "bool" and inner.keys() <= {"filter", "must_not"}:
        return all(_matches(each, key, found) for each in inner.get("filter", ())) and not any(
            _matches(each, key, found) for each in inner.get("must_not", ())
        )
    if kind == "exists" and inner.keys() == {"field"}:
        return _value(key, found, inner["field"]) is not None
    if kind == "ids" and inner.keys() == {"values"}:
        return key in inner["values"]
    if kind in ("prefix", "term", "range") and len(inner) == 1:
        ((name, wanted),) = inner.items()
        value = _value(key, found, name)
        if value is None:
            return False
        if kind == "term":
            return bool(value == wanted)
        if kind == "prefix":
            return bool(value.startswith(wanted))
        if wanted.keys() <= _BOUNDS.keys():
            return all(_BOUNDS[bound](_sort_key(value), _sort_key(limit)) for bound, limit in wanted.items())
    raise UnknownRequest(f"the query {query}")


def _refuse_expensive(query: dict[str, Any], sort: list[dict[str, str]]) -> None:
    """Refuse what OpenSearch refuses with ``search.allow_expensive_queries: false``.

    OpenSearch 3.8.0 makes a range of a sort by one keyword over all documents, and refuses that
    with 500.
    """
    ((kind, inner),) = query.items()
    if kind == "bool":
        for each in (*inner.get("filter", ()), *inner.get("must_not", ())):
            _refuse_expensive(each, [])
    is_range = kind == "range" and not {"written_at", "_seq_no"} & inner.keys()
    if is_range or kind == "prefix" or (kind == "match_all" and [*map(list, sort)] == [["name"]]):
        cause = {"type": "exception", "reason": f"[{kind}] queries cannot be executed when ..."}
        status = 500 if kind == "match_all" else 400
        raise Refusal(status, "search_phase_execution_exception", "all shards failed", cause, grouped=True)


def _too_large(window: int, size: int) -> Refusal:
    reason = (
        f"Result window is too large, from + size must be less than or equal to: [{window}] but was [{size}]."
        " See the scroll api for a more efficient way to request large data sets. This limit can be set by changing the"
        " [index.max_result_window] index level setting."
    )
    return _failed_phase(reason)


def _too_large_page(size: int, window: int) -> Refusal:
    return _failed_phase(
        f"Batch size is too large, size must be less than or equal to: [{window}] but was [{size}]. Scroll batch sizes"
        " cost as much memory as result windows so they are controlled by the [index.max_result_window] index level"
        " setting."
    )


def _failed_phase(reason: str) -> Refusal:
    cause = {"type": "illegal_argument_exception", "reason": reason}
    refusal = Refusal(400, "search_phase_execution_exception", "all shards failed", cause, phase="query", grouped=True)
    refusal.root = cause
    return refusal
