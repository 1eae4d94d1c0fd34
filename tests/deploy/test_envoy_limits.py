"""The limits of a real Envoy in front of a native server: each one of envoy.yaml is reached."""

import gzip
import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from tests.support import http2
from tests.support.faults.resources import read_resources
from tests.support.paths import ROOT
from tests.support.processes import Server
from tests.support.proxy import Proxy, proxying, sdk, serving
from tests.support.server_calls import id_allocator, stream_of_requests
from tests.support.under_attack import ATTACKS, MAX_MB, MAX_P99_MS, UNAUTHENTICATED, attack, write_access
from tests.support.waiting import wait_until

pytestmark = pytest.mark.test_long
ORDERS = pb.AllocateRangeRequest(sequence="orders").SerializeToString()
HEAP = "overload.envoy.resource_monitors.fixed_heap.pressure"
RETRY_POLICY = ROOT / "protos/idalloc/v1/service_config.json"
# Gauge and counter of connections from networks that are not known.
OTHERS = "connection_limit.others.active_connections"
TIMEOUTS = "listener.*downstream_cx_transport_socket_connect_timeout"
RESETS = "http.grpc.downstream_rq_too_many_premature_resets"


@contextmanager
def steady_caller(proxy: Proxy, **options: Any) -> Iterator[None]:
    """Call in turn during the block, on a channel with these options; each call must succeed."""
    stop, failed, calls = threading.Event(), [], []

    def call_until_stopped() -> None:
        with proxy.channel(**options) as channel:
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
        enough = len(calls) + 10
        wait_until(lambda: len(calls) > enough or failed, "calls after the attack")
    finally:
        stop.set()
        caller.join()
    assert failed == []


def allocate(channel: grpc.Channel) -> Any:
    return id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20)


def refusal(
    channel: grpc.Channel, request: bytes = ORDERS, method: str = "AllocateRange", **options: Any
) -> grpc.StatusCode:
    call: Any = channel.unary_unary(http2.SERVICE + method)
    with pytest.raises(grpc.RpcError) as failed:
        call(request, timeout=20, **options)
    code: grpc.StatusCode = failed.value.code()
    return code


def megabytes(server: Server, proxy: Proxy) -> float:
    return sum(read_resources(process.pid).memory for process in (server.process, proxy.process))


def raw(proxy: Proxy, window: int = 65_535) -> socket.socket:
    return http2.connect(proxy.address, window, http2.client_context(proxy.tls))


def answers(connection: socket.socket, stream: int = 1) -> list[tuple[int, bytes]]:
    """Read the frames of a stream up to its end, or until Envoy closes the connection."""
    found: list[tuple[int, bytes]] = []
    with suppress(ConnectionError, ssl.SSLError):
        while True:
            kind, flags, number, payload = http2.read_frame(connection)
            if number == stream:
                found.append((kind, payload))
                if kind == http2.RST_STREAM or (kind != http2.WINDOW_UPDATE and flags & http2.END_STREAM):
                    break
    return found


def test_envoy_limits_headers_and_requests(proxy: Proxy) -> None:
    """Metadata over 16 kB or 100 headers, or a request over 256 KiB, is refused; less is not."""
    with serving(proxy), proxy.channel() as channel:
        assert refusal(channel, metadata=[("x-a", "v" * 20_000)]) == grpc.StatusCode.INTERNAL
        assert refusal(channel, metadata=[(f"x-{n}", "v") for n in range(120)]) == grpc.StatusCode.INTERNAL
        allocate(channel)
        assert refusal(channel, ORDERS + bytes(300_000)) == grpc.StatusCode.UNKNOWN  # HTTP's 413
        allocate(channel)
    wait_until(lambda: len(proxy.log) >= 3, "the access log")
    assert proxy.stat("cluster.idalloc.upstream_rq_total") == 2, proxy.log


