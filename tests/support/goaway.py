"""A server of HTTP/2 whose connections begin with SETTINGS and GOAWAY, in one piece."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from tests.support.http2 import GOAWAY, SETTINGS, frame

# No stream was begun, and there is no error.
_GREETING = frame(SETTINGS, 0, 0) + frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0))


@contextmanager
def serving_goaway(then: str = "") -> Iterator[str]:
    """Run the server; yield its address. From the third connection on it forwards to ``then``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, then), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread


def _accept(listener: socket.socket, then: str) -> None:
    with suppress(OSError):
        for number in count():
            client, _ = listener.accept()
            if then and number >= 2:
                server = socket.create_connection(("127.0.0.1", int(then.rpartition(":")[2])))
                threading.Thread(target=_forward, args=(server, client), daemon=True).start()
            else:
                server = None
                with suppress(OSError):  # the client has left already
                    client.sendall(_GREETING)
                    client.shutdown(socket.SHUT_WR)
            threading.Thread(target=_forward, args=(client, server), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket | None) -> None:
    with source, suppress(OSError):
        while data := source.recv(65_536):
            if sink is not None:
                sink.sendall(data)
