"""The HTTP transport to CrateDB: statements over ``POST /_sql``."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from idalloc_server.domain.errors import StoreFailure, StoreRefused
from idalloc_server.store.cratedb import answers
from idalloc_server.store.cratedb.answers import Row
from idalloc_server.store.hosts import Host
from idalloc_server.store.transport import HostTimeouts, Request, Transport

__all__ = ["CrateHttp", "HostTimeouts"]

_T = TypeVar("_T")


class CrateHttp(Transport):
    """Sends statements to one of several hosts; see ``Transport``.

    A node without a master answers ``GET /`` with 503. A probe then sends the statement of ``set_probe``.
    """

    PRODUCT = "CrateDB"
    PORT = 4200
    ALIVE = Request("GET", "/", None, partial(answers.read_answer, parse=answers.version, statement=""))

    _probe_request: Request[list[Row]] | None = None

    def set_probe(self, statement: str, *arguments: object) -> None:
        """Sets the statement of later probes: a host that returns no rows for it does not serve."""
        self._probe_request = _sql(statement, arguments)

    async def write(self, statement: str, *arguments: object, may_fail_over: bool = True) -> list[Row]:
        """Sends a write; see ``Transport.send_write``. A host that knows no table or user yet did not apply it.

        Returns:
            The rows of the RETURNING clause.

        Raises:
            StoreFailure: As ``Transport.send_write``.
        """
        return await self.send_write(_sql(statement, arguments), may_fail_over=may_fail_over)

    async def write_each(self, statement: str, arguments: Sequence[Sequence[object]]) -> int:
        """Sends a write without RETURNING, to be run with each list of arguments, once and to one host only.

        Returns:
            How many of the runs changed a row; the others failed, or found no row.

        Raises:
            StoreFailure: As ``write``.
        """
        body = {"stmt": statement, "bulk_args": arguments}
        results = await self.send_write(_request(statement, body, _results), may_fail_over=False)
        return sum(result["rowcount"] == 1 for result in results)

    async def read(self, statement: str, *arguments: object) -> list[Row]:
        """Sends a statement that changes nothing; see ``Transport.send_read``."""
        return await self.send_read(_sql(statement, arguments))

    async def version(self) -> str:
        """Returns the CrateDB version of the first host that answers; the user needs no privilege.

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
        if self._probe_request and not await self._exchange(host, self._probe_request):
            raise StoreRefused(
                f"CrateDB at {host.name} does not know idalloc's tables; restore them, or grant the user DQL and "
                "DML on their schema"
            )


def _results(answer: Any) -> list[Any]:
    return list(answer["results"])


def _sql(statement: str, arguments: Sequence[object]) -> Request[list[Row]]:
    return _request(statement, {"stmt": statement, "args": arguments}, answers.rows)


def _request(statement: str, body: object, parse: Callable[[Any], _T]) -> Request[_T]:
    read = partial(answers.read_answer, parse=parse, statement=statement)
    return Request("POST", "/_sql", json.dumps(body).encode(), read, statement)
