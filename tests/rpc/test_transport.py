"""What may differ between the transports: slow readers, deadlines, stops, metadata, ports."""

import asyncio
import os
import socket
import sys
from typing import Any

import grpc
import pytest
import structlog

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.sequences.sequence import MAX_ID
from idalloc_server.listen import transport as transports
from idalloc_server.settings.model import Settings
from tests.rpc.conftest import Served
from tests.support.rpc_errors import details_of
from tests.support.waiting import hold_for_async

# More than the threads of an event loop's executor, which has 32 at most.
READERS = min(32, (os.cpu_count() or 1) + 4) + 4
ENDLESS = pb.StreamDocIdsRequest(total_id_count=2**31, chunk_id_count=2_000, view=pb.DOC_ID_VIEW_IDS)


async def until_stalled(served: Served, streams: int) -> None:
    """Wait until this many streams are open and blocked by clients that do not read."""
    method = served.metrics.method("/idalloc.v1.IdAllocatorService/StreamDocIds")
    before = -1
    while True:
        [run] = served.doc_ids.issue_now(1, 0, 0) or await served.doc_ids.issue(1, 0, 0)
        now = int(run.first_doc_id, 16)
        # No stream took an id since: the only new one was taken here.
        if method.started == streams and now == before + 1:
            return
        before = now
        await hold_for_async(0.2, "a stream that is not blocked takes ids")


class TestSlowReaders:
    async def test_clients_that_do_not_read_do_not_delay_others(self, served: Served) -> None:
        """Streams whose clients do not read delay no other call, stream or thread."""
        # On a separate connection: unread data may fill its window.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(served.address, options=options) as channel:
            stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            streams = [stub.StreamDocIds(ENDLESS) for _ in range(READERS)]
            await until_stalled(served, len(streams))
            reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=10)
            assert reply.range.first_id == 1
            # Name lookups and file reads need a thread of the executor.
            await asyncio.wait_for(asyncio.to_thread(os.getpid), 10)
            another = served.ids.StreamDocIds(pb.StreamDocIdsRequest(total_id_count=100_000), timeout=10)
            assert sum([len(reply.doc_ids) async for reply in another]) == 100_000

    async def test_unread_streams_of_closed_connections_are_cancelled(self, served: Served) -> None:
        """Unread streams of a closed connection end as CANCELLED, without an error in the log."""
        with structlog.testing.capture_logs() as logs:
            async with grpc.aio.insecure_channel(served.address) as channel:
                stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
                streams = [stub.StreamDocIds(ENDLESS) for _ in range(READERS)]
                await until_stalled(served, len(streams))
            served.draining.reject_calls()
            assert await served.draining.wait_for_calls(timeout=10)
        assert served.metrics.method("/idalloc.v1.IdAllocatorService/StreamDocIds").handled == {"CANCELLED": READERS}
        assert not [line for line in logs if line["log_level"] == "error"]

    async def test_late_reader_gets_every_id_once(self, served: Served) -> None:
        """P1: a stream that is read late returns every id once."""
        request = pb.StreamDocIdsRequest(total_id_count=100_000, chunk_id_count=2_000, view=pb.DOC_ID_VIEW_IDS)
        stream = served.ids.StreamDocIds(request)
        await until_stalled(served, 1)
        ids = [doc_id async for reply in stream for doc_id in reply.doc_ids]
        assert len(ids) == len(set(ids)) == 100_000
        assert ids == sorted(ids)

    async def test_stop_does_not_wait_for_unread_streams(self, served: Served) -> None:
        """A stop does not wait for clients that do not read."""
        streams = [served.ids.StreamDocIds(ENDLESS) for _ in range(READERS)]
        await until_stalled(served, len(streams))
        await asyncio.wait_for(served.server.stop(None), 10)
        assert await served.draining.wait_for_calls(timeout=1)
        assert served.metrics.in_flight == 0


class TestClientsThatLeave:
    @pytest.mark.parametrize("reads", [1, 50])
    async def test_streams_of_a_closed_connection_end_as_cancelled(self, served: Served, reads: int) -> None:
        """Streams of a closed connection end as CANCELLED, and other calls are served."""

        def read_some_and_close() -> None:
            with grpc.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
                streams = [stub.StreamDocIds(ENDLESS) for _ in range(4)]
                for stream in streams:
                    for _ in range(reads):
                        next(stream)

        with structlog.testing.capture_logs() as logs:
            await asyncio.to_thread(read_some_and_close)
            await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=10)
            served.draining.reject_calls()
            assert await served.draining.wait_for_calls(timeout=10)
        assert served.metrics.method("/idalloc.v1.IdAllocatorService/StreamDocIds").handled == {"CANCELLED": 4}
        assert not [line for line in logs if line["log_level"] == "error"]


