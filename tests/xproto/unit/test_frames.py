"""Frames have the bytes that a real MySQL and its clients send."""

import pytest
from google.protobuf.message import Message

from idalloc.xprotocol.v1 import connection_pb2, crud_pb2, expression_pb2, notice_pb2, statement_pb2
from idalloc_xproto import frames
from idalloc_xproto.mysql_errors import XError
from tests.xproto.support.mysql import recordings

SERVER_MESSAGES: dict[int, type[Message]] = {
    frames.OK: connection_pb2.Ok,
    frames.ERROR: connection_pb2.Error,
    frames.CAPABILITIES: connection_pb2.Capabilities,
    frames.AUTHENTICATE_CONTINUE: connection_pb2.AuthenticateContinue,
    frames.AUTHENTICATE_OK: connection_pb2.AuthenticateOk,
    frames.NOTICE: notice_pb2.Frame,
    frames.COLUMN_META_DATA: statement_pb2.ColumnMetaData,
    frames.ROW: statement_pb2.Row,
    frames.FETCH_DONE: statement_pb2.FetchDone,
    frames.STMT_EXECUTE_OK: statement_pb2.StmtExecuteOk,
}


def rebuilt(kind: int, payload: bytes) -> bytes:
    """Return a server's frame, decoded and encoded again by the functions that build replies."""
    message = SERVER_MESSAGES[kind].FromString(payload)
    if isinstance(message, statement_pb2.ColumnMetaData):
        names = (message.original_name, message.table, message.original_table, message.schema)
        own, table, original_table, schema = (name.decode() for name in names)
        return frames.column(
            message.type,
            message.name.decode(),
            original=(own, table, original_table, schema),
            collation=message.collation,
            length=message.length,
            flags=message.flags,
            content_type=message.content_type,
        )
    if isinstance(message, notice_pb2.Frame) and message.type == notice_pb2.FRAME_TYPE_SESSION_STATE_CHANGED:
        state = notice_pb2.SessionStateChanged.FromString(message.payload)
        if state.param == notice_pb2.SESSION_PARAMETER_PRODUCED_MESSAGE:
            return frames.produced_message(state.value[0].v_string.value.decode())
    return frames.frame(kind, message)


def read_all(data: bytes) -> list[tuple[int, bytes]]:
    reader = frames.FrameReader(2**24)
    reader.feed(data)
    taken = []
    while found := reader.take():
        taken.append(found)
    assert not len(reader)
    return taken


def test_replies_equal_all_recorded_ones() -> None:
    """Every recorded frame of the server is encoded to the same bytes."""
    count = 0
    for conversation in recordings.conversations():
        for recorded in [*conversation.unasked, *(each for replies in conversation.replies for each in replies)]:
            ((kind, payload),) = read_all(recorded)
            assert rebuilt(kind, payload) == recorded, conversation.case
            count += 1
    assert count == 1065


def test_all_recorded_messages_of_clients_are_parsed() -> None:
    """Every recorded client frame that MySQL could parse is parsed, and serialized to its bytes."""
    count = 0
    for conversation in recordings.conversations():
        for sent, replies in zip(conversation.sent, conversation.replies, strict=True):
            if conversation.case.startswith("framing/") or not sent or not replies or is_unparsable(replies[0]):
                continue
            ((kind, payload),) = read_all(sent)
            message = frames.parse(kind, payload)
            if message is not None:
                assert message.SerializeToString() == payload, conversation.case
                count += 1
    assert count == 490


def is_unparsable(reply: bytes) -> bool:
    return reply[4] == frames.ERROR and connection_pb2.Error.FromString(reply[5:]).code == 5000


def test_frames_may_arrive_in_pieces() -> None:
    """A reader returns a frame when its last byte has arrived, and keeps what follows."""
    data = frames.HELLO + frames.ok("bye!") + frames.DONE_EXECUTING
    reader, taken = frames.FrameReader(2**24), []
    for byte in data:
        reader.feed(bytes((byte,)))
        while found := reader.take():
            taken.append(found)
    assert [kind for kind, _ in taken] == [frames.NOTICE, frames.OK, frames.STMT_EXECUTE_OK]


def test_long_frames_and_empty_frames_end_a_connection() -> None:
    """A frame over the limit is refused before it arrives, and so is one without a type."""
    reader = frames.FrameReader(10)
    reader.feed(b"\x0b\0\0\0")
    with pytest.raises(frames.FrameTooLong):
        reader.take()
    reader = frames.FrameReader(10)
    reader.feed(bytes(4))
    with pytest.raises(XError, match="without payload") as refused:
        reader.take()
    assert (refused.value.code, refused.value.fatal) == (5000, True)


@pytest.mark.parametrize(
    "message",
    [
        crud_pb2.Insert(),
        crud_pb2.Insert(collection=crud_pb2.Collection(schema="s")),
        crud_pb2.Find(collection=crud_pb2.Collection(name="c"), criteria=expression_pb2.Expr()),
        crud_pb2.Find(
            collection=crud_pb2.Collection(name="c"),
            args=[notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_UNSPECIFIED)],
        ),
        crud_pb2.Find(collection=crud_pb2.Collection(name="c"), args=[notice_pb2.Scalar.FromString(b"\x08\x63")]),
    ],
    ids=["collection", "name", "type of expression", "type of scalar", "type without a name"],
)
def test_a_message_without_a_required_field_is_refused(message: Message) -> None:
    """A message that lacks a field that MySQL requires is refused as one that cannot be parsed."""
    kind = next(kind for kind, cls in frames.CLIENT_MESSAGES.items() if isinstance(message, cls))
    with pytest.raises(XError) as refused:
        frames.parse(kind, message.SerializeToString())
    assert (refused.value.code, refused.value.fatal) == (5000, True)


def test_ten_thousand_levels_are_refused() -> None:
    """A message nested 10,000 levels deep is refused without a fault."""
    payload = b""
    for _ in range(10_000):
        array = b"\x0a" + varint(len(payload)) + payload if payload else b""
        payload = b"\x08\x08\x4a" + varint(len(array)) + array
    criteria = b"\x12\x03\x0a\x01c" + b"\x2a" + varint(len(payload)) + payload
    with pytest.raises(XError, match="Parse error"):
        frames.parse(17, criteria)


def varint(number: int) -> bytes:
    return frames.unsigned_field(number)


@pytest.mark.parametrize(("number", "encoded"), [(0, "00"), (1, "02"), (-1, "01"), (2**63 - 1, "feffffffffffffffff01")])
def test_signed_numbers_of_rows(number: int, encoded: str) -> None:
    """A signed number in a row is a zigzag varint."""
    assert frames.signed_field(number).hex() == encoded
