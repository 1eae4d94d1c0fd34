"""The listener of the X Protocol: connections, TLS, and the statements of logged-in sessions."""

import asyncio
import itertools
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from math import inf
from typing import NamedTuple

from google.protobuf.message import Message

from idalloc.xprotocol.v1.statement_pb2 import StmtExecute
from idalloc_server.auth.sessions import ADMIN, Audit, Identity, auth_context_of
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.errors import PermissionDenied, Refusal, Unauthenticated
from idalloc_server.listen.connections import HANDSHAKE_SECONDS, HEADER_SECONDS, Accepted, ConnectionLimits, Listener
from idalloc_server.listen.transport import MAX_CONNECTION_GRACE_SECONDS
from idalloc_xproto import frames
from idalloc_xproto.admin import Admin
from idalloc_xproto.collections import Collections
from idalloc_xproto.document_roles import may_see
from idalloc_xproto.documents.cost import steps_of_message
from idalloc_xproto.documents.errors import DocumentsError
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.login import shown
from idalloc_xproto.logins import Credential, Logins, Peer
from idalloc_xproto.mysql_errors import XError, from_refusal, text_of, to_xerror, unknown_schema
from idalloc_xproto.rights import SessionRights
from idalloc_xproto.session import Execute, LogIn, Request, Reset, Session, StartTls, kind_of
from idalloc_xproto.sql import Sql
from idalloc_xproto.stream import Stream
from idalloc_xproto.variables import IDLE_SECONDS, ChangeNode, Variables

# How long a client may take to log in, at first and after a session, to read a part of a reply, and
# to read the last reply.
LOGIN_SECONDS = 30.0
WRITE_SECONDS = 60.0
LAST_SECONDS = 5.0
# How much of a reply is written at once.
WRITE_BYTES = 256 * 1024

# The methods of the audit.
_LOGIN = "xproto/login"
_STATEMENT = "xproto/statement"
_SET = "xproto/set"


class Services(NamedTuple):
    """What sessions use."""

    statements: Collections  # runs Mysqlx.Crud
    documents: Documents  # the store
    thread: SideThread  # parses large messages
    doc_ids: DocIdGenerator
    change_node: ChangeNode  # changes the node's settings, in all workers
    logins: Logins  # authenticates sessions
    audit: Audit  # records changes of the node
    burn: Callable[[int], None]  # counts ids that no stored document has


@dataclass(eq=False)
class XListener:
    """Serves MySQL's X DevAPI clients; see ``Listener``."""

    listen: InitVar[str]  # HOST:PORT; port 0 selects a free one
    services: Services
    _: KW_ONLY
    tls: ssl.SSLContext | None  # None without a certificate
    requires_tls: bool  # whether a login needs TLS
    max_message_bytes: int
    limits: ConnectionLimits  # of its connections
    reuse_port: InitVar[bool] = False  # whether other processes may bind the port
    # The calls that ended, by kind and code; see ``families.XPROTO_CALLS``.
    calls: Counter[str] = field(default_factory=Counter, init=False)
    is_draining: bool = field(default=False, init=False)

    def __post_init__(self, listen: str, reuse_port: bool) -> None:
        self._numbers = itertools.count(1)
        self._connections: set[_Connection] = set()
        refusal = frames.error(XError(1040, "Too many connections", fatal=True))
        self._listener = Listener(
            "xproto_listen", listen, self.limits, self._serve, refusal=refusal, reuse_port=reuse_port
        )

    @property
    def address(self) -> str:
        """The address, with the port in use once started."""
        return self._listener.address

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return self._listener.connection_count

    async def start(self) -> None:
        """Bind the address and accept connections.

        Raises:
            StartRefused: The address is in use, or cannot be bound.
        """
        self._listener.start()

    async def drain(self, timeout: float) -> None:
        """Stop accepting; end each connection after its present statement, or after ``timeout``."""
        self.is_draining = True
        self._listener.stop_accepting()
        for connection in self._connections:
            connection.drain()
        await self._listener.wait_until_empty(timeout)
        await self.close()

    async def close(self) -> None:
        """End all connections now."""
        await self._listener.close()

    def set_trusted(self, accepted: Accepted, is_trusted: bool) -> None:
        self._listener.set_trusted(accepted, is_trusted)

    async def _serve(self, accepted: Accepted) -> None:
        stream = Stream()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: stream, accepted.socket)
        connection = _Connection(self, next(self._numbers), accepted, stream)
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)
            connection.cancel_timer()
            stream.abort()


