"""CrateDB's answers: their content, and what an error means for the statement and for the operator.

docs/runbook.md lists which errors recover by themselves. The answers were recorded from a CrateDB 6.4.3.
"""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from idalloc_server.domain.errors import (
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreRejected,
    StoreUnreachable,
)

_HTTP_OK = 200
_HTTP_UNAUTHORIZED = 401
_HTTP_REQUEST_TIMEOUT = 408
_HTTP_TOO_MANY_REQUESTS = 429
# RelationUnknown and SchemaUnknownException.
_NO_SUCH_TABLE = (4041, 4045)
_MISSING_PRIVILEGE = 4011
_COLUMN_UNKNOWN = 4043
# blocks.read_only_allow_delete: the cluster sets it when a disk is nearly full, and removes it when there is room.
_NO_ROOM = 4037
# The table is blocked or closed; CrateDB says the same in two ways.
_BLOCKED = (4007, 4032, 4033, 4034, 4035, 4036)
_CONFLICTS = range(4090, 4100)
_LONGEST_MESSAGE = 300

_TABLE = re.compile(r'"[\w-]+"\."\w+"')
_CONSTRAINT = re.compile(r"Failed CONSTRAINT (.+?) CHECK")
_NOT_NULL = re.compile(r'"(.+)" must not be null')
_PRIVILEGE = re.compile(r"Missing '(\w+)' privilege for user '(.+)'")

Row = list[Any]
_T = TypeVar("_T")


def read_answer(host: str, status: int, content: bytes, parse: Callable[[Any], _T], statement: str) -> _T:
    """Returns what an answer says.

    Args:
        host: Who answered.
        status: The HTTP status.
        content: The body.
        parse: Reads the JSON of a good answer.
        statement: What was sent.

    Raises:
        StoreRefused: The statement was not applied, and fails again until an operator acts.
        StoreRejected: It was not applied, and may succeed later.
        StoreOutcomeUnknown: It may have been applied.
    """
    code: int | None = None
    text = content.decode(errors="replace")
    try:
        answer = json.loads(text)
        if status == _HTTP_OK:
            return parse(answer)
        code, text = int(answer["error"]["code"]), str(answer["error"]["message"])
    except (ValueError, KeyError, TypeError):
        pass  # authentication, and whatever stands before CrateDB, answer in plain text
    message = f"CrateDB at {host} answered {status}{f' ({code})' if code else ''}: {one_line(text)}"
    # A balancer's 408 says that it lost patience, not that nothing was passed on. A 503 is no refusal either: the
    # node that answers it has tried, and its tries may have reached the shard.
    if not 400 <= status < 500 or status == _HTTP_REQUEST_TIMEOUT:
        raise StoreOutcomeUnknown(message, code=code, http_status=status)
    rejected = StoreRejected(message, code=code, http_status=status)
    raise rejected if may_be_starting(rejected) or _recovers(rejected) else refused(rejected, statement)


def may_be_starting(error: StoreFailure) -> bool:
    """Whether a host may answer this only because it has not loaded the cluster's tables and users yet.

    Measured on a restart: 404 for a table that is there, and 401 for a right password, for 8 s.
    """
    return error.code in _NO_SUCH_TABLE or is_unauthorized(error)


def is_unauthorized(error: StoreFailure) -> bool:
    """Whether a host does not know the user, or its password or token is wrong."""
    return error.http_status == _HTTP_UNAUTHORIZED and error.code is None


def refused(rejected: StoreFailure, statement: str) -> StoreRefused:
    """Returns the same error as one that needs an operator, with the next step."""
    found = _TABLE.search(statement)
    message = f"{rejected}; {_next_step(rejected, found[0] if found else 'the table')}"
    return StoreRefused(message, code=rejected.code, http_status=rejected.http_status)


def of_read(failure: StoreFailure) -> StoreFailure:
    """Returns the failure of a request that changes nothing, and so has no outcome to be unsure of."""
    if not isinstance(failure, StoreOutcomeUnknown):
        return failure
    kind = StoreUnreachable if failure.http_status is None else StoreRejected
    return kind(str(failure), code=failure.code, http_status=failure.http_status)


def rows(answer: Any) -> list[Row]:
    """Returns the rows of an answer."""
    found = answer["rows"]
    if not isinstance(found, list):
        raise TypeError("rows")
    return found


def version(answer: Any) -> str:
    """Returns the version in the answer to ``GET /``."""
    return str(answer["version"]["number"])


def one_line(what: object) -> str:
    """Returns the beginning of a text, without line breaks."""
    text = " ".join(str(what).split()) or type(what).__name__
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


def _recovers(rejected: StoreRejected) -> bool:
    # An answer without a code is from a proxy in front of CrateDB, which may be starting too.
    return (
        rejected.code is None
        or rejected.code in (_NO_ROOM, *_CONFLICTS)
        or rejected.http_status == _HTTP_TOO_MANY_REQUESTS
    )


def _next_step(rejected: StoreFailure, table: str) -> str:
    text = str(rejected)
    if is_unauthorized(rejected):
        return "check the user and the password or jwt of the setting store, then restart this server"
    if found := _PRIVILEGE.search(text):
        schema = table.partition(".")[0]
        return f'run GRANT {found[1]} ON SCHEMA {schema} TO "{found[2]}"'
    if rejected.code in _NO_SUCH_TABLE:
        return f"restore {table}, or grant the user DQL and DML on its schema"
    if rejected.code == _COLUMN_UNKNOWN:
        return f"restore that column of {table}: a restart of this server adds it, but without its values"
    if rejected.code in _BLOCKED and "closed" in text:
        return f"run ALTER TABLE {table} OPEN"
    if rejected.code in _BLOCKED:
        blocks = ", ".join(f'"blocks.{name}" = false' for name in ("read", "write", "read_only"))
        return f"run ALTER TABLE {table} SET ({blocks})"
    if found := _CONSTRAINT.search(text):
        return f'run ALTER TABLE {table} DROP CONSTRAINT "{found[1]}"'
    if found := _NOT_NULL.search(text):
        return f"run ALTER TABLE {table} ALTER COLUMN {quoted(found[1])} SET DEFAULT with a value of that column"
    return f"remove the cause that CrateDB names from {table}"


def quoted(column: str) -> str:
    """Returns a column's name as SQL takes it, such as ``"meta"['owner']`` for ``meta['owner']``."""
    name, bracket, rest = column.partition("[")
    return f'"{name}"{bracket}{rest}'
