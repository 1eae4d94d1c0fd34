"""The HTTP transport to CrateDB. It never sends a write twice, unless the first answer proves that it was not applied.

Every connection is a separate session, which can be closed without the others. After an error, CrateDB may leave a
statement queued on its connection and would run it before the next one there.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp

from idalloc_server.domain.errors import (
    StoreAnsweredError,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
)
from idalloc_server.store.cratedb import answers
from idalloc_server.store.cratedb.answers import Row, is_unauthorized, may_be_starting, one_line, read_failure, refused
from idalloc_server.store.hosts import Host, Hosts

_HTTP_UNAVAILABLE = 503

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Request(Generic[_T]):
    """A statement, its JSON body, and a parser of the answer. ``GET /`` has no statement and no body."""

    statement: str
    body: bytes | None
    parse: Callable[[Any], _T]


_VERSION_REQUEST = _Request("", None, answers.version)


class HostTimeouts(NamedTuple):
    """Timeouts of ``CrateHttp`` for one of several hosts, in seconds.

    Attributes:
        connect: For a connection. Less than ``silence``, since a write that was not sent goes to the next host.
        silence: How long a write waits for its answer before ``GET /`` checks that the host is alive.
        probe: For the answer to that check; also how long a probe runs before the next host is probed too.
        read: For the answer to a read, before the next host is asked.
        start: How long a 401 may be the answer of a starting host; a later 401 is refused.
    """

    connect: float = 1.5
    silence: float = 2.0
    probe: float = 1.0
    read: float = 3.0
    start: float = 60.0


_HOST_TIMEOUTS = HostTimeouts()


class CrateHttp:
    """Sends statements to one of several hosts; ``Hosts`` has the order of preference.

    Safe for concurrent calls, of which ``max_connections`` run at once. Cancelling a call closes its connection; a
    write that was sent may still be applied.

    While a write waits, and in a probe, a host must answer ``GET /``, which a node without a master answers with 503. A
    probe then sends the statement of ``set_probe``. Neither may depend on another node. A read by key would: it goes to
    a random copy of the table, and a live host seems dead while the node with that copy is paused.

    Args:
        hosts: ``host:port`` of each host, in the order of preference.
        authorization: The value of the Authorization header, if any.
        tls: The TLS context; None for plain HTTP.
        timeout: The timeout of an answer, in seconds.
        connect_timeout: The timeout of a connection if there is only one host, in seconds.
        host_timeouts: When to try another host, if there are several.
        max_connections: The most statements at once.
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
        self._probe_request: _Request[list[Row]] | None = None
        self._unauthorized_since: float | None = None
        self._slots = asyncio.Semaphore(max_connections)
        self._closed = False

    def set_probe(self, statement: str, *arguments: object) -> None:
        """Sets the statement of later probes: a host that returns no rows for it does not serve."""
        self._probe_request = _sql(statement, arguments)

    async def write(self, statement: str, *arguments: object, may_fail_over: bool = True) -> list[Row]:
        """Sends a write to one host, and to the next one only if this host certainly did not apply it.

        That is: no connection could be made, or the host does not know the table or the user yet. If the last host
        does not know the table but passes a probe, it gets the statement once more.

        Args:
            statement: The statement.
            arguments: Its arguments.
            may_fail_over: Whether the write may go to the next host after it was tried on one.

        Returns:
            The rows of the RETURNING clause.

        Raises:
            StoreUnreachable: The write was sent to no host.
            StoreAnsweredError: The write was not applied, and a retry may succeed.
            StoreRefused: The write was not applied, and fails again until an operator acts.
            StoreOutcomeUnknown: The write was sent and may have been applied.
        """
        return await self._write(_sql(statement, arguments), may_fail_over)

    async def write_each(self, statement: str, arguments: Sequence[Sequence[object]]) -> int:
        """Sends a write without RETURNING, to be run with each list of arguments, once and to one host only.

        Returns:
            How many of the runs changed a row; the others failed, or found no row.

        Raises:
            StoreFailure: As ``write``.
        """
        body = json.dumps({"stmt": statement, "bulk_args": arguments}).encode()
        request: _Request[list[Any]] = _Request(statement, body, lambda answer: answer["results"])
        results = await self._write(request, may_fail_over=False)
        return sum(result["rowcount"] == 1 for result in results)

    async def read(self, statement: str, *arguments: object) -> list[Row]:
        """Sends a statement that changes nothing; if a host fails, to the next one.

        Raises:
            StoreUnreachable: No host answered.
            StoreAnsweredError: A host answered with an error, and a retry may succeed.
            StoreRefused: A host answered with an error that lasts until an operator acts.
        """
        return await self._read(_sql(statement, arguments))

    async def version(self) -> str:
        """Returns the CrateDB version of the first host that answers; the user needs no privilege.

        Raises:
            StoreUnreachable: No host answered.
            StoreAnsweredError: A host answered with an error, or is not CrateDB.
        """
        return await self._read(_VERSION_REQUEST)

    async def close(self) -> None:
        """Closes the idle connections; a connection in use is closed when its call ends."""
        self._closed = True
        for host in self._hosts:
            await _close_idle(host)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnreachable("the store is closed")

    async def _write(self, request: _Request[_T], may_fail_over: bool) -> _T:
        self._check_open()
        async with self._slots:
            for hosts_left in reversed(range(len(self._hosts) if may_fail_over else 1)):
                host = self._hosts.preferred if self._hosts.ready else await self._choose()
                try:
                    answer = await self._send_write(host, request)
                except StoreUnreachable:
                    if not hosts_left:
                        raise
                except StoreAnsweredError as error:
                    if not may_be_starting(error):
                        raise
                    if not hosts_left:
                        return await self._retry_after_start(host, request, error)
                else:
                    self._prefer(host, ready=True)
                    return answer
        raise AssertionError("the last host returns or raises")

    async def _read(self, request: _Request[_T]) -> _T:
        self._check_open()
        hosts = tuple(self._hosts)
        limit = min(self._host_timeouts.read, self._timeout / (len(hosts) + 1)) if len(hosts) > 1 else None
        failure: StoreFailure = StoreUnreachable("no CrateDB host is configured")
        silent: list[Host] = []
        async with self._slots:
            for host in hosts:
                try:
                    async with asyncio.timeout(limit):
                        return await self._send_read(host, request)
                except TimeoutError:
                    silent.append(host)
                except StoreFailure as error:
                    if isinstance(error, StoreAnsweredError | StoreRefused) and not may_be_starting(error):
                        raise
                    failure = error
            # The read itself may be slow: the most preferred silent host gets it again, without a limit.
            try:
                if silent:
                    return await self._send_read(silent[0], request)
                if may_be_starting(failure):
                    return await self._retry_after_start(hosts[-1], request, failure)
            except StoreFailure as error:
                failure = error
        raise read_failure(failure)

    async def _send_read(self, host: Host, request: _Request[_T]) -> _T:
        answer = await self._send(host, request, is_read=True)
        self._prefer(host, ready=False)
        return answer

    async def _retry_after_start(self, host: Host, request: _Request[_T], error: StoreFailure) -> _T:
        """Handles a 401, or an unknown table: is the host starting, or must an operator act?

        Only time tells a wrong password from a user that the host has not loaded yet. For an unknown table, a host
        that passes a probe gets the statement again, which it did not apply: its first answer may have been too early.
        """
        if is_unauthorized(error):
            raise self._refused_if_lasting(error, request.statement) from error
        try:
            await self._probe(host)
            answer = await self._send(host, request)
        except (StoreAnsweredError, StoreRefused) as again:
            if is_unauthorized(again):  # the host restarted again
                raise (
                    again if isinstance(again, StoreRefused) else self._refused_if_lasting(again, request.statement)
                ) from error
            is_settled = isinstance(again, StoreRefused) or may_be_starting(again)
            raise refused(error, request.statement) if is_settled else again from error
        self._prefer(host, ready=True)
        return answer

    def _refused_if_lasting(self, error: StoreFailure, statement: str) -> StoreFailure:
        now = asyncio.get_running_loop().time()
        if self._unauthorized_since is None:
            self._unauthorized_since = now
        has_lasted = now - self._unauthorized_since >= self._host_timeouts.start
        return refused(error, statement) if has_lasted else error

    def _prefer(self, host: Host, *, ready: bool) -> None:
        self._unauthorized_since = None
        self._hosts.prefer(host, ready=ready)

    async def _choose(self) -> Host:
        """Returns a host that passed a probe, within half of the timeout of a write."""
        try:
            async with asyncio.timeout(self._timeout / 2):
                return await self._hosts.choose(self._probe, self._host_timeouts.probe)
        except TimeoutError:
            names = ", ".join(host.name for host in self._hosts)
            raise StoreUnreachable(
                f"CrateDB at {names} did not answer a probe within {self._timeout / 2:g} s; nothing was sent"
            ) from None

    async def _probe(self, host: Host) -> None:
        """Raises ``StoreFailure`` if a host cannot serve. Uses a new connection, and keeps it."""
        try:
            await self._check_alive(host)
            if self._probe_request and not await self._exchange(host, self._probe_request):
                raise StoreRefused(
                    f"CrateDB at {host.name} does not know idalloc's tables; restore them, or grant the user DQL and "
                    "DML on their schema"
                )
        except StoreFailure as error:
            await self._demote(host)
            raise (self._refused_if_lasting(error, "") if is_unauthorized(error) else read_failure(error)) from error

    async def _check_alive(self, host: Host) -> None:
        """Raises ``StoreFailure`` if a node does not answer, or has no master."""
        await self._exchange(host, _VERSION_REQUEST, fresh=True)

    async def _send_write(self, host: Host, request: _Request[_T]) -> _T:
        """Sends a write. If there are other hosts, ends it when its host no longer answers ``GET /``."""
        if len(self._hosts) == 1:
            return await self._send(host, request)
        loop = asyncio.get_running_loop()
        end = asyncio.timeout(None)
        watches: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            self._host_timeouts.silence, lambda: watches.append(loop.create_task(self._end_if_silent(host, end)))
        )
        try:
            async with end:
                return await self._send(host, request)
        except TimeoutError:
            raise StoreOutcomeUnknown(
                f"CrateDB at {host.name} was sent a statement and did not answer, nor did it answer GET /"
            ) from None
        finally:
            timer.cancel()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _end_if_silent(self, host: Host, end: asyncio.Timeout) -> None:
        """Checks a host again and again; ends the write on it when it is not alive."""
        try:
            while True:
                async with asyncio.timeout(self._host_timeouts.probe):
                    await self._check_alive(host)
                await asyncio.sleep(self._host_timeouts.silence)
        except (StoreFailure, TimeoutError):
            end.reschedule(asyncio.get_running_loop().time())

    async def _send(self, host: Host, request: _Request[_T], *, is_read: bool = False) -> _T:
        """Sends one request, and demotes the host if it failed.

        A write that ends without an answer demotes its host. A read does not: its caller may have run out of time, or
        another node with the copy that it went to may be silent.
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
                await self._demote(host)

    async def _demote(self, host: Host) -> None:
        """Prefers other hosts, and drops the host's connections, which may be dead when it returns."""
        self._hosts.demote(host)
        await _close_idle(host)

    async def _exchange(self, host: Host, request: _Request[_T], *, fresh: bool = False) -> _T:
        """Sends one request over one connection, and keeps the connection only after a successful answer."""
        session = self._new_session() if fresh or not host.idle else host.idle.pop()
        method, path = ("GET", "/") if request.body is None else ("POST", "/_sql")
        url = f"{'http' if self._tls is None else 'https'}://{host.name}{path}"
        keep = False
        try:
            # aiohttp never retries a POST, but would follow a redirect with one.
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
                f"the server at {host.name} is not CrateDB's HTTP endpoint, whose port is usually 4200"
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
