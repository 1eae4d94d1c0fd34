"""Floods one port from several addresses, in a process of its own with a share of a core.

``python -m tests.floods.flooder '{"protocol": "http", "flood": "silent", "address":
"127.0.0.1:50080", …}'``

Options: ``sources`` (the addresses that it connects from), ``tls`` (a file with the authority of
the server's certificate; empty for none), ``tokens`` (by the name of an identity), ``seconds``. It
prints ``ready``, waits for a line,
floods, and prints counts as JSON.
"""

import asyncio
import gzip
import json
import logging
import socket
import ssl
import struct
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple

from idalloc.v1 import id_allocator_pb2 as pb
from tests.floods.cpu_share import CpuShare
from tests.support import http2
from tests.support.faults.attacks import ORDERS, TLS_HELLO
from tests.support.faults.floods import FLOODS as HTTP2_FLOODS
from tests.support.faults.floods import WRONG_TOKEN

# The share of a core that a flood may use: of strangers, and of guests, who fill streams.
CPU_SHARE, GUESTS_SHARE = 0.3, 1.0
# Loopback addresses of strangers; callers have 127.0.0.1.
STRANGERS = [f"127.0.0.{number}" for number in range(2, 10)]
# Connections that a flood holds at once: those that cost both sides a handshake, and silent ones.
HELD, SILENT = 400, 2_300
_CONNECTING = 32  # at the same time
_BOMB_BYTES = 64_000_000
CALLS, _TURN_SECONDS, _CONNECT_SECONDS = 100, 0.5, 10.0
# The requests without an answer of each stream.
_AHEAD = 10
_WRONG = "Bearer " + "x" * 43

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Flooder:
    """A flood of one address until a time."""

    def __init__(
        self,
        address: str,
        sources: list[str],
        seconds: float,
        tls: ssl.SSLContext | None,
        *,
        tokens: dict[str, str],
    ) -> None:
        self.seen: Counter[str] = Counter()  # counts of what happened
        self.share = CpuShare(GUESTS_SHARE if tokens else CPU_SHARE)
        self.tokens = tokens  # of guests, by the name of the identity
        self.tls = tls  # None without TLS
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._sources = cycle(sources)  # the addresses that it connects from, in turn
        self._until = time.monotonic() + seconds
        self._connecting = asyncio.Semaphore(_CONNECTING)

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return time.monotonic() >= self._until

    @asynccontextmanager
    async def connected(self, *, is_plain: bool = False, buffer: int = 65_536) -> AsyncIterator[Connection]:
        """Connect from the next address, and leave the connection at the end without a farewell.

        Args:
            is_plain: Whether the connection has no TLS, also if the port has.
            buffer: About how much is read ahead, in bytes.
        """
        tls = None if is_plain else self.tls
        async with self._connecting:  # else all that it holds would begin at once, beyond its share of a core
            await self.share.pause()
            opened = asyncio.open_connection(
                self._host, self._port, local_addr=(next(self._sources), 0), ssl=tls, limit=buffer
            )
            reader, writer = await asyncio.wait_for(opened, _CONNECT_SECONDS)
        self.seen["connections"] += 1
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def hold(self, connection: Connection, sent: bytes = b"") -> None:
        """Send bytes, and read until the server closes the connection."""
        reader, writer = connection
        writer.write(sent)
        while await reader.read(65_536):
            pass

    async def run(self, turn: "Turn", concurrency: int) -> None:
        """Repeat a turn on as many tasks, until the time has passed."""

        async def repeat() -> None:
            while not self.is_over:
                try:
                    await turn(self)
                except (OSError, EOFError, TimeoutError) as error:
                    self.seen[type(error).__name__] += 1
                await self.share.pause()

        tasks = [asyncio.create_task(repeat()) for _ in range(concurrency)]
        await asyncio.wait(tasks, timeout=max(0.0, self._until - time.monotonic()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A flood that stopped flooding must not look like a server that withstands one.
        for task in tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error


Turn = Callable[[Flooder], Awaitable[None]]


async def silent(flooder: Flooder) -> None:
    """Connect, and send nothing."""
    async with flooder.connected(is_plain=True) as connection:
        await flooder.hold(connection)


async def half_handshakes(flooder: Flooder) -> None:
    """Send the beginning of a TLS handshake."""
    async with flooder.connected(is_plain=True) as connection:
        await flooder.hold(connection, TLS_HELLO)


def then_reset(writer: asyncio.StreamWriter) -> None:
    """Let the end of a connection be a reset."""
    found = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def unread(flooder: Flooder, connection: Connection, opening: bytes, more: bytes) -> None:
    """Send bytes, then more of them twice a second, and read nothing."""
    _, writer = connection
    transport: Any = writer.transport
    transport.pause_reading()
    writer.write(opening)
    while not (transport.is_closing() or flooder.is_over):
        await asyncio.sleep(_TURN_SECONDS)
        writer.write(more)
        await writer.drain()


@asynccontextmanager
async def _http2(flooder: Flooder, window: int = 65_535) -> AsyncIterator[Connection]:
    async with flooder.connected() as (reader, writer):
        writer.write(http2.PREFACE + http2.settings(window))
        head = await reader.readexactly(9)  # of the server's settings
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        writer.write(http2.frame(http2.SETTINGS, http2.ACK, 0))
        yield reader, writer


def _frames(kind: str) -> Turn:
    """Return a turn that sends frames of ``tests/support/faults/floods.py`` on one connection."""

    async def send(flooder: Flooder) -> None:
        async with _http2(flooder, 2**31 - 1) as (reader, writer):
            writer.write(http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535)))
            reading = asyncio.create_task(flooder.hold((reader, writer)))
            try:
                for batch in HTTP2_FLOODS[kind]:
                    writer.write(batch)
                    await writer.drain()
                    flooder.seen["sent"] += bool(batch) * CALLS
                    await flooder.share.pause()
                    if reading.done() or flooder.is_over:
                        return
            finally:
                reading.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await reading

    return send


