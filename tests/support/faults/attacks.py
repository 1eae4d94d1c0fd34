"""Attacks of a malicious client, in a process of its own.

python -m tests.support.faults.attacks '{"target": "127.0.0.1:50051", "attack": "connections",
"number": 1000}'

It prints counts of outcomes as JSON, and keeps connections open until its standard input ends; then
it prints how many of them the server has not closed.
"""

import gzip
import json
import socket
import ssl
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import grpc

from idalloc.v1 import id_allocator_pb2 as pb
from tests.support import http2
from tests.support.faults.floods import flood

MAX_INT64 = 2**63 - 1
ORDERS = pb.AllocateRangeRequest(sequence="orders").SerializeToString()
# Streams too long to end during a test.
ENDLESS = {
    "StreamRanges": pb.StreamRangesRequest(
        sequence="unread", total_id_count=2**50, chunk_id_count=10_000, view=pb.RANGE_VIEW_TEXTS
    ),
    "StreamDocIds": pb.StreamDocIdsRequest(total_id_count=2**50, chunk_id_count=10_000, view=pb.DOC_ID_VIEW_FULL),
}
# Initial window sizes: nothing, the default, the maximum.
WINDOWS = (0, 65_535, 2**31 - 1)
# A TLS handshake record with the beginning of a ClientHello.
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(32)
LONG_NAME = "n" * 65_536
# Calls per write; servers accept this many concurrent streams of a connection.
BATCH = 100
# Connections that stay open until the end.
OPEN: list[socket.socket] = []

Outcomes = Counter[str]


def slow_readers(target: str, number: int, tls: ssl.SSLContext | None = None, **_others: Any) -> Outcomes:
    """Open streams that it never reads, each on a connection of its own."""
    seen = Outcomes()
    for turn in range(number):
        method = list(ENDLESS)[turn % 2]
        connection = http2.connect(target, WINDOWS[turn % 3], tls)
        connection.sendall(http2.headers(1, method) + http2.message(1, ENDLESS[method].SerializeToString()))
        OPEN.append(connection)
        seen["opened"] += 1
    return seen


def unread_calls(target: str, number: int, concurrency: int, seconds: float, **_others: Any) -> Outcomes:
    """Send calls as fast as the connections accept them, and read no answer."""
    deadline = time.monotonic() + seconds

    def flood(_: int) -> Outcomes:
        seen = Outcomes()
        connection = http2.connect(target)
        connection.settimeout(1)
        OPEN.append(connection)
        try:
            for calls in _tiny_calls(number // concurrency):
                connection.sendall(b"".join(calls))
                seen["sent"] += len(calls)
                if time.monotonic() > deadline:
                    break
        except TimeoutError:
            seen["took no more"] += 1
        except ConnectionError:
            seen["closed"] += 1
        return seen

    with ThreadPoolExecutor(concurrency) as pool:
        return sum(pool.map(flood, range(concurrency)), Outcomes())


def tiny_calls(target: str, number: int, seconds: float, **_others: Any) -> Outcomes:
    """Send batches of calls as fast as they are answered."""
    seen = Outcomes()
    connection = http2.connect(target, 2**31 - 1)
    connection.sendall(http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535)))
    deadline = time.monotonic() + seconds
    for calls in _tiny_calls(number):
        connection.sendall(b"".join(calls))
        left = len(calls)
        while left:
            kind, flags, _, payload = http2.read_frame(connection)
            if (kind == http2.HEADERS and flags & http2.END_STREAM) or kind == http2.RST_STREAM:
                left -= 1
            elif kind == http2.PING and not flags:
                connection.sendall(http2.frame(http2.PING, http2.ACK, 0, payload))
            elif kind == http2.DATA:
                seen["answered"] += 1
        if time.monotonic() > deadline:
            break
    connection.close()
    return seen


