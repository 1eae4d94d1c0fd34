"""Fake workers: a test controls their messages to the supervisor."""

import asyncio
import socket
from typing import Any

from idalloc_server.domain.errors import ServerDraining
from idalloc_server.workers.pipe import Message, Pipe, encode_error
from idalloc_server.workers.worker_process import WorkerProcess

SECONDS = 10.0


class FakeWorker:
    """The worker's end of a pipe, and its process.

    Attributes:
        requires_authentication: Whether the message ``start`` required authentication; None before it.
    """

    pid = 1

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.exited = asyncio.Event()
        self.requires_authentication: bool | None = None

    async def expect(self, kind: str) -> Message:
        """Return the next message, which must be of this kind."""
        message = await asyncio.wait_for(self.pipe.receive(), SECONDS)
        assert message is not None
        assert message["kind"] == kind
        return message

    async def serve(self) -> Message:
        """Start as a worker does; return its settings."""
        start = await self.expect("start")
        settings: Message = start["settings"]
        self.requires_authentication = start["requires_authentication"]
        self.pipe.send("ready", welcome="here")
        await self.expect("serve")
        self.pipe.send("serving")
        return settings

    async def change(self, reply: str, **values: object) -> tuple[Message, bool | None]:
        """Reply to a change; return its message, and the decision if the reply is ``prepared``."""
        given = await self.expect("change")
        self.pipe.send(reply, **values)
        if reply != "prepared":
            return given, None
        committed = (await self.expect("decide"))["commit"]
        self.pipe.send("changed" if committed else "rejected", error=encode_error(ServerDraining()))
        return given, committed

    def request(self, method: str, **values: object) -> None:
        self.pipe.send("request", id=5, method=method, **values)

    async def response(self) -> Message:
        message = await self.expect("response")
        assert message["id"] == 5
        return message

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
    """All started workers, the newest last.

    Attributes:
        start_errors: The errors of the next starts, the last one first.
        start_attempts: How many starts the supervisor attempted.
    """

    def __init__(self) -> None:
        self.all: list[FakeWorker] = []
        self.start_errors: list[OSError] = []
        self.start_attempts = 0
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
