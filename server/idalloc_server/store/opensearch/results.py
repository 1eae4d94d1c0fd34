"""Reads OpenSearch's answers to ``Requests``: written rows, items of ``_bulk``, hits."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from idalloc_server.domain.errors import StoreFailure
from idalloc_server.store.cluster.connections import WrongAnswer
from idalloc_server.store.opensearch.answers import ROW_MISSING, AliasUnknown, failure, read_answer
from idalloc_server.store.opensearch.opened_indices import Tie

_HTTP_UNAVAILABLE = 503  # the status of a host that serves nothing

_T = TypeVar("_T")
Source = dict[str, Any]


class Written(NamedTuple):
    """A row after a write."""

    source: Source  # the requested fields
    seq_no: int  # the number of the write in the index
    term: int  # the term of the primary


# The row after an update; None without a row; or the failure of this update alone.
Outcome = Written | StoreFailure | None


class WrongItems(WrongAnswer):
    """Some items of an answer belong to other writes; the others have their outcomes."""

    def __init__(self, outcomes: Sequence[Outcome | WrongAnswer]) -> None:
        super().__init__(next(str(each) for each in outcomes if isinstance(each, WrongAnswer)))
        self.outcomes = outcomes


class Hit(NamedTuple):
    """A row in the answer to a search; ``source`` has the requested fields."""

    id: str
    seq_no: int
    term: int
    source: Source


def reader(parse: Callable[[Any], _T], alias: str) -> Callable[[str, int, bytes], _T]:
    """Return the reader of a request on an alias, which parses the JSON of its answer."""
    return cast(Callable[[str, int, bytes], _T], partial(read_answer, parse=parse, subject=alias))


def read_update(host: str, status: int, content: bytes, *, tie: Tie, none_for: Collection[str]) -> Written | None:
    """Return the row of an answer to ``_update``; None for an error of a type in ``none_for``."""
    parse = partial(_written, tie=tie)
    written = read_answer(host, status, content, parse=parse, subject=tie.alias, none_for=none_for)
    if written is None:
        tie.check(json.loads(content))
    return written


def _written(answer: Any, tie: Tie) -> Written:
    tie.check(answer)
    if answer["result"] not in ("created", "updated"):
        raise ValueError("a noop is confirmed by no other copy")
    return Written(dict(answer["get"]["_source"]), int(answer["_seq_no"]), int(answer["_primary_term"]))


def read_updates(host: str, status: int, content: bytes, *, alias: str, ties: Sequence[Tie]) -> list[Outcome]:
    """Return the outcome of each update of a ``_bulk``, as ``read_update`` reads a single one.

    Raises:
        StoreFailure: The request failed, or all updates did, and another host may not.
        WrongItems: Some items belong to other writes. Without nonces that is a ``WrongAnswer``.
    """
    outcomes = reader(partial(_outcomes, host=host, ties=ties), alias)(host, status, content)
    failures = [each for each in outcomes if isinstance(each, StoreFailure)]
    if len(failures) == len(outcomes) and (_all_unavailable(failures) or _all_unknown_aliases(failures)):
        raise failures[0]
    return outcomes


def _all_unavailable(failures: Sequence[StoreFailure]) -> bool:
    return all(failure.http_status == _HTTP_UNAVAILABLE for failure in failures)


def _all_unknown_aliases(failures: Sequence[StoreFailure]) -> bool:
    """Whether the node applied none of the updates, since it may be starting."""
    return all(isinstance(failure, AliasUnknown) for failure in failures)


def _outcomes(answer: Any, host: str, ties: Sequence[Tie]) -> list[Outcome]:
    items = _bulk_items(answer, ties)
    outcomes: list[Outcome | WrongAnswer] = []
    for item, tie in zip(items, ties, strict=True):
        try:
            outcomes.append(_outcome(item, host, tie))
        except WrongAnswer as error:
            if not tie.nonce:
                raise
            outcomes.append(error)
    if any(isinstance(each, WrongAnswer) for each in outcomes):
        raise WrongItems(outcomes)
    return cast(list[Outcome], outcomes)


def _outcome(item: Mapping[str, Any], host: str, tie: Tie) -> Outcome:
    error = item.get("error")
    if error and error["type"] != ROW_MISSING:
        if item["_id"] != tie.key:
            raise WrongAnswer(f"that is not about the key {tie.key!r}")
        return failure(host, int(item["status"]), error, tie.alias)
    if error:
        tie.check(item)
        return None
    return _written(item, tie)


def hits_of(answer: Any) -> list[Hit]:
    """Return the hits of a search of all shards."""
    if answer["timed_out"] or answer["_shards"]["failed"]:
        raise ValueError("the search is incomplete")
    return [
        Hit(str(hit["_id"]), int(hit.get("_seq_no", 0)), int(hit.get("_primary_term", 0)), dict(hit.get("_source", {})))
        for hit in answer["hits"]["hits"]
    ]


def newest_of(answer: Any) -> tuple[Hit, int] | None:
    """Return the first hit, and the latest ``written_at``; None without a hit."""
    hits = hits_of(answer)
    return (hits[0], int(answer["aggregations"]["written_at"]["value"])) if hits else None


def check_refreshed(answer: Any) -> None:
    """Raise ``ValueError`` unless a shard was refreshed, and none failed."""
    shards = answer["_shards"]
    if shards["successful"] < 1 or shards["failed"]:
        raise ValueError("no shard was refreshed")


def read_bulk(
    host: str,
    status: int,
    content: bytes,
    *,
    alias: str,
    ties: Sequence[Tie],
    expected: Collection[str],
    is_whole: bool,
) -> list[Source | None]:
    """Read the answer to ``_bulk``, which is 200 even if items failed.

    An item whose error has an ``expected`` type has the result None. Any other error of an item is
    an error of the request if the request ``is_whole``, or if all items failed.

    Returns:
        For each item the row, or an empty one without ``_source``; None for one that failed.

    Raises:
        StoreFailure: The request failed, or so did its items.
    """
    found: list[Source | None] = []
    failures: list[StoreFailure] = []
    for item in reader(partial(_items, ties=ties, expected=expected), alias)(host, status, content):
        error = item.get("error")
        found.append(None if error or item["status"] == 404 else item.get("get", {}).get("_source", {}))
        if error and error.get("type") not in expected:
            failures.append(failure(host, item["status"], error, alias))
    if failures and (is_whole or len(failures) == len(found)):
        raise failures[0]
    return found


def _items(answer: Any, ties: Sequence[Tie], expected: Collection[str]) -> list[Mapping[str, Any]]:
    items = _bulk_items(answer, ties)
    for item, tie in zip(items, ties, strict=True):
        if "error" not in item or item["error"]["type"] in expected:
            tie.check(item)
        int(item["status"])
        dict(item.get("error") or {})
        dict(item.get("get", {}).get("_source", {}))
    return items


def _bulk_items(answer: Any, ties: Sequence[Tie]) -> list[Mapping[str, Any]]:
    items = [next(iter(item.values())) for item in answer["items"]]
    if len(items) != len(ties):
        raise WrongAnswer(f"about {len(items)} rows in place of {len(ties)}")
    return items
