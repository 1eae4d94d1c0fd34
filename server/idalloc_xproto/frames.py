"""Frames of the X Protocol: parses those of clients, and serializes those of replies.

A frame is the length of what follows (uint32, little endian), the type of its message, and the
message.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from idalloc.xprotocol.v1 import connection_pb2, crud_pb2, expect_pb2, notice_pb2, statement_pb2
from idalloc_server.notices.generated_ids import NOTICE as NOTICE
from idalloc_server.notices.generated_ids import frame as frame
from idalloc_server.notices.generated_ids import notice_frame
from idalloc_xproto.mysql_errors import XError, parse_error
from idalloc_xproto.pieces import pieces

# The types of the messages that a client sends (Mysqlx.ClientMessages.Type) and that idalloc
# serves.
CLIENT_MESSAGES: dict[int, type[Message]] = {
    1: connection_pb2.CapabilitiesGet,
    2: connection_pb2.CapabilitiesSet,
    3: connection_pb2.ConnectionClose,
    4: connection_pb2.AuthenticateStart,
    5: connection_pb2.AuthenticateContinue,
    6: connection_pb2.SessionReset,
    7: connection_pb2.SessionClose,
    12: statement_pb2.StmtExecute,
    17: crud_pb2.Find,
    18: crud_pb2.Insert,
    19: crud_pb2.Update,
    20: crud_pb2.Delete,
    24: expect_pb2.ExpectOpen,
    25: expect_pb2.ExpectClose,
}
# The types of the messages that the server sends (Mysqlx.ServerMessages.Type).
OK = 0
ERROR = 1
CAPABILITIES = 2
AUTHENTICATE_CONTINUE = 3
AUTHENTICATE_OK = 4
COLUMN_META_DATA = 12
ROW = 13
FETCH_DONE = 14
STMT_EXECUTE_OK = 17

# The bytes of the length and the type.
HEAD = 5

# MySQL's numbers of collations, its flag of a column without NULL, and its content type of JSON.
BINARY = 63
UTF8MB4_BIN = 46
UTF8MB4 = 255
NOT_NULL = 16
JSON = 2

# The fields of each message that MySQL requires, as `required` in proto2. Without one a frame
# cannot be parsed.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "Scalar": ("type",),
    "Text": ("value",),
    "Octets": ("value",),
    "AnyObjectField": ("key", "value"),
    "Any": ("type",),
    "Capability": ("name", "value"),
    "CapabilitiesSet": ("capabilities",),
    "AuthenticateStart": ("mech_name",),
    "AuthenticateContinue": ("auth_data",),
    "ExpectCondition": ("condition_key",),
    "StmtExecute": ("stmt",),
    "Expr": ("type",),
    "Identifier": ("name",),
    "DocumentPathItem": ("type",),
    "FunctionCall": ("name",),
    "Operator": ("name",),
    "ObjectExprField": ("key", "value"),
    "Collection": ("name",),
    "Projection": ("source",),
    "Limit": ("row_count",),
    "LimitExpr": ("row_count",),
    "Order": ("expr",),
    "UpdateOperation": ("source", "operation"),
    "Find": ("collection",),
    "Insert": ("collection",),
    "Update": ("collection",),
    "Delete": ("collection",),
}


def parse(kind: int, payload: bytes) -> Message | None:
    """Return the message of a frame; None if idalloc does not serve its type.

    Nothing else in the process runs while protobuf parses, so a large message is parsed piece by
    piece.

    Raises:
        XError: The payload is not such a message, is nested deeper than 100 levels, lacks a
            required field, or has too many fields.
    """
    cls = CLIENT_MESSAGES.get(kind)
    if cls is None:
        return None
    descriptor = cls.DESCRIPTOR
    missing: Sequence[str] = _REQUIRED.get(descriptor.name, ())
    message = cls()
    try:
        for piece in pieces(descriptor, payload):
            strict = _STRICT_MESSAGES[kind].FromString(piece)
            missing = [name for name in missing if not strict.HasField(name)]
            strict.DiscardUnknownFields()
            message.MergeFromString(strict.SerializeToString())
    except (DecodeError, EncodeError):
        raise parse_error() from None
    if missing:
        raise parse_error()
    return message


def _strict_messages() -> dict[int, type[Message]]:
    """Return the messages of clients in proto2: with required fields, and closed enums.

    So protobuf checks them: Python would hold the event loop many times as long for a large insert.
    """
    pool = DescriptorPool()
    added: set[str] = set()

    def add(file: Any) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for needed in file.dependencies:
            add(needed)
        pool.Add(_strict_file(file))

    for cls in CLIENT_MESSAGES.values():
        add(cls.DESCRIPTOR.file)
    return {
        kind: GetMessageClass(pool.FindMessageTypeByName(cls.DESCRIPTOR.full_name))
        for kind, cls in CLIENT_MESSAGES.items()
    }


def _strict_file(file: FileDescriptor) -> FileDescriptorProto:
    copy = FileDescriptorProto()
    file.CopyToProto(copy)
    copy.syntax = "proto2"
    for enum in copy.enum_type:
        named = [value for value in enum.value if value.number]
        del enum.value[:]
        enum.value.extend(named)
    frames = {cls.DESCRIPTOR.name for cls in CLIENT_MESSAGES.values()}
    for message in copy.message_type:
        # A piece has only some of a frame's own fields, so ``parse`` checks those.
        required = () if message.name in frames else _REQUIRED.get(message.name, ())
        del message.oneof_decl[:]  # proto3 has one for each optional field
        for field in message.field:
            field.ClearField("oneof_index")
            field.ClearField("proto3_optional")
            if field.name in required:
                field.label = FieldDescriptorProto.LABEL_REQUIRED
    return copy


_STRICT_MESSAGES = _strict_messages()


class FrameReader:
    """Cuts the bytes of a connection into frames, and buffers an incomplete one."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length  # of a frame, in bytes
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def next_size(self) -> int:
        """The size of the next frame in bytes; 0 if it has not arrived."""
        size = HEAD - 1 + int.from_bytes(self._buffer[:4], "little")
        return size if HEAD <= size <= len(self._buffer) else 0

    def feed(self, data: bytes) -> None:
        """Add bytes that arrived."""
        self._buffer += data

    def clear(self) -> bytes:
        """Return and remove all bytes."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def take(self) -> tuple[int, bytes] | None:
        """Return the next frame's type and payload; None if it has not arrived.

        Raises:
            XError: The frame has no type.
            FrameTooLong: The frame is longer than ``max_length``.
        """
        buffer = self._buffer
        if len(buffer) < HEAD - 1:
            return None
        length = int.from_bytes(buffer[:4], "little")
        if not length:
            raise XError(5000, "Messages without payload are not supported", fatal=True)
        if length > self.max_length:
            raise FrameTooLong
        end = HEAD - 1 + length
        if len(buffer) < end:
            return None
        kind = buffer[4]
        payload = bytes(buffer[HEAD:end])
        del buffer[:end]
        return kind, payload


class FrameTooLong(Exception):
    """A frame is longer than the limit. As in MySQL, the connection is closed without a reply."""


def ok(text: str = "") -> bytes:
    """Return the frame of Ok."""
    return frame(OK, connection_pb2.Ok(msg=text) if text else b"")


def error(failure: XError) -> bytes:
    """Return the frame of an error."""
    severity = connection_pb2.ERROR_SEVERITY_FATAL if failure.fatal else connection_pb2.ERROR_SEVERITY_UNSPECIFIED
    message = connection_pb2.Error(
        severity=severity, code=failure.code, msg=failure.message, sql_state=failure.sql_state
    )
    return frame(ERROR, message)


def state_changed(parameter: notice_pb2.SessionParameter.ValueType, number: int) -> bytes:
    """Return the frame of a notice with a number, such as ROWS_AFFECTED."""
    value = notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_V_UINT, v_unsigned_int=number)
    notice = notice_pb2.SessionStateChanged(param=parameter, value=[value])
    return notice_frame(notice_pb2.FRAME_TYPE_SESSION_STATE_CHANGED, notice.SerializeToString())


@lru_cache(maxsize=64)
def rows_affected(count: int) -> bytes:
    """Return the frame of the notice of changed rows."""
    return state_changed(notice_pb2.SESSION_PARAMETER_ROWS_AFFECTED, count)


def produced_message(text: str) -> bytes:
    """Return the frame of a notice with a text. As in MySQL, its inner lengths have four bytes."""
    content = text.encode()
    scalar = b"\x08\x08\x4a" + _padded(len(content) + 2) + b"\x0a" + bytes((len(content),)) + content
    notice = b"\x08\x0a\x12" + _padded(len(scalar)) + scalar
    return frame(NOTICE, b"\x08\x03\x10\x02\x1a" + _padded(len(notice)) + notice)


def warning(level: notice_pb2.WarningLevel.ValueType, code: int, text: str) -> bytes:
    """Return the frame of the notice of a warning or a note."""
    message = notice_pb2.Warning(level=level, code=code, msg=text)
    return notice_frame(notice_pb2.FRAME_TYPE_WARNING, message.SerializeToString())


def column(
    kind: statement_pb2.ColumnType.ValueType,
    name: str,
    *,
    original: tuple[str, str, str, str] = ("", "", "", ""),
    collation: int = 0,
    length: int = 0,
    flags: int = 0,
    content_type: int = 0,
) -> bytes:
    """Return the frame of a column's metadata. Numbers that are 0 are left out.

    Args:
        kind: The type of its values.
        name: The name that the client shows.
        original: The column's own name, the table, the table's own name and the schema.
        collation: MySQL's number of the collation.
        length: The largest length of a value, in bytes.
        flags: MySQL's flags.
        content_type: MySQL's number of what the bytes are, such as ``JSON``.
    """
    optional: dict[str, Any] = {"collation": collation, "length": length, "flags": flags, "content_type": content_type}
    numbers = statement_pb2.ColumnMetaData(type=kind, **{key: value for key, value in optional.items() if value})
    own, table, original_table, schema = (each.encode() for each in original)
    names = statement_pb2.ColumnMetaData(
        name=name.encode(),
        original_name=own,
        table=table,
        original_table=original_table,
        schema=schema,
        catalog=b"def",
    )
    # MySQL writes the names after the numbers, empty ones too.
    return frame(COLUMN_META_DATA, numbers.SerializeToString() + names.SerializeToString())


def row(fields: Sequence[bytes]) -> bytes:
    """Return the frame of a row with fields of ``text_field``, ``signed_field`` and the like."""
    return frame(ROW, statement_pb2.Row(field=fields))


def text_field(text: str | bytes | None) -> bytes:
    """Return a text or a document in a row; None is NULL."""
    if text is None:
        return b""
    return (text.encode() if isinstance(text, str) else text) + b"\0"


def signed_field(number: int) -> bytes:
    """Return a number of a COLUMN_TYPE_SINT in a row, from -2^63 to 2^63-1."""
    return unsigned_field(number << 1 if number >= 0 else ~(number << 1))


def unsigned_field(number: int) -> bytes:
    """Return a number of a COLUMN_TYPE_UINT in a row, from 0 to 2^64-1."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _padded(length: int) -> bytes:
    """Return a length as a varint of four bytes."""
    return bytes((length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14 & 0x7F | 0x80, length >> 21))


HELLO = frame(NOTICE, notice_pb2.Frame(type=notice_pb2.FRAME_TYPE_SERVER_HELLO, payload=b""))
DONE_FETCHING = frame(FETCH_DONE)
DONE_EXECUTING = frame(STMT_EXECUTE_OK)
