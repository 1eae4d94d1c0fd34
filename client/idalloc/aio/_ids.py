"""``Ids``: the iterator over a sequence's ids, for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Self

from idalloc._base import BaseIds


class Ids(BaseIds, AsyncIterator[int]):
    """An endless asynchronous iterator over the ids of one sequence, as ``idalloc.Ids``.

    Tasks may share one ``Ids``: each id goes to one task. A task that is cancelled while it waits
    takes no id.
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        while True:
            for value in self._pool.current.ids:
                return value
            await self._next_part()

    async def _next_part(self) -> None:
        # Without a lock, because a signal handler may raise before `async with` releases it. Only
        # one task runs between two awaits.
        client = self._client
        refills = self._refills
        client._connection.stubs()  # raises if the client is closed
        deadline = time.monotonic() + self._timeout
        woken = asyncio.Event()
        refill = None
        await client._find_servers()
        while (seconds := refills.poll(deadline, woken.set, refill)) is not None:
            refill = refills.current
            # A task that is cancelled here leaves the range to the next task.
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()
            woken.clear()
            client._connection.stubs()
            await client._find_servers()
