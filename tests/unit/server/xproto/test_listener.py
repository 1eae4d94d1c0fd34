"""The port of the X Protocol bounds its connections, and ends them in a drain."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from google.protobuf.message import Message

from idalloc.xprotocol.v1 import connection_pb2, statement_pb2
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.clock import SystemClock
from idalloc_server.xproto import frames
from idalloc_server.xproto.caller import Caller
from idalloc_server.xproto.errors import XError
from idalloc_server.xproto.listener import Services, XListener
from tests.unit.server.xproto.test_sql import FakeDocuments, FakeNode

# The connections of the test that runs, which it closes at its end.
clients: list["Client"] = []


class NoStatements:
    """Fails each statement with a fault."""

    async def execute(self, message: Message, caller: Caller) -> AsyncIterator[bytes]:
        raise NotImplementedError
        yield b""


@asynccontextmanager
async def listening(max_connections: int = 10) -> AsyncIterator[XListener]:
    access, node = AccessControl(SystemClock(), 1000), FakeNode()
    services = Services(
        statements=NoStatements(),
        documents=FakeDocuments(),
        doc_ids=cast(Any, node),
        change_node=node.change,
        logins=access.logins,
        audit=access.audit,
        burn=cast(Callable[[int], None], print),
    )
    listener = XListener(
        "127.0.0.1:0",
        services,
        tls=None,
        requires_tls=False,
        max_message=2**20,
        max_connections=max_connections,
    )
    await listener.start()
    clients.clear()
    try:
        yield listener
    finally:
        await listener.close()
        for client in clients:
            client.writer.transport.abort()
        await asyncio.sleep(0)


class Client:
    """A connection to the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, listener: XListener) -> "Client":
        host, _, port = listener.address.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        clients.append(client)
        return client

    async def read(self) -> tuple[int, bytes]:
        length = int.from_bytes(await self.reader.readexactly(4), "little")
        content = await self.reader.readexactly(length)
        return content[0], content[1:]

    async def error(self) -> connection_pb2.Error:
        kind, payload = await self.read()
        assert kind == frames.ERROR
        return connection_pb2.Error.FromString(payload)

    async def log_in(self) -> None:
        start = connection_pb2.AuthenticateStart(mech_name="MYSQL41")
        self.writer.write(frames.frame(4, start))
        assert (await self.read())[0] == frames.NOTICE
        assert (await self.read())[0] == frames.AUTHENTICATE_CONTINUE
        self.writer.write(frames.frame(5, connection_pb2.AuthenticateContinue(auth_data=b"\0x\0*00")))
        assert (await self.read())[0] == frames.NOTICE
        assert (await self.read())[0] == frames.AUTHENTICATE_OK


async def test_a_statement_is_answered() -> None:
    """A client logs in, and gets the answer of a statement."""
    async with listening() as listener:
        client = await Client.connect(listener)
        await client.log_in()
        client.writer.write(frames.frame(12, statement_pb2.StmtExecute(stmt=b"SELECT 1")))
        kinds = [(await client.read())[0] for _ in range(5)]
        assert kinds == [frames.COLUMN_META_DATA, frames.ROW, frames.FETCH_DONE, frames.NOTICE, frames.STMT_EXECUTE_OK]
        client.writer.write(frames.frame(3))
        assert await client.read() == (frames.OK, frames.ok("bye!")[5:])
        assert await client.reader.read() == b""


async def test_connections_are_bounded() -> None:
    """A connection beyond the limit gets 1040; one that ends makes room for another."""
    async with listening(max_connections=1) as listener:
        first = await Client.connect(listener)
        assert (await first.read())[0] == frames.NOTICE
        second = await Client.connect(listener)
        assert (await second.error()).code == 1040
        assert await second.reader.read() == b""
        first.writer.write(frames.frame(3))
        await first.read()
        assert await first.reader.read() == b""
        third = await Client.connect(listener)
        assert (await third.read())[0] == frames.NOTICE


async def test_a_drain_ends_idle_connections() -> None:
    """A drain sends each idle session the error 1053, and closes the port."""
    async with listening() as listener:
        client = await Client.connect(listener)
        await client.log_in()
        await listener.drain(5)
        error = await client.error()
        assert (error.code, error.sql_state) == (1053, "08S01")
        assert await client.reader.read() == b""


async def test_an_oversized_frame_closes_the_connection() -> None:
    """A frame longer than the limit closes the connection without a reply, also before the login."""
    async with listening() as listener:
        client = await Client.connect(listener)
        client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await client.reader.read() == frames.HELLO


async def test_an_unknown_schema_refuses_a_login() -> None:
    """A login with a schema that does not exist fails with 1049."""
    async with listening() as listener:
        client = await Client.connect(listener)
        await client.read()
        client.writer.write(frames.frame(4, connection_pb2.AuthenticateStart(mech_name="MYSQL41")))
        await client.read()
        client.writer.write(frames.frame(5, connection_pb2.AuthenticateContinue(auth_data=b"nope\0x\0*00")))
        assert await client.read() == (frames.ERROR, frames.error(XError(1049, "Unknown database 'nope'"))[5:])
