"""Add documents over many sessions at once, and print how long each add took.

Each session sends the same frame again and again, and looks only at the types of the replies'
frames, so the client costs little beside the server.

usage: xproto_sessions.py PORT SESSIONS SECONDS
"""

import asyncio
import json
import statistics
import sys
import time

import uvloop

from idalloc.xprotocol.v1 import connection_pb2, crud_pb2
from idalloc_xproto import frames
from tests.xproto.support.client import XClient, insert

_INSERT = next(kind for kind, cls in frames.CLIENT_MESSAGES.items() if cls is crud_pb2.Insert)
_SCHEMA = "bench"


class _Adding(asyncio.Protocol):
    """A session that adds one document after the other.

    Args:
        transport: The connection, which is logged in.
        frame: The frame of an add.
        end: When it ends, in seconds of ``time.perf_counter``.
        taken: Where it appends the seconds that each add took.
    """

    def __init__(self, transport: asyncio.WriteTransport, frame: bytes, end: float, taken: list[float]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport, self._frame, self._end, self._taken = transport, frame, end, taken
        self._received = bytearray()
        transport.set_protocol(self)
        self._add()

    def _add(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._frame)

    def data_received(self, data: bytes) -> None:
        """Send the next add after the last frame of a reply."""
        received = self._received
        received += data
        kind = -1
        while len(received) > frames.HEAD - 1:
            size = frames.HEAD - 1 + int.from_bytes(received[:4], "little")
            if len(received) < size:
                return
            kind = received[4]
            if kind == frames.ERROR:
                self.done.set_exception(RuntimeError(bytes(received[:size])))
                return
            del received[:size]
        if kind != frames.STMT_EXECUTE_OK:
            return
        now = time.perf_counter()
        self._taken.append(now - self._began)
        if now < self._end:
            self._add()
        else:
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail if the server closed the connection."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("the server closed the connection"))


async def _log_in(port: int) -> XClient:
    """Log in as root without a password, which idalloc and a new MySQL accept."""
    client = await XClient.connect(f"127.0.0.1:{port}")
    await client.read()  # the greeting
    await client.ask(connection_pb2.AuthenticateStart(mech_name="MYSQL41"))
    reply = await client.ask(connection_pb2.AuthenticateContinue(auth_data=b"\0root\0"))
    assert not reply.code, reply.text
    return client


async def main(port: int, sessions: int, seconds: float) -> None:
    """Log in all sessions, then add over all of them."""
    clients = [await _log_in(port) for _ in range(sessions)]
    await clients[0].create_collection(_SCHEMA)
    frame = frames.frame(_INSERT, insert('{"name": "Ada", "n": 1}', schema=_SCHEMA))
    taken: list[float] = []
    end = time.perf_counter() + seconds
    adding = [_Adding(client.writer.transport, frame, end, taken) for client in clients]
    await asyncio.gather(*(each.done for each in adding))
    cuts = statistics.quantiles(taken, n=100)
    print(json.dumps({"adds_per_s": len(taken) / seconds, "p50": cuts[49], "p99": cuts[98]}))
    for client in clients:
        client.writer.transport.abort()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
