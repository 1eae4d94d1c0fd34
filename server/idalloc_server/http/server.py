"""The HTTP server of a process: its address, its limits, and the headers of every answer."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

from aiohttp import web

from idalloc_server.listen.reservation import cannot_bind

# The most open connections; a further one is closed at once.
MAX_CONNECTIONS = 200
# How long a connection is used; then it is closed after its present answer. This and the next limit also end
# connections whose client sends its request, or reads its answer, too slowly.
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
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves routes by GET and HEAD, on the running event loop. Every other path is answered 404.

    Args:
        listen: HOST:PORT; port 0 selects a free port.
        routes: The handler of each path, such as ``/livez``.
        tls: The context of TLS; None for plain HTTP.

    Attributes:
        url: The address of the root page, once started.
    """

    def __init__(self, listen: str, routes: Iterable[tuple[str, Handler]], tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self._listen = listen
        self._tls = tls
        application = web.Application(middlewares=[_answer_errors], client_max_size=MAX_LINE_BYTES)
        application.add_routes([web.get(path, handler) for path, handler in routes])
        application.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            shutdown_timeout=STOP_SECONDS,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
        self._listener: asyncio.Server | None = None
        self._closing_old: asyncio.Task[None] | None = None

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._runner.server.connections) if self._runner.server else 0

    async def start(self) -> None:
        """Bind the address and answer requests.

        Raises:
            StartRefused: The address is in use, or cannot be bound.
        """
        await self._runner.setup()
        host, _, port = self._listen.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self._accept, host.strip("[]"), int(port), ssl=self._tls, reuse_address=True
            )
        except OSError as error:
            raise cannot_bind(self._listen, error, "http_listen") from None
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}/"
        self._closing_old = asyncio.create_task(self._close_old_connections())

    async def close(self) -> None:
        """Close the address and all connections."""
        if self._listener:
            self._listener.close()
        if self._closing_old:
            self._closing_old.cancel()
            await asyncio.wait([self._closing_old])
        await self._runner.cleanup()

    def _accept(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None  # noqa: S101 - setup() creates it
        return server() if self.connection_count < MAX_CONNECTIONS else _Refused()

    async def _close_old_connections(self) -> None:
        """Close connections after ``CONNECTION_SECONDS``, until cancelled: aiohttp has no limit of its own."""
        loop, since = asyncio.get_running_loop(), dict[web.RequestHandler, float]()
        while True:
            await asyncio.sleep(1)
            now, server = loop.time(), self._runner.server
            since = {each: since.get(each, now) for each in (server.connections if server else ())}
            for connection, began in since.items():
                if now - began >= CONNECTION_SECONDS + LAST_ANSWER_SECONDS:
                    if connection.transport:
                        connection.transport.abort()
                elif now - began >= CONNECTION_SECONDS:
                    connection.close()


class _Refused(asyncio.Protocol):
    """The protocol of a connection beyond ``MAX_CONNECTIONS``."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()  # uvloop's transports are no subclass of it


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors as one line of text."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = {name: value for name, value in error.headers.items() if name != "Content-Type"}
        return web.Response(status=error.status, text=f"{error.status} {error.reason}\n", headers=headers)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "idalloc"  # aiohttp's has the versions of Python and aiohttp
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
