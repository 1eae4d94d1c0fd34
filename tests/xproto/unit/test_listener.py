"""The port of the X Protocol bounds its connections, and ends them in a drain."""

import asyncio
import gc
import ssl
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from idalloc.xprotocol.v1 import notice_pb2
from idalloc.xprotocol.v1.connection_pb2 import SessionClose
from idalloc.xprotocol.v1.statement_pb2 import StmtExecute
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.clock import SystemClock
from idalloc_server.listen.connections import HEADER_SECONDS, ConnectionLimits
from idalloc_xproto import frames
from idalloc_xproto import listener as xlistener
from idalloc_xproto.caller import Caller
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents import cost
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.listener import Services, XListener
from idalloc_xproto.logins import Logins
from idalloc_xproto.stores.sqlite import SqliteDocuments
from idalloc_xproto.variables import IDLE_SECONDS
from tests.support.waiting import hold_for_async, until
from tests.xproto.support import attacks
from tests.xproto.support.client import XClient, connected, insert, literal
from tests.xproto.unit.test_sql import FakeDocuments, FakeNode


class NoStatements:
    """Fails each statement with a fault."""

    async def execute(self, message: Message, caller: Caller) -> None:
        raise NotImplementedError


def octets(content: bytes) -> notice_pb2.Any:
    """Return bytes as an argument of a statement."""
    scalar = notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_V_STRING, v_string=notice_pb2.Text(value=content))
    return notice_pb2.Any(type=notice_pb2.ANY_TYPE_SCALAR, scalar=scalar)


def command(name: str, /, **texts: bytes) -> StmtExecute:
    """Return a command of the namespace ``mysqlx``."""
    fields = [notice_pb2.AnyObjectField(key=key, value=octets(value)) for key, value in texts.items()]
    args = [notice_pb2.Any(type=notice_pb2.ANY_TYPE_OBJECT, obj=notice_pb2.AnyObject(fld=fields))]
    return StmtExecute(namespace="mysqlx", stmt=name.encode(), args=args)


@asynccontextmanager
async def listening(
    max_connections: int = 10,
    statements: Any = None,
    of_address: int = 10,
    *,
    access: AccessControl | None = None,
    tls: ssl.SSLContext | None = None,
    age: float = 0.0,
) -> AsyncIterator[XListener]:
    access, node = access or AccessControl(SystemClock(), 1000), FakeNode()
    services = Services(
        statements=statements or cast(Any, NoStatements()),
        documents=cast(Any, FakeDocuments()),
        thread=SideThread("messages"),
        doc_ids=cast(Any, node),
        change_node=node.change,
        logins=Logins(access),
        audit=access.audit,
        burn=cast(Callable[[int], None], print),
    )
    listener = XListener(
        "127.0.0.1:0",
        services,
        tls=tls,
        requires_tls=tls is not None,
        max_message_bytes=2**20,
        limits=ConnectionLimits(max_connections, of_address, age=age),
    )
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()


async def test_a_statement_is_answered() -> None:
    """A client logs in, and gets the answer of a statement."""
    async with listening() as listener, connected(listener.address) as client:
        reply = await client.sql("SELECT 1")
        kinds = [kind for kind, _ in reply.frames]
        assert kinds == [frames.COLUMN_META_DATA, frames.ROW, frames.FETCH_DONE, frames.NOTICE, frames.STMT_EXECUTE_OK]
        client.writer.write(frames.frame(3))
        assert await client.read() == (frames.OK, frames.ok("bye!")[5:])
        assert await client.rest() == b""
        assert listener.calls == {"login 0": 1, "sql 0": 1}


async def test_connections_are_bounded() -> None:
    """A connection beyond the limit gets 1040; one that ends makes room for another."""
    async with listening(max_connections=1) as listener:
        async with connected(listener.address) as first:
            second = await XClient.connect(listener.address)
            # As MySQL 8.0.31 answers beyond max_connections.
            answer = "08011090081a14546f6f206d616e7920636f6e6e656374696f6e7322054859303030"
            assert await second.read() == (frames.ERROR, bytes.fromhex(answer))
            assert await second.rest() == b""
            second.close()
            first.writer.write(frames.frame(3))
            await first.read()
            assert await first.rest() == b""
        async with connected(listener.address):
            assert listener.connection_count == 1


async def test_sessions_with_a_login_may_share_an_address() -> None:
    """An address's limit counts connections without a login: a pool of any size logs in."""
    async with listening(of_address=1) as listener, AsyncExitStack() as pool:
        sessions = [await pool.enter_async_context(connected(listener.address)) for _ in range(3)]
        assert listener.connection_count == 3
        async with connected(listener.address, logs_in=False) as waiting, connected(listener.address):
            assert await waiting.rest() == b""
        assert all([(await session.sql("SELECT 1")).code == 0 for session in sessions])


