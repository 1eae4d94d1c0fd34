"""Sessions answer recorded conversations as MySQL did, and survive damaged frames."""

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idalloc.xprotocol.v1 import connection_pb2, crud_pb2, expect_pb2, notice_pb2, statement_pb2
from idalloc_xproto import frames
from idalloc_xproto.expect import MAX_BLOCKS, field_exists
from idalloc_xproto.login import new_salt
from idalloc_xproto.mysql_errors import XError, parse_error
from idalloc_xproto.session import (
    MAX_CONTROL_MESSAGE,
    MAX_MESSAGES_BEFORE_LOGIN,
    MESSAGES_A_TURN,
    Execute,
    LogIn,
    Pause,
    Reset,
    Session,
    StartTls,
)
from tests.xproto.support.mysql import recordings
from tests.xproto.support.mysql.recordings import Conversation

MAX_MESSAGE = 2**24
# Fields of messages that MySQL serves and idalloc does not: prepared statements, cursors, views,
# compression.
DEVIATIONS = {
    f"expect/field_exist_{field}" for field in ("30", "31", "32", "40", "40.1", "40.2.6", "42", "43", "44", "45", "46")
}


def replayed() -> list[Conversation]:
    return [each for each in recordings.conversations() if each.case not in DEVIATIONS]


def salts_of(conversation: Conversation) -> Iterator[bytes]:
    for replies in conversation.replies:
        for reply in replies:
            if reply[4] == frames.AUTHENTICATE_CONTINUE:
                yield connection_pb2.AuthenticateContinue.FromString(reply[5:]).auth_data


def connection_of(conversation: Conversation) -> int:
    """Return the number that MySQL gave to a connection."""
    for replies in conversation.replies:
        for reply in replies:
            if reply[4] == frames.NOTICE:
                state = notice_pb2.SessionStateChanged.FromString(notice_pb2.Frame.FromString(reply[5:]).payload)
                if state.param == notice_pb2.SESSION_PARAMETER_CLIENT_ID_ASSIGNED:
                    return state.value[0].v_unsigned_int
    return 1


def logged_in(session: Session) -> Session:
    session.receive(frames.frame(4, connection_pb2.AuthenticateStart(mech_name="MYSQL41")))
    session.receive(frames.frame(5, connection_pb2.AuthenticateContinue(auth_data=b"\0x\0*00")))
    assert isinstance(session.next_request(), LogIn)
    session.accept_login()
    session.take_output()
    return session


def answer(session: Session, sent: bytes, statement_replies: list[bytes]) -> bytes:
    """Return a session's answer to a frame; statements answer as MySQL did."""
    session.receive(sent)
    while request := session.next_request():
        if isinstance(request, LogIn):
            session.accept_login()
        elif isinstance(request, Reset):
            session.accept_reset()
        elif isinstance(request, Execute):
            for reply in statement_replies:
                if reply[4] == frames.ERROR:
                    error = connection_pb2.Error.FromString(reply[5:])
                    session.fail(XError(error.code, error.msg, error.sql_state, fatal=error.severity == 1))
                else:
                    session.reply(reply)
            statement_replies = []
    return session.take_output()


def test_recorded_conversations_are_answered_as_mysql_did() -> None:
    """Each recorded frame gets MySQL's bytes, and the connection closes where MySQL closed it."""
    conversations = replayed()
    for conversation in conversations:
        check_conversation(conversation)
    assert len(conversations) == 250


def check_conversation(conversation: Conversation) -> None:
    salts = salts_of(conversation)
    session = Session(
        connection_of(conversation), "localhost", MAX_MESSAGE, has_tls=False, make_salt=lambda: next(salts, b"")
    )
    if conversation.unasked:
        assert session.take_output() == b"".join(conversation.unasked)
    else:
        logged_in(session)
    for index, (sent, replies) in enumerate(zip(conversation.sent, conversation.replies, strict=True)):
        assert answer(session, sent, replies).hex() == b"".join(replies).hex(), (conversation.case, index)
        # Where a conversation ends with a fatal error, not every recording has the end of the
        # connection.
        is_last = conversation.closed is None and index == len(conversation.sent) - 1
        assert is_last or session.is_closed == (index == conversation.closed), (conversation.case, index)
        if session.is_closed:
            break


