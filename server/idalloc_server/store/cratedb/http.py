"""The HTTP transport to CrateDB: statements over ``POST /_sql``."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreRefused
from idalloc_server.domain.store.exchange import StoreExchanged
from idalloc_server.store.cluster.connections import Request, WrongAnswer
from idalloc_server.store.cluster.hosts import Host
from idalloc_server.store.cluster.transport import Transport
from idalloc_server.store.cluster.write_mark import WriteMark
from idalloc_server.store.cratedb import answers
from idalloc_server.store.cratedb.answers import Row

_T = TypeVar("_T")


_CLUSTER = "SELECT id FROM sys.cluster"
_NO_CLUSTER = "_na_"
_SHARDS = "SELECT number_of_shards FROM information_schema.tables WHERE table_schema = ? AND table_name = ?"


class _OpenedTable(NamedTuple):
    """A table as this process opened it."""

    oid: int
    # The number of its last write. None for a table of several shards, each with own numbers.
    mark: WriteMark | None


class CrateHttp(Transport):
    """Sends statements to one of several hosts; see ``Transport``.

    A node without a master answers ``GET /`` with 503. A probe then sends the statement of
    ``set_probe``.
    """

    PRODUCT = "CrateDB"
    PORT = 4200
    ALIVE = Request("GET", "/", None, partial(answers.read_answer, parse=answers.version, statement=""))

    _serving: tuple[str, Sequence[object]] | None = None
    _cluster = ""
    _tables: Mapping[str, "_OpenedTable"] = MappingProxyType({})

    def set_probe(self, statement: str, *arguments: object) -> None:
        """Set the statement of later probes: a host that returns no rows for it does not serve."""
        self._serving = (statement, arguments)

    async def open_cluster(self) -> None:
        """Keep the id of the cluster. Later connections to another one are refused."""
        ((found,),) = await self.read(_CLUSTER)
        body = {"stmt": _CLUSTER, "args": []}
        parse = partial(_check_cluster, opened=found)
        parse({"rows": [[found]]})
        self._cluster = found
        self.set_identity_check(_request(_CLUSTER, body, parse))

    async def open_table(self, schema: str, name: str) -> None:
        """Keep the identity of a table. Later rows of another one under its name are refused.

        CrateDB 6.3 and newer gives each new table of a cluster an OID of its own; that of an older
        table depends on its name only.
        """
        reference = f'"{schema}"."{name}"'
        ((oid,),) = await self.read(f"SELECT {_oid_of(reference)}")
        ((shards,),) = await self.read(_SHARDS, schema, name)
        mark = WriteMark(f"the table {reference}") if int(shards) == 1 else None
        self._tables = {**self._tables, reference: _OpenedTable(int(oid), mark)}

    @property
    def opened(self) -> dict[str, str]:
        """The ids of the cluster and of the opened tables."""
        tables = {f"OID of {reference}": str(table.oid) for reference, table in self._tables.items()}
        return {"cluster id": self._cluster, **tables}

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

    async def version(self) -> str:
        """Return the CrateDB version of the first host that answers; the user needs no privilege.

        Raises:
            StoreUnreachable: No host answered.
            StoreAnsweredError: A host answered with an error, or is not CrateDB.
        """
        return await self.send_read(self.ALIVE)

    def may_be_starting(self, error: StoreFailure) -> bool:
        """See ``Transport.may_be_starting``."""
        return answers.may_be_starting(error)

    def refused(self, error: StoreFailure, subject: str) -> StoreRefused:
        """See ``Transport.refused``."""
        return answers.refused(error, subject)

    async def check_serves(self, host: Host) -> None:
        """See ``Transport.check_serves``."""
        if self._serving and not await self._connections.exchange(host, self._sql(*self._serving)):
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
        found = answers.TABLE.search(statement)
        reference = found[0] if found else ""
        table = self._tables.get(reference)
        ties = nonce if table is None else f"{nonce}, {_oid_of(reference)}"
        floor = table.mark.floor() if table and table.mark else None
        if statement.startswith("SELECT "):
            tied = f"SELECT {ties}, {statement.removeprefix('SELECT ')}"
            floor = None
        elif " RETURNING " in statement:
            numbered = "" if floor is None else "_seq_no, "
            tied = statement.replace(" RETURNING ", f" RETURNING {ties}, {numbered}")
        else:
            return _request(statement, {"stmt": statement, "args": arguments}, answers.rows)
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
    ((found,),) = answers.rows(answer)
    if found == _NO_CLUSTER:
        raise StoreAnsweredError(
            "this node of CrateDB has not joined its cluster yet; start the others", http_status=503
        )
    if found != opened:
        raise StoreExchanged(f"the cluster {opened}", f"the cluster {found}")


def _tied_rows(answer: Any, nonce: str, reference: str, table: _OpenedTable | None, floor: int | None) -> list[Row]:
    """Return the rows of a tied answer, without what ties them."""
    rows, cols = answers.rows(answer), answer["cols"]
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
    read = partial(answers.read_answer, parse=parse, statement=statement)
    return Request("POST", "/_sql", json.dumps(body).encode(), read, statement)