async def test_pipelined_statements_let_others_run() -> None:
    """Other tasks run between the statements that a client sent at once."""
    turns = 0
    in_turn: Counter[int] = Counter()

    class Counting:
        async def execute(self, message: Message, caller: Caller) -> None:
            in_turn[turns] += 1
            await caller.send(frames.DONE_EXECUTING)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with listening(statements=Counting()) as listener, connected(listener.address) as client:
        counting = asyncio.create_task(count_turns())
        for _ in range(200):
            client.send(insert("{}"))
        for _ in range(200):
            await client.reply()
        counting.cancel()
        await asyncio.wait([counting])
    assert in_turn.total() == 200
    assert set(in_turn.values()) == {1}


async def test_a_statement_that_waits_lets_others_run() -> None:
    """Other tasks run before a statement whose bytes came while the one before it ran."""
    loop, ran = asyncio.get_running_loop(), []

    class Chained:
        async def execute(self, message: Message, caller: Caller) -> None:
            ran.append("a statement")
            if len(ran) == 1:
                client.send(insert("{}"))
                client.writer.write_eof()
                await until(lambda: caller.has_left)
            loop.call_soon(ran.append, "another task")
            await caller.send(frames.DONE_EXECUTING)

    async with listening(statements=Chained()) as listener, connected(listener.address) as client:
        client.send(insert("{}"))
        await client.rest()
    assert ran == ["a statement", "another task"] * 2


async def test_a_drain_ends_idle_connections() -> None:
    """A drain sends each idle session the error 1053 at once, and closes the port."""
    loop = asyncio.get_running_loop()
    async with listening() as listener, connected(listener.address) as client:
        begun = loop.time()
        await listener.drain(5)
        assert loop.time() - begun < 1
        assert (await client.reply()).code == 1053
        assert await client.rest() == b""


async def test_a_drain_sends_a_running_reply_whole() -> None:
    """A statement that runs when a drain begins is answered in full; then its session gets 1053."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    row = frames.row([b"x" * 2**20])

    class LargeReply:
        async def execute(self, message: Message, caller: Caller) -> None:
            begun.set()
            await go_on.wait()
            for _ in range(16):
                await caller.send(row)
            await caller.send(frames.DONE_EXECUTING)

    async with listening(statements=LargeReply()) as listener, connected(listener.address) as client:
        client.send(insert("{}"))
        await begun.wait()
        drain = asyncio.create_task(listener.drain(10))
        await until(lambda: listener.is_draining)
        go_on.set()
        assert [(await client.read())[0] for _ in range(17)] == [frames.ROW] * 16 + [frames.STMT_EXECUTE_OK]
        assert (await client.reply()).code == 1053
        await drain


async def test_an_oversized_frame_closes_the_connection() -> None:
    """A frame over the limit closes the connection without a reply, also before the login."""
    async with listening() as listener, connected(listener.address, logs_in=False) as client:
        client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await client.rest() == b""


async def test_an_unknown_schema_refuses_a_login() -> None:
    """A login with a schema that does not exist fails with 1049."""
    async with listening() as listener, connected(listener.address, logs_in=False) as client:
        reply = await client.log_in(schema="nope")
        assert (reply.code, reply.text) == (1049, "Unknown database 'nope'")


@pytest.mark.parametrize(
    "statement",
    [
        StmtExecute(stmt=b"CREATE SCHEMA `x\xff`"),
        StmtExecute(stmt=b"USE `s\xff`"),
        StmtExecute(stmt=b"SHOW DATABASES LIKE ?", args=[octets(b"x\xff")]),
        StmtExecute(stmt=b"ping\xff", namespace="mysqlx"),
        command("create_collection", schema=b"s", name=b"c\xff"),
        command("ensure_collection", schema=b"s\xff", name=b"c"),
        command("list_objects", schema=b"s", pattern=b"c\xff"),
    ],
    ids=lambda statement: statement.stmt.decode(errors="replace").split()[0].lower(),
)
async def test_a_text_that_is_not_utf8_is_refused(statement: StmtExecute) -> None:
    """Bytes that are not UTF-8 get 1300: two different names would become one."""
    async with listening() as listener, connected(listener.address) as client:
        reply = await client.ask(statement)
        assert reply.code == 1300
        assert reply.text.startswith("Invalid utf8mb4 character string: 'FF")
        assert (await client.sql("SELECT 1")).code == 0


async def test_a_collection_that_is_not_utf8_ends_the_connection() -> None:
    """A collection's name that is not UTF-8 makes its message invalid for protobuf."""
    name = frames.frame(17, bytes.fromhex("12070a0263ff120173"))
    async with listening() as listener, connected(listener.address) as client:
        client.writer.write(name)
        assert (await client.reply()).code == 5000
        assert await client.rest() == b""