def test_tls_needs_a_certificate_and_is_offered_once() -> None:
    """TLS starts once, with a certificate; bytes before the handshake close the connection."""
    value = notice_pb2.Any(
        type=notice_pb2.ANY_TYPE_SCALAR, scalar=notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_V_BOOL, v_bool=True)
    )
    wanted = connection_pb2.CapabilitiesSet(
        capabilities=connection_pb2.Capabilities(capabilities=[connection_pb2.Capability(name="tls", value=value)])
    )
    session = Session(1, "h", MAX_MESSAGE, has_tls=False)
    assert answer(session, frames.frame(2, wanted), []).endswith(
        frames.error(XError(5001, "Capability prepare failed for 'tls'"))
    )
    session = Session(1, "h", MAX_MESSAGE, has_tls=True)
    session.receive(frames.frame(2, wanted))
    assert isinstance(session.next_request(), StartTls)
    assert not session.is_closed
    assert b"PLAIN" in answer(session, frames.frame(1), [])
    session = Session(1, "h", MAX_MESSAGE, has_tls=True)
    session.receive(frames.frame(2, wanted) + frames.frame(1))
    assert isinstance(session.next_request(), StartTls)
    assert session.is_closed


@pytest.mark.parametrize("kind", [2, 12, 24], ids=["capabilities", "SQL", "expectations"])
def test_other_messages_than_statements_are_short(kind: int) -> None:
    """A large message but a statement is refused unparsed; the session continues."""
    session = logged_in(Session(1, "h", MAX_MESSAGE, has_tls=False))
    longest = MAX_CONTROL_MESSAGE
    too_long = frames.error(XError(1153, f"Got a packet bigger than {longest} bytes", "08S01"))
    assert answer(session, frames.frame(kind, b"\xff" * (longest + 1)), []) == too_long
    session.receive(frames.frame(18, crud_pb2.Insert(collection=crud_pb2.Collection(name="x" * longest))))
    assert isinstance(session.next_request(), Execute)
    assert answer(session, frames.frame(kind, b"\xff" * longest), []) == frames.error(parse_error())


def test_many_messages_are_handled_in_turns() -> None:
    """A session pauses after some messages that arrived together, so that others run."""
    session = logged_in(Session(1, "h", MAX_MESSAGE, has_tls=False))
    reply = answer(session, frames.frame(25), [])  # the end of a block that is not open
    session.receive(frames.frame(25) * (2 * MESSAGES_A_TURN + 1))
    turns = []
    while isinstance(session.next_request(), Pause):
        turns.append(session.take_output())
    assert turns == [reply * MESSAGES_A_TURN] * 2
    assert session.take_output() == reply


def test_messages_before_a_login_are_bounded() -> None:
    """A client without a login may send few messages; a login resets their number."""
    session = Session(1, "h", MAX_MESSAGE, has_tls=False)
    session.take_output()
    reply = answer(session, frames.frame(1), [])
    for _ in range(MAX_MESSAGES_BEFORE_LOGIN - 1):
        assert answer(session, frames.frame(1), []) == reply
    refusal = XError(5000, f"More than {MAX_MESSAGES_BEFORE_LOGIN} messages before the login", fatal=True)
    assert answer(session, frames.frame(1), []) == frames.error(refusal)
    assert session.is_closed


def test_plain_needs_tls() -> None:
    """PLAIN without TLS, and an unknown mechanism, end the connection with 1251."""
    for mechanism in ("PLAIN", "OTHER"):
        session = Session(1, "h", MAX_MESSAGE, has_tls=True)
        session.take_output()
        start = frames.frame(4, connection_pb2.AuthenticateStart(mech_name=mechanism, auth_data=b"\0x\0y"))
        expected = XError(1251, f"Invalid authentication method {mechanism}", fatal=True)
        assert answer(session, start, []) == frames.error(expected)
        assert session.is_closed


