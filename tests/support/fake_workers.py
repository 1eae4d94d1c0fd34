"""Fake workers: a test controls their messages to the supervisor."""

import asyncio
import socket
from typing import Any

from idalloc_server.workers.pipe import Pipe, Values
from idalloc_server.workers.worker_process import WorkerProcess

SECONDS = 10.0


class FakeWorker:
    """The worker's end of a pipe, and its process.

    Attributes:
        start: What the supervisor sent to start it; empty before.
    """

    pid = 1

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.exited = asyncio.Event()
        self.start: Values = {}
        self.received: list[Values] = []

    async def expect(self, name: str) -> Any:
        """Return the next value of this name; no other step of the start, the stop or a turn may come before."""
        while True:
            message = await asyncio.wait_for(self.pipe.receive(), SECONDS)
            assert message is not None
            self.received.append(message)
            if name in message:
                return message[name]
            assert not {"serve", "stop", "all_closed", "exit", "turn", "requires_authentication"} & message.keys()

    async def serve(self) -> Values:
        """Start as a worker does; return its settings."""
        self.start = await self.expect("start")
        self.pipe.send(ready=True, applied=0)
        await self.expect("serve")
        self.pipe.send(serving=["here", "a store", 0])
        settings: Values = self.start["settings"]
        return settings

    async def turn(self, **given: int) -> None:
        """Ask for a turn; change these settings, or refuse the change if there are none."""
        self.pipe.send(wants_turn={})
        await self.end_turn(await self.expect("turn"), **given)

    async def end_turn(self, turn: int, **given: int) -> None:
        """End a turn as ``turn`` does."""
        self.pipe.send(turn_ended=turn, **({"given": given, "applied": turn} if given else {}))

    async def expect_settings(self, **settings: int) -> int:
        """Wait until the supervisor has sent these settings of the node; return their revision."""
        while not settings.items() <= self.pipe.values.get("settings", {}).items():
            await self.expect("settings")
        return int(self.pipe.values["revision"])

    async def expect_others(self, *revisions: int) -> None:
        """Wait until the supervisor has sent that the other workers use these revisions."""
        while self.pipe.values.get("others") != list(revisions):
            await self.expect("others")

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
