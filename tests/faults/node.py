"""The real server, with a clock that can be set and a store that can be harmed, as a file says; and a fork on command.

python -m tests.faults.node --control FILE [the server's own flags]

``tests/faults/control.py`` writes the file. With several workers each of them is harmed.
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
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
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
from idalloc_server.domain.errors import Refusal, StoreOutcomeUnknown, StoreRejected, StoreUnreachable
from idalloc_server.domain.store import Store
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.store.urls import open_store
from idalloc_server.workers import supervisor, worker
from idalloc_server.workers.pipe import Pipe
from idalloc_server.workers.worker_process import WorkerProcess
from tests.faults.control import Fork, Harm, State, read

# How often a node looks whether it is to fork.
LOOK_SECONDS = 0.02
# A child that hangs is ended.
CHILD_SECONDS = 40
# How often a child tries to get ids of each kind.
ATTEMPTS = 50

_log = structlog.get_logger("faults")


class Orders:
    """What the file says now.

    Args:
        file: What a ``Control`` writes.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._version = 0
        self._state = State()
        self._applied: Counter[int] = Counter()

    @property
    def state(self) -> State:
        """What it says. It is read again only where its time is another one."""
        version = self._file.stat().st_mtime_ns
        if version != self._version:
            self._version, self._state = version, read(self._file)
        return self._state

    def next_harm(self, method: str) -> Harm | None:
        """Returns what becomes of the next call, and counts it."""
        for harm in self.state.harms:
            if harm.methods and method not in harm.methods:
                continue
            if harm.times is None or self._applied[harm.number] < harm.times:
                self._applied[harm.number] += 1
                _log.warning("harmed", what=harm.what, method=method, harm=harm.number)
                return harm
        return None


