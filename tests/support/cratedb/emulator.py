"""An emulator of CrateDB's HTTP endpoint, for tests without a CrateDB. It fails as a real CrateDB
does, on request.

In a test::

    async with CrateEmulator() as crate:
        store = open_store(f"crate://{crate.host}/", clock)
        crate.inject(Fault("drop", match="UPDATE"))

As a process, which prints its URL and accepts faults as JSON at ``POST /_emulator/faults``::

    python -m tests.support.cratedb.emulator --port 4200 --file state.db
"""

import argparse
import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

from tests.support.cratedb.refusals import SqlError, UnknownStatement
from tests.support.cratedb.statements import Statements, without_ties
from tests.support.http_emulator import HttpEmulator, HttpFault
from tests.support.waiting import hold_for_async


@dataclass
class Fault(HttpFault):
    """A fault in the next statements."""

    # ``drop``: the connection is closed without an answer; ``reset``: the same by RST; ``hang``:
    # there is no answer; ``delay``: the answer is late; ``duplicate``: the statement is applied
    # twice, and the second answer is sent; ``partial``: an INSERT writes each second row only;
    # ``error``: the answer is an error; ``garbage``: the answer is not JSON.
    kind: Literal["drop", "reset", "hang", "delay", "duplicate", "partial", "error", "garbage"]
    # Whether the statement is applied, for ``drop``, ``reset``, ``hang`` and ``garbage``.
    applied: bool = True
    code: int = 5031  # CrateDB's code of the error; 0 for an answer in plain text
    # The message of the error.
    message: str = "ClusterBlockException[blocked by: [MASTER_NOT_DISCOVERED/2/no master];]"


class CrateEmulator(HttpEmulator[Fault]):
    """A cluster with any number of ports. The text of a request is its statement.

    Args:
        file: The SQLite file of the tables; in memory by default.
        tls: The TLS context of the server; None for plain HTTP.
    """

    def __init__(self, file: str = ":memory:", tls: ssl.SSLContext | None = None) -> None:
        # Executes the statements; has the clock, the versions and the denied privileges.
        self.statements = Statements(file)
        # What other clients do before the next statement that contains a text, in this order.
        self.meanwhile: list[tuple[str, Callable[[], Awaitable[object]]]] = []
        app = web.Application(client_max_size=100 * 2**20)
        app.router.add_get("/", self._root)
        app.router.add_post("/_sql", self._sql)
        app.router.add_post("/_emulator/faults", self._add_faults)
        super().__init__(web.AppRunner(app, shutdown_timeout=0.1), tls)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self.statements.close()

    def writes(self) -> list[str]:
        """Return the received statements except SELECT."""
        return [statement for _, statement in self.requests if not statement.startswith("SELECT")]

    async def _root(self, request: web.Request) -> web.StreamResponse:
        if not self._is_authorized(request):
            return _unauthorized()
        version = {"number": self.statements.versions[0], "build_snapshot": False}
        answer = {"ok": True, "status": 200, "name": "emulator", "cluster_name": "emulator", "version": version}
        return web.json_response(answer)

    async def _sql(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        # What faults and tests compare is the statement without its ties.
        statement, args = without_ties(str(body["stmt"]))[0], body.get("args") or []
        self._keep(request, statement)
        if not self._is_authorized(request):
            return _unauthorized()
        if self.meanwhile and self.meanwhile[0][0] in statement:
            await self.meanwhile.pop(0)[1]()
        fault = self._pop_fault(request, statement)
        if fault is None:
            return self._execute(str(body["stmt"]), args, body)
        return await self._fail(fault, request, str(body["stmt"]), args, body)

    def _execute(self, statement: str, args: list[Any], body: dict[str, Any]) -> web.Response:
        try:
            if "bulk_args" in body:
                if statement.startswith("DELETE"):
                    return web.json_response(self._delete_each(statement, body["bulk_args"]))
                if statement.startswith("INSERT") and "RETURNING" not in statement:
                    answer = self.statements.insert_each(statement, body["bulk_args"])
                    return web.json_response({**answer, "duration": 0.1})
                if "RETURNING" not in statement:
                    raise UnknownStatement("bulk_args")
                message = "UnsupportedFeatureException[Bulk operations for statements that return result sets"
                raise SqlError(400, 4004, f"{message} is not supported]")
            answer = self.statements.execute(statement, args)
        except SqlError as error:
            return _error(error.status, error.code, str(error))
        except UnknownStatement as error:
            self.unknown.append(f"{statement}: {error}")
            return _error(500, 5000, f"the emulator does not know this statement: {error}")
        return web.json_response({**answer, "duration": 0.1})

    def _delete_each(self, statement: str, rows: list[list[Any]]) -> dict[str, Any]:
        """Answer as CrateDB 6.4.3: with versions, a row that is missing or has another one is a
        version conflict.
        """
        results: list[dict[str, Any]] = []
        for row in rows:
            error = {"code": 4092, "message": "VersionConflictEngineException[version conflict]"}
            if len(row) == 1:
                error = {"code": 40411, "message": f"DocumentMissingException[[{row[0]}]: document missing]"}
            is_deleted = self.statements.execute(statement, row)["rowcount"]
            results.append({"rowcount": 1} if is_deleted else {"rowcount": -2, "error": error})
        return {"cols": [], "duration": 0.1, "results": results}

    async def _fail(
        self, fault: Fault, request: web.Request, statement: str, args: list[Any], body: dict[str, Any]
    ) -> web.StreamResponse:
        if fault.kind == "delay":
            await hold_for_async(fault.seconds, "the fault's delay")
            return self._execute(statement, args, body)
        if fault.kind == "duplicate":
            self._execute(statement, args, body)
            return self._execute(statement, args, body)
        if fault.kind == "partial" and "bulk_args" not in body:
            return self._execute(statement, [column[::2] for column in args], body)
        if fault.kind == "partial":
            written = iter(self.statements.insert_each(statement, body["bulk_args"][::2])["results"])
            refused = {"rowcount": -2, "error": {"code": 5002, "message": "UnavailableShardsException[…]"}}
            rows = [refused if number % 2 else next(written) for number in range(len(body["bulk_args"]))]
            return web.json_response({"cols": [], "results": rows, "duration": 0.1})
        if fault.kind == "error":
            return _error(fault.status, fault.code, fault.message)
        if fault.applied:
            self._execute(statement, args, body)
        if fault.kind == "garbage":
            return web.Response(text="<html>")
        return await self._end(request, fault)

    async def _add_faults(self, request: web.Request) -> web.Response:
        for fault in await request.json():
            self.inject(Fault(**fault))
        return web.json_response([dataclasses.asdict(fault) for fault in self._faults])


def _unauthorized() -> web.Response:
    return web.Response(status=401, text="password authentication failed for user")


def _error(status: int, code: int, message: str) -> web.Response:
    if not code:
        return web.Response(status=status, text=message, headers={"Location": "/_sql"} if status < 400 else {})
    return web.json_response({"error": {"message": message, "code": code}}, status=status)


async def _serve(port: int, file: str) -> None:
    emulator = CrateEmulator(file)
    await emulator._runner.setup()
    print(f"crate://127.0.0.1:{await emulator.listen(port)}/", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0 for any")
    parser.add_argument("--file", default=":memory:", help="the SQLite file of the tables")
    chosen = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(chosen.port, chosen.file))
