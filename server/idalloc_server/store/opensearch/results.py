"""Reads OpenSearch's answers to ``Requests``: written rows, items of ``_bulk``, hits.

Each is tied to its request by the index behind the alias, the key, and a nonce. A rollover, a
person or a policy can exchange that index, and a proxy can mix up answers. The values of such an
answer are never used.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from idalloc_server.domain.errors import StoreExchanged, StoreFailure
from idalloc_server.store.cluster.http_connections import WrongAnswer
from idalloc_server.store.cluster.write_mark import WriteMark
from idalloc_server.store.opensearch.http import ROW_MISSING, AliasUnknown, failure, read_answer

# The results of writes that OpenSearch applied.
_APPLIED = ("created", "updated", "deleted")


@dataclass(eq=False)
class OpenedIndex:
    """An index as this process opened it. A new index never has the UUID of an older one."""

    name: str
    uuid: str
    has_nonce: bool  # whether it has a field for a nonce

    def __post_init__(self) -> None:
        self.mark = WriteMark(str(self))  # the number of its last write

    def __str__(self) -> str:
        return f"the index {self.name} ({self.uuid})"


class Tie(NamedTuple):
    """What an answer must repeat."""

    alias: str  # the alias of the request
    opened: OpenedIndex | None  # the index behind it; None before the store is open
    key: str  # the key of the row
    nonce: str  # a text that no other request has; empty if the index has no field for it
    floor: int = -1  # the number of the last write of the index when the request was made

    def added_to(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of an update whose row gets the nonce: by its script, or as a new row."""
        if not self.nonce:
            return body
        script = {**body["script"], "params": {**body["script"]["params"], "nonce": self.nonce}}
        tied = {**body, "script": script}
        if "upsert" in body and "scripted_upsert" not in body:
            tied["upsert"] = {**body["upsert"], "nonce": self.nonce}
        return tied

    def check(self, answer: Mapping[str, Any]) -> None:
        """Check the answer to a write, or to an item of ``_bulk``, before its values are used.

        Raises:
            WrongAnswer: The answer is that of another request.
            StoreExchanged: The write went to another index than the opened one.
        """
        error = answer.get("error")
        key = answer.get("_id", self.key)
        if key != self.key or (error and not str(error.get("reason")).startswith(f"[{self.key}]:")):
            raise WrongAnswer(f"that is not about the key {self.key!r}")
        if self.nonce and not error and answer.get("get", {}).get("_source", {}).get("nonce") != self.nonce:
            raise WrongAnswer(f"to another write of the key {self.key!r}")
        if self.opened:
            found = error.get("index", self.opened.name) if error else answer["_index"]
            if found != self.opened.name:
                raise StoreExchanged(f"{self.opened} behind the alias {self.alias}", f"the index {found}")
            if answer.get("result") in _APPLIED:
                self.opened.mark.accept(int(answer["_seq_no"]), self.floor)


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
    is_down = all(each.http_status == _HTTP_UNAVAILABLE for each in failures)
    is_starting = all(isinstance(each, AliasUnknown) for each in failures)  # the node applied none
    if len(failures) == len(outcomes) and (is_down or is_starting):
        raise failures[0]
    return outcomes


def _outcomes(answer: Any, host: str, ties: Sequence[Tie]) -> list[Outcome]:
    items = _bulk_items(answer, ties)
    outcomes: list[Outcome | WrongAnswer] = []
    for item, tie in zip(items, ties, strict=True):
        error = item.get("error")
        try:
            if error and error["type"] != ROW_MISSING:
                if item["_id"] != tie.key:
                    raise WrongAnswer(f"that is not about the key {tie.key!r}")
                outcomes.append(failure(host, int(item["status"]), error, tie.alias))
            elif error:
                tie.check(item)
                outcomes.append(None)
            else:
                outcomes.append(_written(item, tie))
        except WrongAnswer as wrong:
            if not tie.nonce:
                raise
            outcomes.append(wrong)
    if any(isinstance(each, WrongAnswer) for each in outcomes):
        raise WrongItems(outcomes)
    return cast(list[Outcome], outcomes)


def hits_of(answer: Any) -> list[Hit]:
    """Return the hits of a search of all shards."""
    if answer["timed_out"] or answer["_shards"]["failed"]:
        raise ValueError("the search is incomplete")
    return [
        Hit(str(hit["_id"]), int(hit.get("_seq_no", 0)), int(hit.get("_primary_term", 0)), dict(hit.get("_source", {})))
        for hit in answer["hits"]["hits"]
    ]


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
