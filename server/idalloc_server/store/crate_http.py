"""The way to CrateDB: its HTTP endpoint, with nothing that sends a statement twice.

Every connection is a session of its own that knows no other, so that one can be dropped without touching the rest:
after an error a statement may be left queued on a CrateDB connection, and would run with the next one there.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from idalloc_server.domain.errors import StoreOutcomeUnknown, StoreRejected, StoreUnavailable, StoreUnreachable

_HTTP_OK = 200
_HTTP_REQUEST_TIMEOUT = 408
_HTTP_UNAVAILABLE = 503
_LONGEST_MESSAGE = 300

Row = list[Any]
_T = TypeVar("_T")


@dataclass(eq=False)
class _Host:
    """One of the cluster's nodes, or a balancer before them.

    Attributes:
        name: ``host:port``.
        idle: Sessions of one connection each, free to use.
        rests_until: When it may be asked again as a first choice, in the loop's seconds.
    """

    name: str
    idle: list[aiohttp.ClientSession] = field(default_factory=list)
    rests_until: float = 0.0


class CrateHttp:
    """Sends statements to the first of several hosts that can be reached.

    A host that failed comes last for a short while. Calls may run concurrently; those beyond ``max_connections``
    wait for their turn. Cancelling a call closes its connection; a write that was under way may still be applied.

    Args:
        hosts: ``host:port``, in the order of preference.
        authorization: The value of the Authorization header, if any.
        tls: How to check the hosts' certificates; None for plain HTTP.
        timeout: How long to wait for an answer, in seconds.
        connect_timeout: How long to wait for a connection, in seconds, before the next host is tried.
        rest: How long a host that failed is not the first choice, in seconds.
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
        rest: float = 10.0,
        max_connections: int = 64,
    ) -> None:
        self._hosts = [_Host(name) for name in hosts]
        self._headers = {"Content-Type": "application/json"}
        if authorization is not None:
            self._headers["Authorization"] = authorization
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout, sock_read=timeout)
        self._rest = rest
        self._turns = asyncio.Semaphore(max_connections)
        self._closed = False

    async def write(self, statement: str, *arguments: object) -> list[Row]:
        """Sends a statement once; only where no connection could be made, to the next host.

        Returns:
            The rows of its RETURNING clause.

        Raises:
            StoreUnreachable: It was sent to no host.
            StoreRejected: The host answered with an HTTP status of 400 to 499.
            StoreOutcomeUnknown: It was sent, and no answer, or another one, came.
        """
        return await self._send("POST", "/_sql", _body(statement, arguments), _rows, again=False)

    async def write_each(self, statement: str, arguments: Sequence[Sequence[object]]) -> None:
        """Sends a statement without RETURNING once, to be run with each of these lists of arguments, as ``write``.

        Where it changes nothing, or fails, with one of them, that one is left out.
        """
        body = json.dumps({"stmt": statement, "bulk_args": arguments}).encode()
        await self._send("POST", "/_sql", body, lambda answer: answer["results"], again=False)

    async def read(self, statement: str, *arguments: object) -> list[Row]:
        """Sends a statement that changes nothing; where a host fails, to the next one.

        Raises:
            StoreUnreachable: No host answered.
            StoreRejected: A host answered with an error.
        """
        return await self._send("POST", "/_sql", _body(statement, arguments), _rows, again=True)

    async def version(self) -> str:
        """Returns the version of the first host that answers; needs no privilege.

        Raises:
            StoreUnreachable: No host answered.
            StoreRejected: A host answered with an error, or is no CrateDB.
        """
        return await self._send("GET", "/", None, _version, again=True)

    async def close(self) -> None:
        """Closes all idle connections; those in use close when their call ends."""
        self._closed = True
        for host in self._hosts:
            while host.idle:
                await host.idle.pop().close()

    async def _send(self, method: str, path: str, body: bytes | None, parse: Callable[[Any], _T], *, again: bool) -> _T:
        if self._closed:
            raise StoreUnreachable("the store is closed")
        failure: StoreUnavailable = StoreUnreachable("there is no host to ask")
        async with self._turns:
            now = asyncio.get_running_loop().time()
            # sorted() is stable: the order of preference stays within both groups.
            for host in sorted(self._hosts, key=lambda host: host.rests_until > now):
                try:
                    return await self._exchange(host, method, path, body, parse)
                except StoreUnreachable as error:
                    failure = error
                except StoreOutcomeUnknown as error:
                    if not again:
                        raise
                    failure = error
        if not isinstance(failure, StoreOutcomeUnknown):
            raise failure
        # What only reads has no outcome to be unsure of.
        kind = StoreUnreachable if failure.http_status is None else StoreRejected
        raise kind(str(failure), code=failure.code, http_status=failure.http_status) from failure

    async def _exchange(
        self, host: _Host, method: str, path: str, body: bytes | None, parse: Callable[[Any], _T]
    ) -> _T:
        """Sends one request over one connection, and keeps the connection only if all went well."""
        session = host.idle.pop() if host.idle else self._new_session()
        scheme = "http" if self._tls is None else "https"
        well = keep = False
        try:
            # aiohttp itself never repeats a POST; it would follow a redirect with one.
            async with session.request(
                method, f"{scheme}://{host.name}{path}", data=body, headers=self._headers, allow_redirects=False
            ) as response:
                content = await response.read()
            well = response.status != _HTTP_UNAVAILABLE
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
            # A host that says nothing until the caller's patience ends, and this task is cancelled, failed too.
            host.rests_until = 0.0 if well else asyncio.get_running_loop().time() + self._rest
            if keep:
                host.idle.append(session)
            else:
                await session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, ssl=True if self._tls is None else self._tls),
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
        )


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
