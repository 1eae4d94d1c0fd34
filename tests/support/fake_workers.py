"""Fake workers: a test controls their messages to the supervisor."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, TypeVar

from idalloc_server.workers import messages
from idalloc_server.workers.messages import Message
from idalloc_server.workers.pipe import Pipe
from idalloc_server.workers.worker_process import WorkerProcess

SECONDS = 10.0
# The steps of the start and the stop: ``expect`` skips none of them.
STEPS = (
    messages.Serve,
    messages.Stop,
    messages.AllClosed,
    messages.Exit,
    messages.AuthenticationRequired,
)

M = TypeVar("M", bound=Message)


class FakeWorker:
    """The worker's end of a pipe, and its process."""

    pid = 1
    start: messages.Start  # what the supervisor sent to start it

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.exited = asyncio.Event()
        self.received: list[Message] = []

    async def expect(self, kind: type[M]) -> M:
        """Return the next message of a type; no other step of start or stop may precede."""
        while True:
            message = await asyncio.wait_for(self.pipe.receive(), SECONDS)
            assert message is not None
            self.received.append(message)
            if isinstance(message, kind):
                return message
            assert not isinstance(message, STEPS)

    async def serve(self) -> Mapping[str, Any]:
        """Start as a worker does; return its settings."""
        self.start = await self.expect(messages.Start)
        self.pipe.send(messages.Ready({}))
        await self.expect(messages.Serve)
        self.pipe.send(messages.Serving("here", "a store", 0))
        return self.start.settings

    def ask_change(self, given: Mapping[str, int], *, persist: bool = False) -> None:
        """Ask for a change of the node."""
        self.pipe.send(messages.Asked(1, "change", {"given": given, "persist": persist}))

    async def change(self, **given: int) -> None:
        """Change the node."""
        self.ask_change(given)
        assert await self.expect(messages.Answered) == messages.Answered(1, "", "")

    async def expect_settings(self, **settings: int) -> int:
        """Wait until the supervisor has sent these settings of the node; return their revision."""
        newest = self.pipe.newest(messages.NodeState)
        while newest is None or not settings.items() <= newest.settings.items():
            newest = await self.expect(messages.NodeState)
        return newest.revision

    async def expect_applied(self, *revisions: int) -> None:
        """Wait until the supervisor has sent that the workers use these revisions."""
        newest = self.pipe.newest(messages.NodeState)
        while newest is None or newest.applied != list(revisions):
            newest = await self.expect(messages.NodeState)

    async def exit(self) -> None:
        await self.pipe.close()
        self.exited.set()

    # The interface of ``asyncio.subprocess.Process``.

    def kill(self) -> None:
        self._killing = asyncio.create_task(self.exit())

    async def wait(self) -> int:
        await self.exited.wait()
        return 0


class FakeWorkers:
    """All started workers, the newest last."""

    def __init__(self) -> None:
        self.all: list[FakeWorker] = []
        self.start_errors: list[OSError] = []  # the errors of the next starts, the last one first
        self.start_attempts = 0  # by the supervisor
        self._new: asyncio.Queue[FakeWorker] = asyncio.Queue()

    async def start(self, number: int) -> WorkerProcess:
        self.start_attempts += 1
        if self.start_errors:
            raise self.start_errors.pop()
        ours, theirs = socket.socketpair()
        worker = FakeWorker(await Pipe.over(theirs))
        self.all.append(worker)
        self._new.put_nowait(worker)
        process: Any = worker
        return WorkerProcess(number, process, await Pipe.over(ours))

    async def next(self) -> FakeWorker:
        return await asyncio.wait_for(self._new.get(), SECONDS)
