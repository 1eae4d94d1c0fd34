"""The connections to the hosts of a cluster.

Each is a session of its own, which is closed without the others. After an error, a server may leave
a request queued on its connection and would run it before the next one there.
"""

import asyncio
import io
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import aiohttp
import structlog
import yarl
from aiohttp.abc import ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_parser import RawResponseMessage

from idalloc_server.domain.errors import (
    StoreAnsweredError,
    StoreConnectionLost,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreUnreachable,
)
from idalloc_server.files.descriptors import spare
from idalloc_server.store.cluster.hosts import Connection, Host
from idalloc_server.store.credentials import certificate_problem

# The most bytes of an answer, after decompression: the largest row that CrateDB takes has 100 MB.
MAX_ANSWER_BYTES = 128 * 1024 * 1024
MAX_INFORMATIONAL = 10  # answers with a status of 1xx before an answer

_MAX_MESSAGE_LENGTH = 300
_LOOKUP_DESCRIPTORS = 2  # at most, of a lookup of a name: a file, and a socket to a name server
_LARGE_BODY = 64 * 1024  # bytes; aiohttp sends a file in parts, and others have the event loop between them
_LOST = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError)
_LOG_SECONDS = 1.0  # at most one line about wrong answers in this time

_T = TypeVar("_T")
_log = structlog.get_logger("idalloc.store")


class WrongAnswer(Exception):
    """An answer belongs to another request; the text follows "an answer"."""


@dataclass(frozen=True)
class Request(Generic[_T]):
    """A request, and the reader of its answer."""

    method: str  # the HTTP method; POST for a write, which aiohttp never repeats
    path: str  # the path and query, percent-encoded
    body: bytes | None  # the body, if any
    # Reads an answer: the host's name, the HTTP status and the content; raises ``StoreFailure``.
    read: Callable[[str, int, bytes], _T]
    subject: str = ""  # what the request is about, for the next step in an error


@dataclass(eq=False)
class Connections:
    """Sends requests to hosts, each over a connection of its own."""

    product: str  # the name of the database, for errors
    port: int  # its usual HTTP port
    alive: Request[Any]  # depends on no other node, and needs no identity check
    headers: dict[str, str] = field(repr=False)  # of each request; one may have a password
    tls: ssl.SSLContext | None  # None for plain HTTP
    timeouts: aiohttp.ClientTimeout  # of a request
    # The first read of new connections; it raises ``StoreExchanged`` for another store.
    identity_check: Request[None] | None = field(default=None, init=False)
    is_closed: bool = field(default=False, init=False)  # whether each connection is closed after its call
    _logged_at: float = field(default=-_LOG_SECONDS, init=False)

    async def exchange(self, host: Host, request: Request[_T], *, is_fresh: bool = False) -> _T:
        """Send one request over one connection, which is kept only after a successful answer."""
        connection = Connection(self._new_session()) if is_fresh or not host.idle else host.idle.pop()
        keep = False
        try:
            if self.identity_check and not connection.is_checked and request is not self.alive:
                try:
                    await self._send_over(connection, host, self.identity_check)
                except StoreFailure as error:  # the request itself was not sent
                    raise read_failure(error) from error
                connection.is_checked = True
            answer = await self._send_over(connection, host, request)
            keep = not self.is_closed
            return answer
        finally:
            if keep:
                host.idle.append(connection)
            else:
                await connection.session.close()

    async def _send_over(self, connection: Connection, host: Host, request: Request[_T]) -> _T:
        # Without ``encoded`` yarl would resolve a sequence's name such as ``..`` in the path.
        url = yarl.URL(f"{'http' if self.tls is None else 'https'}://{host.name}{request.path}", encoded=True)
        body = io.BytesIO(request.body) if request.body and len(request.body) > _LARGE_BODY else request.body
        try:  # aiohttp never retries a POST, but would follow a redirect with one.
            async with connection.session.request(
                request.method, url, data=body, headers=self.headers, allow_redirects=False
            ) as response:
                content = await _content(response)
            return request.read(host.name, response.status, content)
        except (WrongAnswer, RecursionError) as error:
            wrong = error if isinstance(error, WrongAnswer) else "that is nested too deeply"
            now = asyncio.get_running_loop().time()
            if now - self._logged_at >= _LOG_SECONDS:
                self._logged_at = now
                _log.error("wrong_answer", host=host.name, error=f"an answer {wrong}")
            raise StoreOutcomeUnknown(
                f"{self.product} at {host.name} returned an answer {wrong}; check the proxy in front of it"
            ) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            problem = certificate_problem(error) or f"{one_line(error)}; start it, or correct host and port in its URL"
            raise StoreUnreachable(f"cannot connect to {self.product} at {host.name}: {problem}") from error
        except aiohttp.ClientResponseError as error:
            raise StoreOutcomeUnknown(
                f"the server at {host.name} is not {self.product}'s HTTP endpoint; set its port, usually {self.port}"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            kind = StoreConnectionLost if isinstance(error, _LOST) else StoreOutcomeUnknown
            raise kind(
                f"{self.product} at {host.name} was sent a statement and did not answer: {one_line(error)}; try again"
            ) from error

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=1,
            ssl=True if self.tls is None else self.tls,
            resolver=_Resolver(),
            socket_factory=_new_socket,
        )
        answers: type[ResponseHandler] = _Answers
        connector._factory = partial(answers, loop=asyncio.get_running_loop())
        return aiohttp.ClientSession(connector=connector, timeout=self.timeouts, cookie_jar=aiohttp.DummyCookieJar())


class _Answers(ResponseHandler):
    """The answers of a connection, with a limit of informational ones."""

    _informational = 0

    async def read(self) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
        message, payload = await super().read()
        self._informational = self._informational + 1 if 100 <= message.code < 200 else 0
        if self._informational > MAX_INFORMATIONAL:
            raise WrongAnswer(f"after more than {MAX_INFORMATIONAL} informational ones")
        return message, payload


async def _content(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            raise WrongAnswer(f"of more than {MAX_ANSWER_BYTES // 2**20} MiB")
    return bytes(content)


class _Resolver(aiohttp.ThreadedResolver):
    """Looks names up with spare descriptors."""

    async def resolve(self, *args: Any, **kwargs: Any) -> list[ResolveResult]:
        with spare.lend(_LOOKUP_DESCRIPTORS):
            return await super().resolve(*args, **kwargs)


def _new_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket for an address, with a spare descriptor."""
    family, kind, protocol, *_ = address
    with spare.lend():
        return socket.socket(family, kind, protocol)


async def close_idle(host: Host) -> None:
    """Close the idle connections of a host."""
    while host.idle:
        await host.idle.pop().session.close()


def read_failure(failure: StoreFailure) -> StoreFailure:
    """Return the failure of a read. A read changes nothing, so its outcome is never unknown."""
    if not isinstance(failure, StoreOutcomeUnknown):
        return failure
    kind = StoreUnreachable if failure.http_status is None else StoreAnsweredError
    return kind(str(failure), code=failure.code, http_status=failure.http_status)


def one_line(what: object) -> str:
    """Return the beginning of a text, without line breaks."""
    text = " ".join(str(what).split()) or type(what).__name__
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + "…"