class TestDeadlines:
    async def test_stream_ends_at_its_deadline(self, served: Served) -> None:
        """P9: a stream ends at its deadline, and its unwritten chunk is counted as burned."""
        request = pb.StreamRangesRequest(sequence="orders", total_id_count=MAX_ID, chunk_id_count=100)
        issued = 0
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for reply in served.ids.StreamRanges(request, timeout=0.5):
                issued += reply.range.id_count
        assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert issued
        served.draining.reject_calls()
        assert await served.draining.wait_for_calls(timeout=5)
        assert served.metrics.method("/idalloc.v1.IdAllocatorService/StreamRanges").handled == {"CANCELLED": 1}
        assert served.allocator.burned.by_cause[BurnCause.CANCELLED] in (0, 100)

    async def test_handler_gets_the_remaining_time(self, transport: str) -> None:
        """A handler gets the remaining time of the call's deadline."""
        left: list[float | None] = []

        class Asking(id_allocator_pb2_grpc.IdAllocatorServiceServicer):
            async def AllocateRange(self, request: Any, context: Any) -> Any:
                left.append(context.time_remaining())
                return pb.AllocateRangeResponse()

        server = transports.make_server(transport, reuse_port=False)
        id_allocator_pb2_grpc.add_IdAllocatorServiceServicer_to_server(Asking(), server)  # type: ignore[abstract]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            await stub.AllocateRange(pb.AllocateRangeRequest(), timeout=30)
            await stub.AllocateRange(pb.AllocateRangeRequest())
        await server.stop(None)
        limited, unlimited = left
        assert limited is not None
        assert 20 < limited < 31  # 30.1 was seen on a busy machine: gRPC converts the deadline between two clocks
        assert unlimited is None or unlimited > 1e9


class TestCost:
    @pytest.mark.parametrize("transport", ["grpcio"])
    async def test_one_task_waits_for_calls_of_all_methods(self, served: Served) -> None:
        """grpcio does work in each call for each task that waits for a call."""
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        assert [name for name in names if "_request_" in name] == ["AioServer._request_call"]


class TestMetadata:
    async def test_oversized_metadata_is_rejected(self, served: Served) -> None:
        """A call with oversized metadata is rejected, and the next call is served."""
        for size in (30_000, 200_000):
            with pytest.raises(grpc.aio.AioRpcError):
                await served.ids.AllocateRange(
                    pb.AllocateRangeRequest(sequence="orders"), metadata=(("x-long", "x" * size),), timeout=10
                )
            request = pb.AllocateRangeRequest(sequence="orders")
            await served.ids.AllocateRange(request, wait_for_ready=True, timeout=10)
        assert served.metrics.method("/idalloc.v1.IdAllocatorService/AllocateRange").handled == {"OK": 2}

    async def test_error_with_non_ascii_text_reaches_the_caller(self, served: Served) -> None:
        """The error of a sequence name with non-ASCII text reaches the caller."""
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="größe\n"))
        assert details_of(failed.value).info.reason == "INVALID_REQUEST"
        reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="größe 注文"))
        assert reply.range.first_id == 1


class TestPorts:
    def server(self, transport: str, *, reuse_port: bool) -> grpc.aio.Server:
        return transports.make_server(transport, reuse_port=reuse_port)

    async def test_port_in_use_is_rejected(self, transport: str) -> None:
        """A port that another process uses cannot be bound."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(RuntimeError):
                self.server(transport, reuse_port=False).add_insecure_port(address)

    async def test_reuse_port_is_required_to_share_a_port(self, transport: str) -> None:
        """Servers can share a port only if each of them sets reuse_port."""
        one = self.server(transport, reuse_port=True)
        port = one.add_insecure_port("127.0.0.1:0")
        two = self.server(transport, reuse_port=True)
        assert two.add_insecure_port(f"127.0.0.1:{port}") == port
        alone = self.server(transport, reuse_port=False)
        with pytest.raises(RuntimeError):
            alone.add_insecure_port(f"127.0.0.1:{port}")
        for server in (one, two, alone):
            await server.stop(None)


class TestRefusals:
    async def test_native_without_its_package_names_the_install_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A start without the package of native names the command that installs it."""
        monkeypatch.setitem(sys.modules, "pygrpc_native.aio", None)
        with pytest.raises(StartRefused, match=r"transport: .*pip install 'idalloc\[native\]'"):
            transports.make_server("native", reuse_port=False)

    def test_native_rejects_a_name_with_two_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """native rejects a host name with several addresses, and names the choices."""

        def two_addresses(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
            return [(socket.AF_INET, 1, 6, "", ("127.0.0.1", port)), (socket.AF_INET6, 1, 6, "", ("::1", port, 0, 0))]

        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        with pytest.raises(StartRefused, match=r"listen: .*127\.0\.0\.1, ::1, or --transport grpcio"):
            transports.check_settings(Settings(transport="native", listen="localhost:50051"))
        transports.check_settings(Settings(transport="grpcio", listen="localhost:50051"))

    @pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:50051", "no-such-host.invalid:1"])
    def test_native_accepts_one_address_or_an_unknown_host(self, listen: str) -> None:
        """native accepts one address; an unknown host fails at the bind."""
        transports.check_settings(Settings(transport="native", listen=listen))
