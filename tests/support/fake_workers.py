"""Workers that are no processes: what they tell their supervisor, a test says."""

import asyncio
import socket
from typing import Any

from idalloc_server.domain.errors import ServerDraining
from idalloc_server.workers.pipe import Message, Pipe, encode_error
from idalloc_server.workers.worker_process import WorkerProcess

SECONDS = 10.0


class FakeWorker:
    """The worker's end of a pipe, and the process that it would be.

    Attributes:
        must_ask: Whether it was started as one that asks who calls.
    """

    pid = 1

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.ended = asyncio.Event()
        self.must_ask: bool | None = None

    async def hears(self, what: str) -> Message:
        """Returns the next message, which must be that one."""
        message = await asyncio.wait_for(self.pipe.hear(), SECONDS)
        assert message is not None
        assert message["what"] == what
        return message

    async def serve(self) -> Message:
        """Starts as a worker does; returns the settings that it got."""
        start = await self.hears("start")
        settings: Message = start["settings"]
        self.must_ask = start["asks"]
        self.pipe.tell("serves", welcome="here")
        await self.hears("serve")
        self.pipe.tell("joined")
        return settings

    async def change(self, reply: str, **values: object) -> tuple[Message, bool | None]:
        """Is asked for a change and replies; returns what was asked for, and what was decided on a ``ready``."""
        given = await self.hears("change")
        self.pipe.tell(reply, **values)
        if reply != "ready":
            return given, None
        agreed = (await self.hears("decide"))["agreed"]
        self.pipe.tell("changed" if agreed else "refused", error=encode_error(ServerDraining()))
        return given, agreed

    def asks(self, about: str, **values: object) -> None:
        self.pipe.tell("ask", number=5, about=about, **values)

    async def answered(self) -> Message:
        answer = await self.hears("answer")
        assert answer["number"] == 5
        return answer

    async def end(self) -> None:
        await self.pipe.close()
        self.ended.set()

    # What the supervisor does with a process.

    def kill(self) -> None:
        self._killing = asyncio.create_task(self.end())

    async def wait(self) -> int:
        await self.ended.wait()
        return 0


class FakeWorkers:
    """All workers that were started, the newest last."""

    def __init__(self) -> None:
        self.all: list[FakeWorker] = []
        self.refused: list[OSError] = []  # what the next ones cannot be made for
        self.tries = 0
        self._new: asyncio.Queue[FakeWorker] = asyncio.Queue()

    async def start(self, number: int) -> WorkerProcess:
        self.tries += 1
        if self.refused:
            raise self.refused.pop()
        ours, theirs = socket.socketpair()
        worker = FakeWorker(await Pipe.over(theirs))
        self.all.append(worker)
        self._new.put_nowait(worker)
        process: Any = worker
        return WorkerProcess(number, process, await Pipe.over(ours))

    async def next(self) -> FakeWorker:
        return await asyncio.wait_for(self._new.get(), SECONDS)
