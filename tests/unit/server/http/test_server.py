"""The limits of the HTTP server, and what its probes answer."""

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from idalloc_server.domain.errors import StartRefused
from idalloc_server.http import server as http
from idalloc_server.http.readiness import Readiness
from idalloc_server.http.server import HttpServer
from tests.support.waiting import hold_for_async, until

LARGE = b"x" * 50_000_000


async def answer_much(request: web.Request) -> web.Response:
    """Answer more than the buffers of a connection hold."""
    return web.Response(body=LARGE)


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpServer]:
    """A server whose connections end after about a second."""
    monkeypatch.setattr(http, "CONNECTION_SECONDS", 0.5)
    monkeypatch.setattr(http, "LAST_ANSWER_SECONDS", 0.5)
    server = HttpServer("127.0.0.1:0", [("/large", answer_much)])
    await server.start()
    yield server
    await server.close()


async def connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a server."""
    port = int(server.url.rstrip("/").rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, limit=2**10)


async def test_slow_reader_is_dropped(served: HttpServer) -> None:
    """A client that does not read its answer loses the connection, and the server its memory."""
    reader, writer = await connect(served)
    writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readline()
    await until(lambda: not served.connection_count, "the end of the connection")
    writer.close()


async def test_connection_without_a_request_is_closed(served: HttpServer) -> None:
    """A client that sends its request too slowly loses the connection."""
    reader, writer = await connect(served)
    writer.write(b"GET /large HT")
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


async def test_long_connections_are_closed_after_an_answer(served: HttpServer) -> None:
    """A client that polls reconnects: each of its requests is answered."""
    async with aiohttp.ClientSession() as session:
        for _ in range(5):
            async with session.get(served.url + "nothing") as reply:
                assert reply.status == 404
            await hold_for_async(0.3, "connections end by their age")


async def test_address_in_use_is_named() -> None:
    """The error names the setting and the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = HttpServer(f"127.0.0.1:{taken.getsockname()[1]}", [])
        with pytest.raises(StartRefused, match=r"http_listen: cannot serve on 127.0.0.1:.*Address already in use"):
            await server.start()
        await server.close()


@pytest.mark.parametrize(
    ("checks", "query", "status", "text"),
    [
        ({"store": "", "shutdown": ""}, "", 200, "ok\n"),
        ({"store": "", "shutdown": ""}, "?verbose", 200, "[+]store ok\n[+]shutdown ok\n"),
        ({"store": "away", "shutdown": ""}, "", 503, "[-]store failed: away\n[+]shutdown ok\n"),
    ],
)
async def test_readyz_lists_checks(checks: dict[str, str], query: str, status: int, text: str) -> None:
    """Without a failed check the answer is short; a failed one is named."""
    server = HttpServer("127.0.0.1:0", [("/readyz", Readiness(lambda: checks).readyz)])
    await server.start()
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}readyz{query}") as reply:
        assert (reply.status, await reply.text()) == (status, text)
        assert reply.headers["Cache-Control"] == "no-store"
    await server.close()
