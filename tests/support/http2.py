"""A minimal HTTP/2 client for misbehaving on purpose: it reads frames only on request."""

import socket
import ssl
import struct
from collections.abc import Iterable
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE = "/idalloc.v1.IdAllocatorService/"

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
# The default SETTINGS_MAX_FRAME_SIZE.
MAX_FRAME = 16_384
_INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(window: int) -> bytes:
    """Return the client's SETTINGS frame, with the initial window of each stream in bytes."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))


def headers(stream: int, method: str, metadata: Iterable[tuple[str, str]] = (), service: str = SERVICE) -> bytes:
    """Return the frames that open a call, of IdAllocatorService by default."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", service + method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *metadata,
    ]
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)
    pieces = [block[start : start + MAX_FRAME] for start in range(0, len(block), MAX_FRAME)]
    kinds = [HEADERS] + [CONTINUATION] * (len(pieces) - 1)
    last = len(pieces) - 1
    return b"".join(
        frame(kind, END_HEADERS if turn == last else 0, stream, piece)
        for turn, (kind, piece) in enumerate(zip(kinds, pieces, strict=True))
    )


def message(stream: int, request: bytes, *, is_packed: bool = False, is_last: bool = True) -> bytes:
    """Return the frames with a request of a call; those of the last one end with END_STREAM."""
    content = struct.pack(">BI", is_packed, len(request)) + request
    pieces = [content[start : start + MAX_FRAME] for start in range(0, len(content), MAX_FRAME)]
    last = frame(DATA, END_STREAM if is_last else 0, stream, pieces.pop())
    return b"".join(frame(DATA, 0, stream, piece) for piece in pieces) + last


def client_context(folder: Path | str) -> ssl.SSLContext:
    """Return a client's context with ca.pem, client.pem and client.key of a folder."""
    context = ssl.create_default_context(cafile=Path(folder, "ca.pem"))
    context.load_cert_chain(Path(folder, "client.pem"), Path(folder, "client.key"))
    context.set_alpn_protocols(["h2"])
    return context


def connect(target: str, window: int = 65_535, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Open a connection, by default without TLS, and read up to the server's SETTINGS."""
    host, _, port = target.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls:
        connection = tls.wrap_socket(connection, server_hostname=host)
    connection.sendall(PREFACE + settings(window))
    while True:
        kind, flags, _, _ = read_frame(connection)
        if kind == SETTINGS and not flags & ACK:
            break
    connection.sendall(frame(SETTINGS, ACK, 0))
    return connection


def read_frame(connection: socket.socket) -> tuple[int, int, int, bytes]:
    """Return kind, flags, stream and payload of the next frame.

    Raises:
        ConnectionError: The server has closed the connection.
    """
    head = _read(connection, 9)
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return kind, flags, stream, _read(connection, int.from_bytes(head[:3], "big"))


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the server closed the connection")
        data += piece
    return data


def _text(value: str) -> bytes:
    """A string of HPACK: its length in 7 bits, the rest in further bytes, then itself."""
    data = value.encode(errors="surrogateescape")
    if len(data) < 127:
        return bytes([len(data)]) + data
    head, left = [127], len(data) - 127
    while left >= 128:
        head.append(left % 128 + 128)
        left //= 128
    return bytes([*head, left]) + data