def test_only_streams_of_requests_outlast_the_time_of_a_request(short_folder: Path) -> None:
    """An incomplete request ends at its limit of time; AllocateStream goes on, and is in order."""
    with (
        proxying(short_folder, {"request_timeout: 5s": "request_timeout: 1s"}) as proxy,
        serving(proxy),
        proxy.channel() as channel,
        stream_of_requests(channel) as (send, coming),
    ):
        for first in (1, 4):
            with raw(proxy) as connection:  # It ends later than the stream began, or had its last answer.
                connection.sendall(http2.headers(1, "AllocateRange") + http2.message(1, ORDERS, is_last=False))
                answers(connection)
            send(*["orders"] * 3)
            ranges = [next(coming) for _ in range(3)]
            assert [each.number for each in ranges] == [0, 1, 2]
            assert [each.allocate_range.range.first_id for each in ranges] == [*range(first, first + 3)]
        wait_until(lambda: len(proxy.log) == 2, "the access log")
        assert {each["details"] for each in proxy.log} == {"request_overall_timeout"}


def test_a_silent_stream_of_requests_ends(short_folder: Path) -> None:
    """A stream without a message ends at its limit, in Envoy and in the server; the SDK goes on."""
    silent = {"stream_idle_timeout: 300s": "stream_idle_timeout: 1s"}
    with proxying(short_folder, silent) as proxy, serving(proxy), proxy.channel() as channel:
        with stream_of_requests(channel) as (_, coming), pytest.raises(grpc.RpcError) as failed:
            next(coming)
        assert failed.value.code() == grpc.StatusCode.INTERNAL
        with sdk(proxy) as caller, caller.allocate_stream() as stream:
            for ended in (2, 3):
                stream.allocate_range("orders")
                wait_until(lambda ended=ended: silent_ends(proxy) == ended, "the end of the stream")  # type: ignore[misc]
        wait_until(lambda: not proxy.stat("cluster.idalloc.upstream_rq_active"), "the end in the server")


def silent_ends(proxy: Proxy) -> int:
    """Return how many streams Envoy ended; the log also has the client's probes."""
    return [each["details"] for each in proxy.log].count("stream_idle_timeout")


def test_envoy_limits_each_request_of_a_stream(proxy: Proxy) -> None:
    """A stream may have any number of requests, each of at most 256 KiB."""
    with serving(proxy), proxy.channel() as channel, stream_of_requests(channel) as (send, coming):
        send(*["n" * 20_000] * 20, "orders")
        kinds = [next(coming).WhichOneof("response") for _ in range(21)]
        assert kinds == ["error"] * 20 + ["allocate_range"]
        send("n" * 300_000)
        with pytest.raises(grpc.RpcError) as failed:
            next(coming)
        assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_envoy_limits_streams_of_a_connection(proxy: Proxy) -> None:
    """A connection has 50 streams; Envoy closes it when it opens one more."""
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=2**50, chunk_id_count=1).SerializeToString()
    with serving(proxy), raw(proxy, window=0) as connection:
        for stream in range(1, 2 * 50, 2):
            connection.sendall(http2.headers(stream, "StreamRanges") + http2.message(stream, request))
        wait_until(lambda: proxy.stat("cluster.idalloc.upstream_rq_total") == 50, "50 streams")
        connection.sendall(http2.headers(101, "StreamRanges") + http2.message(101, request))
        assert answers(connection, 101) == []
        wait_until(lambda: not proxy.stat("http.grpc.downstream_cx_active"), "the end of the connection")
        assert proxy.stat("cluster.idalloc.upstream_rq_total") == 50


def test_envoy_limits_connections(short_folder: Path) -> None:
    """Beyond the limit Envoy closes connections, and those within it go on."""
    changes = {"max_active_downstream_connections: 2500": "max_active_downstream_connections: 5"}
    with proxying(short_folder, changes) as proxy, serving(proxy), ExitStack() as stack:
        opened = [stack.enter_context(raw(proxy)) for _ in range(5)]
        with pytest.raises(OSError, match=r"closed|reset|EOF|Broken"):
            stack.enter_context(raw(proxy))
        for each in opened:
            each.sendall(http2.headers(1, "AllocateRange") + http2.message(1, ORDERS))
            assert http2.DATA in dict(answers(each))


