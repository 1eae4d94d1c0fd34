"""A session of the X Protocol as a state machine without I/O: bytes in, bytes and requests out.

The owner feeds bytes with ``receive`` and sends what ``take_output`` returns. Before it asks for
the next request, it answers each one of ``next_request`` with ``reply`` or ``fail``, or with the
method that the request's docstring names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from idalloc.xprotocol.v1 import connection_pb2, crud_pb2, expect_pb2, notice_pb2, statement_pb2
from idalloc_xproto import frames
from idalloc_xproto.capabilities import Capabilities
from idalloc_xproto.expect import Expectations
from idalloc_xproto.login import Credentials, Login, new_salt
from idalloc_xproto.mysql_errors import XError

# The largest message before the login, and after it of all messages but statements on collections.
MAX_CONTROL_MESSAGE = 64 * 1024

# The most messages of a client before its login. Three logins with capabilities and TLS take about
# ten.
MAX_MESSAGES_BEFORE_LOGIN = 16

# How many messages are handled before other tasks run: about a millisecond of work.
MESSAGES_A_TURN = 32

# The statements, with their kinds in the metrics.
_STATEMENTS: dict[type[Any], str] = {
    statement_pb2.StmtExecute: "sql",
    crud_pb2.Find: "find",
    crud_pb2.Insert: "insert",
    crud_pb2.Update: "update",
    crud_pb2.Delete: "delete",
}
_MAY_BE_LARGE = (17, 18, 19, 20)  # the types of Find, Insert, Update and Delete
_LOGIN = (connection_pb2.AuthenticateStart, connection_pb2.AuthenticateContinue)


@dataclass(frozen=True)
class StartTls:
    """Send the output, and start TLS."""


@dataclass(frozen=True)
class LogIn:
    """Check the credentials; answer with ``accept_login`` or ``reject_login``."""

    credentials: Credentials


@dataclass(frozen=True)
class Reset:
    """Forget the variables of the session; answer with ``accept_reset``."""


@dataclass(frozen=True)
class Execute:
    """Run a statement."""

    message: Any  # of a type of ``_STATEMENTS``


@dataclass(frozen=True)
class Pause:
    """Send the output, and let other tasks run: the client sent many messages at once."""


Request = StartTls | LogIn | Reset | Execute | Pause


def kind_of(request: Request) -> str:
    """Return the kind of a request in the metrics; empty for one that they do not count."""
    if isinstance(request, LogIn):
        return "login"
    if not isinstance(request, Execute):
        return ""
    kind = _STATEMENTS[type(request.message)]
    return "command" if kind == "sql" and request.message.namespace == "mysqlx" else kind


class Session:
    """The protocol's state on one connection.

    Args:
        connection_id: The number that the client gets.
        host: The client's host, for errors.
        max_message_bytes: The largest length of a frame after the login, in bytes.
        has_tls: Whether the server has a certificate.
        requires_tls: Whether a login needs TLS.
        make_salt: Returns the salt of a login.
    """

    def __init__(
        self,
        connection_id: int,
        host: str,
        max_message_bytes: int,
        *,
        has_tls: bool,
        requires_tls: bool = False,
        make_salt: Callable[[], bytes] = new_salt,
    ) -> None:
        self.is_closed = False  # whether to close the connection after the output
        self.is_logged_in = False
        self._had_session = False
        self._before_login = 0  # messages
        self._connection_id = connection_id
        self._max_message_bytes = max_message_bytes
        self._reader = frames.FrameReader(min(MAX_CONTROL_MESSAGE, max_message_bytes))
        self._capabilities = Capabilities(has_tls=has_tls)
        self._login = Login(host, make_salt, requires_tls=requires_tls)
        self._credentials: Credentials | None = None
        self._expectations = Expectations()
        self._output = [frames.HELLO]

    @property
    def has_bytes(self) -> bool:
        """Whether bytes of a next frame have arrived."""
        return len(self._reader) > 0

    @property
    def next_size(self) -> int:
        """The size of the next frame in bytes; 0 if it has not arrived."""
        return self._reader.next_size

    def receive(self, data: bytes) -> None:
        """Add bytes that the client sent."""
        self._reader.feed(data)

    def take_output(self) -> bytes:
        """Return and remove the bytes to send."""
        output = b"".join(self._output)
        self._output = []
        return output

    def next_request(self) -> Request | None:
        """Handle frames up to the next request; return None if bytes are missing, or at the end."""
        for _ in range(MESSAGES_A_TURN):
            try:
                if self.is_closed or (found := self._reader.take()) is None:
                    return None
                request = self._handle(*found)
            except frames.FrameTooLong:
                self.is_closed = True
                return None
            except XError as failure:
                self.fail(failure)
            else:
                if request is not None:
                    return request
            if self.next_size > MAX_CONTROL_MESSAGE:
                break  # the owner looks at its size before it asks again
        return Pause()

    def reply(self, frame: bytes) -> None:
        """Add a frame of the reply to the current request."""
        self._output.append(frame)

    def fail(self, failure: XError) -> None:
        """End the current request with an error."""
        self._output.append(frames.error(failure))
        self.is_closed = self.is_closed or failure.fatal
        self._expectations.record_error()

    def accept_login(self) -> None:
        """End a request to log in: the session begins."""
        self.is_logged_in = self._had_session = True
        self._before_login = 0
        self._reader.max_length = self._max_message_bytes
        self._expectations = Expectations()
        self._output += [
            frames.state_changed(notice_pb2.SESSION_PARAMETER_CLIENT_ID_ASSIGNED, self._connection_id),
            frames.frame(frames.AUTHENTICATE_OK, connection_pb2.AuthenticateOk(auth_data=b"")),
        ]

    def reject_login(self) -> int:
        """End a request to log in with wrong credentials; return the code of the error."""
        assert self._credentials is not None  # noqa: S101 - the request had them
        refusal = self._login.refusal(self._credentials)
        self.fail(refusal)
        return refusal.code

    def accept_reset(self) -> None:
        """End a request to reset."""
        self._output.append(frames.ok())

    def _handle(self, kind: int, payload: bytes) -> Request | None:
        if len(payload) > MAX_CONTROL_MESSAGE and kind not in _MAY_BE_LARGE:
            raise XError(1153, f"Got a packet bigger than {MAX_CONTROL_MESSAGE} bytes", "08S01")
        message = frames.parse(kind, payload)
        if isinstance(message, connection_pb2.ConnectionClose):
            self._output.append(frames.ok("bye!"))
            self.is_closed = True
            return None
        return self._run(message) if self.is_logged_in else self._prepare(message)

    def _prepare(self, message: Message | None) -> Request | None:
        """Handle a message before the login."""
        self._before_login += 1
        if self._before_login > MAX_MESSAGES_BEFORE_LOGIN:
            raise XError(5000, f"More than {MAX_MESSAGES_BEFORE_LOGIN} messages before the login", fatal=True)
        if self._had_session and not isinstance(message, _LOGIN):
            raise XError(5000, "Invalid message", fatal=True)
        match message:
            case connection_pb2.CapabilitiesGet():
                self._output.append(frames.frame(frames.CAPABILITIES, self._capabilities.message()))
            case connection_pb2.CapabilitiesSet():
                starts_tls = self._capabilities.set(message)
                self._output.append(frames.ok())
                if starts_tls:
                    # Bytes that came before the handshake could be an attacker's.
                    self.is_closed = bool(self._reader.clear())
                    return StartTls()
            case connection_pb2.AuthenticateStart():
                found = self._login.start(message.mech_name, message.auth_data, is_secure=self._capabilities.is_secure)
                if isinstance(found, Credentials):
                    self._credentials = found
                    return LogIn(found)
                salt = connection_pb2.AuthenticateContinue(auth_data=found)
                self._output.append(frames.frame(frames.AUTHENTICATE_CONTINUE, salt))
            case connection_pb2.AuthenticateContinue():
                self._credentials = self._login.proceed(message.auth_data, is_secure=self._capabilities.is_secure)
                return LogIn(self._credentials)
            case _:
                raise XError(5000, "Invalid message", fatal=True)
        return None

    def _run(self, message: Message | None) -> Request | None:
        """Handle a message after the login."""
        if type(message) in _STATEMENTS:
            self._expectations.check()
            return Execute(message)
        match message:
            case connection_pb2.SessionReset():
                if not message.keep_open:
                    self._log_out()
                return Reset()
            case connection_pb2.SessionClose():
                self._log_out()
                return Reset()
            case expect_pb2.ExpectOpen():
                self._expectations.open(message)
                self._output.append(frames.ok())
                return None
            case expect_pb2.ExpectClose():
                self._expectations.close()
                self._output.append(frames.ok())
                return None
        self._expectations.check()
        raise XError(1047, "Unexpected message received")

    def _log_out(self) -> None:
        self.is_logged_in = False
        self._reader.max_length = min(MAX_CONTROL_MESSAGE, self._max_message_bytes)
        self._expectations = Expectations()
