"""One worker process, as its supervisor sees it."""

import asyncio
import math
import socket
import sys
from contextlib import suppress
from typing import Protocol

import structlog

from idalloc_server.domain.errors import WorkerFailed
from idalloc_server.telemetry.metrics import Counts
from idalloc_server.workers.pipe import Message, Pipe

_log = structlog.get_logger("idalloc.supervisor")


class WorkerEnded(Exception):
    """The process is gone."""


class WorkerListener(Protocol):
    """Receives what a worker sends without an order; the supervisor implements it."""

    def asked(self, worker: "WorkerProcess", question: Message) -> None:
        """Answers a question of the worker."""

    def require_authentication(self) -> None:
        """Has all workers authenticate callers."""

    def drained(self, worker: "WorkerProcess") -> None:
        """Learns that the worker has drained."""


class WorkerProcess:
    """One worker, as its supervisor sees it.

    Attributes:
        number: Which one it is, from 1 on; the one that replaces it has the same.
        counts: What it counted, as its last message says.
        serves: Whether it serves, and health may say so.
        closed, drained: Set when it takes no more connections, and when its leases are given back.
        ended: The task that ends with the process, and returns its exit code.
        began: When it began to serve, in seconds of the loop's clock; infinite before.
    """

    def __init__(self, number: int, process: asyncio.subprocess.Process, pipe: Pipe) -> None:
        self.number = number
        self.counts = Counts().to_json()
        self.serves = False
        self.closed, self.drained = asyncio.Event(), asyncio.Event()
        self.process = process
        self.tell = pipe.tell
        self.began = math.inf
        self._pipe = pipe
        self._replies: asyncio.Queue[Message | None] = asyncio.Queue()

    @classmethod
    async def start(cls, number: int) -> "WorkerProcess":
        """Starts a process, which then waits for its first order."""
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: what lies in the present folder is not taken for a module.
            command = [sys.executable, "-P", "-m", "idalloc_server.workers.worker", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return cls(number, process, await Pipe.over(ours))

    async def hear(self, supervisor: WorkerListener) -> int:
        """Hears the worker until it ends; returns its exit code, negative for a signal."""
        while (message := await self._pipe.hear()) is not None:
            match message["what"]:
                case "counts":
                    self.counts = message["counts"]
                case "ask":
                    supervisor.asked(self, message)
                case "asks":
                    supervisor.require_authentication()
                case "closed":
                    self.closed.set()
                case "drained":
                    self.drained.set()
                    supervisor.drained(self)
                case _:
                    self._replies.put_nowait(message)
        self.serves = False
        self.closed.set()
        self.drained.set()
        self._replies.put_nowait(None)
        await self._pipe.close()
        return await self.process.wait()

    async def reply(self, within: float) -> Message:
        """Returns its next reply to an order. One that hangs is killed.

        Args:
            within: How long it may take, in seconds.

        Raises:
            WorkerEnded: It says no more.
            WorkerFailed: It said nothing in time.
        """
        try:
            async with asyncio.timeout(within):
                message = await self._replies.get()
        except TimeoutError:
            _log.error("worker_hangs", worker=self.number, pid=self.process.pid, silent_for=within)
            self.kill()
            raise WorkerFailed(f"worker {self.number} did not answer within {within:g} s, and was killed") from None
        if message is None:
            self._replies.put_nowait(None)
            raise WorkerEnded
        return message

    def kill(self) -> None:
        """Ends the process at once."""
        with suppress(ProcessLookupError):
            self.process.kill()