def hello() -> bytes:
    """Return the first message of a TLS handshake."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(received, sent, server_hostname="stranger").do_handshake()
    return sent.read()


@contextmanager
def half_open(proxy: Proxy, source: str, number: int) -> Iterator[None]:
    """Hold unfinished handshakes from a loopback address; reopen those that Envoy closes.

    At most ten times ``number`` are opened.
    """
    host, _, port = proxy.address.rpartition(":")
    stop, content, held = threading.Event(), hello(), selectors.DefaultSelector()

    def open_until_stopped() -> None:
        opened = 0
        while not stop.wait(0.01) and opened < 10 * number:
            for key, _ in held.select(0):
                with suppress(OSError):
                    if key.fileobj.recv(65_536):  # type: ignore[union-attr]
                        continue
                held.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
            for _ in range(min(20, number - len(held.get_map()))):
                connection = socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))
                held.register(connection, selectors.EVENT_READ)
                with suppress(OSError):
                    connection.sendall(content)
                opened += 1

    thread = threading.Thread(target=open_until_stopped)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for key in [*held.get_map().values()]:
            key.fileobj.close()  # type: ignore[union-attr]
        held.close()


def test_half_open_handshakes_stop_no_known_caller(proxy: Proxy) -> None:
    """2,300 half-open handshakes fail no call or connection of known callers, and end in 3 s."""
    with serving(proxy), steady_caller(proxy):
        with half_open(proxy, "127.0.0.2", 2_300):
            wait_until(lambda: proxy.stat(OTHERS) >= 250, "as many strangers as Envoy admits")
            for _ in range(10):
                with proxy.channel() as channel:
                    allocate(channel)
            assert len([*Path(f"/proc/{proxy.process.pid}/fd").iterdir()]) < 450
            wait_until(lambda: proxy.stat(TIMEOUTS) >= 250, "the handshakes' end")
        # Envoy has counted right: another stranger is served.
        wait_until(lambda: not proxy.stat(OTHERS), "no more strangers")
        host, _, port = proxy.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=10, source_address=("127.0.0.3", 0)) as plain,
            http2.client_context(proxy.tls).wrap_socket(plain, server_hostname=host) as connection,
        ):
            request = http2.headers(1, "AllocateRange") + http2.message(1, ORDERS)
            connection.sendall(http2.PREFACE + http2.settings(65_535) + request)
            assert http2.DATA in dict(answers(connection))


def test_envoy_ends_old_connections_without_an_error(short_folder: Path) -> None:
    """At its maximum age a connection gets GOAWAY; no client's call fails, and a stream goes on."""
    changes = {
        "max_connection_duration: 1800s": "max_connection_duration: 1s",
        "drain_timeout: 20s": "drain_timeout: 1s",
    }
    endless = pb.StreamRangesRequest(sequence="orders", total_id_count=2**50, chunk_id_count=1)
    reached = "http.grpc.downstream_cx_max_duration_reached"
    with proxying(short_folder, changes) as proxy, serving(proxy), proxy.channel() as channel:
        stream = id_allocator(channel).StreamRanges(endless)
        next(stream)
        with steady_caller(proxy):
            wait_until(lambda: next(stream) and proxy.stat(reached) >= 3, "three old connections")
        stream.cancel()


def test_envoy_refuses_requests_when_its_memory_is_used(short_folder: Path) -> None:
    """With its heap's limit reached, Envoy accepts neither calls nor connections."""
    actions = "overload.envoy.overload_actions"
    with proxying(short_folder, {"max_heap_size_bytes: 402653184": "max_heap_size_bytes: 1000000"}) as proxy:
        for action in ("stop_accepting_requests", "stop_accepting_connections"):
            wait_until(partial(proxy.stat, f"{actions}.{action}.active"), action)
        with proxy.channel() as channel, pytest.raises(grpc.RpcError) as failed:
            id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=3)
        assert failed.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


