"""An event loop whose clock jumps to the next timer when nothing else runs: waits take no time.

Not for tests that wait for other processes, or for sockets of other threads: the loop does not see
their work.
"""

import asyncio
import selectors
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from idalloc_server.store.sqlite.database import JobThread


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Counts the seconds that it has not waited."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self.jobs = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """See ``AbstractEventLoop.time``."""
        return super().time() + self.skipped

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """See ``AbstractEventLoop.run_in_executor``; time is real while the function runs."""
        return self.watch(super().run_in_executor(executor, func, *args))

    async def shutdown_default_executor(self, *timeout: float) -> None:
        """See ``AbstractEventLoop.shutdown_default_executor``; time is real from now on."""
        self.jobs += 1
        await super().shutdown_default_executor(*timeout)

    def watch(self, job: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Return the future of a thread's job; time passes as usual until it is done."""
        self.jobs += 1
        job.add_done_callback(self._end_job)
        return job

    def _end_job(self, _: asyncio.Future[Any]) -> None:
        self.jobs -= 1


class WatchedJobThread(JobThread):
    """A thread of SQLite whose jobs the loop sees."""

    def queue(self, job: Callable[[], None]) -> None:
        """See ``JobThread.queue``."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            super().queue(job)
            return
        ended: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            job()
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(ended.set_result, None)

        super().queue(run)
        loop.watch(ended)


class _Selector(selectors.DefaultSelector):
    """Skips the time until the next timer, unless a file is ready or a thread works."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self._loop.jobs:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self._loop.skipped += max(0.0, timeout)
        return ready
