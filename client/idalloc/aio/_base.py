"""The base of the client for asyncio: its unary calls and its tasks."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar, Self, TypeVar

from idalloc import _base
from idalloc._core.attempts import Attempt, Attempts
from idalloc._core.calls import Call
from idalloc._core.errors import IdallocError, ServerUnreachable
from idalloc._core.pipeline import Pending
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._transport.channel import Connection, Stubs

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

        Prefetched ids are discarded. Running calls and streams raise ``ClientClosed``.
        """
        opened = [stubs for each in [*self._by_target.values()] if (stubs := each.close())] + self._retired
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stubs in opened:
            await stubs.channel.close()
        if self._log is not None:
            self._log.close()

    def _close_channels(self, opened: list[Stubs]) -> None:
        for stubs in opened:
            self._start_task(stubs.channel.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _call(self, call: Call[T], timeout: float | None = None) -> T:
        pending = Pending(call, self.timeout if timeout is None else timeout)
        await self._find_servers()
        if call.is_repeatable:
            return await self._repeat(pending)
        tried: list[Connection] = []
        while True:
            connection = self._servers.pick(tried)
            tried.append(connection)
            metadata = self._metadata()
            asked = self._now()
            began = monotonic()
            rpc = connection.stubs().rpc(call.request)
            try:
                with translate_rpc_errors(self.target):
                    reply = await rpc(call.request, timeout=pending.time_left(), metadata=metadata)
            except IdallocError as error:
                self._failed(connection, error)
                await asyncio.sleep(self._retry_delay(pending, tried, error))
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            else:
                self._servers.answered(monotonic() - began)
                return self._receive(call, reply, asked)

    async def _repeat(self, pending: Pending[T]) -> T:
        changed = asyncio.Event()
        attempts = Attempts(self, pending, changed.set)
        try:
            while seconds := attempts.step():
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await changed.wait()
                changed.clear()
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        finally:
            for attempt in attempts.open:
                attempt.future.cancel()
        return self._receive(pending.call, attempts.reply, attempts.asked)

    async def _find_servers(self) -> None:
        """Resolve the name of the servers and probe suspect ones, if that is due."""
        if self._must_resolve():
            with suppress(OSError):  # gRPC reports it
                loop = asyncio.get_running_loop()
                self._use_addresses(await loop.getaddrinfo(*self._name, type=socket.SOCK_STREAM))  # type: ignore[misc]
        self._probe_suspects()

    def _raise_if_closed(self) -> None:
        """Raise ``ClientClosed`` if ``close`` has ended a call whose task was not cancelled."""
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

    # As in ``idalloc._core.attempts.Client``.

    def _send(
        self, server: Connection, pending: Pending[Any], end: Callable[[Attempt[Connection], Any], None]
    ) -> Attempt[Connection]:
        request = pending.call.request
        metadata = self._metadata()
        attempt = Attempt(server, server.stubs(), self._now(), monotonic())
        timeout = pending.time_left()

        async def run() -> Any:
            with translate_rpc_errors(self.target):
                return await attempt.stubs.rpc(request)(request, timeout=timeout, metadata=metadata)

        def finish(task: "asyncio.Task[Any]") -> None:
            if not task.cancelled():
                task.exception()  # or asyncio would log that of a late answer
            end(attempt, task)

        attempt.future = self._start_task(run())
        attempt.future.add_done_callback(finish)
        return attempt

    def _outcome(self, attempt: Attempt[Connection]) -> Any:
        if attempt.future.cancelled():
            self._connection.raise_if_closed()
            raise ServerUnreachable(f"no answer from {self.target}: the call was cancelled")
        return attempt.future.result()