def test_the_third_failed_login_ends_the_connection() -> None:
    """Two wrong logins are errors, and the third is fatal."""
    session = Session(1, "h", MAX_MESSAGE, has_tls=False)
    for fatal in (False, False, True):
        session.receive(frames.frame(4, connection_pb2.AuthenticateStart(mech_name="SHA256_MEMORY")))
        session.receive(frames.frame(5, connection_pb2.AuthenticateContinue(auth_data=b"\0x\0AB\0")))
        request = session.next_request()
        assert isinstance(request, LogIn)
        assert (request.credentials.user, request.credentials.token) == ("x", None)
        session.take_output()
        session.reject_login()
        text = "Access denied for user 'x'@'h' (using password: YES)"
        assert session.take_output() == frames.error(XError(1045, text, fatal=fatal))
    assert session.is_closed


def test_salts_have_mysqls_form() -> None:
    """A salt has 19 bytes from 1 to 127 without a dollar sign, and a NUL; no two are equal."""
    salts = {new_salt() for _ in range(100)}
    assert len(salts) == 100
    for salt in salts:
        assert len(salt) == 20
        assert salt[-1] == 0
        assert all(0 < byte < 128 and byte != ord("$") for byte in salt[:-1])


def test_open_expect_blocks_are_bounded() -> None:
    """The 65th open Expect block ends the connection."""
    session = logged_in(Session(1, "h", MAX_MESSAGE, has_tls=False))
    opened = frames.frame(24, expect_pb2.ExpectOpen())
    for _ in range(MAX_BLOCKS):
        assert answer(session, opened, []) == frames.ok()
    assert answer(session, opened, [])[4] == frames.ERROR
    assert session.is_closed


@pytest.mark.parametrize(
    ("path", "exists"),
    [("6", True), ("6.1", True), ("18.6", True), ("17.5.1", True), ("6.2", False), ("40", False), ("6.1.1", False),
     ("", False), ("x", False), ("1" * 5000, False), ("6." + "1." * 40, False)],
)  # fmt: skip
def test_field_exist_knows_the_served_fields(path: str, exists: bool) -> None:
    """EXPECT_FIELD_EXIST holds for the fields of the messages that idalloc serves."""
    assert field_exists(path) == exists


VALID = [frame for conversation in recordings.conversations() for frame in conversation.sent if len(frame) < 500]


@settings(deadline=None)
@given(st.lists(st.sampled_from(VALID), max_size=5), st.data())
def test_damaged_frames_end_in_an_error_or_a_closed_connection(valid: list[bytes], data: st.DataObject) -> None:
    """Damaged frames raise nothing, and the bytes that a session keeps are bounded."""
    session = Session(1, "h", 4096, has_tls=True)
    if data.draw(st.booleans()):
        logged_in(session)
    stream = bytearray(b"".join(valid))
    for _ in range(data.draw(st.integers(0, 5)) if stream else 0):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    output = answer(session, bytes(stream), [])
    while output:
        length = int.from_bytes(output[:4], "little")
        assert output[4] in (*range(5), frames.NOTICE)
        output = output[4 + length :]


def test_a_failed_block_keeps_no_message() -> None:
    """The error of a failed block does not keep refused messages in its traceback."""
    session = Session(1, "h", MAX_MESSAGE, has_tls=False)
    logged_in(session)
    condition = expect_pb2.ExpectCondition(condition_key=2, condition_value=b"99.1")
    answer(session, frames.frame(24, expect_pb2.ExpectOpen(cond=[condition])), [])
    tracemalloc.start()
    try:
        for _ in range(50):
            refused = answer(session, frames.frame(12, statement_pb2.StmtExecute(stmt=b" " * 50_000)), [])
            assert connection_pb2.Error.FromString(refused[5:]).code == 5168
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000
