"""Real server processes on the native transport."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import idalloc
from idalloc.v1 import id_allocator_pb2 as pb
from tests.support.processes import IDALLOC, environment, running, serve_command, start_error
from tests.support.server_calls import id_allocator

pytestmark = pytest.mark.test_long


def test_a_native_server_continues_after_a_restart(tmp_path: Path) -> None:
    """A server on the native transport is healthy, and continues after a restart."""
    for first_id in (1, 4):
        with running(tmp_path, transport="native") as server, grpc.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", "idalloc.v1.IdAllocatorService"):
                reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
            reply = id_allocator(channel).AllocateRange(
                pb.AllocateRangeRequest(sequence="orders", id_count=3), timeout=10
            )
            assert reply.range.first_id == first_id
            assert server.stop() == 0


def test_a_client_of_several_native_servers_is_served(tmp_path: Path) -> None:
    """A client of several native servers is served while one of them is down."""
    with running(tmp_path, transport="native") as one, running(tmp_path, transport="native") as other:
        with idalloc.Client(f"ipv4:{one.address},{other.address}") as client:
            assert client.allocate_range("orders").ids == range(1, 2)
            assert one.stop() == 0
            assert client.allocate_range("orders").ids == range(2, 3)
        with idalloc.Client(f"ipv4:///{one.address},{other.address}") as client:
            assert client.allocate_range("orders").ids == range(3, 4)


def test_a_native_server_drains_on_sigterm(tmp_path: Path) -> None:
    """On SIGTERM a native server turns NOT_SERVING, ends streams, and issues no id again."""
    with running(tmp_path, transport="native", drain_timeout="2s") as server:
        with grpc.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            request = pb.StreamRangesRequest(sequence="orders", total_id_count=2**60, chunk_id_count=100)
            stream = id_allocator(channel).StreamRanges(request, timeout=20)
            last_id = next(stream).range.last_id
            server.send(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.RpcError) as failed:
                for reply in stream:
                    assert reply.range.first_id == last_id + 1
                    last_id = reply.range.last_id
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(20) == 0
    with running(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
        reply = id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=10)
        assert reply.range.first_id > last_id


def test_a_paused_client_does_not_delay_a_native_stop(tmp_path: Path) -> None:
    """A client that is paused during its streams does not delay a stop."""
    with running(tmp_path, transport="native", drain_timeout="1s") as server:
        code = (
            "import sys, grpc\n"
            "from idalloc.v1 import id_allocator_pb2 as pb, id_allocator_pb2_grpc as stubs\n"
            "ids = stubs.IdAllocatorServiceStub(grpc.insecure_channel(sys.argv[1]))\n"
            "request = pb.StreamDocIdsRequest(total_id_count=2**40, view=pb.DOC_ID_VIEW_IDS)\n"
            "streams = [ids.StreamDocIds(request) for _ in range(40)]\n"
            "[next(stream) for stream in streams]\n"
            "print('streaming', flush=True)\n"
            "sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", code, server.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as client:
            try:
                assert client.stdout
                assert client.stdout.readline() == b"streaming\n"
                os.kill(client.pid, signal.SIGSTOP)
                assert server.stop(timeout=20) == 0
            finally:
                client.kill()


def test_clients_that_leave_streams_do_not_affect_others(tmp_path: Path) -> None:
    """Clients that disconnect during streams do not affect other calls."""
    with running(tmp_path, transport="native") as server, grpc.insecure_channel(server.address) as channel:

        def allocate() -> None:
            request = pb.AllocateRangeRequest(sequence="orders")
            id_allocator(channel).AllocateRange(request, timeout=60)  # ends only a call that hangs

        # The first call connects, and waits for the disk: neither is what the streams may delay.
        allocate()
        stop = threading.Event()

        def stream_until_stopped() -> None:
            with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as leaving:
                request = pb.StreamDocIdsRequest(total_id_count=2**40, chunk_id_count=10, view=pb.DOC_ID_VIEW_COMPACT)
                for _ in id_allocator(leaving).StreamDocIds(request):
                    if stop.is_set():
                        return

        clients = [threading.Thread(target=stream_until_stopped) for _ in range(3)]
        for client in clients:
            client.start()
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            allocate()  # served while others stream
        stop.set()
        for client in clients:
            client.join()
        allocate()
        assert server.stop() == 0


def test_a_native_server_refuses_a_port_in_use(tmp_path: Path) -> None:
    """A port in use is refused with a one-line error, before the store is opened."""
    with running(tmp_path, transport="native") as server:
        command = serve_command(listen=server.address, transport="native", store=f"sqlite://{tmp_path}/other.db")
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert server.address in start_error(done.stderr)
    assert not (tmp_path / "other.db").exists()


def test_native_without_its_package_is_refused(tmp_path: Path) -> None:
    """Without its package the native transport is refused, with the command that installs it."""
    (tmp_path / "pygrpc_native.py").write_text("raise ImportError('it is not installed')")
    command = [IDALLOC, "serve", "--listen=127.0.0.1:0", "--transport=native", f"--store=sqlite://{tmp_path}/ids.db"]
    env = environment() | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert start_error(done.stderr) == "transport: native is not installed: pip install 'idalloc[native]'"
    assert not (tmp_path / "ids.db").exists()
