"""A fake CrateDB node on a real socket, which a test can pause, restart and cut off from its
cluster.
"""

import asyncio
import contextlib
import json
from typing import Literal, Self

from tests.support.cratedb.statements import without_ties

PROBE = "SELECT column_name FROM information_schema.key_column_usage"

State = Literal["serves", "is silent", "has no master", "knows no table", "drops"]


class FakeNode:
    """The HTTP endpoint of a CrateDB node, on a real socket."""

    def __init__(self) -> None:
        self.state: State = "serves"
        self.requests: list[str] = []  # in order: ``version``, ``probe``, ``read`` or ``write``
        self.arrived = asyncio.Semaphore(0)  # released once for each request
        # While it is clear, writes wait, as if CrateDB waited for another node.
        self.writes_wait = asyncio.Event()
        self.reads_wait = asyncio.Event()  # the same for probes and reads by key
        self.writes_wait.set()
        self.reads_wait.set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def writes(self) -> int:
        return self.requests.count("write")

    async def start(self) -> Self:
        """Listen, after a stop on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Refuse connections, reset the open ones, and let clients on this loop notice it."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.transport.abort()
        for _ in range(20):
            await asyncio.sleep(0)

    async def wait_for(self, count: int, request: str) -> None:
        """Wait until this many requests of a kind arrived."""
        async with asyncio.timeout(30):
            while self.requests.count(request) < count:
                await self.arrived.acquire()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].split()
                body = await reader.readexactly(int(length[0]) if length else 0)
                status, answer = await self._answer(_kind(body), _nonce(body))
                content = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content))
        self._connections.discard(writer)
        writer.close()

    async def _answer(self, kind: str, nonce: str) -> tuple[int, object]:
        self.requests.append(kind)
        self.arrived.release()
        match self.state:
            case "is silent":
                await asyncio.Event().wait()
            case "drops":
                raise ConnectionError
            case "has no master":
                return 503, {"error": {"code": 5031, "message": "MasterNotDiscoveredException"}}
            case "knows no table" if kind in ("read", "write"):
                return 404, {"error": {"code": 4045, "message": "SchemaUnknownException[Schema 'doc' unknown]"}}
        if kind == "version":
            return 200, {"version": {"number": "6.4.3"}}
        await {"read": self.reads_wait, "write": self.writes_wait}.get(kind, self.reads_wait).wait()
        rows = [] if kind == "probe" and self.state == "knows no table" else [[nonce, self.writes]]
        return 200, {"cols": [f"'{nonce}'", "writes"], "rows": rows}


def _kind(body: bytes) -> str:
    if not body:
        return "version"
    statement, *_ = without_ties(json.loads(body)["stmt"])
    if statement.startswith(PROBE):
        return "probe"
    return "read" if statement.startswith("SELECT") else "write"


def _nonce(body: bytes) -> str:
    """Return the text that the answer repeats."""
    return without_ties(json.loads(body)["stmt"])[1] if body else ""
