"""Runs the real server with controllable clocks, injected store faults, and forks on command.

python -m tests.support.faults.faulty_node --control FILE [the server's own flags]

``tests/support/faults/node_control.py`` writes FILE. Every worker process reads it.
"""

import asyncio
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any, cast

import structlog
import typer
import uvloop

from idalloc_server import __main__ as server  # isort: skip - it sets gRPC up before that is imported

from idalloc._issued_log.log import IssuedLog
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server import app
from idalloc_server.domain.clock import Clock, SystemClock
from idalloc_server.domain.errors import Refusal, StoreAnsweredError, StoreOutcomeUnknown, StoreUnreachable
from idalloc_server.domain.store.protocol import Store
from idalloc_server.rpc import port
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.store import stores
from idalloc_server.store.urls import open_store
from idalloc_server.workers import supervisor, worker
from idalloc_server.workers.pipe import Pipe
from idalloc_server.workers.worker_process import WorkerProcess
from tests.support.faults.node_control import ControlState, ForkResult, StoreFault, read_state
from tests.support.waiting import hold_for_async, until

# A child that hangs is killed after this time.
CHILD_SECONDS = 40
# How often a child tries to issue ids of each kind.
ATTEMPTS = 50

_log = structlog.get_logger("faults")


class ControlFile:
    """Reads the control file of a ``NodeControl``, and counts the faults that it has applied."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._version = 0
        self._state = ControlState()
        self._applied: Counter[int] = Counter()

    @property
    def state(self) -> ControlState:
        """The current state; the file is read again when its modification time has changed."""
        version = self._file.stat().st_mtime_ns
        if version != self._version:
            self._version, self._state = version, read_state(self._file)
        return self._state

    def next_fault(self, method: str, name: object) -> StoreFault | None:
        """Return the next call's fault, or None; count and log it with the first argument."""
        for fault in self.state.faults:
            if fault.methods and method not in fault.methods:
                continue
            if fault.times is None or self._applied[fault.number] < fault.times:
                self._applied[fault.number] += 1
                _log.warning("fault_injected", kind=fault.kind, method=method, name=str(name), fault=fault.number)
                return fault
        return None


class ControlledClock(SystemClock):
    """The machine's clocks with the offsets of the control file; see ``Clock``."""

    def __init__(self, control: ControlFile) -> None:
        self._control = control
        self.last_boot = 0.0

    def boot(self) -> float:
        """See ``Clock.boot``."""
        offset = self._control.state.boot_offset  # first, as it may take long
        self.last_boot = super().boot() + offset
        return self.last_boot

    def wall(self) -> float:
        """See ``Clock.wall``."""
        state = self._control.state
        return super().wall() + state.wall_offset if state.wall is None else state.wall


