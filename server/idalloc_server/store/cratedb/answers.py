"""Decodes CrateDB's HTTP answers: was it applied, can a retry succeed, what must an operator do?

After an HTTP status of 400 to 499, except 408, the statement was not applied. After any other error
it may have been. Codes:
https://cratedb.com/docs/crate/reference/en/latest/interfaces/http.html#error-codes,
docs/operations/runbook.md.
"""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from idalloc_server.domain.errors import (
    StoreAnsweredError,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
)
from idalloc_server.store.cluster.connections import one_line
from idalloc_server.store.cluster.transport import is_unauthorized

_HTTP_OK = 200
_HTTP_REQUEST_TIMEOUT = 408
_HTTP_TOO_MANY_REQUESTS = 429

# HTTP 400 and 403: an operator closed the table, or set blocks.read, .write or .read_only.
_TABLE_BLOCKED = (4007, 4032, 4033, 4034, 4035, 4036)
# HTTP 403: blocks.read_only_allow_delete, which the cluster sets while a disk is nearly full.
_DISK_NEARLY_FULL = 4037
# HTTP 404: RelationUnknown or SchemaUnknownException, also for a user without any privilege.
_TABLE_UNKNOWN = (4041, 4045)
_COLUMN_UNKNOWN = 4043
# The next steps, by the code of the error.
_STEPS = {
    **dict.fromkeys(
        _TABLE_BLOCKED,
        'run ALTER TABLE {table} SET ("blocks.read" = false, "blocks.write" = false, "blocks.read_only" = false)',
    ),
    **dict.fromkeys(_TABLE_UNKNOWN, "restore {table}, or grant the user DQL and DML on its schema"),
    _COLUMN_UNKNOWN: "restore that column of {table}; `idalloc store repair` adds it, but without its values",
}
# HTTP 404 with code 4040: the shard is starting or moving.
_SHARD_NOT_STARTED = "IllegalIndexShardStateException"
# HTTP 409, a conflict with another client; a retry may succeed. 4091: a row with this key exists.
# 4092: another write changed the row meanwhile (its _seq_no differs). 4093: the table exists.
_CONFLICT = range(4090, 4100)

TABLE = re.compile(r'"[\w-]+"\."\w+"')
_CONSTRAINT = re.compile(r"Failed CONSTRAINT (.+?) CHECK")
_NOT_NULL = re.compile(r'"(.+)" must not be null')
_PRIVILEGE = re.compile(r"Missing '(\w+)' privilege for user '(.+)'")

Row = list[Any]
_T = TypeVar("_T")


def read_answer(host: str, status: int, content: bytes, parse: Callable[[Any], _T], statement: str) -> _T:
    """Return what ``parse`` makes of a successful answer.

    Raises:
        StoreRefused: The statement was not applied, and fails again until an operator acts.
        StoreAnsweredError: The statement was not applied, and a retry may succeed.
        StoreOutcomeUnknown: The statement may have been applied.
    """
    code: int | None = None
    text = content.decode(errors="replace")
    try:
        answer = json.loads(text)
        if status == _HTTP_OK:
            return parse(answer)
        code, text = int(answer["error"]["code"]), str(answer["error"]["message"])
    except (ValueError, LookupError, TypeError):
        pass  # plain text: a failed authentication, or an answer of a proxy
    message = f"CrateDB at {host} answered {status}{f' ({code})' if code else ''}: {one_line(text)}"
    # 408: a load balancer stopped waiting, after it forwarded the statement. 503: the node gave up
    # after retries, and one of them may have reached the shard.
    if not 400 <= status < 500 or status == _HTTP_REQUEST_TIMEOUT:
        raise StoreOutcomeUnknown(message, code=code, http_status=status)
    failure = StoreAnsweredError(message, code=code, http_status=status)
    raise failure if may_be_starting(failure) or _may_recover(failure) else refused(failure, statement)


def may_be_starting(error: StoreFailure) -> bool:
    """Whether a node that has not loaded the cluster's tables and users yet may answer this.

    A restarted node was seen to answer 404 for an existing table, and 401 for a right password, for
    8 s.
    """
    return error.code in _TABLE_UNKNOWN or is_unauthorized(error)


def may_answer_soon(error: StoreAnsweredError) -> bool:
    """Whether the cause may end by itself within seconds, as while the cluster fails over."""
    return error.code not in (_DISK_NEARLY_FULL, *_CONFLICT)


def refused(failure: StoreFailure, statement: str) -> StoreRefused:
    """Return the error as one that needs an operator, with the next step."""
    found = TABLE.search(statement)
    message = f"{failure}; {_next_step(failure, found[0] if found else 'the table')}"
    return StoreRefused(message, code=failure.code, http_status=failure.http_status)


def rows(answer: Any) -> list[Row]:
    """Return the rows of an answer."""
    found = answer["rows"]
    if not isinstance(found, list):
        raise TypeError("rows")
    return found


def version(answer: Any) -> str:
    """Return the version in the answer to ``GET /``."""
    return str(answer["version"]["number"])


def _may_recover(failure: StoreAnsweredError) -> bool:
    # An answer without a code is from a proxy in front of CrateDB, which may be starting.
    return (
        failure.code is None
        or failure.code in (_DISK_NEARLY_FULL, *_CONFLICT)
        or failure.http_status == _HTTP_TOO_MANY_REQUESTS
        or _SHARD_NOT_STARTED in str(failure)
    )


def _next_step(failure: StoreFailure, table: str) -> str:
    text = str(failure)
    if is_unauthorized(failure):
        return "check the user and the password or jwt of the URL, then restart this server"
    if found := _PRIVILEGE.search(text):
        schema = table.partition(".")[0]
        return f'run GRANT {found[1]} ON SCHEMA {schema} TO "{found[2]}"'
    if failure.code in _TABLE_BLOCKED and "closed" in text:
        return f"run ALTER TABLE {table} OPEN"
    if step := _STEPS.get(failure.code or 0):
        return step.format(table=table)
    if found := _CONSTRAINT.search(text):
        return f'run ALTER TABLE {table} DROP CONSTRAINT "{found[1]}"'
    if found := _NOT_NULL.search(text):
        return f"run ALTER TABLE {table} ALTER COLUMN {quoted(found[1])} SET DEFAULT with a value of that column"
    return f"remove the cause that CrateDB names from {table}"


def quoted(column: str) -> str:
    """Return a column's name quoted for SQL, such as ``"meta"['owner']`` for ``meta['owner']``."""
    name, bracket, rest = column.partition("[")
    return f'"{name}"{bracket}{rest}'
