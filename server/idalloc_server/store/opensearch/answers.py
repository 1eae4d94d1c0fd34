"""Decodes OpenSearch's answers: was the write applied, can a retry succeed, and what must an operator do.

A 409 is unknown: a node sends a write again when the primary's node goes away, and then refuses what it has applied.
Types of errors differ between versions, so only the few in this module decide.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreOutcomeUnknown, StoreRefused
from idalloc_server.store.transport import is_unauthorized, one_line

ROW_MISSING = "document_missing_exception"
INDEX_MISSING = "index_not_found_exception"
INDEX_EXISTS = "resource_already_exists_exception"
CONFLICT = "version_conflict_engine_exception"
_BLOCKED = "cluster_block_exception"
# OpenSearch's names of an index's blocks, and the setting of each. It removes read_only and metadata only by a
# request that sets nothing else.
_BLOCKS = {
    "index read-only (api)": "read_only",
    "index write (api)": "write",
    "index read (api)": "read",
    "index metadata (api)": "metadata",
}
# A missing privilege, as OpenSearch's security plugin names it. It checks these for the cluster, others for an index.
_MISSING_PRIVILEGE = re.compile(r"no permissions for \[(.+?)\] and ")
_CLUSTER_PRIVILEGE = re.compile(r"cluster:.*|indices:data/write/bulk")
_TOO_MANY_SCRIPTS = "circuit_breaking_exception"
# The errors of a script that read a text, a double or null where the row must have a number.
_WRONG_VALUE = ("class_cast_exception", "null_pointer_exception")
# The write of a row whose value does not fit its field, by OpenSearch and by Elasticsearch.
_WRONG_FIELD = ("mapper_parsing_exception", "document_parsing_exception")

_UNKNOWN_STATUS = (408, 409)
_TOO_MANY_REQUESTS = 429
_FORBIDDEN = 403


_T = TypeVar("_T")


class AliasUnknown(StoreAnsweredError):
    """The node knows no such alias or index; perhaps its cluster has not recovered its state yet."""


class AliasMissing(StoreRefused):
    """There is no such alias or index: a node with the state of its cluster said so."""


class RowInvalid(StoreRefused):
    """A script, or the mapping, refused a value in the row."""


def read_answer(
    host: str,
    status: int,
    content: bytes,
    *,
    parse: Callable[[Any], _T],
    subject: str = "",
    none_for: Collection[str] = (),
) -> _T | None:
    """Returns the parsed content of a successful answer, or None.

    Args:
        host: ``host:port`` of the sender, for the error.
        status: The HTTP status.
        content: The body.
        parse: Reads the JSON of a successful answer.
        subject: The alias of the request, for the next step.
        none_for: The types of errors for which the result is None.

    Raises:
        StoreRefused: The request was not applied, and fails again until an operator acts.
        StoreAnsweredError: The request was not applied, and a retry may succeed.
        StoreOutcomeUnknown: The request may have been applied.
    """
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if 200 <= status < 300:
        try:
            return parse(answer)
        except (KeyError, TypeError, ValueError, IndexError):
            text = one_line(content.decode(errors="replace"))
            raise StoreOutcomeUnknown(f"OpenSearch at {host} answered {status}: {text}", http_status=status) from None
    error = answer.get("error") if isinstance(answer, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    if kind in none_for:
        return None
    if kind is None and isinstance(answer, dict) and answer.get("found") is False and ROW_MISSING in none_for:
        return None
    raise failure(host, status, error or content.decode(errors="replace"), subject)


def failure(host: str, status: int, error: object, subject: str) -> StoreFailure:
    """Returns the failure of a request, or of one item of ``_bulk``.

    Args:
        host: ``host:port`` of the sender.
        status: The HTTP status, or that of the item.
        error: The field ``error`` of the answer; the content of one that is no JSON, such as a proxy's.
        subject: The alias of the request, for the next step.
    """
    kind, causes = _kinds(error)
    reason = _reason(error) if isinstance(error, dict) else error
    message = f"OpenSearch at {host} answered {status}{f' ({kind})' if kind else ''}: {one_line(reason)}"
    if not 400 <= status < 500 or status in _UNKNOWN_STATUS:
        return StoreOutcomeUnknown(message, http_status=status)
    # A full queue refuses before it executes, but after a node has sent the request again it proves nothing.
    if status == _TOO_MANY_REQUESTS and kind != _BLOCKED:
        return StoreOutcomeUnknown(message, http_status=status)
    if kind == INDEX_MISSING:
        return AliasUnknown(message, http_status=status)
    answered = StoreAnsweredError(message, http_status=status)
    if kind is None or is_unauthorized(answered) or status == _TOO_MANY_REQUESTS or _TOO_MANY_SCRIPTS in causes:
        return answered
    if kind in _WRONG_FIELD or any(cause in _WRONG_VALUE for cause in causes):
        return RowInvalid(message, http_status=status)
    return refused(answered, subject)


def refused(error: StoreFailure, subject: str) -> StoreRefused:
    """Returns the error as one that needs an operator, with the next step."""
    kind = AliasMissing if isinstance(error, AliasUnknown) else StoreRefused
    return kind(f"{str(error).rstrip(';')}; {_next_step(error, subject)}", http_status=error.http_status)


def _kinds(error: object) -> tuple[str | None, list[str]]:
    """Returns the type of an error, and the types of its causes."""
    kind = error.get("type") if isinstance(error, dict) else None
    causes: list[str] = []
    while isinstance(error, dict):
        error = error.get("caused_by")
        if isinstance(error, dict):
            causes.append(str(error.get("type")))
    return (None if kind is None else str(kind)), causes


def _reason(error: dict[str, Any]) -> str:
    """Returns the reason of an error and of its innermost cause, which says what a script did."""
    reason = str(error.get("reason"))
    cause: Any = error
    while isinstance(cause.get("caused_by"), dict):
        cause = cause["caused_by"]
    return reason if cause is error else f"{reason}: {cause.get('reason')}"


def _next_step(error: StoreFailure, subject: str) -> str:
    text = str(error)
    if is_unauthorized(error):
        return "check the user and the password or api_key of the setting store, then restart this server"
    if INDEX_MISSING in text and not subject:
        return "check the name of the index"
    if INDEX_MISSING in text:
        return f"restore the alias {subject} from a snapshot; idalloc creates it only at the first start"
    if _BLOCKED in text and "closed" in text:
        return f"run POST /{subject}/_open"
    if _BLOCKED in text and "cluster" in text.partition("blocked by")[2]:
        return "remove the cluster's read-only block: PUT /_cluster/settings, cluster.blocks.read_only"
    block = next((setting for name, setting in _BLOCKS.items() if name in text), "")
    if _BLOCKED in text and block:
        return f'run PUT /{subject}/_settings {{"index.blocks.{block}": null}}'
    if error.http_status == _FORBIDDEN:
        return _missing_privilege(text, subject)
    return f"remove the cause that OpenSearch names from {subject}"


def _missing_privilege(text: str, subject: str) -> str:
    found = _MISSING_PRIVILEGE.search(text)
    if found and _CLUSTER_PRIVILEGE.fullmatch(found[1]):
        return f"grant the user the cluster permission {found[1]}"
    if not subject:
        return "grant the user the permission to monitor the cluster"
    return f"grant the user {found[1] if found else 'read, write, refresh and monitor'} on {subject}*"
