"""Print how much Python each request runs, and how large the code is; ``make trace`` runs it.

It starts the whole application in this process, on a SQLite store in a temporary folder, and sends
it requests through grpcio on a loopback port. A request includes decoding, the layer around each
call, and the encoding of the reply.

For one request, from its arrival until nothing that it began is running:

- calls: how often the interpreter enters a function of server/. A coroutine counts again each time
  it resumes, a generator for each item. Functions of libraries do not count.
- functions and files: how many different ones these are.
- transactions: those of the SQLite store; a read is one, too.

It does not count the jobs that the application always runs, or the threads that write logs and
watch files. ``--list NAME`` prints every entry of the requests so named.
"""

import argparse
import asyncio
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import grpc
from lint_grain import MAX_FUNCTION_LINES, SOURCES, findings, line_count, source_files

from idalloc.v1 import (
    id_allocator_pb2,
    id_allocator_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    sequences_pb2,
    sequences_pb2_grpc,
)
from idalloc_server import app
from idalloc_server.node.mode import ProcessMode
from idalloc_server.settings.model import Settings
from idalloc_server.store.sqlite.database import Database
from idalloc_server.telemetry import logs

ROOT = Path(app.__file__).parents[2]
TRANSACTION = Database._transaction.__qualname__
STORE_THREAD = "sqlite"
TOKEN = "a token that only this process accepts"
PLENTY = 10**12
IDENTITY = f"""
[[identity]]
name = "traced"
token_sha256 = ["{sha256(TOKEN.encode()).hexdigest()}"]
allocate = ["*"]
"""
QUOTAS = f"""
ids_per_second = {PLENTY}
calls_per_second = {PLENTY}
[[quota]]
sequence = "*"
ids_per_second = {PLENTY}
calls_per_second = {PLENTY}
"""
# A request has ended when nothing ran for this long; a store call on a busy disk takes less.
QUIET_SECONDS = 0.2

Request = Callable[[], Awaitable[Any]]


class Tracer:
    """Counts the entries of the server's functions, in this thread and those started later."""

    def __init__(self) -> None:
        self.entries: list[CodeType] = []
        self._recording = False
        self._left_out: set[asyncio.Task[Any]] = set()
        self._main = threading.current_thread()
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)

    def leave_out(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Do not count what these tasks run."""
        self._left_out = tasks

    async def record(self, request: Request) -> None:
        """Record a request, and what it began, until that is quiet."""
        self.entries, self._recording = [], True
        await request()
        before = -1
        while before < len(self.entries):
            before = len(self.entries)
            await asyncio.sleep(QUIET_SECONDS)
        self._recording = False

    def _enter(self, frame: FrameType, event: str, _: object) -> None:
        if self._recording and event == "call" and frame.f_code.co_filename.startswith(f"{ROOT}/server/"):
            if threading.current_thread() is self._main:
                counts = asyncio.current_task() not in self._left_out
            else:
                counts = threading.current_thread().name.startswith(STORE_THREAD)
            if counts:
                self.entries.append(frame.f_code)


class Traced(ProcessMode):
    """The mode of the traced server: it sets an event instead of printing a line."""

    def __init__(self) -> None:
        super().__init__(None, 1.0)  # type: ignore[arg-type]
        self.serving = asyncio.Event()

    def report_serving(self, *_: object, **__: object) -> None:
        self.serving.set()


class Requests:
    """The requests to trace.

    Args:
        channel: A channel to the server.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._ids: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        self._sequences: Any = sequences_pb2_grpc.SequenceServiceStub(channel)
        self._node: Any = node_pb2_grpc.NodeServiceStub(channel)

    def of_everything(self) -> list[tuple[str, list[Request]]]:
        """Return each request's name, and the request after those that must precede it."""
        update = node_pb2.UpdateNodeRequest(node=node_pb2.Node(auto_increment_offset=2))
        return [
            ("AllocateRange from a lease", self.from_a_lease()),
            ("AllocateRange with a refill", [self._allocate("refilled"), self._allocate("refilled", 100_000)]),
            ("AllocateRange, first use", [self._allocate("new")]),
            ("AllocateRange, first use of an existing sequence", [self._create("old"), self._allocate("old")]),
            ("CreateSequence", [self._create("created")]),
            ("UpdateNode, one process", [lambda: self._node.UpdateNode(update)]),
        ]

    def from_a_lease(self) -> list[Request]:
        """Return a request that a lease serves, after those that fill the lease."""
        return [*[self._allocate("used", 100)] * 2, self._allocate("used")]

    def _allocate(self, sequence: str, count: int = 1) -> Request:
        request = id_allocator_pb2.AllocateRangeRequest(sequence=sequence, id_count=count)
        return lambda: self._ids.AllocateRange(request, metadata=[("authorization", f"Bearer {TOKEN}")])

    def _create(self, name: str) -> Request:
        request = sequences_pb2.CreateSequenceRequest(sequence=sequences_pb2.Sequence(name=name))
        return lambda: self._sequences.CreateSequence(request)


async def trace(tracer: Tracer, folder: Path, access: str, kind: str, listed: str) -> None:
    """Start the application, with an access file if asked for; print a line for each request."""
    file = folder / f"access{kind}.toml"
    file.write_text(access)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = Settings(
        listen=address, store=f"sqlite://{folder}/traced{kind}.db", access_file=str(file) if access else ""
    )
    mode = Traced()
    server = asyncio.create_task(app.serve(settings, mode))
    serving = asyncio.create_task(mode.serving.wait())
    await asyncio.wait({server, serving}, return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        await server
    tracer.leave_out(asyncio.all_tasks())
    async with grpc.aio.insecure_channel(address) as channel:
        requests = Requests(channel)
        traced = (
            [(f"AllocateRange from a lease, {kind}", requests.from_a_lease())] if access else requests.of_everything()
        )
        for name, sent in [("", [requests.from_a_lease()[0]]), *traced]:
            for request in sent:
                await tracer.record(request)
            if name:
                report(name, tracer.entries, listed)
    mode.control.stop_requested.set()
    await server


def report(name: str, entries: list[CodeType], listed: str) -> None:
    """Print the figures of a request, and its entries if it is listed."""
    transactions = [each for each in entries if each.co_qualname == TRANSACTION]
    files = {each.co_filename for each in entries}
    print(f"{name:50} {len(entries):6} {len(set(entries)):10} {len(files):6} {len(transactions):13}")
    if listed and listed in name:
        for each in entries:
            print(f"    {Path(each.co_filename).relative_to(ROOT)}:{each.co_firstlineno} {each.co_qualname}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", default="", metavar="NAME", help="print the entries of the requests so named")
    listed = parser.parse_args().list
    logs.configure("error")
    tracer = Tracer()
    print(f"{'':50} {'calls':>6} {'functions':>10} {'files':>6} {'transactions':>13}")
    with tempfile.TemporaryDirectory() as folder:
        for access, kind in (("", ""), (IDENTITY, "token"), (IDENTITY + QUOTAS, "token and quotas")):
            asyncio.run(trace(tracer, Path(folder), access, kind, listed))
    sizes = [line_count((ROOT / file).read_text()) for file in source_files(ROOT)]
    print(f"\n{'/, '.join(SOURCES)}/ without generated code: {sum(sizes):,} lines in {len(sizes)} files")
    print(f"functions over {MAX_FUNCTION_LINES} lines:", *findings(ROOT), sep="\n    ")


if __name__ == "__main__":
    main()
