"""``Ids``: the iterator over a sequence's ids, for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple, Self, TypeAlias

from idalloc._core.calls import Call
from idalloc._core.errors import IdallocError
from idalloc._core.pool import Pool, PoolRequest
from idalloc._core.types import Range
from idalloc._transport.channel import leak
from idalloc.aio._base import BaseClient

# The result of a request; an OSError is of the log of issued ids.
_Result: TypeAlias = Range | IdallocError | OSError


class Ids(AsyncIterator[int]):
    """An endless asynchronous iterator over the ids of one sequence, as ``idalloc.Ids``.

    Tasks may share one ``Ids``: each id goes to one task. A task that is cancelled while it waits
    takes no id.
    """

    def __init__(self, client: BaseClient, sequence: str) -> None:
        self._client = client
        self._pool = Pool(sequence)
        self._prefetch: _Prefetch | None = None
        client._connection.register(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        while True:
            for value in self._pool.current.ids:
                return value
            await self._next_part()

    def clear(self) -> None:
        """Discard all prefetched ids."""
        self._pool.clear()

    def _clear_after_fork(self) -> None:
        """Discard the prefetched ids of the parent process."""
        leak(self._prefetch)
        self._prefetch = None
        self._pool.clear()

    async def _next_part(self) -> None:
        # Without a lock, because a signal handler may raise before `async with` releases it. Only
        # one task runs between two awaits.
        self._client._connection.stubs()  # raises if the client is closed
        deadline = time.monotonic() + self._client.timeout
        while not self._pool.advance():
            prefetch = self._prefetch
            was_prefetched = prefetch is not None
            if prefetch is None:
                prefetch = self._prefetch = self._send()
            # A task that is cancelled here leaves the range to the next task.
            await asyncio.wait([prefetch.task])
            if self._prefetch is prefetch:
                self._prefetch = None
                self._receive(prefetch, was_prefetched, deadline)
        if self._prefetch is None and self._pool.should_prefetch():
            self._prefetch = self._send()

    def _send(self) -> "_Prefetch":
        self._client._connection.stubs()  # raises if the client is closed
        request = self._pool.next_request()
        return _Prefetch(request, self._client._start_task(self._fetch(request.call)))

    async def _fetch(self, call: Call[Range]) -> _Result:
        try:
            return await self._client._call(call)
        except (IdallocError, OSError) as error:  # returned, because an unused task's exception would be logged
            return error

    def _receive(self, prefetch: "_Prefetch", was_prefetched: bool, deadline: float) -> None:
        """Add the received range to the pool.

        If a quota is exceeded, start a delay in place of a request.
        """
        if prefetch.task.cancelled():
            self._client._connection.stubs()  # raises if the client is closed
        result = prefetch.task.result()
        if isinstance(result, OSError):
            raise result
        if isinstance(result, Range):
            self._pool.add(prefetch.request, result)
        elif result is not None:
            delay = self._pool.retry_delay(result, deadline, was_prefetched=was_prefetched)
            if delay:
                self._prefetch = _Prefetch(prefetch.request, self._client._start_task(asyncio.sleep(delay)))


class _Prefetch(NamedTuple):
    """A range that was requested and has not been received, or a delay, whose task returns None."""

    request: PoolRequest
    task: asyncio.Task[_Result] | asyncio.Task[None]
