"""The HTTP transport to OpenSearch, and its answers: applied, may succeed later, or refused?

A 409 is unknown: a node sends a write again when the primary's node goes away, and then refuses
what it has applied. Types of errors differ between versions, so only the few in this module decide.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreOutcomeUnknown, StoreRefused
from idalloc_server.store.cluster.http_connections import Request, one_line
from idalloc_server.store.cluster.http_transport import Transport, is_unauthorized

ROW_MISSING = "document_missing_exception"
INDEX_MISSING = "index_not_found_exception"
INDEX_EXISTS = "resource_already_exists_exception"
CONFLICT = "version_conflict_engine_exception"
_BLOCKED = "cluster_block_exception"
_SECURITY = "security_exception"
# A block in an error's reason, as in [FORBIDDEN/8/index write (api)]: no index name has a slash.
_BLOCK_NUMBER = re.compile(r"\[[A-Z_]+/(\d+)/")
# The next steps, by the type of the error, or by the number of a block. OpenSearch removes the
# blocks read_only and metadata only by a request that sets nothing else.
_STEPS = {
    INDEX_MISSING: "restore the alias {subject} from a snapshot, since idalloc creates it only at the first start",
    "index_closed_exception": "run POST /{subject}/_open",
    "search_phase_execution_exception": "restart this server, which reads index.max_result_window of {subject} at its "
    "start, or remove another cause that OpenSearch names",
}
_BLOCK_STEPS = {
    "4": "run POST /{subject}/_open",
    "5": 'run PUT /{subject}/_settings {{"index.blocks.read_only": null}}',
    "6": "remove the cluster's read-only block: PUT /_cluster/settings, cluster.blocks.read_only",
    "7": 'run PUT /{subject}/_settings {{"index.blocks.read": null}}',
    "8": 'run PUT /{subject}/_settings {{"index.blocks.write": null}}',
    "9": 'run PUT /{subject}/_settings {{"index.blocks.metadata": null}}',
}
# A missing privilege, by OpenSearch's security plugin: these for the cluster, others for an index.
_MISSING_PRIVILEGE = re.compile(r"no permissions for \[(.+?)\] and ")
_CLUSTER_PRIVILEGE = re.compile(r"cluster:.*|indices:data/(write/bulk|read/scroll)")
_TOO_MANY_SCRIPTS = "circuit_breaking_exception"
# The errors of a script that read a text, a double or null where the row must have a number.
_WRONG_VALUE = ("class_cast_exception", "null_pointer_exception")
# A value that does not fit its field, by OpenSearch and by Elasticsearch (not tested).
_WRONG_FIELD = ("mapper_parsing_exception", "document_parsing_exception")

CHECK_PROXY = "check what answers between this server and OpenSearch, such as a proxy"
_CHECK_USER = "check the user and the password or api_key of the URL"
_UNKNOWN_STATUS = (408, 409)
_TOO_MANY_REQUESTS = 429
_HTTP_UNAVAILABLE = 503
# The block that a cluster has until it has recovered its state; before, its nodes know no index.
_NOT_RECOVERED = "1"

_T = TypeVar("_T")


class AliasUnknown(StoreAnsweredError):
    """The node knows no such alias or index; its cluster may not have recovered its state yet."""


class AliasMissing(StoreRefused):
    """A node with the state of its cluster knows no such alias or index."""


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
    """Return what ``parse`` makes of a successful answer; None for an error of ``none_for``.

    The next step in an error names ``subject``, the alias of the request.

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
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration):
            text = one_line(content.decode(errors="replace"))
            message = f"OpenSearch at {host} answered {status}: {text}; {CHECK_PROXY}"
            raise StoreOutcomeUnknown(message, http_status=status) from None
    error = answer.get("error") if isinstance(answer, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    if kind in none_for:
        return None
    if kind is None and isinstance(answer, dict) and answer.get("found") is False and ROW_MISSING in none_for:
        return None
    raise failure(host, status, error or content.decode(errors="replace"), subject)


def failure(host: str, status: int, error: object, subject: str) -> StoreFailure:
    """Return the failure of a request, or of one item of ``_bulk``.

    Args:
        host: ``host:port`` of the sender.
        status: The HTTP status, or that of the item.
        error: The field ``error`` of the answer; the content of one that is no JSON, such as a
            proxy's.
        subject: The alias of the request, for the next step.
    """
    chain: list[dict[str, Any]] = []  # the error, its cause, the cause of that…
    each = error
    while isinstance(each, dict):
        chain.append(each)
        each = each.get("caused_by")
    kind = None if not chain or chain[0].get("type") is None else str(chain[0]["type"])
    causes = [str(cause.get("type")) for cause in chain[1:]]
    # A script's exception is the innermost cause.
    reasons = [str(each.get("reason")) for each in (chain[:1] + chain[1:][-1:])]
    reason = ": ".join(reasons) if chain else str(error)
    message = f"OpenSearch at {host} answered {status}{f' ({kind})' if kind else ''}: {one_line(reason)}"
    message = message.rstrip(";")
    # A full queue refuses before it executes; after a node's own retry that proves nothing.
    is_queue_full = status == _TOO_MANY_REQUESTS and kind != _BLOCKED
    if not 400 <= status < 500 or status in _UNKNOWN_STATUS or is_queue_full:
        return StoreOutcomeUnknown(f"{message}; try again, and repair the cluster if it lasts", http_status=status)
    if kind == INDEX_MISSING:
        return AliasUnknown(f"{message}; start the other nodes, and try again", http_status=status)
    if is_unauthorized(StoreAnsweredError("", http_status=status)):
        return StoreAnsweredError(f"{message}; {_CHECK_USER} if it lasts", http_status=status)
    if kind is None:
        return StoreAnsweredError(f"{message}; {CHECK_PROXY}", http_status=status)
    if status == _TOO_MANY_REQUESTS:
        step = "free the disk, then OpenSearch removes the block"
        return StoreAnsweredError(f"{message}; {step}", http_status=status)
    if _TOO_MANY_SCRIPTS in causes:
        return StoreAnsweredError(f"{message}; raise script.max_compilations_rate of the cluster", http_status=status)
    if kind in _WRONG_FIELD or any(cause in _WRONG_VALUE for cause in causes):
        return RowInvalid(f"{message}; write an integer into the field of the row", http_status=status)
    return StoreRefused(f"{message}; {_next_step(kind, reason, subject)}", http_status=status)


def _next_step(kind: str | None, reason: str, subject: str) -> str:
    """Return the next step by the type of an error; a name in its reason decides nothing."""
    if kind == _SECURITY:
        found = _MISSING_PRIVILEGE.match(reason)
        if found and _CLUSTER_PRIVILEGE.fullmatch(found[1]):
            return f"grant the user the cluster permission {found[1]}"
        if not subject:
            return "grant the user the permission to monitor the cluster"
        return f"grant the user {found[1] if found else 'read, write, refresh and monitor'} on {subject}*"
    number = next(iter(_BLOCK_NUMBER.findall(reason) if kind == _BLOCKED else ()), "")
    step = _BLOCK_STEPS.get(number) or _STEPS.get(kind or "")
    if step and (subject or "{subject}" not in step):
        return step.format(subject=subject)
    if kind == INDEX_MISSING:
        return "check the name of the index"
    return f"remove the cause that OpenSearch names{f' from {subject}' if subject else ''}"


def _read_state(host: str, status: int, content: bytes) -> None:
    """Raise ``StoreFailure`` unless the node has a cluster manager and the cluster's state."""
    state: Any = read_answer(host, status, content, parse=dict)
    problem = None
    if state.get("master_node") is None:
        problem = "has no elected cluster manager; start a majority of the nodes that may become it"
    elif _NOT_RECOVERED in state.get("blocks", {}).get("global", {}):
        problem = "has not recovered the state of its cluster; start the nodes that it waits for (gateway.recover_*)"
    if problem:
        raise StoreOutcomeUnknown(f"OpenSearch at {host} {problem}", http_status=_HTTP_UNAVAILABLE)


class OpenSearchHttp(Transport):
    """Sends requests to one of several hosts; see ``Transport``.

    A node without a cluster manager answers ``GET /`` and reads as before. One whose cluster has
    not recovered its state answers 404 for an index that exists. So a node that is alive has both,
    as it shows by its own state.
    """

    PRODUCT = "OpenSearch"
    PORT = 9200
    ALIVE = Request(
        "GET",
        "/_cluster/state/master_node,blocks?local=true&filter_path=master_node,blocks.global",
        None,
        _read_state,
    )

    def may_be_starting(self, error: StoreFailure) -> bool:
        # A node that starts answers anything else with 503.
        return is_unauthorized(error) or isinstance(error, AliasUnknown)

    def refused(self, error: StoreFailure, subject: str) -> StoreRefused:
        message = str(error).rpartition("; ")[0]  # without the step of the error that may end by itself
        if isinstance(error, AliasUnknown):
            return AliasMissing(f"{message}; {_next_step(INDEX_MISSING, '', subject)}", http_status=error.http_status)
        return StoreRefused(f"{message}; {_CHECK_USER}, then restart this server", http_status=error.http_status)
