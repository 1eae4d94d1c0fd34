"""A client of the X Protocol that sends any frames, and reads whole replies."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from google.protobuf.message import Message

from idalloc.xprotocol.v1 import connection_pb2, crud_pb2, expect_pb2, expression_pb2, notice_pb2, statement_pb2
from idalloc_xproto import frames

_LAST = (frames.OK, frames.ERROR, frames.STMT_EXECUTE_OK, frames.AUTHENTICATE_CONTINUE, frames.AUTHENTICATE_OK)
_TYPES = {cls: kind for kind, cls in frames.CLIENT_MESSAGES.items()}


@dataclass
class Reply:
    """What a server sent up to the last frame of a reply."""

    code: int = 0  # the code of its error, or 0
    text: str = ""  # the text of its error
    ids: list[str] = field(default_factory=list)  # the ids of the notice GENERATED_DOCUMENT_IDS
    affected: int | None = None  # the number of ROWS_AFFECTED
    # The first field of each row, without the NUL of a text.
    rows: list[bytes] = field(default_factory=list)
    frames: list[tuple[int, bytes]] = field(default_factory=list)  # all frames, as kind and payload

    def add(self, kind: int, payload: bytes) -> None:
        """Add a frame."""
        self.frames.append((kind, payload))
        if kind == frames.ERROR:
            error = connection_pb2.Error.FromString(payload)
            self.code, self.text = error.code, error.msg
        elif kind == frames.ROW:
            self.rows.append(statement_pb2.Row.FromString(payload).field[0].removesuffix(b"\0"))
        elif kind == frames.NOTICE:
            self._add_notice(notice_pb2.Frame.FromString(payload))

    def _add_notice(self, notice: notice_pb2.Frame) -> None:
        if notice.type != notice_pb2.FRAME_TYPE_SESSION_STATE_CHANGED:
            return
        state = notice_pb2.SessionStateChanged.FromString(notice.payload)
        if state.param == notice_pb2.SESSION_PARAMETER_GENERATED_DOCUMENT_IDS:
            self.ids = [value.v_octets.value.decode() for value in state.value]
        elif state.param == notice_pb2.SESSION_PARAMETER_ROWS_AFFECTED:
            self.affected = state.value[0].v_unsigned_int


class XClient:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: str) -> Self:
        """Connect to HOST:PORT."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def read(self) -> tuple[int, bytes]:
        """Read a frame."""
        length = int.from_bytes(await self.reader.readexactly(4), "little")
        content = await self.reader.readexactly(length)
        return content[0], content[1:]

    async def reply(self) -> Reply:
        """Read the frames of a reply."""
        reply = Reply()
        while True:
            kind, payload = await self.read()
            reply.add(kind, payload)
            if kind in _LAST:
                return reply

    async def rest(self) -> bytes:
        """Read until the server closes the connection; return what it sent.

        A server that closes while bytes of the client wait to be read resets the connection. That
        closes it too, and then nothing is returned.
        """
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def send(self, message: Message) -> None:
        """Send a message."""
        self.writer.write(frames.frame(_TYPES[type(message)], message))

    async def ask(self, message: Message) -> Reply:
        """Send a message, and read its reply."""
        self.send(message)
        return await self.reply()

    async def log_in(self, user: str = "x", schema: str = "", mechanism: str = "MYSQL41") -> Reply:
        """Log in with a proof that fits no password."""
        await self.ask(connection_pb2.AuthenticateStart(mech_name=mechanism))
        return await self.ask(connection_pb2.AuthenticateContinue(auth_data=f"{schema}\0{user}\0*00".encode()))

    async def start_tls(self, tls: ssl.SSLContext) -> None:
        """Start TLS."""
        assert (await self.ask(set_tls())).code == 0
        await self.writer.start_tls(tls, server_hostname="127.0.0.1")

    async def log_in_plain(self, user: str, token: str, schema: str = "") -> Reply:
        """Log in with a token, after ``start_tls``."""
        auth_data = f"{schema}\0{user}\0{token}".encode()
        return await self.ask(connection_pb2.AuthenticateStart(mech_name="PLAIN", auth_data=auth_data))

    async def sql(self, statement: str) -> Reply:
        """Run a statement of SQL."""
        return await self.ask(statement_pb2.StmtExecute(stmt=statement.encode()))

    async def create_collection(self, schema: str = "s", name: str = "c") -> None:
        """Create a schema and a collection."""
        await self.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        assert (await self.command("ensure_collection", schema=schema, name=name)).code == 0

    async def command(self, name: str, /, **texts: str) -> Reply:
        """Run a command of the namespace ``mysqlx``."""
        fields = [notice_pb2.AnyObjectField(key=key, value=_text_any(value)) for key, value in texts.items()]
        args = [notice_pb2.Any(type=notice_pb2.ANY_TYPE_OBJECT, obj=notice_pb2.AnyObject(fld=fields))]
        return await self.ask(statement_pb2.StmtExecute(namespace="mysqlx", stmt=name.encode(), args=args))

    async def add(self, *documents: str, schema: str = "s") -> Reply:
        """Add documents to the collection ``c``."""
        return await self.ask(insert(*documents, schema=schema))

    async def find(self, schema: str = "s") -> Reply:
        """Find all documents of the collection ``c``."""
        return await self.ask(crud_pb2.Find(collection=crud_pb2.Collection(name="c", schema=schema)))

    async def expect_docid_generated(self) -> Reply:
        """Open a block that expects the server to generate ids."""
        condition = expect_pb2.ExpectCondition(condition_key=3)
        return await self.ask(expect_pb2.ExpectOpen(cond=[condition]))

    def close(self) -> None:
        """End the connection at once."""
        self.writer.transport.abort()


def set_tls() -> connection_pb2.CapabilitiesSet:
    """Return the request for TLS."""
    yes = notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_V_BOOL, v_bool=True)
    value = notice_pb2.Any(type=notice_pb2.ANY_TYPE_SCALAR, scalar=yes)
    wanted = connection_pb2.Capability(name="tls", value=value)
    return connection_pb2.CapabilitiesSet(capabilities=connection_pb2.Capabilities(capabilities=[wanted]))


def insert(*documents: str, schema: str = "s") -> crud_pb2.Insert:
    """Return an insert of JSON texts into the collection ``c``."""
    rows = [crud_pb2.InsertRow(field=[literal(document)]) for document in documents]
    return crud_pb2.Insert(collection=crud_pb2.Collection(name="c", schema=schema), row=rows)


def literal(text: str) -> expression_pb2.Expr:
    """Return a text as an expression."""
    value = notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_V_STRING, v_string=notice_pb2.Text(value=text.encode()))
    return expression_pb2.Expr(type=expression_pb2.EXPR_TYPE_LITERAL, literal=value)


def _text_any(text: str) -> notice_pb2.Any:
    return notice_pb2.Any(type=notice_pb2.ANY_TYPE_SCALAR, scalar=literal(text).literal)


@asynccontextmanager
async def connected(address: str, *, logs_in: bool = True) -> AsyncIterator[XClient]:
    """Connect, read the greeting, and log in without access control, until the end of the block."""
    client = await XClient.connect(address)
    try:
        assert await client.read() == (frames.NOTICE, frames.HELLO[5:])
        if logs_in:
            assert (await client.log_in()).code == 0
        yield client
    finally:
        client.close()
        await asyncio.sleep(0)
