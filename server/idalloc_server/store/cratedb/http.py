"""The HTTP transport to CrateDB: statements over ``POST /_sql``, and what their answers mean.

After an HTTP status of 400 to 499, except 408, the statement was not applied. After any other error
it may have been. Codes:
https://cratedb.com/docs/crate/reference/en/latest/interfaces/http.html#error-codes,
docs/operations/runbook.md.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from idalloc_server.domain.errors import (
    StoreAnsweredError,
    StoreExchanged,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
)
from idalloc_server.store.cluster.hosts import Host
from idalloc_server.store.cluster.http_connections import Request, WrongAnswer, one_line
from idalloc_server.store.cluster.http_transport import Transport, is_unauthorized
from idalloc_server.store.cluster.write_mark import WriteMark

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

_CLUSTER = "SELECT id FROM sys.cluster"
_NO_CLUSTER = "_na_"
_SHARDS = "SELECT number_of_shards FROM information_schema.tables WHERE table_schema = ? AND table_name = ?"

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
        code = int(answer["error"]["code"])
        text = str(answer["error"]["message"])
    except (ValueError, LookupError, TypeError):
        pass  # plain text: a failed authentication, or an answer of a proxy
    message = f"CrateDB at {host} answered {status}{f' ({code})' if code else ''}: {one_line(text)}"
    # 408: a load balancer stopped waiting, after it forwarded the statement. 503: the node gave up
    # after retries, and one of them may have reached the shard.
    if not 400 <= status < 500 or status == _HTTP_REQUEST_TIMEOUT:
        raise StoreOutcomeUnknown(message, code=code, http_status=status)
    failure = StoreAnsweredError(message, code=code, http_status=status)
    may_recover = (
        code is None  # of a proxy in front of CrateDB, which may be starting
        or code in (_DISK_NEARLY_FULL, *_CONFLICT)
        or status == _HTTP_TOO_MANY_REQUESTS
        or _SHARD_NOT_STARTED in message
    )
    raise failure if may_recover or may_be_starting(failure) else refused(failure, statement)


def may_be_starting(error: StoreFailure) -> bool:
    """Whether a node that has not loaded the cluster's tables and users yet may answer this.

    A restarted node was seen to answer 404 for an existing table, and 401 for a right password, for
    8 s.
    """
    return error.code in _TABLE_UNKNOWN or is_unauthorized(error)


def may_answer_soon(error: StoreAnsweredError) -> bool:
    """Whether the cause may end by itself within seconds, as while the cluster fails over."""
    return error.code not in (_DISK_NEARLY_FULL, *_CONFLICT)


def refused(error: StoreFailure, subject: str) -> StoreRefused:
    """Return the error as one that needs an operator; the next step names the subject's table."""
    found = TABLE.search(subject)
    message = f"{error}; {_next_step(error, found[0] if found else 'the table')}"
    return StoreRefused(message, code=error.code, http_status=error.http_status)


def _rows(answer: Any) -> list[Row]:
    """Return the rows of an answer."""
    found = answer["rows"]
    if not isinstance(found, list):
        raise TypeError("rows")
    return found


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


class _OpenedTable(NamedTuple):
    """A table as this process opened it."""

    oid: int
    # The number of its last write. None for a table of several shards, each with own numbers.
    mark: WriteMark | None


