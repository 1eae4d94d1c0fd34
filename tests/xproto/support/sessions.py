"""An attack on the X Protocol's port; see ``tests/support/faults/attacks.py``.

python -m tests.xproto.support.sessions '{"target": "127.0.0.1:33060", "attack": "x_sessions",
"number": 1000, "until": "session"}'
"""

import socket
import struct
from typing import Any

from idalloc.xprotocol.v1 import connection_pb2
from idalloc_xproto import frames
from tests.support.faults.attacks import OPEN, Outcomes, run


def x_sessions(target: str, number: int, *, until: str, **_others: Any) -> Outcomes:
    """Open X Protocol connections: up to the server's hello, half a login, or a whole one."""
    host, _, port = target.rpartition(":")
    seen = Outcomes()
    for _ in range(number):
        connection = socket.create_connection((host, int(port)), timeout=60)
        OPEN.append(connection)
        kind = _x_frame(connection)
        if kind == frames.NOTICE and until != "hello":
            start = connection_pb2.AuthenticateStart(mech_name="MYSQL41")
            connection.sendall(frames.frame(4, start))
            kind = _x_frame(connection)
            if until == "session":
                connection.sendall(frames.frame(5, connection_pb2.AuthenticateContinue(auth_data=b"\0x\0*00")))
                while (kind := _x_frame(connection)) == frames.NOTICE:
                    pass
        seen[str(kind)] += 1
    return seen


def _x_frame(connection: socket.socket) -> int:
    """Read a frame, and return its type."""
    with connection.makefile("rb", buffering=0) as file:
        length = struct.unpack("<I", _exactly(file, 4))[0]
        return _exactly(file, length)[0]


def _exactly(file: Any, count: int) -> bytes:
    read = b""
    while len(read) < count:
        more: bytes = file.read(count - len(read))
        if not more:
            raise ConnectionError("closed")
        read += more
    return read


if __name__ == "__main__":
    run({"x_sessions": x_sessions})
