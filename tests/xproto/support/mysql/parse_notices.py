"""Parses frames from standard input with MySQL's client in Python; prints them as JSON."""

import json
import sys
from typing import Any

from mysqlx.protobuf import mysqlx_datatypes_pb2, mysqlx_notice_pb2, mysqlx_pb2

Frame = mysqlx_notice_pb2.Frame
SessionStateChanged = mysqlx_notice_pb2.SessionStateChanged
Scalar = mysqlx_datatypes_pb2.Scalar


def read(frame: bytes) -> dict[str, Any]:
    """Parse one frame without its length."""
    notice = Frame.FromString(frame[1:])
    change = SessionStateChanged.FromString(notice.payload)
    return {
        "message": mysqlx_pb2.ServerMessages.Type.Name(frame[0]),
        "type": Frame.Type.Name(notice.type),
        "scope": Frame.Scope.Name(notice.scope),
        "param": SessionStateChanged.Parameter.Name(change.param),
        "types": sorted({Scalar.Type.Name(value.type) for value in change.value}),
        "octets": [value.v_octets.value.decode() for value in change.value if value.HasField("v_octets")],
        "integers": [value.v_unsigned_int for value in change.value if value.HasField("v_unsigned_int")],
        "content_types": sum(value.v_octets.HasField("content_type") for value in change.value),
        "same_bytes": notice.SerializeToString() == frame[1:] and change.SerializeToString() == notice.payload,
    }


def frames() -> list[bytes]:
    """Split the input into frames by their lengths, as a client does."""
    found = []
    while head := sys.stdin.buffer.read(4):
        length = int.from_bytes(head, "little")
        frame = sys.stdin.buffer.read(length)
        if len(frame) != length:
            raise SystemExit(f"a frame of {length} bytes has {len(frame)} only")
        found.append(frame)
    return found


json.dump([read(frame) for frame in frames()], sys.stdout)