class CrateHttp(Transport):
    """Sends statements to one of several hosts; see ``Transport``.

    A node without a master answers ``GET /`` with 503. A probe then sends the statement of
    ``serving``.
    """

    PRODUCT = "CrateDB"
    PORT = 4200
    # Its answer has the version of the host; the user needs no privilege.
    ALIVE = Request(
        "GET", "/", None, partial(read_answer, parse=lambda answer: str(answer["version"]["number"]), statement="")
    )

    # A statement and its arguments. A host that returns no rows for it does not serve.
    serving: tuple[str, Sequence[object]] | None = None
    cluster = ""  # its id, once it is open
    tables: Mapping[str, _OpenedTable] = MappingProxyType({})  # the opened ones by reference

    async def open_cluster(self) -> None:
        """Keep the id of the cluster. Later connections to another one are refused."""
        ((found,),) = await self.read(_CLUSTER)
        body = {"stmt": _CLUSTER, "args": []}
        parse = partial(_check_cluster, opened=found)
        parse({"rows": [[found]]})
        self.cluster = found
        self.connections.identity_check = _request(_CLUSTER, body, parse)

    async def open_table(self, schema: str, name: str) -> None:
        """Keep the identity of a table. Later rows of another one under its name are refused.

        CrateDB 6.3 and newer gives each new table of a cluster an OID of its own; that of an older
        table depends on its name only.
        """
        reference = f'"{schema}"."{name}"'
        ((oid,),) = await self.read(f"SELECT {_oid_of(reference)}")
        ((shards,),) = await self.read(_SHARDS, schema, name)
        mark = WriteMark(f"the table {reference}") if int(shards) == 1 else None
        self.tables = {**self.tables, reference: _OpenedTable(int(oid), mark)}

    async def write(self, statement: str, *arguments: object, may_fail_over: bool = True) -> list[Row]:
        """Send a write; see ``Transport.send_write``.

        A host that knows no table or user yet did not apply it.

        Returns:
            The rows of the RETURNING clause.

        Raises:
            StoreFailure: As ``Transport.send_write``.
        """
        return await self.send_write(self._sql(statement, arguments), may_fail_over=may_fail_over)

    async def write_each(self, statement: str, arguments: Sequence[Sequence[object]]) -> int:
        """Run a write without RETURNING once with each list of arguments, on one host only.

        Returns:
            How many of the runs changed a row; the others failed, or found no row.

        Raises:
            StoreFailure: As ``write``.
        """
        body = {"stmt": statement, "bulk_args": arguments}
        parse = partial(_results, count=len(arguments))
        results = await self.send_write(_request(statement, body, parse), may_fail_over=False)
        return sum(result["rowcount"] == 1 for result in results)

    async def read(self, statement: str, *arguments: object) -> list[Row]:
        """Send a statement that changes nothing; see ``Transport.send_read``."""
        return await self.send_read(self._sql(statement, arguments))

    may_be_starting = staticmethod(may_be_starting)
    refused = staticmethod(refused)

    async def check_serves(self, host: Host) -> None:
        if self.serving and not await self.connections.exchange(host, self._sql(*self.serving)):
            raise StoreRefused(
                f"CrateDB at {host.name} does not know idalloc's tables; restore them, or grant the user DQL and "
                "DML on their schema"
            )

    def _sql(self, statement: str, arguments: Sequence[object]) -> Request[list[Row]]:
        """Return the request of a statement, tied to its answer by literals that CrateDB returns.

        The answer repeats a text that no other request has, and the OID of the table; that of a
        write has the number of the write, too. A statement without rows cannot.

        Raises:
            StoreExchanged: The table repeated a number before.
        """
        nonce = f"'{secrets.token_hex(8)}'"
        found = TABLE.search(statement)
        reference = found[0] if found else ""
        table = self.tables.get(reference)
        ties = nonce if table is None else f"{nonce}, {_oid_of(reference)}"
        floor = table.mark.floor() if table and table.mark else None
        if statement.startswith("SELECT "):
            tied = f"SELECT {ties}, {statement.removeprefix('SELECT ')}"
            floor = None
        elif " RETURNING " in statement:
            numbered = "" if floor is None else "_seq_no, "
            tied = statement.replace(" RETURNING ", f" RETURNING {ties}, {numbered}")
        else:
            return _request(statement, {"stmt": statement, "args": arguments}, _rows)
        parse = partial(_tied_rows, nonce=nonce, reference=reference, table=table, floor=floor)
        return _request(statement, {"stmt": tied, "args": arguments}, parse)


def _results(answer: Any, count: int) -> list[Any]:
    results = list(answer["results"])
    if len(results) != count:
        raise WrongAnswer(f"about {len(results)} rows in place of {count}")
    return results


def _oid_of(reference: str) -> str:
    return f"'{reference}'::regclass::integer"


def _check_cluster(answer: Any, opened: str) -> None:
    ((found,),) = _rows(answer)
    if found == _NO_CLUSTER:
        raise StoreAnsweredError(
            "this node of CrateDB has not joined its cluster yet; start the others", http_status=503
        )
    if found != opened:
        raise StoreExchanged(f"the cluster {opened}", f"the cluster {found}")


def _tied_rows(answer: Any, nonce: str, reference: str, table: _OpenedTable | None, floor: int | None) -> list[Row]:
    """Return the rows of a tied answer, without what ties them."""
    rows = _rows(answer)
    cols = answer["cols"]
    if cols[:1] != [nonce]:
        raise WrongAnswer("to another statement")
    if table is None:
        return [row[1:] for row in rows]
    # Without rows the column's name has the OID: CrateDB computes it before it executes.
    found = {str(row[1]) for row in rows} or {cols[1]}
    if any(each != str(table.oid) for each in found if each.lstrip("-").isdecimal()):
        raise StoreExchanged(f"the table {reference} with the OID {table.oid}", f"one with the OID {', '.join(found)}")
    if floor is None or table.mark is None:
        return [row[2:] for row in rows]
    for row in rows:
        table.mark.accept(row[2], floor)
    return [row[3:] for row in rows]


def _request(statement: str, body: object, parse: Callable[[Any], _T]) -> Request[_T]:
    read = partial(read_answer, parse=parse, statement=statement)
    return Request("POST", "/_sql", json.dumps(body).encode(), read=read, subject=statement)
