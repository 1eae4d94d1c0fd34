"""The limits of a real Envoy in front of a native server: each of deploy/envoy/envoy.yaml is reached."""

import gzip
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from tests.support import http2
from tests.support.processes import Server, running
from tests.support.proxy import Proxy, proxying
from tests.support.server_calls import id_allocator
from tests.support.waiting import wait_until

pytestmark = pytest.mark.test_long
ORDERS = pb.AllocateRangeRequest(sequence="orders").SerializeToString()
# Both processes together, during any flood.
MAX_MB = 400


@contextmanager
def serving(proxy: Proxy) -> Iterator[Server]:
    """Run a server behind a proxy."""
    settings = {"transport": "native", "listen": proxy.sockets[0], "trust_proxy": "true"}
    with running(proxy.folder, **settings) as server:
        wait_until(lambda: proxy.serves(1), "Envoy knows the server")
        yield server


@contextmanager
def steady_caller(proxy: Proxy) -> Iterator[None]:
    """Call in turn during the block; each call must succeed."""
    stop, failed, calls = threading.Event(), [], []

    def call_until_stopped() -> None:
        with proxy.channel() as channel:
            while not stop.wait(0.02):
                try:
                    calls.append(allocate(channel))
                except grpc.RpcError as error:
                    failed.append((error.code(), error.details()))

    caller = threading.Thread(target=call_until_stopped)
    caller.start()
    try:
        wait_until(lambda: calls or failed, "the steady caller")
        yield
    finally:
        stop.set()
        caller.join()
    assert failed == []


def allocate(channel: grpc.Channel, **options: Any) -> Any:
    return id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20, **options)


def refusal(channel: grpc.Channel, request: bytes = ORDERS, **options: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/idalloc.v1.IdAllocatorService/AllocateRange")(request, timeout=20, **options)
    code: grpc.StatusCode = failed.value.code()
    return code


def megabytes(*pids: int) -> float:
    """Return the resident memory of processes."""
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def raw(proxy: Proxy, window: int = 65_535) -> socket.socket:
    return http2.connect(proxy.address, window, proxy.tls())


def is_closed(connection: socket.socket) -> bool:
    """Read until Envoy closes the connection; fails after the socket's timeout."""
    with suppress(ConnectionError):
        while True:
            http2.read_frame(connection)
    return True


def test_envoy_limits_headers_and_requests(proxy: Proxy) -> None:
    """Metadata over 16 kB or 100 headers, and requests over 256 KiB, are refused; a smaller call is answered."""
    with serving(proxy), proxy.channel() as channel:
        assert refusal(channel, metadata=[("x-a", "v" * 20_000)]) != grpc.StatusCode.DEADLINE_EXCEEDED
        assert refusal(channel, metadata=[(f"x-{n}", "v") for n in range(120)]) != grpc.StatusCode.DEADLINE_EXCEEDED
        assert proxy.stat("http.grpc.downstream_rq_4xx") + proxy.stat("http2.header_overflow") >= 1
        refusal(channel, ORDERS + bytes(300_000))
        assert proxy.stat("http.grpc.buffer.rq_too_large") + proxy.stat("http.grpc.downstream_rq_too_large") >= 1
        allocate(channel)


def test_envoy_limits_streams_of_a_connection(proxy: Proxy) -> None:
    """Envoy announces 100 concurrent streams, and closes a connection that opens more."""
    with serving(proxy), raw(proxy, window=0) as connection:
        request = pb.StreamRangesRequest(sequence="orders", total_id_count=2**50, chunk_id_count=1)
        content = request.SerializeToString()
        with suppress(ConnectionError):
            for stream in range(1, 2 * 101 + 1, 2):
                connection.sendall(http2.headers(stream, "StreamRanges") + http2.message(stream, content))
        reset = 0
        with suppress(ConnectionError, TimeoutError):
            connection.settimeout(10)
            while not reset:
                kind, _, stream, _ = http2.read_frame(connection)
                reset = stream if kind == http2.RST_STREAM else 0
                if kind == http2.GOAWAY:
                    break
        assert proxy.stat("http.grpc.downstream_rq_active") <= 100


def test_envoy_limits_connections(short_folder: Path) -> None:
    """Beyond the limit Envoy closes connections, and those within it go on."""
    changes = {"max_active_downstream_connections: 2000": "max_active_downstream_connections: 5"}
    with proxying(short_folder, changes) as proxy, serving(proxy), ExitStack() as stack:
        opened = [stack.enter_context(raw(proxy)) for _ in range(5)]
        with pytest.raises(OSError, match=r"closed|reset|EOF|Broken"):
            stack.enter_context(raw(proxy))
        opened[0].sendall(http2.headers(1, "AllocateRange") + http2.message(1, ORDERS))
        while http2.read_frame(opened[0])[0] != http2.DATA:
            pass


def test_envoy_ends_old_connections_without_an_error(short_folder: Path) -> None:
    """At its maximum age a connection gets GOAWAY, and no call of a client fails."""
    changes = {"max_connection_duration: 1800s": "max_connection_duration: 1s"}
    with proxying(short_folder, changes) as proxy, serving(proxy), steady_caller(proxy):
        wait_until(lambda: proxy.stat("http.grpc.downstream_cx_max_duration_reached") >= 2, "two old connections")


def test_envoy_refuses_requests_when_its_memory_is_used(short_folder: Path) -> None:
    """With its heap's limit reached, Envoy refuses calls with UNAVAILABLE instead of growing."""
    with proxying(short_folder, {"max_heap_size_bytes: 167772160": "max_heap_size_bytes: 1000000"}) as proxy:
        wait_until(lambda: proxy.stat("overload.envoy.overload_actions.stop_accepting_requests.active"), "overload")
        wait_until(lambda: proxy.stat("overload.envoy.overload_actions.stop_accepting_connections.active"), "overload")
        with proxy.channel() as channel, pytest.raises(grpc.RpcError) as failed:
            id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=3)
        assert failed.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


