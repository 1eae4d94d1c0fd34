"""Event loops in simulated time, one for each simulated process, so that each can be paused."""

import asyncio
import heapq
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from idalloc_server.domain.errors import Refusal, StartRefused
from idalloc_server.store.sqlite.database import JobThread


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs the callbacks of one process on request, in the order in which they were scheduled."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.paused = False  # whether the process is stopped, as by SIGSTOP
        self.tasks: set[asyncio.Task[Any]] = set()  # tasks that are not done
        self.errors: list[dict[str, Any]] = []  # contexts that asyncio would have logged
        self._time = time
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()  # timers of one time run in the order in which they were set

    @property
    def next_timer(self) -> float | None:
        """The time of the next timer; None without one, or while paused."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers and not self.paused else None

    @property
    def is_busy(self) -> bool:
        """Whether callbacks are ready, or timers are due."""
        next_timer = self.next_timer
        return bool(self._ready) or (next_timer is not None and next_timer <= self._time())

    def run_ready(self) -> bool:
        """Run ready callbacks, and then due timers; return whether there were any."""
        if self.paused:
            return False
        while self._timers and self._timers[0][0] <= self._time():
            self._ready.append(heapq.heappop(self._timers)[2])
        if not self._ready:
            return False
        ready, self._ready = self._ready, deque()
        _set_running_loop(self)
        try:
            for handle in ready:
                if not handle.cancelled():
                    handle._run()
        finally:
            _set_running_loop(None)
        return True

    # The methods of AbstractEventLoop that a server without a network uses.

    def time(self) -> float:
        return self._time()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None, **_: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and not isinstance(error := task.exception(), Refusal | StartRefused | None):
            self.errors.append({"promise": error})

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function at once, since threads would make the order of events random."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are skipped when they are due."""


class ImmediateJobs(JobThread):
    """Runs the jobs of SQLite's thread at once: threads would make the order of events random."""

    def run(self, job: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """See ``JobThread.run``."""
        if self.is_closed:
            raise RuntimeError("the thread is closed")
        loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        return loop.run_in_executor(None, job, *arguments)


def simulated_loop(time: Callable[[], float]) -> SimulatedLoop:
    """Return a new loop."""
    return SimulatedLoop(time)  # type: ignore[abstract]
