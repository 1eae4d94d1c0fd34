"""The HTTP transport to CrateDB: statements over ``POST /_sql``."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from idalloc_server.domain.errors import StoreFailure, StoreRefused
from idalloc_server.domain.store.exchange import StoreExchanged
from idalloc_server.store.cluster.connections import Request, WrongAnswer
from idalloc_server.store.cluster.hosts import Host
from idalloc_server.store.cluster.transport import Transport
from idalloc_server.store.cratedb import answers
from idalloc_server.store.cratedb.answers import Row

_T = TypeVar("_T")


class CrateHttp(Transport):
    """Sends statements to one of several hosts; see ``Transport``.

    A node without a master answers ``GET /`` with 503. A probe then sends the statement of
    ``set_probe``.
    """

    PRODUCT = "CrateDB"
    PORT = 4200
    ALIVE = Request("GET", "/", None, partial(answers.read_answer, parse=answers.version, statement=""))

    _serving: tuple[str, Sequence[object]] | None = None
    _oids: Mapping[str, int] = MappingProxyType({})

    def set_probe(self, statement: str, *arguments: object) -> None:
        """Set the statement of later probes: a host that returns no rows for it does not serve."""
        self._serving = (statement, arguments)

    async def open_table(self, reference: str) -> None:
        """Keep the identity of a table. Later rows of another one under its name are refused.

        CrateDB 6.3 and newer gives each new table an OID of its own; that of an older table depends
        on its name only.
        """
        ((oid,),) = await self.read(f"SELECT {_oid_of(reference)}")
        self._oids = {**self._oids, reference: int(oid)}

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

        The answer repeats a text that no other request has, and the OID of the table. A statement
        without rows cannot.
        """
        nonce = f"'{secrets.token_hex(8)}'"
        found = answers.TABLE.search(statement)
        reference = found[0] if found else ""
        oid = self._oids.get(reference)
        ties = nonce if oid is None else f"{nonce}, {_oid_of(reference)}"
        if statement.startswith("SELECT "):
            tied = f"SELECT {ties}, {statement.removeprefix('SELECT ')}"
        elif " RETURNING " in statement:
            tied = statement.replace(" RETURNING ", f" RETURNING {ties}, ")
        else:
            return _request(statement, {"stmt": statement, "args": arguments}, answers.rows)
        parse = partial(_tied_rows, nonce=nonce, reference=reference, oid=oid)
        return _request(statement, {"stmt": tied, "args": arguments}, parse)


def _results(answer: Any, count: int) -> list[Any]:
    results = list(answer["results"])
    if len(results) != count:
        raise WrongAnswer(f"about {len(results)} rows in place of {count}")
    return results


def _oid_of(reference: str) -> str:
    return f"'{reference}'::regclass::integer"


def _tied_rows(answer: Any, nonce: str, reference: str, oid: int | None) -> list[Row]:
    """Return the rows of a tied answer, without what ties them."""
    rows, cols = answers.rows(answer), answer["cols"]
    if cols[:1] != [nonce]:
        raise WrongAnswer("to another statement")
    if oid is None:
        return [row[1:] for row in rows]
    # Without rows the column's name has the OID: CrateDB computes it before it executes.
    found = {str(row[1]) for row in rows} or {cols[1]}
    if any(each != str(oid) for each in found if each.lstrip("-").isdecimal()):
        raise StoreExchanged(f"the table {reference} with the OID {oid}", f"one with the OID {', '.join(found)}")
    return [row[2:] for row in rows]


def _request(statement: str, body: object, parse: Callable[[Any], _T]) -> Request[_T]:
    read = partial(answers.read_answer, parse=parse, statement=statement)
    return Request("POST", "/_sql", json.dumps(body).encode(), read, statement)
