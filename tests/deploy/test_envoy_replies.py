"""Replies about as large as HTTP/2's first window pass a real Envoy whole, from both transports."""

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from idalloc_server.listen.transport import make_server
from tests.support import http2
from tests.support.proxy import HEALTHY, Proxy, proxying
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.test_long, pytest.mark.timeout(180)]
# A reply has 5 bytes more on the wire.
SIZES, WINDOW, HEAD = range(65_520, 65_546), 65_535, 5
FIELD = "envoy.reloadable_features.http2_use_oghttp2: "


class Replies(grpc.GenericRpcHandler):
    """Answers each method with as many bytes as the request says; a stream has two messages."""

    def service(self, details: Any) -> Any:
        async def unary(request: bytes, context: Any) -> bytes:
            return bytes(int(request))

        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield bytes(100)
            yield bytes(int(request) - 100 - HEAD)

        async def health(request: bytes, context: Any) -> bytes:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()

        if "Stream" in details.method:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(health if "Health" in details.method else unary)


@contextmanager
def replying(proxy: Proxy, transport: str) -> Iterator[None]:
    """Serve ``Replies`` behind a proxy during the block, with the transport's own options."""
    stop = threading.Event()

    async def serve() -> None:
        server = make_server(transport, reuse_port=False)
        server.add_generic_rpc_handlers((Replies(),))
        server.add_insecure_port(proxy.sockets[0])
        await server.start()
        await asyncio.get_running_loop().run_in_executor(None, stop.wait)
        await server.stop(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        wait_until(lambda: proxy.stat(HEALTHY) == 1, "Envoy knows the server")
        yield
    finally:
        stop.set()
        thread.join()


def received(proxy: Proxy, method: str, size: int) -> int:
    """Return the bytes of a complete reply; grant more once the first window is used up."""
    with http2.connect(proxy.address, WINDOW, http2.client_context(proxy.tls)) as connection:
        connection.settimeout(5)
        connection.sendall(http2.headers(1, method) + http2.message(1, str(size).encode()))
        count, is_first = 0, True
        while True:
            kind, flags, stream, payload = http2.read_frame(connection)
            if kind == http2.DATA:
                count += len(payload)
            if stream == 1 and kind == http2.HEADERS and flags & http2.END_STREAM:
                return count
            if count == WINDOW < size + HEAD and is_first:
                is_first = False
                for number in (0, 1):
                    connection.sendall(http2.frame(http2.WINDOW_UPDATE, 0, number, struct.pack(">I", 1_000)))


@pytest.mark.parametrize("transport", ["grpcio", "native"])
@pytest.mark.parametrize("method", ["AllocateRange", "StreamRanges"])
def test_replies_of_about_the_first_window_are_complete(proxy: Proxy, transport: str, method: str) -> None:
    """Each size reaches gRPC's client, and one that grants exactly HTTP/2's first window."""
    with replying(proxy, transport), proxy.channel() as channel:
        for size in SIZES:
            path = http2.SERVICE + method
            call: Any = channel.unary_stream(path) if "Stream" in method else channel.unary_unary(path)
            answer = call(str(size).encode(), timeout=20)
            messages = list(answer) if "Stream" in method else [answer]
            assert sum(map(len, messages)) + HEAD * (len(messages) - 1) == size
        assert [received(proxy, method, size) - HEAD for size in SIZES] == [*SIZES]


def test_envoys_other_codec_still_has_the_fault(short_folder: Path) -> None:
    """The codec's setting is needed: the other one cuts off a reply that fills the window."""
    with proxying(short_folder, {FIELD + "false": FIELD + "true"}) as proxy, replying(proxy, "native"):
        assert received(proxy, "AllocateRange", WINDOW - HEAD - 1) == WINDOW - 1
        with pytest.raises(TimeoutError):
            received(proxy, "AllocateRange", WINDOW - HEAD)