class SetClock(SystemClock):
    """The machine's clocks, as the file moves them; see ``Clock``."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def boot(self) -> float:
        """See ``Clock.boot``."""
        return super().boot() + self._orders.state.boot_offset

    def wall(self) -> float:
        """See ``Clock.wall``."""
        state = self._orders.state
        return super().wall() + state.wall_offset if state.wall is None else state.wall


class HarmedStore:
    """A ``Store`` in front of another one, to which what the file says happens.

    Args:
        store: The other one.
        orders: What the file says.
    """

    def __init__(self, store: Store, orders: Orders) -> None:
        self._store = store
        self._orders = orders
        self._late: set[asyncio.Task[Any]] = set()
        self.address = store.address
        self.close = store.close

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            harm = self._orders.next_harm(name)
            return await (self._harmed(harm, lambda: method(*args, **kwargs)) if harm else method(*args, **kwargs))

        return call

    async def _harmed(self, harm: Harm, apply: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        match harm.what:
            case "rejected":
                raise StoreRejected("harmed: 503", http_status=503)
            case "unreachable":
                raise StoreUnreachable("harmed: no connection")
            case "failed":
                raise StoreOutcomeUnknown("harmed: the connection was reset")
            case "lost":
                await apply()
                raise StoreOutcomeUnknown("harmed: the answer was lost")
            case "later":
                self._late.add(asyncio.create_task(self._apply_later(harm.seconds, apply)))
                raise StoreOutcomeUnknown("harmed: it is still under way")
            case "late":
                await asyncio.sleep(harm.seconds)
                return await apply()
            case "slow":
                answer = await apply()
                await asyncio.sleep(harm.seconds)
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
        return await asyncio.get_running_loop().create_future()  # which nothing ends

    async def _apply_later(self, seconds: float, apply: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        await asyncio.sleep(seconds)
        with suppress(Refusal):
            await apply()
            _log.warning("applied_later")


class Child:
    """The child of a fork of a server that was in the middle of its work; it tries to issue ids all the same.

    Args:
        servicer: What the parent answers with.
        log: Where the child writes down what it issues.
        sequences: Of what it tries to issue ids.
    """

    def __init__(self, servicer: IdAllocatorServicer, log: Path, sequences: list[str]) -> None:
        self._servicer = servicer
        self._log = IssuedLog(log)
        self._sequences = sequences
        self._ids = 0
        self._uuids: list[str] = []
        self._refusals: Counter[str] = Counter()

    def run(self) -> Fork:
        """Tries to answer as the parent would."""
        for _ in range(ATTEMPTS):
            for sequence in self._sequences:
                self._try(self._range, sequence)
                self._try(self._chunk, sequence)
            self._try(self._doc_ids)
            self._try(self._version_7)
        return Fork(os.getpid(), self._ids, self._uuids, dict(self._refusals))

    def _try(self, attempt: Callable[..., None], *args: str) -> None:
        try:
            attempt(*args)
        except Exception as error:
            self._refusals[str(error) or type(error).__name__] += 1

    def _range(self, sequence: str) -> None:
        asked = self._log.now()
        request = pb.AllocateRangeRequest(sequence=sequence, id_count=1)
        reply = _at_once(IdAllocatorServicer.AllocateRange(self._servicer, request, _NO_CONTEXT))
        self._log.range(request, reply, asked)
        self._ids += reply.range.id_count

    def _chunk(self, sequence: str) -> None:
        asked = self._log.now()
        request = pb.StreamRangesRequest(sequence=sequence, total_id_count=10, chunk_id_count=10)
        replies = IdAllocatorServicer.StreamRanges(self._servicer, request, _NO_CONTEXT)
        reply = _at_once(_first(replies))
        self._log.range(request, reply, asked)
        self._ids += reply.range.id_count

    def _doc_ids(self) -> None:
        asked = self._log.now()
        request = pb.GenerateDocIdRequest(id_count=10, view=pb.DOC_ID_VIEW_COMPACT)
        reply = _at_once(IdAllocatorServicer.GenerateDocId(self._servicer, request, _NO_CONTEXT))
        self._log.doc_ids(reply, asked)
        self._ids += sum(run.id_count for run in reply.runs)

    def _version_7(self) -> None:
        request = pb.GenerateUuidRequest(id_count=10, version=pb.UUID_VERSION_7)
        self._uuids += _at_once(IdAllocatorServicer.GenerateUuid(self._servicer, request, _NO_CONTEXT)).uuids


_NO_CONTEXT: Any = None


async def _first(replies: AsyncGenerator[Any, None]) -> Any:
    return await anext(replies)


def _at_once(answer: Coroutine[Any, Any, Any]) -> Any:
    """Runs a handler that need not wait: in the child nothing would wake it."""
    try:
        answer.send(None)
    except StopIteration as done:
        return done.value
    raise TimeoutError("it would wait for the store")


async def fork_on_command(orders: Orders, servicers: list[IdAllocatorServicer]) -> None:
    """Forks, in the middle of whatever else the event loop does."""
    done = 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        state = orders.state
        if done == state.fork or not servicers:
            continue
        done = state.fork
        loop = asyncio.get_running_loop()
        if (pid := os.fork()) == 0:
            _be_child(loop, servicers[0], Path(state.forked), state.fork_sequences)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        _log.warning("forked", child=pid, exit_code=os.waitstatus_to_exitcode(status))


def _be_child(loop: asyncio.AbstractEventLoop, servicer: IdAllocatorServicer, log: Path, sequences: list[str]) -> None:
    try:
        gc.disable()  # to collect what is gRPC's may crash here
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        faulthandler.dump_traceback_later(CHILD_SECONDS / 2)  # where it hangs, its parent's log says
        # Python keeps the child from taking the parent's loop for its own; a refill could not be begun without one.
        asyncio._set_running_loop(loop)
        told = Child(servicer, log.with_name(f"{log.name}.{os.getpid()}"), sequences).run()
        new = log.with_name(f"told-{os.getpid()}.new")
        new.write_text(json.dumps(asdict(told)))
        new.replace(log.with_name(f"told-{log.name}-{os.getpid()}.json"))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # nothing of the parent's is ended or flushed


class HarmedWorker(WorkerProcess):
    """A worker that runs this module."""

    file = Path()

    @classmethod
    async def start(cls, number: int) -> WorkerProcess:
        """See ``WorkerProcess.start``."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.faults.node", "--control", str(cls.file), "--worker"]
            process = await asyncio.create_subprocess_exec(
                *command, str(theirs.fileno()), stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return cls(number, process, await Pipe.over(ours))


def harm(file: Path) -> None:
    """Puts the clock, the store and the fork into the places where the server makes its own ones."""
    orders = Orders(file)
    servicers: list[IdAllocatorServicer] = []
    background: set[asyncio.Task[None]] = set()

    class Servicer(IdAllocatorServicer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            servicers.append(self)

    def open_harmed(url: str, clock: Clock, timeout: float) -> Store:
        background.add(asyncio.create_task(fork_on_command(orders, servicers)))
        return cast(Store, HarmedStore(open_store(url, clock, timeout), orders))

    HarmedWorker.file = file
    for module, name, put in (
        (app, "SystemClock", lambda: SetClock(orders)),
        (app, "open_store", open_harmed),
        (app, "IdAllocatorServicer", Servicer),
        (supervisor, "WorkerProcess", HarmedWorker),
    ):
        assert hasattr(module, name)
        setattr(module, name, put)


def main(arguments: list[str]) -> None:
    """Serves as the arguments say."""
    at = arguments.index("--control")
    harm(Path(arguments[at + 1]))
    arguments = arguments[:at] + arguments[at + 2 :]
    if arguments[0] == "--worker":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        uvloop.run(worker.run_worker(socket.socket(fileno=int(arguments[1]))))
    else:
        sys.argv[1:] = arguments
        typer.run(server.serve)


if __name__ == "__main__":
    main(sys.argv[1:])