async def half_calls(flooder: Flooder) -> None:
    """Open calls with half a request each."""
    async with _http2(flooder) as connection:
        calls = [
            http2.headers(stream, "AllocateRange") + http2.frame(http2.DATA, 0, stream, b"\0\0\0\x01\0half")
            for stream in range(1, 2 * CALLS, 2)
        ]
        flooder.seen["sent"] += len(calls)
        await flooder.hold(connection, b"".join(calls))


async def unread_calls(flooder: Flooder) -> None:
    """Make calls with a wrong token whose replies cannot be sent, since the windows stay closed."""
    async with _http2(flooder, 0) as connection:
        calls = [
            http2.headers(stream, "AllocateRange", WRONG_TOKEN) + http2.message(stream, ORDERS)
            for stream in range(1, 2 * CALLS, 2)
        ]
        flooder.seen["sent"] += len(calls)
        await unread(flooder, connection, b"".join(calls), http2.frame(http2.PING, 0, 0, bytes(8)))


async def gzip_bombs(flooder: Flooder) -> None:
    """Send requests of 64 MB, compressed to 64 kB, one on each connection."""
    async with _http2(flooder) as (reader, writer):
        writer.write(http2.headers(1, "AllocateRange", [("grpc-encoding", "gzip")]) + _bomb_frames())
        flooder.seen["sent"] += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(flooder.hold((reader, writer)), _TURN_SECONDS)


@cache
def _bomb_frames() -> bytes:
    request = pb.AllocateRangeRequest(sequence="x" * _BOMB_BYTES).SerializeToString()
    return http2.message(1, gzip.compress(request), is_packed=True)


def _full_streams(identity: str, **fields: Callable[[], Any]) -> Turn:
    """Return a turn that keeps the streams of a connection full of requests.

    Args:
        identity: Who opens the streams.
        fields: Return the fields of a request; by default it asks for an id from a lease.
    """

    def request(stream: int) -> bytes:
        made: dict[str, Any] = {name: new() for name, new in fields.items()}
        wanted = pb.AllocateRangeRequest(**({"sequence": "a"} | made))
        content = pb.AllocateStreamRequest(allocate_range=wanted).SerializeToString()
        return http2.message(stream, content, is_last=False)

    async def fill(flooder: Flooder) -> None:
        credentials = [("authorization", f"Bearer {flooder.tokens[identity]}")]

        def opening(stream: int) -> bytes:
            flooder.seen["opened"] += 1
            requests = b"".join(request(stream) for _ in range(_AHEAD))
            return http2.headers(stream, "AllocateStream", credentials) + requests

        async with _http2(flooder, 2**31 - 1) as (reader, writer):
            writer.write(http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535)))
            streams = {*range(1, 2 * CALLS, 2)}
            newest = 2 * CALLS - 1
            writer.write(b"".join(map(opening, streams)))
            while not flooder.is_over:
                head = await reader.readexactly(9)
                kind, flags, stream = struct.unpack(">BBI", head[3:])
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                if kind == http2.DATA and stream in streams:
                    answers = _count_messages(payload)
                    flooder.seen["sent"] += answers
                    writer.write(b"".join(request(stream) for _ in range(answers)))
                elif stream in streams and (kind == http2.RST_STREAM or flags & http2.END_STREAM):
                    newest += 2
                    streams.remove(stream)
                    streams.add(newest)
                    writer.write(opening(newest))
                elif kind == http2.PING and not flags & http2.ACK:
                    writer.write(http2.frame(http2.PING, http2.ACK, 0, payload))
                await writer.drain()

    return fill


def _count_messages(payload: bytes) -> int:
    """Return the number of messages in a frame; each answer is in one frame."""
    count = start = 0
    while start < len(payload):
        start += 5 + int.from_bytes(payload[start + 1 : start + 5], "big")
        count += 1
    return count


