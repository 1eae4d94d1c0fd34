"""The way to CrateDB: its HTTP endpoint, with nothing that sends a statement twice.

Every connection is a session of its own that knows no other, so that one can be dropped without touching the rest:
after an error a statement may be left queued on a CrateDB connection, and would run with the next one there.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp

from idalloc_server.domain.errors import (
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreRejected,
    StoreUnreachable,
)
from idalloc_server.store.cratedb import answers
from idalloc_server.store.cratedb.answers import Row, is_unauthorized, may_be_starting, of_read, one_line, refused
from idalloc_server.store.hosts import Host, Hosts

_HTTP_UNAVAILABLE = 503

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Request(Generic[_T]):
    """What is sent to a host.

    Attributes:
        statement: The statement; empty for ``GET /``.
        body: Its body.
        parse: Reads the JSON of a good answer.
    """

    statement: str
    body: bytes | None
    parse: Callable[[Any], _T]


_SEE_ALIVE = _Request("", None, answers.version)


class HostTimeouts(NamedTuple):
    """How long ``CrateHttp`` waits for a host where there is another one to go to, in seconds.

    Attributes:
        connect: For a connection. Less than ``silence``: what cannot connect was not sent, and goes to the next host.
        silence: For the answer to a write, before it is seen whether the host is alive.
        probe: For the answer that shows it, and for that to a probe, before the next host is probed too.
        read: For the answer to a read, before it goes to the next host.
        start: For a host that does not know its user, before that is no longer put down to its start.
    """

    connect: float = 1.5
    silence: float = 2.0
    probe: float = 1.0
    read: float = 3.0
    start: float = 60.0


_HOST_TIMEOUTS = HostTimeouts()


class CrateHttp:
    """Sends statements to one of several hosts.

    ``Hosts`` has the order of preference. Calls may run concurrently; those beyond ``max_connections`` wait for their
    turn. Cancelling a call closes its connection; a write that was under way may still be applied.

    While a write waits, and in a probe, a host must answer ``GET /``, which a node without a master answers with 503.
    A probe then asks for the rows of the statement given to ``require``. Neither may depend on another node: a read
    by key goes to a random copy of the table, so that a live host seems dead while the node with that copy is paused.

    Args:
        hosts: ``host:port``, in the order of preference.
        authorization: The value of the Authorization header, if any.
        tls: How to check the hosts' certificates; None for plain HTTP.
        timeout: How long to wait for an answer, in seconds.
        connect_timeout: How long to wait for a connection to the only host, in seconds.
        host_timeouts: When to go to another host, if there are several.
        max_connections: How many statements run at once.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        authorization: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 40.0,
        connect_timeout: float = 5.0,
        host_timeouts: HostTimeouts = _HOST_TIMEOUTS,
        max_connections: int = 64,
    ) -> None:
        self._hosts = Hosts(hosts)
        self._headers = {"Content-Type": "application/json"}
        if authorization is not None:
            self._headers["Authorization"] = authorization
        self._tls = tls
        self._host_timeouts = host_timeouts
        self._timeout = timeout
        connect = min(connect_timeout, host_timeouts.connect) if len(hosts) > 1 else connect_timeout
        self._timeouts = aiohttp.ClientTimeout(total=None, connect=connect, sock_read=timeout)
        self._required: _Request[list[Row]] | None = None
        self._unauthorized_since: float | None = None
        self._turns = asyncio.Semaphore(max_connections)
        self._closed = False

    def require(self, statement: str, *arguments: object) -> None:
        """Makes each probe ask for this from now on: a host that returns no rows does not serve."""
        self._required = _sql(statement, arguments)

    async def write(self, statement: str, *arguments: object, anywhere: bool = True) -> list[Row]:
        """Sends a statement once; to the next host only if this one surely did not apply it.

        That is so where no connection could be made, and where the host does not know the table or the user. Where the
        last host does not know the table and is no longer starting, it gets the statement once more.

        Args:
            statement: The statement.
            arguments: Its arguments.
            anywhere: Whether it may go to the next host after it was sent to one.

        Returns:
            The rows of its RETURNING clause.

        Raises:
            StoreUnreachable: It was sent to no host.
            StoreRejected: The host answered with an HTTP status of 400 to 499, and may do it later.
            StoreRefused: The same, and an operator must act before.
            StoreOutcomeUnknown: It was sent, and no answer, or another one, came.
        """
        return await self._write(_sql(statement, arguments), anywhere)

    async def write_each(self, statement: str, arguments: Sequence[Sequence[object]]) -> int:
        """Sends a statement without RETURNING once, to be run with each of these lists of arguments; to one host only.

        Where it changes nothing, or fails, with one of them, that one is left out.

        Returns:
            With how many of them it changed a row.

        Raises:
            StoreFailure: As ``write``.
        """
        body = json.dumps({"stmt": statement, "bulk_args": arguments}).encode()
        request: _Request[list[Any]] = _Request(statement, body, lambda answer: answer["results"])
        results = await self._write(request, anywhere=False)
        return sum(result["rowcount"] == 1 for result in results)

    async def read(self, statement: str, *arguments: object) -> list[Row]:
        """Sends a statement that changes nothing; where a host fails, to the next one.

        Raises:
            StoreUnreachable: No host answered.
            StoreRejected: A host answered with an error, and may do it later.
            StoreRefused: The same, and an operator must act before.
        """
        return await self._read(_sql(statement, arguments))

    async def version(self) -> str:
        """Returns the version of the first host that answers; needs no privilege.

        Raises:
            StoreUnreachable: No host answered.
            StoreRejected: A host answered with an error, or is no CrateDB.
        """
        return await self._read(_SEE_ALIVE)

    async def close(self) -> None:
        """Closes all idle connections; those in use close when their call ends."""
        self._closed = True
        for host in self._hosts:
            await _close_idle(host)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnreachable("the store is closed")

    async def _write(self, request: _Request[_T], anywhere: bool) -> _T:
        self._check_open()
        async with self._turns:
            for hosts_left in reversed(range(len(self._hosts) if anywhere else 1)):
                host = self._hosts.first if self._hosts.ready else await self._choose()
                try:
                    answer = await self._watched(host, request)
                except StoreUnreachable:
                    if not hosts_left:
                        raise
                except StoreRejected as error:
                    if not may_be_starting(error):
                        raise
                    if not hosts_left:
                        return await self._ask_again(host, request, error)
                else:
                    self._answered(host, ready=True)
                    return answer
        raise AssertionError("the last host returns or raises")

    async def _read(self, request: _Request[_T]) -> _T:
        self._check_open()
        hosts = tuple(self._hosts)
        limit = min(self._host_timeouts.read, self._timeout / (len(hosts) + 1)) if len(hosts) > 1 else None
        failure: StoreFailure = StoreUnreachable("there is no CrateDB host to ask")
        silent: list[Host] = []
        async with self._turns:
            for host in hosts:
                try:
                    async with asyncio.timeout(limit):
                        return await self._read_at(host, request)
                except TimeoutError:
                    silent.append(host)
                except StoreFailure as error:
                    if isinstance(error, StoreRejected | StoreRefused) and not may_be_starting(error):
                        raise
                    failure = error
            # It may take that long: the host preferred at the beginning gets it once more, with all the time.
            try:
                if silent:
                    return await self._read_at(silent[0], request)
                if may_be_starting(failure):
                    return await self._ask_again(hosts[-1], request, failure)
            except StoreFailure as error:
                failure = error
        raise of_read(failure)

    async def _read_at(self, host: Host, request: _Request[_T]) -> _T:
        answer = await self._reported(host, request, is_read=True)
        self._answered(host, ready=False)
        return answer

    async def _ask_again(self, host: Host, request: _Request[_T], error: StoreFailure) -> _T:
        """Sees whether a host that does not know its user, or a table, has just started.

        Nothing tells a wrong password from a user that the host has not loaded yet but the time that it lasts. For a
        table, a host that is up gets the same statement again, which it did not apply: its first answer may have come
        before it was.
        """
        if is_unauthorized(error):
            raise self._lasting(error, request.statement) from error
        try:
            await self._probe(host)
            answer = await self._reported(host, request)
        except (StoreRejected, StoreRefused) as again:
            if is_unauthorized(again):  # it starts once more
                raise (again if isinstance(again, StoreRefused) else self._lasting(again, request.statement)) from error
            is_settled = isinstance(again, StoreRefused) or may_be_starting(again)
            raise refused(error, request.statement) if is_settled else again from error
        self._answered(host, ready=True)
        return answer

    def _lasting(self, error: StoreFailure, statement: str) -> StoreFailure:
        now = asyncio.get_running_loop().time()
        if self._unauthorized_since is None:
            self._unauthorized_since = now
        has_lasted = now - self._unauthorized_since >= self._host_timeouts.start
        return refused(error, statement) if has_lasted else error

    def _answered(self, host: Host, *, ready: bool) -> None:
        self._unauthorized_since = None
        self._hosts.answered(host, ready=ready)

    async def _choose(self) -> Host:
        """Returns a host that passed a probe, within half of the time that a write has."""
        try:
            async with asyncio.timeout(self._timeout / 2):
                return await self._hosts.choose(self._probe, self._host_timeouts.probe)
        except TimeoutError:
            names = ", ".join(host.name for host in self._hosts)
            raise StoreUnreachable(
                f"CrateDB at {names} did not answer a probe within {self._timeout / 2:g} s; nothing was sent"
            ) from None

    async def _probe(self, host: Host) -> None:
        """Raises ``StoreFailure`` if a host cannot serve; over a new connection, which is then kept."""
        try:
            await self._see_alive(host)
            if self._required and not await self._exchange(host, self._required):
                raise StoreRefused(
                    f"CrateDB at {host.name} does not know idalloc's tables; restore them, or grant the user DQL and "
                    "DML on their schema"
                )
        except StoreFailure as error:
            await self._leave(host)
            raise (self._lasting(error, "") if is_unauthorized(error) else of_read(error)) from error

    async def _see_alive(self, host: Host) -> None:
        """Raises ``StoreFailure`` if a node does not run, or has no master."""
        await self._exchange(host, _SEE_ALIVE, fresh=True)

    async def _watched(self, host: Host, request: _Request[_T]) -> _T:
        """Sends a write; ends it if its host stops answering anything, and there is another host."""
        if len(self._hosts) == 1:
            return await self._reported(host, request)
        loop = asyncio.get_running_loop()
        end = asyncio.timeout(None)
        watches: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            self._host_timeouts.silence, lambda: watches.append(loop.create_task(self._watch(host, end)))
        )
        try:
            async with end:
                return await self._reported(host, request)
        except TimeoutError:
            raise StoreOutcomeUnknown(
                f"CrateDB at {host.name} was sent a statement and did not answer, nor did it answer GET /"
            ) from None
        finally:
            timer.cancel()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(self, host: Host, end: asyncio.Timeout) -> None:
        """Sees again and again that a host is alive, and ends a write on it when it is not."""
        try:
            while True:
                async with asyncio.timeout(self._host_timeouts.probe):
                    await self._see_alive(host)
                await asyncio.sleep(self._host_timeouts.silence)
        except (StoreFailure, TimeoutError):
            end.reschedule(asyncio.get_running_loop().time())

    async def _reported(self, host: Host, request: _Request[_T], *, is_read: bool = False) -> _T:
        """Sends one request, and leaves the host where it failed.

        A write ends early only when its host is silent. A read may end because its caller has no time left, or because
        another node is silent that has the copy it went to: that says nothing of the host.
        """
        serves = is_read
        try:
            answer = await self._exchange(host, request)
            serves = True
            return answer
        except StoreFailure as error:
            serves = error.http_status not in (None, _HTTP_UNAVAILABLE) and not may_be_starting(error)
            raise
        finally:
            if not serves:
                await self._leave(host)

    async def _leave(self, host: Host) -> None:
        """Prefers other hosts; what connections it had may lead nowhere when it is back."""
        self._hosts.failed(host)
        await _close_idle(host)

    async def _exchange(self, host: Host, request: _Request[_T], *, fresh: bool = False) -> _T:
        """Sends one request over one connection, and keeps the connection only if all went well."""
        session = self._new_session() if fresh or not host.idle else host.idle.pop()
        method, path = ("GET", "/") if request.body is None else ("POST", "/_sql")
        url = f"{'http' if self._tls is None else 'https'}://{host.name}{path}"
        keep = False
        try:
            # aiohttp itself never repeats a POST; it would follow a redirect with one.
            async with session.request(
                method, url, data=request.body, headers=self._headers, allow_redirects=False
            ) as response:
                content = await response.read()
            answer = answers.read_answer(host.name, response.status, content, request.parse, request.statement)
            keep = not self._closed
            return answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise StoreUnreachable(f"cannot connect to CrateDB at {host.name}: {one_line(error)}") from error
        except aiohttp.ClientResponseError as error:
            raise StoreOutcomeUnknown(
                f"what answers at {host.name} is not CrateDB's HTTP endpoint, whose port is usually 4200"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise StoreOutcomeUnknown(
                f"CrateDB at {host.name} was sent a statement and did not answer: {one_line(error)}"
            ) from error
        finally:
            if keep:
                host.idle.append(session)
            else:
                await session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, ssl=True if self._tls is None else self._tls),
            timeout=self._timeouts,
            cookie_jar=aiohttp.DummyCookieJar(),
        )


async def _close_idle(host: Host) -> None:
    while host.idle:
        await host.idle.pop().close()


def _sql(statement: str, arguments: Sequence[object]) -> _Request[list[Row]]:
    return _Request(statement, json.dumps({"stmt": statement, "args": arguments}).encode(), answers.rows)
