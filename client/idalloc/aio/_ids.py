"""`ids()` of the client for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple, Self, TypeAlias

from idalloc._core.errors import IdallocError, ProtocolError
from idalloc._core.pool import Asked, Pool
from idalloc._transport.channel import leave_behind
from idalloc.aio._base import BaseClient
from idalloc.v1 import id_allocator_pb2 as pb

# What comes of a range that was asked for ahead; an OSError is of the log.
_Answer: TypeAlias = pb.AllocateRangeResponse | IdallocError | OSError


class Ids(AsyncIterator[int]):
    """The ids of one sequence, one by one, without end: as ``idalloc.Ids``.

    Any number of tasks may share one: each id goes to one of them. A task that is cancelled while it waits takes none.
    """

    def __init__(self, client: BaseClient, sequence: str) -> None:
        self._client = client
        self._pool = Pool(sequence)
        self._coming: _Coming | None = None
        client._connection.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        while True:
            for value in self._pool.piece.ids:
                return value
            await self._more()

    def drop(self) -> None:
        """Drops what is at hand."""
        self._pool.drop()

    def forget(self) -> None:
        """Drops what the parent of this process has at hand."""
        leave_behind(self._coming)
        self._coming = None
        self._pool.drop()

    async def _more(self) -> None:
        # Without a lock: to leave `async with` takes an await, before which a signal's handler may raise. What is done
        # between two awaits is done by one task alone.
        self._client._connection.get()  # refuses when the client was closed
        deadline = time.monotonic() + self._client.timeout
        while not self._pool.advance():
            coming = self._coming
            ahead = coming is not None
            if coming is None:
                coming = self._coming = self._ask()
            # Who is cancelled while it waits leaves the range to the next one.
            await asyncio.wait([coming.task])
            if self._coming is coming:
                self._coming = None
                self._receive(coming, ahead, deadline)
        if self._coming is None and self._pool.wants_more():
            self._coming = self._ask()

    def _ask(self) -> "_Coming":
        self._client._connection.get()  # refuses when the client was closed
        asked = self._pool.ask()
        return _Coming(asked, self._client._own(self._fetch(asked.request)))

    async def _fetch(self, request: pb.AllocateRangeRequest) -> _Answer:
        try:
            return await self._client._allocate(request)
        except (IdallocError, OSError) as error:  # returned, for it may be that no one wants to know
            return error

    def _receive(self, coming: "_Coming", ahead: bool, deadline: float) -> None:
        """Takes in what came. After a refusal for a quota, the end of a pause comes next."""
        if coming.task.cancelled():
            self._client._connection.get()  # says that the client was closed
        answer = coming.task.result()
        if isinstance(answer, OSError):
            raise answer
        if isinstance(answer, pb.AllocateRangeResponse):
            self._pool.accept(coming.asked, answer)
        elif answer is not None:
            smaller = self._pool.refused(answer) and time.monotonic() < deadline
            if not smaller and (not ahead or isinstance(answer, ProtocolError)):
                pause = self._pool.pause(answer, deadline)
                self._coming = _Coming(coming.asked, self._client._own(asyncio.sleep(pause)))


class _Coming(NamedTuple):
    """A range that was asked for ahead, or the end of a pause: then its task gives None."""

    asked: Asked
    task: asyncio.Task[_Answer] | asyncio.Task[None]
