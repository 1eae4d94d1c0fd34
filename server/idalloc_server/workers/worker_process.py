"""The supervisor's handle of one worker process."""

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


class WorkerExited(Exception):
    """The process has exited."""


class WorkerListener(Protocol):
    """Handles the messages that a worker sends unasked; the supervisor implements it."""

    def on_request(self, worker: "WorkerProcess", request: Message) -> None:
        """Answers a request of the worker."""

    def require_authentication(self) -> None:
        """Requires authentication in all workers."""

    def on_drained(self, worker: "WorkerProcess") -> None:
        """Handles that the worker has drained."""


class WorkerProcess:
    """One worker process.

    Attributes:
        number: The worker's number, from 1; its replacement has the same one.
        counts: The counts that it reported last.
        is_serving: Whether it serves with health SERVING.
        closed: Set when it accepts no more connections.
        drained: Set when it has released its leases.
        serving_since: When it began to serve, in seconds of the loop's clock; infinite before.
    """

    def __init__(self, number: int, process: asyncio.subprocess.Process, pipe: Pipe) -> None:
        self.number = number
        self.counts = Counts().to_json()
        self.is_serving = False
        self.closed, self.drained = asyncio.Event(), asyncio.Event()
        self.process = process
        self.send = pipe.send
        self.serving_since = math.inf
        self._pipe = pipe
        self._replies: asyncio.Queue[Message | None] = asyncio.Queue()

    @classmethod
    async def start(cls, number: int) -> "WorkerProcess":
        """Start a process, which then waits for the message ``start``."""
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: Python imports no module from the current directory.
            command = [sys.executable, "-P", "-m", "idalloc_server.workers.worker", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return cls(number, process, await Pipe.over(ours))

    async def receive_until_exit(self, listener: WorkerListener) -> int:
        """Handle messages until the process exits; return its exit code, negative for a signal."""
        while (message := await self._pipe.receive()) is not None:
            match message["kind"]:
                case "counts":
                    self.counts = message["counts"]
                case "request":
                    listener.on_request(self, message)
                case "require_authentication":
                    listener.require_authentication()
                case "closed":
                    self.closed.set()
                case "drained":
                    self.drained.set()
                    listener.on_drained(self)
                case _:
                    self._replies.put_nowait(message)
        self.is_serving = False
        self.closed.set()
        self.drained.set()
        self._replies.put_nowait(None)
        await self._pipe.close()
        return await self.process.wait()

    async def wait_reply(self, timeout: float) -> Message:
        """Return the next reply; kill the process if none arrives in time.

        Args:
            timeout: The longest wait, in seconds.

        Raises:
            WorkerExited: The process exited before it replied.
            WorkerFailed: It did not reply in time.
        """
        try:
            async with asyncio.timeout(timeout):
                message = await self._replies.get()
        except TimeoutError:
            _log.error("worker_unresponsive", worker=self.number, pid=self.process.pid, timeout=timeout)
            self.kill()
            raise WorkerFailed(f"worker {self.number} did not answer within {timeout:g} s, and was killed") from None
        if message is None:
            self._replies.put_nowait(None)
            raise WorkerExited
        return message

    def kill(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self.process.kill()
