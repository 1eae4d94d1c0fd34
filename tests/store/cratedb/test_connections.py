"""The connections and the credentials of the HTTP transport to CrateDB."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreOutcomeUnknown, StoreUnreachable
from idalloc_server.store.opensearch.http import OpenSearchHttp
from tests.store.cratedb.conftest import ADD, MakeHttp, last_value
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.cratedb.statements import without_ties

Answer = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


class Connections:
    """A server that counts its connections, and answers each request by ``answer``."""

    def __init__(self, answer: Answer) -> None:
        self.opened = 0
        self.closed = asyncio.Semaphore(0)
        self._answer = answer

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1") as server:
            yield "{}:{}".format(*server.sockets[0].getsockname())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = b""
                if head.startswith(b"POST"):
                    body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
                await self._answer(writer, body)
        writer.close()
        self.closed.release()


def row_of(body: bytes) -> bytes:
    """Return the answer with the row [1] to a statement, tied to it."""
    nonce = without_ties(json.loads(body)["stmt"])[1]
    return json.dumps({"cols": [f"'{nonce}'", "last_value"], "rows": [[nonce, 1]]}).encode()


def answering(status: int, fixed: bytes = b"") -> Answer:
    async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        content = fixed or row_of(body)
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content))

    return answer


class TestConnections:
    async def test_a_connection_is_reused(self, make_http: MakeHttp) -> None:
        """P10: successful writes share one connection, which close() closes."""
        connections = Connections(answering(200))
        async with connections.serve() as host:
            http = make_http(host)
            for _ in range(5):
                assert await http.write(ADD, 1, "s") == [[1]]
            assert connections.opened == 1
            await http.close()
            await asyncio.wait_for(connections.closed.acquire(), 1)

    @pytest.mark.parametrize("status", [400, 401, 404, 409, 500, 503])
    async def test_a_connection_is_closed_after_any_error(self, make_http: MakeHttp, status: int) -> None:
        """P1: after 400 (4004) CrateDB has queued the statement, and would run it with the next."""
        connections = Connections(answering(status, b'{"error": {"code": 4004, "message": "no"}}'))
        async with connections.serve() as host:
            http = make_http(host)
            for number in (1, 2, 3):
                with pytest.raises(StoreFailure):
                    await http.write(ADD, 1, "s")
                await asyncio.wait_for(connections.closed.acquire(), 1)
                assert connections.opened == number

    async def test_cancelling_a_call_closes_its_connection_only(self, make_http: MakeHttp) -> None:
        """P9: cancelling a write does not disturb concurrent writes."""
        arrived = asyncio.Semaphore(0)
        go_on = asyncio.Event()

        async def wait(writer: asyncio.StreamWriter, body: bytes) -> None:
            arrived.release()
            await go_on.wait()
            await answering(200)(writer, body)

        connections = Connections(wait)
        async with connections.serve() as host:
            http = make_http(host, timeout=60.0)
            calls = [asyncio.create_task(http.write(ADD, 1, "s")) for _ in range(2)]
            for _ in calls:
                await arrived.acquire()
            calls[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            go_on.set()
            assert await calls[1] == [[1]]
            await asyncio.wait_for(connections.closed.acquire(), 1)
            assert connections.closed.locked()
            assert await http.write(ADD, 1, "s") == [[1]]
            assert connections.opened == 2

    async def test_a_closed_transport_sends_nothing(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """A closed transport raises StoreUnreachable."""
        http = make_http(crate.host)
        await http.close()
        with pytest.raises(StoreUnreachable, match="closed"):
            await http.write(ADD, 1, "s")
        assert crate.requests == []


class TestLimits:
    """An answer has limits of size, of nesting, and of informational answers before it."""

    @pytest.mark.parametrize("length", [2**40, None], ids=["announced", "chunked"])
    async def test_a_body_without_an_end_is_not_read(self, make_http: MakeHttp, length: int | None) -> None:
        """An endless body is an error with the next step, and its connection is closed."""

        async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
            part = b"[" * 2**20
            head = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
            writer.write(b"HTTP/1.1 200 X\r\n%s\r\n\r\n" % head)
            while True:
                writer.write(part if length else b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()

        await self._refuses(make_http, answer, "of more than 128 MiB")

    async def test_a_compressed_body_counts_as_it_unpacks(self, make_http: MakeHttp) -> None:
        """200 MiB that fit into 200 KiB are an error."""
        packed = gzip.compress(bytes(200 * 2**20))

        async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
            head = b"HTTP/1.1 200 X\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
            writer.write(head + packed)

        await self._refuses(make_http, answer, "of more than 128 MiB")

    async def test_informational_answers_end(self, make_http: MakeHttp) -> None:
        """Endless answers of 100 Continue are an error."""

        async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
            while True:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
                await writer.drain()

        await self._refuses(make_http, answer, "after more than 10 informational ones")

    async def test_some_informational_answers_are_skipped(self, make_http: MakeHttp) -> None:
        """Each answer may follow ten informational ones."""

        async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10)
            await answering(200)(writer, body)

        async with Connections(answer).serve() as host:
            http = make_http(host)
            assert await http.write(ADD, 1, "s") == [[1]]
            assert await http.write(ADD, 1, "s") == [[1]]
            await http.close()

    @pytest.mark.parametrize("status", [200, 400])
    async def test_a_deeply_nested_answer_is_refused(self, make_http: MakeHttp, status: int) -> None:
        """200,000 levels are an error with the next step."""
        await self._refuses(make_http, answering(status, b"[" * 200_000), "that is nested too deeply")

    async def test_opensearch_has_the_same_limits(self) -> None:
        """The transport to OpenSearch shares the limits."""
        connections = Connections(answering(200, b'{"a":' * 200_000))
        async with connections.serve() as host:
            http = OpenSearchHttp([host])
            with pytest.raises(StoreUnreachable, match="that is nested too deeply; check the proxy"):
                await http.send_read(http.ALIVE)
            await http.close()

    async def _refuses(self, make_http: MakeHttp, answer: Answer, problem: str) -> None:
        connections = Connections(answer)
        async with connections.serve() as host:
            http = make_http(host)
            with pytest.raises(StoreOutcomeUnknown, match=f"an answer {problem}; check the proxy in front of it"):
                await http.write(ADD, 1, "s")
            await http.close()


class TestCredentials:
    async def test_the_authorization_header_is_sent(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """A right Authorization header is accepted; a wrong or missing one is rejected with 401."""
        crate.require_password("alice", "pässword")
        assert crate.authorization is not None
        assert await make_http(crate.host, authorization=crate.authorization).write(ADD, 1, "s") == [[1]]
        for wrong in (None, "Bearer x"):
            with pytest.raises(StoreAnsweredError, match="password authentication failed") as caught:
                await make_http(crate.host, authorization=wrong).write(ADD, 1, "s")
            assert (caught.value.code, caught.value.http_status) == (None, 401)
        assert last_value(crate) == 1
