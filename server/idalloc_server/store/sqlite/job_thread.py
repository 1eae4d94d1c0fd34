"""A thread for calls that block, in the order in which they were made."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from idalloc_server.domain.store.store_calls import settle

_T = TypeVar("_T")


@dataclass(eq=False)
class JobThread:
    """Runs jobs one after another on a thread of its own.

    It costs half as much as an executor of one thread. A job whose future is cancelled before it
    begins is dropped; otherwise it completes. The process can exit while a job runs, which then
    ends as in a crash.
    """

    name: str  # of the thread
    _jobs: SimpleQueue[Callable[[], None] | None] = field(default_factory=SimpleQueue, init=False)
    _thread: Thread | None = field(default=None, init=False)
    is_closed: bool = field(default=False, init=False)  # whether ``close`` was called

    def run(self, job: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Queue a job, and return its future, which belongs to the running event loop.

        Raises:
            RuntimeError: As ``queue``.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self.queue(partial(_run, loop, future, partial(job, *arguments)))
        return future

    def queue(self, job: Callable[[], None]) -> None:
        """Queue a job that raises nothing, and passes its answer on by itself.

        Raises:
            RuntimeError: The thread was closed, or cannot be started.
        """
        if self.is_closed:
            raise RuntimeError("the thread is closed")
        if self._thread is None:
            thread = Thread(target=self._run_jobs, name=self.name, daemon=True)
            thread.start()  # raises RuntimeError at a limit of threads
            self._thread = thread
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread after the queued jobs, without waiting for them.

        Later jobs are rejected.
        """
        self.is_closed = True
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # or it would live until the next one


def _run(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], job: Callable[[], Any]) -> None:
    if future.cancelled():
        return
    try:
        outcome = job()
    except BaseException as error:
        outcome = error
    with suppress(RuntimeError):  # the event loop is closed
        loop.call_soon_threadsafe(settle, future, outcome)
    # Or an error would keep itself in memory, by its traceback, this frame and the future.
    del future, job, outcome