def test_envoy_ends_rapid_resets(proxy: Proxy) -> None:
    """Envoy closes a connection that begins and resets streams, and a steady caller is served."""
    with serving(proxy) as server, steady_caller(proxy):
        for _ in range(5):
            with raw(proxy) as connection:
                with suppress(OSError):
                    for stream in range(1, 4001, 2):
                        call = http2.headers(stream, "AllocateRange")
                        connection.sendall(call + http2.frame(http2.RST_STREAM, 0, stream, struct.pack(">I", 8)))
                assert is_closed(connection)
        assert megabytes(server.process.pid, proxy.process.pid) < MAX_MB
        assert proxy.stat("http.grpc.downstream_rq_too_many_premature_resets") >= 5


def test_envoy_ends_endless_headers(proxy: Proxy) -> None:
    """Envoy ends a connection whose header block never ends (CONTINUATION), and a steady caller is served."""
    with serving(proxy) as server, steady_caller(proxy):
        with raw(proxy) as connection:
            with suppress(OSError):
                connection.sendall(http2.frame(http2.HEADERS, 0, 1, b"\x00\x03x-a\x01a"))
                for _ in range(20_000):
                    connection.sendall(
                        http2.frame(http2.CONTINUATION, 0, 1, b"\x00\x03x-a\x7f\x81\x7f" + b"v" * 16_384)
                    )
            assert is_closed(connection)
        assert megabytes(server.process.pid, proxy.process.pid) < MAX_MB


def test_envoy_bounds_readers_that_never_read(proxy: Proxy) -> None:
    """Streams with a window of 0 take bounded memory, and a steady caller is served."""
    request = pb.StreamDocIdsRequest(total_id_count=2**50, chunk_id_count=1000, view=pb.DOC_ID_VIEW_IDS)
    with serving(proxy) as server, steady_caller(proxy), ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(raw(proxy, window=0))
            for stream in range(1, 20, 2):
                content = request.SerializeToString()
                connection.sendall(http2.headers(stream, "StreamDocIds") + http2.message(stream, content))
        wait_until(lambda: proxy.stat("cluster.idalloc.upstream_rq_active") >= 200, "200 streams")
        assert megabytes(server.process.pid, proxy.process.pid) < MAX_MB


def test_packed_requests_never_reach_the_memory(proxy: Proxy) -> None:
    """A gzip bomb is refused, by its header or by its flag alone, and a steady caller is served."""
    bomb = gzip.compress(bytes(200_000_000))
    with serving(proxy) as server, steady_caller(proxy):
        for metadata in ([("grpc-encoding", "gzip")], [("grpc-encoding", "GZIP")], []):
            with raw(proxy) as connection:
                with suppress(ConnectionError):
                    connection.sendall(http2.headers(1, "AllocateRange", metadata))
                    connection.sendall(http2.message(1, bomb, is_packed=True))
                kinds = []
                with suppress(ConnectionError):
                    while not kinds or not kinds[-1][1]:
                        kind, flags, stream, _ = http2.read_frame(connection)
                        if stream == 1:
                            kinds.append((kind, kind == http2.RST_STREAM or bool(flags & http2.END_STREAM)))
                assert kinds
        assert megabytes(server.process.pid, proxy.process.pid) < MAX_MB


def test_floods_of_unknown_methods_end_at_envoy(proxy: Proxy) -> None:
    """Calls of unknown methods reach no server, and take neither process memory."""
    with serving(proxy) as server, steady_caller(proxy), proxy.channel() as channel:
        unknown = channel.unary_unary("/idalloc.v1.IdAllocatorService/Nothing")
        for _ in range(20):
            calls = [unknown.future(b"", timeout=60) for _ in range(100)]
            assert {each.code() for each in calls} == {grpc.StatusCode.UNIMPLEMENTED}
        assert megabytes(server.process.pid, proxy.process.pid) < MAX_MB
    assert {each["server"] for each in proxy.log if each["method"].endswith("Nothing")} == {None}
