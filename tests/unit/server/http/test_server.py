"""The limits of the HTTP server, and what its probes answer."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest
import structlog
import trustme
from aiohttp import web

from idalloc_server.domain.errors import StartRefused
from idalloc_server.http import server as http
from idalloc_server.http.probes import readyz
from idalloc_server.http.server import HttpServer
from idalloc_server.listen.connections import ConnectionLimits
from tests.support.waiting import hold_for_async, settle, until

LIMITS = ConnectionLimits(20, 10)
LARGE = b"x" * 50_000_000


async def answer_much(request: web.BaseRequest) -> web.Response:
    """Answer more than the buffers of a connection hold."""
    return web.Response(body=LARGE)


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpServer]:
    """A server whose connections end after about a second."""
    monkeypatch.setattr(http, "CONNECTION_SECONDS", 0.5)
    monkeypatch.setattr(http, "LAST_ANSWER_SECONDS", 0.5)
    server = HttpServer("http_listen", "127.0.0.1:0", LIMITS, [("/large", answer_much)])
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
    await until(lambda: not served.listener.connection_count, "the end of the connection")
    writer.close()


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"", 0),
        (b"GET /large HT", 0),
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\nGET /not", 1),
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", 1),
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n", 1),
    ],
    ids=["nothing", "half a request", "half a second one", "half a body", "half a chunk"],
)
@pytest.mark.parametrize("drips", [False, True])
async def test_request_that_does_not_end_is_closed(
    sent: bytes, answers: int, drips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose headers are not complete in time loses the connection, also a slow one."""
    monkeypatch.setattr(http, "HEADER_SECONDS", 0.1)
    server = HttpServer("http_listen", "127.0.0.1:0", LIMITS, [])
    await server.start()
    reader, writer = await connect(server)
    writer.write(sent)

    async def drip() -> None:
        while drips:
            await hold_for_async(0.03, "the client sends a byte at a time")
            writer.write(b"x")

    dripping = asyncio.create_task(drip())
    read = b""
    with suppress(ConnectionResetError):  # what it sent last was not read
        while part := await asyncio.wait_for(reader.read(1000), 10):
            read += part
    dripping.cancel()
    assert read.count(b"HTTP/1.1 404 ") == answers
    writer.close()
    await server.close()


async def test_half_a_handshake_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not end its TLS handshake in time loses the connection."""
    monkeypatch.setattr(http, "HANDSHAKE_SECONDS", 0.2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    server = HttpServer("http_listen", "127.0.0.1:0", LIMITS, [], context)
    await server.start()
    reader, writer = await connect(server)
    writer.write(b"\x16\x03\x01")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    await until(lambda: not server.listener.connection_count)
    writer.close()
    await server.close()


async def test_an_answer_for_a_client_that_left_leaves_nothing_behind() -> None:
    """A handler that ends after its client has left does not count as a connection that waits."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def answer_late(request: web.BaseRequest) -> web.Response:
        began.set()
        await go_on.wait()
        return web.Response()

    server = HttpServer("http_listen", "127.0.0.1:0", ConnectionLimits(1, 9), [("/late", answer_late)])
    await server.start()
    _, writer = await connect(server)
    writer.write(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
    await began.wait()
    writer.transport.abort()
    await until(lambda: not server.listener.connection_count)
    go_on.set()
    await settle()
    later = [await connect(server) for _ in range(3)]  # each makes room for the next one
    reader, writer = later[-1]
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 404 ")
    for _, writer in later:
        writer.transport.abort()
    await server.close()


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"],
        [b"GET /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"],
        [b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r", b"\n"],
    ],
    ids=["whole", "with a body", "in parts"],
)
async def test_idle_connection_is_closed_and_one_in_use_is_not(
    parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two requests the limit of idle time ends a connection, not that of headers."""
    monkeypatch.setattr(http, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(http, "KEEPALIVE_SECONDS", 0.5)
    server = HttpServer("http_listen", "127.0.0.1:0", LIMITS, [])
    await server.start()
    reader, writer = await connect(server)
    for _ in range(3):
        for part in parts:
            writer.write(part)
            await hold_for_async(0.02, "the parts arrive one by one")
        assert (await reader.readuntil(b"404 Not Found\n")).startswith(b"HTTP/1.1 404 ")
        await hold_for_async(0.3, "longer than the deadline for headers")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    await server.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer abc123\r\n abc123\0\r\n\r\n", 400),
        (b"abc123 / HTTP/1.1\r\nabc123\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nabc123: " + b"abc123" * 2000 + b"\r\n\r\n", 400),
        (b"GET /abc123 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 6\r\n\r\nabc123", 405),
        (b"ABC123 /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"DELETE /a HTTP/1.1\r\nHost: x\r\nX: abc123\r\nConnection: close\r\n\r\n", 405),
    ],
)
async def test_errors_show_nothing_of_the_request(request_: bytes, status: int) -> None:
    """Each error has the headers of every answer; neither it nor the log has a request's byte."""

    async def answer(request: web.BaseRequest) -> web.Response:
        raise NotImplementedError

    server = HttpServer("http_listen", "127.0.0.1:0", LIMITS, [("/a", answer)])
    await server.start()
    with structlog.testing.capture_logs() as lines:
        reader, writer = await connect(server)
        writer.write(request_)
        read = b""
        with suppress(ConnectionResetError):
            read = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            read += await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await server.close()
    assert read.split()[1] == b"%d" % status
    assert all(f"{name}: {value}".encode() in read for name, value in http.HEADERS.items())
    assert b"abc123" not in read.lower()
    assert lines == []


async def test_faults_show_nothing_of_the_request() -> None:
    """A fault in a handler is answered 500 with all headers; the log has only kind and place."""

    async def fail(request: web.BaseRequest) -> web.Response:
        raise ValueError(request.query["secret"])

    server = HttpServer("http_listen", "127.0.0.1:0", LIMITS, [("/fail", fail)])
    await server.start()
    with structlog.testing.capture_logs() as lines:
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}fail?secret=abc123") as reply:
            assert (reply.status, await reply.text()) == (500, "500 Internal Server Error\n")
            assert {name: reply.headers[name] for name in http.HEADERS} == http.HEADERS
    await server.close()
    [line] = lines
    assert (line["event"], line["error"], "abc123" in str(line)) == ("http_request_failed", "ValueError", False)
    assert line["places"][-1].endswith(" fail")


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
        server = HttpServer("http_listen", f"127.0.0.1:{taken.getsockname()[1]}", LIMITS, [])
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
    server = HttpServer("http_listen", "127.0.0.1:0", LIMITS, [("/readyz", readyz(lambda: checks))])
    await server.start()
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}readyz{query}") as reply:
        assert (reply.status, await reply.text()) == (status, text)
        assert reply.headers["Cache-Control"] == "no-store"
    await server.close()
