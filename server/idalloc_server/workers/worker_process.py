"""The supervisor's handle of one worker process."""

import asyncio
import math
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from idalloc_server.domain.errors import StartRefused, StoreUnavailable
from idalloc_server.telemetry.metrics import Counts
from idalloc_server.workers.messages import Message, Serving, StartFailed
from idalloc_server.workers.pipe import Pipe

_log = structlog.get_logger("idalloc.supervisor")


@dataclass(eq=False)
class WorkerProcess:
    """One worker process."""

    number: int  # from 1; its replacement has the same one
    process: asyncio.subprocess.Process
    pipe: Pipe  # the connection to it
    # Receives its messages until it exits, and returns its exit code, negative for a signal.
    exit: asyncio.Task[int] = field(init=False)
    # Its newest metrics; empty once it has exited.
    counts: Mapping[str, Any] = field(init=False, default_factory=lambda: Counts().to_json())
    # When it began to serve, in seconds of the loop's clock; infinite before.
    serving_since: float = field(init=False, default=math.inf)

    @classmethod
    async def start(cls, number: int) -> "WorkerProcess":
        """Start a process, which then waits for ``Start``."""
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: Python imports no module from the current directory.
            command = [sys.executable, "-P", "-m", "idalloc_server.workers.worker", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return cls(number, process, await Pipe.over(ours))

    async def wait_started(self, step: type[Message], timeout: float) -> None:
        """Wait for a message of the start; kill the process if it does not come in time.

        Raises:
            StartRefused: The worker could not start, exited, or was killed.
            StoreUnavailable: The worker could not reach the store.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.pipe.wait_for(step, StartFailed)
        except TimeoutError:
            _log.error("worker_unresponsive", worker=self.number, pid=self.process.pid, timeout=timeout)
            self.kill()
        if failed := self.pipe.newest(StartFailed):
            if failed.reason == StoreUnavailable.reason:
                raise StoreUnavailable(failed.error)
            setting, message = ("store", failed.error) if failed.reason else failed.error.split(": ", 1)
            raise StartRefused(setting, message)
        if not self.pipe.has(step):
            raise StartRefused("workers", f"worker {self.number} exited during its start; the log has the cause")

    @property
    def is_serving(self) -> bool:
        """Whether the process serves and has not exited."""
        return self.pipe.has(Serving) and not self.pipe.has_ended

    def kill(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self.process.kill()


async def ask_all(
    workers: Iterable[WorkerProcess], question: str, arguments: Mapping[str, Any], timeout: float
) -> list[Any]:
    """Return the answers of all workers that serve and answered in time; see ``Pipe.ask``."""
    asked = (each.pipe.ask(question, arguments, timeout) for each in workers if each.is_serving)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [each for each in answers if not isinstance(each, BaseException)]