def _new_name() -> str:
    return f"a{uuid.uuid4()}"


def _new_request_id() -> str:
    return str(uuid.uuid4())


def _http_request(*headers: str, path: str = "/metrics") -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


async def half_http_requests(flooder: Flooder) -> None:
    """Send half a request."""
    async with flooder.connected() as connection:
        await flooder.hold(connection, b"GET /livez HTTP/1.1\r\nHost: localh")


async def http_resets(flooder: Flooder) -> None:
    """Reset a connection right after a request."""
    async with flooder.connected() as (_, writer):
        writer.write(_http_request(path="/"))
        flooder.seen["sent"] += 1
        then_reset(writer)


async def unread_pages(flooder: Flooder) -> None:
    """Send requests, and read no answer."""
    async with flooder.connected(buffer=1) as connection:
        await unread(flooder, connection, _http_request(path="/") * CALLS, _http_request(path="/") * CALLS)


async def wrong_tokens(flooder: Flooder) -> None:
    """Send requests with a wrong token on one connection, in turn."""
    async with flooder.connected() as (reader, writer):
        while not flooder.is_over:
            writer.write(_http_request(f"Authorization: {_WRONG}"))
            head = await reader.readuntil(b"\r\n\r\n")
            [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length.partition(b":")[2]))
            flooder.seen["sent"] += 1
            await flooder.share.pause()


async def gzip_bodies(flooder: Flooder) -> None:
    """Send bodies that are compressed by gzip."""
    async with flooder.connected() as connection:
        body = _bomb_frames()
        head = _http_request("Content-Encoding: gzip", f"Content-Length: {len(body)}")
        flooder.seen["sent"] += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(flooder.hold(connection, head + body), _TURN_SECONDS)


class Flood(NamedTuple):
    """A flood."""

    turn: Turn  # what it repeats
    concurrency: int  # on how many tasks
    needs_tls: bool = False  # whether it is for ports with TLS only


# By protocol and name.
FLOODS: dict[str, dict[str, Flood]] = {
    "grpc": {
        "half requests": Flood(half_calls, HELD),
        "half-open TLS": Flood(half_handshakes, SILENT, needs_tls=True),
        "silent": Flood(silent, SILENT),
        "rapid resets": Flood(_frames("rapid_resets"), 4),
        "continuations": Flood(_frames("continuations"), 4),
        "settings": Flood(_frames("settings"), 4),
        "pings": Flood(_frames("pings"), 4),
        "slow reads": Flood(unread_calls, HELD),
        "gzip": Flood(gzip_bombs, 4),
        "wrong tokens": Flood(_frames("rejected_calls"), 4),
    },
    "guests": {
        "full streams": Flood(_full_streams("guest"), 5),
        "full streams, request ids": Flood(_full_streams("guest", request_id=_new_request_id), 5),
        "full streams, new names": Flood(_full_streams("guest", sequence=_new_name), 5),
        "full streams, quota": Flood(_full_streams("metered"), 5),
        "full streams, request ids, quota": Flood(_full_streams("metered", request_id=_new_request_id), 5),
    },
    "http": {
        "half requests": Flood(half_http_requests, HELD),
        "half-open TLS": Flood(half_handshakes, SILENT, needs_tls=True),
        "silent": Flood(silent, SILENT),
        "resets": Flood(http_resets, 4),
        "slow reads": Flood(unread_pages, HELD),
        "gzip": Flood(gzip_bodies, 4),
        "wrong tokens": Flood(wrong_tokens, 4),
    },
}


def client_context(authority: str, protocol: str) -> ssl.SSLContext:
    """Return the context of a client without a certificate."""
    context = ssl.create_default_context(cafile=authority)
    if protocol == "grpc":
        context.set_alpn_protocols(["h2"])
    return context


async def main(options: dict[str, Any], floods: Mapping[str, Mapping[str, Flood]]) -> Counter[str]:
    """Flood as the options say, and return the counts."""
    protocol = options["protocol"]
    tls = client_context(options["tls"], protocol) if options.get("tls") else None
    flood = floods[protocol][options["flood"]]
    if flood.turn in (gzip_bombs, gzip_bodies):
        _bomb_frames()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    flooder = Flooder(options["address"], options["sources"], options["seconds"], tls, tokens=options["tokens"])
    began, used = time.monotonic(), time.process_time()
    await flooder.run(flood.turn, flood.concurrency)
    flooder.seen["cpu %"] = round(100 * (time.process_time() - used) / (time.monotonic() - began))
    return flooder.seen


def run(floods: Mapping[str, Mapping[str, Flood]]) -> None:
    """Run the program with floods like ``FLOODS``."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each connection that a server closes
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1]), floods))))


if __name__ == "__main__":
    run(FLOODS)