def connections(target: str, number: int, concurrency: int, **_others: Any) -> Outcomes:
    """Open connections and drop them in different states."""
    host, _, port = target.rpartition(":")
    greeted = http2.PREFACE + http2.settings(65_535)
    called = greeted + http2.headers(1, "StreamDocIds")
    sent_by_state = {
        "nothing": b"",
        "half a preface": http2.PREFACE[:12],
        "preface": http2.PREFACE,
        "settings": greeted,
        "half a call": called,
        "a call": called + http2.message(1, ENDLESS["StreamDocIds"].SerializeToString()),
        "TLS": TLS_HELLO,
        "HTTP/1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    states = list(sent_by_state.items())

    def open_and_drop(turn: int) -> str:
        state, data = states[turn % len(states)]
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            try:
                connection.sendall(data)
            except ConnectionError:
                return "refused"
            if turn % 3 == 0:  # a reset instead of an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return state

    with ThreadPoolExecutor(concurrency) as pool:
        return Outcomes(pool.map(open_and_drop, range(number)))


def large_messages(target: str, number: int, concurrency: int, size: int, **_others: Any) -> Outcomes:
    """Send messages larger than the limit."""
    request = pb.AllocateRangeRequest(sequence="x" * size).SerializeToString()
    return _codes(target, number, concurrency, lambda _: ("AllocateRange", request))


def gzip_bombs(
    target: str, number: int, concurrency: int, size: int, tls: ssl.SSLContext | None = None, **_others: Any
) -> Outcomes:
    """Send such messages compressed by gzip, each on a connection of its own."""
    packed = gzip.compress(pb.AllocateRangeRequest(sequence="x" * size).SerializeToString())
    head = http2.headers(1, "AllocateRange", [("grpc-encoding", "gzip")])
    bomb = head + http2.message(1, packed, is_packed=True)

    def drop(_: int) -> str:
        with http2.connect(target, tls=tls) as connection:
            connection.settimeout(60)
            try:
                connection.sendall(bomb)
                while http2.read_frame(connection)[2] != 1:
                    pass
            except OSError:
                return "closed"
        return "answered"

    with ThreadPoolExecutor(concurrency) as pool:
        return Outcomes(pool.map(drop, range(number)))


def unknown_bodies(target: str, number: int, concurrency: int, size: int, **_others: Any) -> Outcomes:
    """Send such messages to methods that do not exist."""
    return _codes(target, number, concurrency, lambda turn: (f"NoSuchMethod{turn}", bytes(size)))


def half_messages(target: str, number: int, **_others: Any) -> Outcomes:
    """Announce messages of 4 GB, and send only their beginnings."""
    seen = Outcomes()
    for _ in range(number):
        connection = http2.connect(target)
        begun = struct.pack(">BI", 0, 2**32 - 1) + b"\x0a" * (http2.MAX_FRAME - 5)
        connection.sendall(http2.headers(1, "AllocateRange") + http2.frame(http2.DATA, 0, 1, begun))
        OPEN.append(connection)
        seen["begun"] += 1
    return seen


def metadata(target: str, number: int, **_others: Any) -> Outcomes:
    """Send a megabyte of metadata, ten thousand keys, or metadata without an end."""
    seen = Outcomes()
    long = [("x-long", "x" * 1_000_000)]
    many = [(f"x-{key}", "v") for key in range(10_000)]
    for turn in range(number):
        connection = http2.connect(target)
        try:
            if turn % 3 == 2:
                _send_endless_metadata(connection)
            else:
                bomb = http2.headers(1, "AllocateRange", [long, many][turn % 3])
                connection.sendall(bomb + http2.message(1, ORDERS))
            while True:
                kind, flags, stream, _ = http2.read_frame(connection)
                if stream == 1 and (kind == http2.RST_STREAM or flags & http2.END_STREAM):
                    seen["answered"] += 1
                    break
        except ConnectionError:
            seen["closed"] += 1
        connection.close()
    return seen


def _send_endless_metadata(connection: socket.socket) -> None:
    head = http2.headers(1, "AllocateRange")
    # Without END_HEADERS.
    connection.sendall(head[:4] + b"\x00" + head[5:])
    block = b"\x00\x01x\x7f\x80\x7f" + b"v" * 16_255
    for _ in range(4_000):
        connection.sendall(http2.frame(http2.CONTINUATION, 0, 1, block))


def wrong_requests(target: str, number: int, concurrency: int, **_others: Any) -> Outcomes:
    """Send names of 64 kB, and counts of 2^63-1 ids."""
    bombs: list[tuple[str, Any]] = [
        ("AllocateRange", pb.AllocateRangeRequest(sequence=LONG_NAME)),
        ("AllocateRange", pb.AllocateRangeRequest(sequence="orders", id_count=MAX_INT64)),
        ("AllocateRange", pb.AllocateRangeRequest(sequence="orders", id_count=MAX_INT64, view=pb.RANGE_VIEW_TEXTS)),
        ("AllocateRange", pb.AllocateRangeRequest(sequence="orders", request_id=LONG_NAME)),
        ("StreamRanges", pb.StreamRangesRequest(sequence=LONG_NAME, total_id_count=1)),
        ("StreamRanges", pb.StreamRangesRequest(sequence="orders", total_id_count=1, chunk_id_count=MAX_INT64)),
        ("GenerateDocId", pb.GenerateDocIdRequest(id_count=MAX_INT64)),
        ("StreamDocIds", pb.StreamDocIdsRequest(total_id_count=1, chunk_id_count=MAX_INT64)),
        ("GenerateUuid", pb.GenerateUuidRequest(id_count=MAX_INT64)),
    ]
    made = [(method, request.SerializeToString()) for method, request in bombs]
    return _codes(target, number, concurrency, lambda turn: made[turn % len(made)])


def _codes(target: str, number: int, concurrency: int, call: Callable[[int], tuple[str, bytes]]) -> Outcomes:
    options = [("grpc.max_send_message_length", -1)]

    def answer(turn: int) -> str:
        method, request = call(turn)
        ask: Any = channel.unary_stream(http2.SERVICE + method)
        try:
            list(ask(request, timeout=60))
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    with grpc.insecure_channel(target, options) as channel, ThreadPoolExecutor(concurrency) as pool:
        return Outcomes(pool.map(answer, range(number)))


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(socket.socket.recv(connection, 1, socket.MSG_PEEK))  # with TLS: what is still encrypted
    except BlockingIOError:
        return True
    except OSError:
        return False


def _tiny_calls(number: int) -> Iterator[list[bytes]]:
    """Yield batches of calls for one connection."""
    head = http2.headers(0, "AllocateRange")
    body = http2.message(0, ORDERS)
    streams = count(1, 2)
    for made in range(0, number, BATCH):
        yield [
            head[:5] + stream + head[9:] + body[:5] + stream + body[9:]
            for stream in (struct.pack(">I", next(streams)) for _ in range(min(BATCH, number - made)))
        ]


ATTACKS: dict[str, Callable[..., Outcomes]] = {
    each.__name__: each
    for each in (
        slow_readers,
        unread_calls,
        tiny_calls,
        connections,
        large_messages,
        gzip_bombs,
        unknown_bodies,
        half_messages,
        metadata,
        wrong_requests,
        flood,
    )
}


def run(attacks: Mapping[str, Callable[..., Outcomes]]) -> None:
    """Run the attack that the program's argument names; see the module."""
    options = {"concurrency": 8, "seconds": 1e9, "size": 64_000_000} | json.loads(sys.argv[1])
    if folder := options.get("tls"):
        options["tls"] = http2.client_context(folder)
    print(json.dumps(attacks[options.pop("attack")](**options)), flush=True)
    sys.stdin.read()
    print(sum(map(_is_open, OPEN)), flush=True)


if __name__ == "__main__":
    run(ATTACKS)