async def test_an_idle_session_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is silent for mysqlx_wait_timeout is ended, and makes room."""
    monkeypatch.setattr(xlistener, "IDLE_SECONDS", 0.2)
    async with listening(max_connections=1) as listener:
        async with connected(listener.address) as client:
            assert await client.rest() == b""
        async with connected(listener.address) as client:
            assert (await client.sql("SELECT 1")).code == 0


async def test_a_session_may_wait_after_each_message() -> None:
    """The time of mysqlx_wait_timeout begins with a session's last message."""
    loop = asyncio.get_running_loop()
    async with listening() as listener, connected(listener.address) as client:
        for _ in range(3):
            await hold_for_async(IDLE_SECONDS - 60, "the session is idle")
            assert (await client.sql("SELECT 1")).code == 0
        begun = loop.time()
        assert await client.rest() == b""
        assert IDLE_SECONDS <= loop.time() - begun < IDLE_SECONDS + 1


async def test_a_client_without_a_session_is_closed() -> None:
    """A client that logs out and sends nothing more is ended as one that connects."""
    loop = asyncio.get_running_loop()
    async with listening() as listener, connected(listener.address) as client:
        await hold_for_async(2 * HEADER_SECONDS, "the session is idle")
        assert (await client.ask(SessionClose())).code == 0
        begun = loop.time()
        assert await client.rest() == b""
        assert HEADER_SECONDS <= loop.time() - begun < HEADER_SECONDS + 1


async def test_an_ended_connection_is_not_kept() -> None:
    """Nothing keeps a connection in memory once it has ended, such as the timer of its wait."""
    callers = []

    class Statements:
        async def execute(self, message: Message, caller: Caller) -> None:
            callers.append(weakref.ref(caller))
            await caller.send(frames.DONE_EXECUTING)

    async with listening(statements=Statements()) as listener:
        async with connected(listener.address) as client:
            assert (await client.add("{}")).code == 0
        await until(lambda: listener.connection_count == 0)
        gc.collect()
        assert [caller() for caller in callers] == [None]


@pytest.mark.parametrize("starts", [False, True])
async def test_a_login_that_never_ends_is_closed(monkeypatch: pytest.MonkeyPatch, starts: bool) -> None:
    """A client that does not log in in time is ended, also if it sends bytes or asks."""
    monkeypatch.setattr(xlistener, "LOGIN_SECONDS", 0.2)
    async with listening() as listener, connected(listener.address, logs_in=False) as client:
        if starts:
            client.writer.write(frames.frame(1) + b"\x09")
        await client.rest()
        await until(lambda: listener.connection_count == 0)


async def test_a_fault_ends_its_connection_only() -> None:
    """A statement that fails with a fault of the server ends its connection, and no other one."""
    async with listening() as listener, connected(listener.address) as client, connected(listener.address) as other:
        client.send(insert("{}"))
        assert await client.rest() == b""
        assert (await other.sql("SELECT 1")).code == 0


async def test_a_reply_is_sent_whole_before_the_end() -> None:
    """A client that pipelines statements and the session's end gets all replies, also read late."""
    async with listening() as listener, connected(listener.address) as client:
        count = 2_000
        statement = frames.frame(12, StmtExecute(stmt=b"SHOW VARIABLES"))
        client.writer.write(statement * count + frames.frame(3))
        replies = [await client.reply() for _ in range(count)]
        assert all(reply.code == 0 and len(reply.rows) == 10 for reply in replies)
        assert await client.read() == (frames.OK, frames.ok("bye!")[5:])


async def test_a_find_ends_when_its_client_closes(tmp_path: Path) -> None:
    """A find without results ends when its client closes, long before the last document."""
    documents = SqliteDocuments(tmp_path / "documents.db")
    await documents.open()
    await documents.create_schema("s")
    await documents.create_collection("s", "c")
    await documents.insert("s", "c", [Document(f"{key:05}", f'{{"_id": "{key:05}"}}') for key in range(10_000)])
    thread = SideThread("statements")
    never = attacks.operator("==", attacks.member("n"), literal("x"))
    find = attacks.find("s", criteria=attacks.any_of([never] * 1_000))
    async with listening(statements=Collections(documents, cost.MAX_SIZE, thread)) as listener:
        async with connected(listener.address) as client:
            client.send(find)
            await client.writer.drain()
        await until(lambda: listener.calls["find 1317"] == 1)
        await until(lambda: listener.connection_count == 0)
    thread.close()
    await documents.close()