class FaultyStore:
    """Wraps a ``Store``, and injects the faults of the control file into its calls."""

    def __init__(self, store: Store, control: ControlFile) -> None:
        self._store = store
        self._control = control
        self._late: set[asyncio.Task[Any]] = set()
        self.address = store.address
        self.close = store.close

    @property
    def opened(self) -> Mapping[str, str]:
        return self._store.opened

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            fault = self._control.next_fault(name, args[0] if args else "")
            return await (self._fail(fault, lambda: method(*args, **kwargs)) if fault else method(*args, **kwargs))

        return call

    async def _fail(self, fault: StoreFault, apply: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        match fault.kind:
            case "rejected":
                raise StoreAnsweredError("injected: 503", http_status=503)
            case "unreachable":
                raise StoreUnreachable("injected: no connection")
            case "failed":
                raise StoreOutcomeUnknown("injected: the connection was reset")
            case "lost":
                await apply()
                raise StoreOutcomeUnknown("injected: the answer was lost")
            case "later":
                self._late.add(asyncio.create_task(self._apply_later(fault.seconds, apply)))
                raise StoreOutcomeUnknown("injected: the statement is still running")
            case "late":
                await hold_for_async(fault.seconds, "the fault's delay")
                return await apply()
            case "slow":
                answer = await apply()
                await hold_for_async(fault.seconds, "the fault's delay")
                return answer
            case "twice":
                await apply()
                return await apply()
            case "again":
                answer = await apply()
                await apply()
                return answer
            case "mute":
                await apply()
        return await asyncio.get_running_loop().create_future()  # never done

    async def _apply_later(self, seconds: float, apply: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        await hold_for_async(seconds, "the fault's delay")
        with suppress(Refusal):
            await apply()
            _log.warning("applied_later")


@dataclass(eq=False)
class ForkedChild:
    """Tries to issue ids in the forked child of a busy server."""

    servicer: IdAllocatorServicer  # the parent's
    log: IssuedLog  # the child's
    sequences: list[str]  # the sequences to allocate from
    _ids: int = 0
    _uuids: list[str] = field(default_factory=list)
    _refusals: Counter[str] = field(default_factory=Counter)

    def run(self) -> ForkResult:
        """Call the handlers as the parent's transport would."""
        for _ in range(ATTEMPTS):
            for sequence in self.sequences:
                self._try(self._range, sequence)
                self._try(self._chunk, sequence)
            self._try(self._doc_ids)
            self._try(self._version_7)
        return ForkResult(os.getpid(), self._ids, self._uuids, dict(self._refusals))

    def _try(self, attempt: Callable[..., None], *args: str) -> None:
        try:
            attempt(*args)
        except Exception as error:
            self._refusals[str(error) or type(error).__name__] += 1

    def _range(self, sequence: str) -> None:
        asked = self.log.now()
        request = pb.AllocateRangeRequest(sequence=sequence, id_count=1)
        reply = _run_without_waiting(IdAllocatorServicer.AllocateRange(self.servicer, request, _NO_CONTEXT))
        self.log.range(request, reply, asked)
        self._ids += reply.range.id_count

    def _chunk(self, sequence: str) -> None:
        asked = self.log.now()
        request = pb.StreamRangesRequest(sequence=sequence, total_id_count=10, chunk_id_count=10)
        replies = IdAllocatorServicer.StreamRanges(self.servicer, request, _NO_CONTEXT, _admit)
        reply = _run_without_waiting(_first(replies))
        self.log.range(request, reply, asked)
        self._ids += reply.range.id_count

    def _doc_ids(self) -> None:
        asked = self.log.now()
        request = pb.GenerateDocIdRequest(id_count=10, view=pb.DOC_ID_VIEW_COMPACT)
        reply = _run_without_waiting(IdAllocatorServicer.GenerateDocId(self.servicer, request, _NO_CONTEXT))
        self.log.doc_ids(reply, asked)
        self._ids += sum(run.id_count for run in reply.runs)

    def _version_7(self) -> None:
        request = pb.GenerateUuidRequest(id_count=10, version=pb.UUID_VERSION_7)
        self._uuids += _run_without_waiting(IdAllocatorServicer.GenerateUuid(self.servicer, request, _NO_CONTEXT)).uuids


_NO_CONTEXT: Any = None


async def _first(replies: AsyncGenerator[Any, None]) -> Any:
    return await anext(replies)


def _run_without_waiting(answer: Coroutine[Any, Any, Any]) -> Any:
    """Run a handler that never waits, since no event loop runs in the child.

    Raises:
        TimeoutError: The handler waits.
    """
    try:
        answer.send(None)
    except StopIteration as done:
        return done.value
    raise TimeoutError("it would wait for the store")


async def _admit(ids: int) -> None:
    """Admit each message of a stream at once."""


async def fork_on_command(control: ControlFile, servicers: list[IdAllocatorServicer]) -> None:
    """Fork this process on each request of the control file, while the event loop serves calls."""
    done = 0
    while True:
        await until(lambda: servicers and control.state.fork_count != done, "a command", seconds=inf)  # noqa: B023
        state = control.state
        done = state.fork_count
        loop = asyncio.get_running_loop()
        if (pid := os.fork()) == 0:
            _run_child(loop, servicers[0], Path(state.fork_log), state.fork_sequences)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        _log.warning("forked", child=pid, exit_code=os.waitstatus_to_exitcode(status))


def _run_child(loop: asyncio.AbstractEventLoop, servicer: IdAllocatorServicer, log: Path, sequences: list[str]) -> None:
    try:
        gc.disable()  # collecting gRPC's objects may crash in a child
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        faulthandler.dump_traceback_later(CHILD_SECONDS / 2)  # to the parent's log
        # Python clears the running loop in a child, and a refill needs one.
        asyncio._set_running_loop(loop)
        result = ForkedChild(servicer, IssuedLog(log.with_name(f"{log.name}.{os.getpid()}")), sequences).run()
        new = log.with_name(f"fork-{os.getpid()}.new")
        new.write_text(json.dumps(asdict(result)))
        new.replace(log.with_name(f"fork-{log.name}-{os.getpid()}.json"))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # without the parent's exit handlers and buffers


class FaultyWorker(WorkerProcess):
    """A worker process that runs this module."""

    file = Path()

    @classmethod
    async def start(cls, number: int) -> WorkerProcess:
        """See ``WorkerProcess.start``."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.support.faults.faulty_node", "--control", str(cls.file), "--worker"]
            process = await asyncio.create_subprocess_exec(
                *command, str(theirs.fileno()), stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return cls(number, process, await Pipe.over(ours))


def install(file: Path) -> None:
    """Replace the server's clock, store, servicer and worker class by the controlled ones."""
    control = ControlFile(file)
    clock = ControlledClock(control)
    servicers: list[IdAllocatorServicer] = []
    background: set[asyncio.Task[None]] = set()

    class Servicer(IdAllocatorServicer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            servicers.append(self)

        async def AllocateRange(self, request: pb.AllocateRangeRequest, context: Any) -> bytes:
            reply = await super().AllocateRange(request, context)
            issued, read_at = pb.AllocateRangeResponse.FromString(reply).range, round(clock.last_boot * 1e9)
            _log.debug("issued", name=request.sequence, first_id=issued.first_id, clock_read_at=read_at)
            return reply

    def open_faulty_store(url: str, clock: Clock, timeout: float) -> Store:
        background.add(asyncio.create_task(fork_on_command(control, servicers)))
        return cast(Store, FaultyStore(open_store(url, clock, timeout), control))

    FaultyWorker.file = file
    for module, name, replacement in (
        (app, "SystemClock", lambda: clock),
        (stores, "open_store", open_faulty_store),
        (port, "IdAllocatorServicer", Servicer),
        (supervisor, "WorkerProcess", FaultyWorker),
    ):
        assert hasattr(module, name)
        setattr(module, name, replacement)


def main(arguments: list[str]) -> None:
    """Run the server, or one of its workers."""
    at = arguments.index("--control")
    install(Path(arguments[at + 1]))
    arguments = arguments[:at] + arguments[at + 2 :]
    if arguments[0] == "--worker":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        uvloop.run(worker.run_worker(socket.socket(fileno=int(arguments[1]))))
    else:
        sys.argv[1:] = arguments
        typer.run(server.serve)


if __name__ == "__main__":
    main(sys.argv[1:])
