"""A server whose log or output nobody reads serves calls, counts lost lines, and stops in time."""

import asyncio
import fcntl
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, sequences_pb2, sequences_pb2_grpc
from idalloc_server.telemetry.log_queue import FLUSH_SECONDS
from tests.support.processes import Server, environment, serve_command, served_address
from tests.support.server_calls import wait_until

pytestmark = pytest.mark.test_long  # floods of lines, and stops that wait for them

# Linux's smallest pipe.
PIPE_BYTES = 4096
# A name whose audit line has over 2,000 bytes, and more lines than a process queues.
LONG = "\x01" * 255
MANY = 700


class Reader:
    """Reads the pipe of a server's log in a thread, from ``start`` on."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._content = b""
        self._thread = Thread(target=self._read)

    def start(self) -> None:
        self._thread.start()

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines so far."""
        found = self._content.split(b"\n")[:-1]
        return [json.loads(line) for line in found if line.startswith(b"{")]

    def named(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]

    def close(self) -> None:
        """Wait for the end of the pipe, if it is being read, and close it."""
        if self._end < 0:
            return
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._end)
        self._end = -1

    def _read(self) -> None:
        while chunk := os.read(self._end, 2**16):
            self._content += chunk


@contextmanager
def stalled(folder: Path, **settings: object) -> Iterator[tuple[Server, Reader]]:
    """Run a server whose standard error is a pipe that nobody reads yet."""
    ours, theirs = os.pipe()
    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    reader = Reader(ours)
    command = serve_command(store=f"sqlite://{folder}/ids.db", **settings)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment())
    os.close(theirs)
    assert process.stdout
    try:
        serving = process.stdout.readline().strip()
        yield Server(process, served_address(serving), serving, folder), reader
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        reader.close()


def call(server: Server, times: int) -> None:
    """Make calls in turn, all of which must succeed."""
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        for _ in range(times):
            stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20)


def administrate(server: Server, name: str, times: int = 1) -> None:
    """Make calls that fail, and are audited."""

    async def work() -> None:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = sequences_pb2_grpc.SequenceServiceStub(channel)
            request = sequences_pb2.DeleteSequenceRequest(name=name)
            calls = (stub.DeleteSequence(request, timeout=60) for _ in range(times))
            refused = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, grpc.aio.AioRpcError) for each in refused)

    asyncio.run(work())


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unread_log_delays_no_call(tmp_path: Path, workers: int) -> None:
    """A full pipe on standard error delays no call, and a stop waits FLUSH_SECONDS for it."""
    with stalled(tmp_path, workers=workers, log_level="debug") as (server, _):
        call(server, 100)
        began = time.monotonic()
        assert server.stop(timeout=60) == 0
        assert time.monotonic() - began > FLUSH_SECONDS  # the pipe was full


@pytest.mark.parametrize("workers", [1, 2])
def test_lost_lines_are_counted_and_reported(tmp_path: Path, workers: int) -> None:
    """Every log line is written or counted as lost."""
    with stalled(tmp_path, workers=workers, log_level="info") as (server, reader):
        administrate(server, LONG, MANY)
        call(server, 1)
        reader.start()
        wait_until(lambda: bool(reader.named("log_lines_lost")), seconds=50)
        administrate(server, "nothing")
        wait_until(lambda: any(line["sequence"] == "nothing" for line in reader.named("audit")), seconds=50)
        assert server.stop(timeout=60) == 0
        server.process.wait()
        reader.close()
        lost = sum(line["audit"] for line in reader.named("log_lines_lost"))
        assert 0 < lost < MANY
        assert len(reader.named("audit")) + lost == MANY + 1
        [stopped] = reader.named("stopped")
        assert stopped["log_lines_lost"] == {"audit": lost}
        # Other lines have a queue of their own.
        assert sum(line["count"] for line in reader.named("calls_failed")) == MANY + 1


@contextmanager
def full_pipe() -> Iterator[int]:
    """Yield the writing end of a full pipe that nobody reads."""
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(theirs, b"x" * PIPE_BYTES)
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


def test_an_unread_output_delays_no_start(tmp_path: Path) -> None:
    """A full pipe on standard output delays no start."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = serve_command(store=f"sqlite://{tmp_path}/ids.db", listen=address)
    with full_pipe() as pipe:
        process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment())
        try:
            with grpc.insecure_channel(address) as channel:
                stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
                request = pb.AllocateRangeRequest(sequence="orders")
                for _ in range(20):
                    stub.AllocateRange(request, timeout=30, wait_for_ready=True)
                process.terminate()
                assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unread_error_delays_no_exit(tmp_path: Path, workers: int) -> None:
    """A full pipe on standard error does not delay the exit of a refused start."""
    (tmp_path / "notes.db").write_text("not a database, but long enough to be taken for one " * 20)
    command = serve_command(store=f"sqlite://{tmp_path}/notes.db", workers=workers)
    with full_pipe() as pipe:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=pipe, env=environment(), timeout=40)
    assert done.returncode == 2


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_server_runs_without_standard_streams(tmp_path: Path, closed: str, workers: int) -> None:
    """A server whose standard streams are closed serves calls and stops."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = shlex.join(serve_command(store=f"sqlite://{tmp_path}/ids.db", listen=address, workers=workers))
    process = subprocess.Popen(["sh", "-c", f"exec {command} {closed}"], env=environment())
    try:
        with grpc.insecure_channel(address) as channel:
            stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=30, wait_for_ready=True)
        # A worker serves before the supervisor handles signals.
        wait_until(lambda: handles_sigterm(process.pid), seconds=50)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def handles_sigterm(pid: int) -> bool:
    caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
