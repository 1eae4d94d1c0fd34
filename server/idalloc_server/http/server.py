"""The HTTP server of a process: its address, its limits, and the headers of every answer."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import HttpVersion10, HttpVersion11, web

from idalloc_server.listen.connections import HANDSHAKE_SECONDS, HEADER_SECONDS, Accepted, ConnectionLimits, Listener
from idalloc_server.telemetry.logs import failure_fields

# How long a connection is used; then it is closed after its present answer. This and the next limit
# also end connections whose client reads its answer too slowly.
CONNECTION_SECONDS = 60.0
# How much longer the present answer may take.
LAST_ANSWER_SECONDS = 10.0
# How long a connection may be idle between two requests.
KEEPALIVE_SECONDS = 30.0
# The longest request line, and the longest header.
MAX_LINE_BYTES = 8 * 1024
# How long running requests may continue at a stop.
STOP_SECONDS = 1.0

# Sent with every answer. A page that needs styles or scripts sets its own policy.
HEADERS = {
    "Server": "idalloc",  # aiohttp's has the versions of Python and aiohttp
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_END_OF_HEADERS = b"\r\n\r\n"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_log = structlog.get_logger("idalloc.http")


class HttpServer:
    """Serves routes by GET and HEAD, on the running event loop. Every other path is answered 404.

    No answer and no log line has a byte of a request.

    Args:
        setting: The name of the setting of the address.
        listen: HOST:PORT; port 0 selects a free port.
        limits: The limits of connections.
        routes: The handler of each path, such as ``/livez``.
        tls: The context of TLS; None for plain HTTP.
    """

    def __init__(
        self,
        setting: str,
        listen: str,
        limits: ConnectionLimits,
        routes: Iterable[tuple[str, Handler]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._routes = dict(routes)
        self.listener = Listener(setting, listen, limits, self._serve)
        self._server: web.Server | None = None

    @property
    def url(self) -> str:
        """The address of the root page, once started."""
        return f"{'https' if self._tls else 'http'}://{self.listener.address}/"

    async def start(self) -> None:
        """Bind the address and answer requests.

        Raises:
            StartRefused: The address is in use, or cannot be bound.
        """
        self._server = web.Server(self._answer)
        self.listener.start()

    async def close(self) -> None:
        """Close the address and all connections."""
        self.listener.stop_accepting()
        if self._server:
            await self._server.shutdown(STOP_SECONDS)
        await self.listener.close()

    async def _serve(self, accepted: Accepted) -> None:
        assert self._server is not None  # noqa: S101 - start() creates it
        protocol = _Protocol(self._server, accepted, self.listener.count_refused)
        handshake_seconds = HANDSHAKE_SECONDS if self._tls else None
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: protocol,
            accepted.socket,
            ssl=self._tls,
            ssl_handshake_timeout=handshake_seconds,
            ssl_shutdown_timeout=handshake_seconds,
        )
        try:
            await asyncio.wait({protocol.closed}, timeout=CONNECTION_SECONDS)
            protocol.end()
            await asyncio.wait({protocol.closed}, timeout=LAST_ANSWER_SECONDS)
        finally:
            transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        assert isinstance(protocol, _Protocol)  # noqa: S101 - _serve() creates it
        protocol.set_answering(True)
        await asyncio.sleep(0)  # else a client that sends many requests at once would be served alone
        if request.can_read_body:
            protocol.has_part = False  # What has arrived is the body, not the next request.
        try:
            answer = await self._route(request)
        except web.HTTPException as error:
            answer = _error(error.status, error.reason)
        except Exception as error:
            _log.error("http_request_failed", **failure_fields(error))
            answer = _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            protocol.set_answering(False)
        if answer.status == HTTPStatus.MISDIRECTED_REQUEST:
            self.listener.count_refused("host")
        return with_headers(answer)

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        if request._message.version not in (HttpVersion10, HttpVersion11):
            request._version = HttpVersion10  # the answer's; aiohttp would repeat the request's
            answer = _error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            answer.force_close()
            return answer
        if "#" in request.raw_path:
            return _error(HTTPStatus.BAD_REQUEST)
        handler = self._routes.get(request.path)
        if handler is None:
            return _error(HTTPStatus.NOT_FOUND)
        if request.method not in ("GET", "HEAD"):
            answer = _error(HTTPStatus.METHOD_NOT_ALLOWED)
            answer.headers["Allow"] = "GET, HEAD"
            return answer
        return await handler(request)


class _Protocol(web.RequestHandler):
    """Reads the requests of a connection: in time, or the connection ends.

    Attributes:
        closed: Done when the connection has ended.
    """

    def __init__(self, server: web.Server, accepted: Accepted, count_refused: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=0,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            auto_decompress=False,
        )
        self.closed: asyncio.Future[None] = loop.create_future()
        self._accepted = accepted
        self._count_refused = count_refused
        self._deadline: asyncio.TimerHandle | None = None
        self._is_answering = False
        self.has_part = False  # whether a part of the request after the present one has arrived
        self._last_bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        self._accepted.is_silent = False
        self._last_bytes = (self._last_bytes + data)[-len(_END_OF_HEADERS) :]
        self.has_part = self._last_bytes != _END_OF_HEADERS
        if not self._is_answering:
            self._expect_headers()
        super().data_received(data)

    def connection_lost(self, error: BaseException | None) -> None:
        super().connection_lost(error)
        self._expect_none()
        if not self.closed.done():
            self.closed.set_result(None)

    def set_answering(self, answers: bool) -> None:
        """Begin or end an answer."""
        self._is_answering = answers
        self._accepted.set_waiting(not answers)
        if answers:
            self._expect_none()
        elif self.has_part:
            self._expect_headers()

    def end(self) -> None:
        """Close the connection after its present answer."""
        self.close()
        if self.transport and not self._is_answering and not self.transport.get_write_buffer_size():
            self.transport.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that cannot be read; aiohttp would show and log what it has read."""
        if self._has_ended:
            self._count_refused("ended")
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            _log.error("http_request_failed", **failure_fields(exc))
        else:
            self._count_refused(type(exc).__name__)  # such as InvalidHeader
        answer = with_headers(_error(status))
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an error of aiohttp's own, without its text: that may be the client's."""
        if self._has_ended:
            self._count_refused("ended")
        else:
            _log.error("http_request_failed", **failure_fields(kw.get("exc_info")))

    @property
    def _has_ended(self) -> bool:
        """Whether the server has ended the connection, at a limit: what is written then fails."""
        return self.transport is None or self.transport.is_closing() or not self._accepted.host

    def _expect_headers(self) -> None:
        if self._deadline is None and self.transport:
            self._deadline = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.transport.abort)

    def _expect_none(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None


def with_headers(answer: web.StreamResponse) -> web.StreamResponse:
    """Return an answer with the headers of every answer."""
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


def _error(status: int, reason: str = "") -> web.Response:
    """Return an error as one line of text."""
    return web.Response(status=status, text=f"{status} {reason or HTTPStatus(status).phrase}\n")
