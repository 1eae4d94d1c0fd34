"""The base of the client for asyncio: its unary calls and its tasks."""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, Self, TypeVar

from idalloc import _base
from idalloc._core.calls import Call
from idalloc._core.errors import IdallocError
from idalloc._core.pipeline import Pending
from idalloc._core.rpc_errors import translate_rpc_errors

T = TypeVar("T")


def is_task_cancelled() -> bool:
    """Return whether the task was cancelled: gRPC raises ``CancelledError`` also in others."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class BaseClient(_base.BaseClient):
    """The unary calls of a client, and its tasks. ``Client`` adds the public methods."""

    _is_asyncio: ClassVar[bool] = True

    def _add_parts(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close all connections and the log.

        Prefetched ids are discarded. Running calls and streams raise ``RuntimeError``.
        """
        opened = [connection.close() for connection in self._connections]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stubs in opened:
            if stubs is not None:
                await stubs.channel.close()
        if self._log is not None:
            self._log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _call(self, call: Call[T], timeout: float | None = None) -> T:
        pending = Pending(call, self.timeout if timeout is None else timeout)
        metadata = self._metadata()
        while True:
            asked = self._now()
            rpc = self._connection.stubs().rpc(call.request)
            try:
                with translate_rpc_errors(self.target):
                    reply = await rpc(call.request, timeout=pending.time_left(), metadata=metadata)
            except IdallocError as error:
                await asyncio.sleep(pending.retry_delay(error))
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            else:
                return self._receive(call, reply, asked)

    def _raise_if_closed(self) -> None:
        """Raise ``RuntimeError`` if ``close`` has ended a call whose task was not cancelled."""
        if not is_task_cancelled():
            self._connection.raise_if_closed()

    def _start_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that is cancelled when the client is closed."""
        try:
            task = asyncio.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        except BaseException:  # of a signal handler: nothing else would cancel the task
            for each in asyncio.all_tasks():
                if each.get_coro() is coroutine:
                    each.cancel()
            raise
        return task