def test_requests_that_never_end_take_bounded_memory(proxy: Proxy) -> None:
    """200 MB of unfinished requests are reset; calls with the retry policy succeed meanwhile."""
    retried = [("grpc.service_config", RETRY_POLICY.read_text())]
    with serving(proxy) as server, steady_caller(proxy, options=retried), ExitStack() as stack:
        most = 0.0
        for _ in range(200):
            connection = stack.enter_context(raw(proxy))
            connection.sendall(http2.frame(http2.WINDOW_UPDATE, 0, 0, (2**20).to_bytes(4, "big")))
            for stream in (1, 3, 5, 7):
                body = http2.frame(http2.DATA, 0, stream, bytes(http2.MAX_FRAME)) * 15
                connection.sendall(http2.headers(stream, "AllocateRange") + body)
            most = max(most, megabytes(server, proxy))
        assert most < MAX_MB
        # Streams are reset from 40 % on. The requests would fill more than 100 %.
        wait_until(lambda: proxy.stat(HEAP) < 50, "less of Envoy's heap in use")
        # On a busy machine the first ones reach request_timeout before that.
        timeouts = proxy.stat("http.grpc.downstream_rq_timeout")
        assert proxy.stat("envoy.overload_actions.reset_high_memory_stream.count") + timeouts > 0
        with proxy.channel() as new:
            allocate(new)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_takes_bounded_memory_and_delays_nobody(proxy: Proxy, name: str) -> None:
    """Server and proxy take less than 400 MB, and a steady caller's p99 stays low."""
    settings = {"access_file": write_access(proxy.folder)} if name in UNAUTHENTICATED else {}
    with serving(proxy, **settings) as server:
        measured = attack(name, proxy.address, proxy.tls, [server.process.pid, proxy.process.pid])
        arrived = proxy.stat("cluster.idalloc.upstream_rq_total")
        closed = proxy.stat(RESETS)

    assert measured.memory < MAX_MB
    assert measured.p99 < MAX_P99_MS
    match name:
        case "gzip_bombs":
            assert measured.seen == {"answered": 32}
        case "unknown_methods":
            assert measured.seen["sent"] > 1000
            assert {each["server"] for each in proxy.log if each["method"].startswith("/no.such")} == {None}
        case "rapid_resets":
            assert closed > 0
        case "continuations":
            assert measured.seen["hung up"] > 0
        case "calls_without_a_token" | "rejected_calls":
            assert arrived > 100
        case "unread_streams":
            assert measured.seen == {"opened": 80}
            assert arrived > 80


@pytest.mark.parametrize("method", ["AllocateRange", "AllocateStream"])
@pytest.mark.parametrize(
    "encodings", [["gzip"], ["GZIP"], ["identity,gzip"], ["identity", "gzip"], ["gzip", "identity"], ["identity"], []]
)
def test_packed_requests_are_never_unpacked(proxy: Proxy, encodings: list[str], method: str) -> None:
    """A gzip bomb is refused, by its header or by its flag alone."""
    metadata = [("grpc-encoding", each) for each in encodings]
    bomb = gzip.compress(bytes(200_000_000))
    with serving(proxy) as server, raw(proxy) as connection:
        before = megabytes(server, proxy)
        with suppress(ConnectionError, ssl.SSLError):
            connection.sendall(http2.headers(1, method, metadata) + http2.message(1, bomb, is_packed=True))
        kinds = [kind for kind, _ in answers(connection)]
        assert http2.DATA not in kinds
        assert megabytes(server, proxy) < before + 50


@pytest.mark.parametrize("suffix", ["#a", "#", "?a", "/a"])
def test_a_path_with_an_addition_is_an_unknown_method(proxy: Proxy, suffix: str) -> None:
    """Envoy answers it with UNIMPLEMENTED; a fragment it refuses before it looks for a route."""
    with serving(proxy), proxy.channel() as channel:
        assert refusal(channel, ORDERS, "AllocateRange" + suffix) == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("suffix", ["?a", "?", "#a", "%3f", "/", "//"])
def test_only_exact_paths_reach_the_server(proxy: Proxy, suffix: str) -> None:
    """Envoy answers a path with a query or other addition, since native would keep its memory."""
    with serving(proxy), raw(proxy) as connection:
        connection.sendall(http2.headers(1, "AllocateRange" + suffix) + http2.message(1, ORDERS))
        assert http2.DATA not in dict(answers(connection))
        assert proxy.stat("cluster.idalloc.upstream_rq_total") == 0
