"""A proxy of HTTP/2 that breaks connections, by the rows of ``broken_transports.json``."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from tests.support.http2 import ACK, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame
from tests.support.paths import ROOT

ROWS: list[dict[str, Any]] = json.loads((ROOT / "tests/support/broken_transports.json").read_text())


@contextmanager
def breaking(row: dict[str, Any], then: str = "", *, broken: int = 2) -> Iterator[str]:
    """Run the proxy; yield its address. A row that does ``nothing`` is a hung server.

    Args:
        row: What breaks a connection.
        then: The server to which the connections after the first ``broken`` are forwarded.
        broken: How many connections break; all of them without a server.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, row, then, broken), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread


def _accept(listener: socket.socket, row: dict[str, Any], then: str, broken: int) -> None:
    with suppress(OSError):
        for number in count():
            client, _ = listener.accept()
            if then and number >= broken:
                server = socket.create_connection(("127.0.0.1", int(then.rpartition(":")[2])))
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=ends, daemon=True).start()
            else:
                threading.Thread(target=_break, args=(client, row), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with source, suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def _break(client: socket.socket, row: dict[str, Any]) -> None:
    with client, client.makefile("rb") as received, suppress(OSError, struct.error):
        received.read(len(PREFACE))
        client.sendall(frame(SETTINGS, 0, 0))
        if row["when"] == "connection":
            _do(client, row, 0)
        while True:
            length, kind, flags, stream = struct.unpack(">I", b"\0" + received.read(3)) + struct.unpack(
                ">BBI", received.read(6)
            )
            received.read(length)
            if kind == SETTINGS and not flags & ACK:
                client.sendall(frame(SETTINGS, ACK, 0))
            elif kind == HEADERS and row["when"] == "call":
                _do(client, row, stream)


def _do(client: socket.socket, row: dict[str, Any], stream: int) -> None:
    match row["do"]:
        case "close":
            client.shutdown(socket.SHUT_RDWR)
        case "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionResetError
        case "text":
            client.sendall(row["text"].encode())
            client.shutdown(socket.SHUT_WR)
        case "goaway":
            client.sendall(frame(GOAWAY, 0, 0, struct.pack(">II", 0, row["code"])))
            client.shutdown(socket.SHUT_WR)
        case "rst":
            client.sendall(frame(RST_STREAM, 0, stream, struct.pack(">I", row["code"])))
            client.shutdown(socket.SHUT_WR)  # or later streams of the connection would break, too
