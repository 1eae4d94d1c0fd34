"""The way to CrateDB: its HTTP endpoint, with nothing that sends a statement twice.

Every connection is a session of its own that knows no other, so that one can be dropped without touching the rest:
after an error a statement may be left queued on a CrateDB connection, and would run with the next one there.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import aiohttp

from idalloc_server.domain.errors import StoreOutcomeUnknown, StoreRejected, StoreUnavailable, StoreUnreachable
from idalloc_server.store.crate_hosts import Host, Hosts

_HTTP_OK = 200
_HTTP_REQUEST_TIMEOUT = 408
_HTTP_UNAVAILABLE = 503
# RelationUnknown and SchemaUnknownException: a node that returns answers them before it knows the cluster's tables.
_NO_SUCH_TABLE = (4041, 4045)
_LONGEST_MESSAGE = 300

Row = list[Any]
_T = TypeVar("_T")


class HostTimeouts(NamedTuple):
    """How long ``CrateHttp`` waits for a host where there is another one to go to, in seconds.

    Attributes:
        connect: For a connection. Less than ``silence``: what cannot connect was not sent, and goes to the next host.
        silence: For the answer to a write, before it is seen whether the host is alive.
        probe: For the answer that shows it, and for that to a probe, before the next host is probed too.
        read: For the answer to a read, before it goes to the next host.
    """

    connect: float = 1.5
    silence: float = 2.0
    probe: float = 1.0
    read: float = 3.0


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
        self._required: bytes | None = None
        self._turns = asyncio.Semaphore(max_connections)
        self._closed = False

    def require(self, statement: str, *arguments: object) -> None:
        """Makes each probe ask for this from now on: a host that returns no rows does not serve."""
        self._required = _body(statement, arguments)

    async def write(self, statement: str, *arguments: object, anywhere: bool = True) -> list[Row]:
        """Sends a statement once; to the next host only if this one surely did not apply it.

        That is so where no connection could be made, and where the host does not know the table.

        Args:
            statement: The statement.
            arguments: Its arguments.
            anywhere: Whether it may go to the next host after it was sent to one.

        Returns:
            The rows of its RETURNING clause.

        Raises:
            StoreUnreachable: It was sent to no host.
            StoreRejected: The host answered with an HTTP status of 400 to 499.
            StoreOutcomeUnknown: It was sent, and no answer, or another one, came.
        """
        return await self._write(_body(statement, arguments), _rows, anywhere)

    async def write_each(self, statement: str, arguments: Sequence[Sequence[object]]) -> int:
        """Sends a statement without RETURNING once, to be run with each of these lists of arguments; to one host only.

        Where it changes nothing, or fails, with one of them, that one is left out.

        Returns:
            With how many of them it changed a row.

        Raises:
            StoreUnavailable: As ``write``.
        """
        body = json.dumps({"stmt": statement, "bulk_args": arguments}).encode()
        results = await self._write(body, lambda answer: answer["results"], anywhere=False)
        return sum(result["rowcount"] == 1 for result in results)

    async def read(self, statement: str, *arguments: object) -> list[Row]:
        """Sends a statement that changes nothing; where a host fails, to the next one.

        Raises:
            StoreUnreachable: No host answered.
            StoreRejected: A host answered with an error.
        """
        return await self._read("POST", "/_sql", _body(statement, arguments), _rows)

    async def version(self) -> str:
        """Returns the version of the first host that answers; needs no privilege.

        Raises:
            StoreUnreachable: No host answered.
            StoreRejected: A host answered with an error, or is no CrateDB.
        """
        return await self._read("GET", "/", None, _version)

    async def close(self) -> None:
        """Closes all idle connections; those in use close when their call ends."""
        self._closed = True
        for host in self._hosts:
            await _close_idle(host)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnreachable("the store is closed")

    async def _write(self, body: bytes, parse: Callable[[Any], _T], anywhere: bool) -> _T:
        self._check_open()
        async with self._turns:
            for hosts_left in reversed(range(len(self._hosts) if anywhere else 1)):
                host = self._hosts.first if self._hosts.ready else await self._choose()
                try:
                    answer = await self._watched(host, body, parse)
                except StoreUnreachable:
                    if not hosts_left:
                        raise
                except StoreRejected as error:
                    if not hosts_left or error.code not in _NO_SUCH_TABLE:
                        raise
                else:
                    self._hosts.answered(host, ready=True)
                    return answer
        raise AssertionError("the last host returns or raises")

    async def _read(self, method: str, path: str, body: bytes | None, parse: Callable[[Any], _T]) -> _T:
        self._check_open()
        hosts = tuple(self._hosts)
        limit = min(self._host_timeouts.read, self._timeout / (len(hosts) + 1)) if len(hosts) > 1 else None
        failure: StoreUnavailable = StoreUnreachable("there is no CrateDB host to ask")
        silent: list[Host] = []
        async with self._turns:
            for host in hosts:
                try:
                    async with asyncio.timeout(limit):
                        return await self._read_at(host, method, path, body, parse)
                except TimeoutError:
                    silent.append(host)
                except StoreUnavailable as error:
                    if isinstance(error, StoreRejected) and error.code not in _NO_SUCH_TABLE:
                        raise
                    failure = error
            # It may take that long: the host preferred at the beginning gets it once more, with all the time.
            if silent:
                try:
                    return await self._read_at(silent[0], method, path, body, parse)
                except StoreUnavailable as error:
                    failure = error
        raise _of_read(failure)

    async def _read_at(self, host: Host, method: str, path: str, body: bytes | None, parse: Callable[[Any], _T]) -> _T:
        answer = await self._reported(host, method, path, body, parse, is_read=True)
        self._hosts.answered(host, ready=False)
        return answer

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
        """Raises ``StoreUnavailable`` if a host cannot serve; over a new connection, which is then kept."""
        try:
            await self._see_alive(host)
            if self._required and not await self._exchange(host, "POST", "/_sql", self._required, _rows):
                raise StoreUnreachable(f"CrateDB at {host.name} does not know idalloc's tables")
        except StoreUnavailable as error:
            await self._leave(host)
            raise _of_read(error) from error

    async def _see_alive(self, host: Host) -> None:
        """Raises ``StoreUnavailable`` if a node does not run, or has no master."""
        await self._exchange(host, "GET", "/", None, _version, fresh=True)

    async def _watched(self, host: Host, body: bytes, parse: Callable[[Any], _T]) -> _T:
        """Sends a write; ends it if its host stops answering anything, and there is another host."""
        if len(self._hosts) == 1:
            return await self._reported(host, "POST", "/_sql", body, parse)
        loop = asyncio.get_running_loop()
        end = asyncio.timeout(None)
        watches: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            self._host_timeouts.silence, lambda: watches.append(loop.create_task(self._watch(host, end)))
        )
        try:
            async with end:
                return await self._reported(host, "POST", "/_sql", body, parse)
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
        except (StoreUnavailable, TimeoutError):
            end.reschedule(asyncio.get_running_loop().time())

    async def _reported(
        self,
        host: Host,
        method: str,
        path: str,
        body: bytes | None,
        parse: Callable[[Any], _T],
        *,
        is_read: bool = False,
    ) -> _T:
        """Sends one request, and leaves the host where it failed.

        A write ends early only when its host is silent. A read may end because its caller has no time left, or because
        another node is silent that has the copy it went to: that says nothing of the host.
        """
        serves = is_read
        try:
            answer = await self._exchange(host, method, path, body, parse)
            serves = True
            return answer
        except StoreUnavailable as error:
            serves = error.http_status not in (None, _HTTP_UNAVAILABLE) and error.code not in _NO_SUCH_TABLE
            raise
        finally:
            if not serves:
                await self._leave(host)

    async def _leave(self, host: Host) -> None:
        """Prefers other hosts; what connections it had may lead nowhere when it is back."""
        self._hosts.failed(host)
        await _close_idle(host)

    async def _exchange(
        self,
        host: Host,
        method: str,
        path: str,
        body: bytes | None,
        parse: Callable[[Any], _T],
        *,
        fresh: bool = False,
    ) -> _T:
        """Sends one request over one connection, and keeps the connection only if all went well."""
        session = self._new_session() if fresh or not host.idle else host.idle.pop()
        scheme = "http" if self._tls is None else "https"
        keep = False
        try:
            # aiohttp itself never repeats a POST; it would follow a redirect with one.
            async with session.request(
                method, f"{scheme}://{host.name}{path}", data=body, headers=self._headers, allow_redirects=False
            ) as response:
                content = await response.read()
            answer = _answer(host.name, response.status, content, parse)
            keep = not self._closed
            return answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise StoreUnreachable(f"cannot connect to CrateDB at {host.name}: {_one_line(error)}") from error
        except aiohttp.ClientResponseError as error:
            raise StoreOutcomeUnknown(
                f"what answers at {host.name} is not CrateDB's HTTP endpoint, whose port is usually 4200"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise StoreOutcomeUnknown(
                f"CrateDB at {host.name} was sent a statement and did not answer: {_one_line(error)}"
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


def _of_read(failure: StoreUnavailable) -> StoreUnavailable:
    """Returns the failure of a request that changes nothing, and so has no outcome to be unsure of."""
    if not isinstance(failure, StoreOutcomeUnknown):
        return failure
    kind = StoreUnreachable if failure.http_status is None else StoreRejected
    return kind(str(failure), code=failure.code, http_status=failure.http_status)


def _body(statement: str, arguments: Sequence[object]) -> bytes:
    return json.dumps({"stmt": statement, "args": arguments}).encode()


def _rows(answer: Any) -> list[Row]:
    rows = answer["rows"]
    if not isinstance(rows, list):
        raise TypeError("rows")
    return rows


def _version(answer: Any) -> str:
    return str(answer["version"]["number"])


def _answer(host: str, status: int, content: bytes, parse: Callable[[Any], _T]) -> _T:
    """Reads an answer, or raises the error that says whether the statement may have been applied."""
    code: int | None = None
    text = content.decode(errors="replace")
    try:
        answer = json.loads(text)
        if status == _HTTP_OK:
            return parse(answer)
        code, text = int(answer["error"]["code"]), str(answer["error"]["message"])
    except (ValueError, KeyError, TypeError):
        pass  # authentication, and whatever stands before CrateDB, answer in plain text
    message = f"CrateDB at {host} answered {status}{f' ({code})' if code else ''}: {_one_line(text)}"
    # A balancer's 408 says that it lost patience, not that nothing was passed on. A 503 is no refusal either: the
    # node that answers it has tried, and its tries may have reached the shard.
    surely_not_applied = 400 <= status < 500 and status != _HTTP_REQUEST_TIMEOUT
    kind = StoreRejected if surely_not_applied else StoreOutcomeUnknown
    raise kind(message, code=code, http_status=status)


def _one_line(what: object) -> str:
    text = " ".join(str(what).split()) or type(what).__name__
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"