class _Connection:
    """One connection: runs the requests of its session. It is the ``Caller`` of its statements."""

    def __init__(self, listener: XListener, number: int, accepted: Accepted, stream: Stream) -> None:
        self.schema = ""
        self.connection_id = number
        self._listener = listener
        self._accepted = accepted
        self._services = listener.services
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None  # wakes ``_read``
        self._timer_at = inf
        self._unsent = 0  # bytes of the present reply
        self._peer = Peer(accepted.peer)
        self._max_age = listener.limits.age
        self._ends_at = self._loop.time() + self._max_age if self._max_age else None
        host = self._host = accepted.address
        accepted.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._session = Session(
            number,
            host,
            listener.max_message_bytes,
            has_tls=listener.tls is not None,
            requires_tls=listener.requires_tls,
        )
        self._credential: Credential | None = None
        self._variables = Variables(self._services.doc_ids, self._change_node, listener.max_message_bytes)
        limits = self._services.logins.limits
        self.rights = SessionRights(self._identity, limits, self._services.audit, peer=accepted.peer, host=host)
        self._admin = Admin(self._services.documents)
        self._sql = Sql(self._services.documents, self._variables, self)

    def drain(self) -> None:
        """Read no more: the session ends after its present statement."""
        # An exception of the reader would also end the writes of the reply that is on its way.
        self._stream.wake()

    def cancel_timer(self) -> None:
        """Cancel the timer, which would keep the connection in memory."""
        if self._timer is not None:
            self._timer.cancel()

    async def serve(self) -> None:
        """Serve until the client leaves, the session ends or the server drains."""
        await self._send()
        goes_on = True
        async with asyncio.timeout_at(self._ends_at and self._ends_at + MAX_CONNECTION_GRACE_SECONDS):
            while goes_on:
                is_logged_in = self._session.is_logged_in
                async with asyncio.timeout(None if is_logged_in else LOGIN_SECONDS):
                    while goes_on and self._session.is_logged_in == is_logged_in:
                        goes_on = await self._step()
        async with asyncio.timeout(LAST_SECONDS):
            await self._stream.close()

    async def _step(self) -> bool:
        """Run a request and count it, or wait for bytes; return whether to go on."""
        session = self._session
        request = None
        if session.has_bytes:
            steps = steps_of_message(session.next_size)
            request = await self._services.thread.run(steps, session.next_request)
        if request is not None:
            code = await self._answer(request)
            if kind := kind_of(request):
                self._listener.calls[f"{kind} {code}"] += 1
            await self._send()
            if session.has_bytes:
                await asyncio.sleep(0)  # otherwise a client that sends many would block the others
            return True
        await self._send()
        if session.is_closed:
            return False
        try:
            data = await self._read()
        except (XError, Refusal) as end:
            self._fail(end)
            await self._send()
            return False
        session.receive(data)
        self._accepted.is_silent = False
        return bool(data)

    async def _read(self) -> bytes:
        """Return bytes that arrived; empty at the end, or if none arrive in time.

        Raises:
            XError: The session ends before the next message.
            Unauthenticated: The client certificate has expired.
        """
        loop = self._loop
        last = loop.time() + (IDLE_SECONDS if self._session.is_logged_in else HEADER_SECONDS)
        while (now := loop.time()) < last:
            when = min(last, now + self._seconds_left())
            if when < self._timer_at:  # an earlier timer stays, so that most reads need no new one
                self.cancel_timer()
                self._timer = loop.call_at(when, self._on_timer)
                self._timer_at = when
            if (data := await self._stream.read()) or self._stream.has_left:
                return data
        return b""

    def _on_timer(self) -> None:
        self._timer_at = inf
        self._stream.wake()

    def _seconds_left(self) -> float:
        """Return the seconds that a session may wait for a message, or raise as ``_read`` does."""
        if self._listener.is_draining:
            raise XError(1053, "Server shutdown in progress", "08S01", fatal=True)
        seconds = self._ends_at - self._loop.time() if self._ends_at else inf
        if seconds <= 0:
            raise XError(3169, f"Session was killed: its connection is older than {self._max_age:g} s", fatal=True)
        if self._credential is None or not self._session.is_logged_in:
            return seconds
        return min(seconds, self._services.logins.seconds_left(self._credential))

    async def _send(self) -> None:
        output = self._session.take_output()
        for start in range(0, len(output), WRITE_BYTES):
            self._stream.write(output[start : start + WRITE_BYTES])
            if self._stream.is_full:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._stream.drain()

    async def _answer(self, request: Request) -> int:
        """Run a request; return the code of its error, or 0."""
        session = self._session
        try:
            match request:
                case Execute():
                    await self._execute(request.message)
                case StartTls():
                    if not session.is_closed and self._listener.tls is not None:
                        before = session.take_output()
                        await self._stream.start_tls(self._listener.tls, before, HANDSHAKE_SECONDS)
                        self._peer = Peer(self._accepted.peer, auth_context_of(self._stream.tls))
                case LogIn():
                    return await self._log_in(request)
                case Reset():
                    self._listener.set_trusted(self._accepted, session.is_logged_in)
                    # Beyond the quota, too: some clients ignore the error and continue.
                    self._variables.reset()
                    self._services.logins.limits.charge_call(_STATEMENT, self._identity())
                    session.accept_reset()
        except (XError, DocumentsError, Refusal) as failure:
            return self._fail(failure)
        return 0

    def _fail(self, failure: XError | DocumentsError | Refusal) -> int:
        """End a request with an error; return its code."""
        # Not where it is caught: a variable there would form a cycle with the traceback, whose
        # frames keep the message in memory.
        match failure:
            case XError():
                error = failure
            case Unauthenticated():
                error = self._access_denied(self._credential.name if self._credential else "", failure)
            case DocumentsError():
                error = to_xerror(failure)
            case _:
                error = from_refusal(failure)
        self._session.fail(error)
        return error.code

    def _access_denied(self, user: str, refusal: Unauthenticated) -> XError:
        return XError(1045, f"Access denied for user '{user}'@'{self._host}': {refusal}", fatal=True)

    async def _log_in(self, request: LogIn) -> int:
        schema, user, token, _ = request.credentials
        try:
            credential = self._services.logins.log_in(_LOGIN, user, token, self._peer)
        except Unauthenticated as refusal:
            await asyncio.sleep(refusal.wait)
            raise self._access_denied(shown(user), refusal) from None
        if credential is None:
            return self._session.reject_login()
        if schema:
            is_visible = may_see(self._services.logins.identity(credential), schema)
            if not is_visible or schema not in await self._services.documents.list_schemas():
                raise XError(1049, unknown_schema(shown(schema)).message)
        self._credential = credential
        self.schema = schema
        self._variables.reset()
        self._session.accept_login()
        self._listener.set_trusted(self._accepted, True)
        return 0

    async def _execute(self, message: Message) -> None:
        self._services.logins.limits.charge_call(_STATEMENT, self._identity())
        self._unsent = 0
        if not isinstance(message, StmtExecute):
            await self._services.statements.execute(message, self)
            return
        namespace = message.namespace or "sql"
        text = text_of(message.stmt)
        if namespace not in ("sql", "mysqlx"):
            raise XError(5162, f"Unknown namespace {namespace}")
        if namespace == "sql":
            found = await self._sql.execute(text, message.args)
        else:
            found = await self._admin.execute(text, message.args, self)
        for frame in found:
            await self.send(frame)

    def _identity(self) -> Identity:
        assert self._credential is not None  # noqa: S101 - statements follow a login
        return self._services.logins.identity(self._credential)

    # The methods of ``Caller``.

    @property
    def has_left(self) -> bool:
        return self._stream.has_left

    async def send(self, frame: bytes) -> None:
        self._session.reply(frame)
        self._unsent += len(frame)
        if self._unsent > WRITE_BYTES:
            self._identity()  # fails if the identity was removed meanwhile
            await self._send()
            self._unsent = 0

    async def generate_ids(self, count: int, given: int) -> list[str]:
        identity = self._identity()
        self._services.logins.charge_documents(_STATEMENT, identity, given, count)
        if not count:
            return []
        try:
            runs = await self._services.doc_ids.issue(count, self._variables.offset, self._variables.increment)
        except Refusal:
            self._services.logins.refund(identity, count)
            raise
        return [text for run in runs for text in run.texts()]

    def burn_ids(self, count: int) -> None:
        self._services.burn(count)

    async def _change_node(self, given: Mapping[str, int], persist: bool) -> None:
        """Change the node as UpdateNode does: audited, and with the role admin on all sequences."""
        identity = self._identity()
        if not identity.roles[ADMIN].any_name:
            refusal = PermissionDenied(identity.name, ADMIN, None)
            self._services.logins.limits.record_denied(_SET, identity, refusal, self._peer.address)
            raise refusal
        record = self._services.audit.record_admin_call
        with record(identity=identity.name, peer=self._peer.address, method=_SET, persist=persist):
            await self._services.change_node(given, persist)
