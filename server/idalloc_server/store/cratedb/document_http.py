"""Statements on documents over HTTP: within a timeout, and again while the cluster fails over."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreOutcomeUnknown, StoreUnreachable
from idalloc_server.store.cratedb import answers
from idalloc_server.store.cratedb.answers import Row
from idalloc_server.store.cratedb.http import CrateHttp

_T = TypeVar("_T")

# Before the next attempt. An election, or the promotion of a copy, takes about a second.
PAUSE_SECONDS = 0.2

# When the calls of this task must have ended, by the loop's clock.
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@dataclass(eq=False)
class DocumentHttp:
    """Sends statements by ``CrateHttp``, again while a live host answers that it applied none."""

    http: CrateHttp
    timeout: float  # of a call with its attempts, in seconds

    @contextmanager
    def within_timeout(self) -> Iterator[None]:
        """Give all calls of the block together the timeout of one."""
        token = _deadline.set(asyncio.get_running_loop().time() + self.timeout)
        try:
            yield
        finally:
            _deadline.reset(token)

    def late(self, kind: type[StoreFailure]) -> StoreFailure:
        """Return the failure of a call that had no answer within the timeout."""
        return kind(f"CrateDB did not answer within {self.timeout:g} s; repair the cluster")

    async def read(self, statement: str, *arguments: object) -> list[Row]:
        """See ``CrateHttp.read``."""
        return await self._send(partial(self.http.read, statement, *arguments), StoreUnreachable)

    async def write(self, statement: str, *arguments: object) -> list[Row]:
        """See ``CrateHttp.write``."""
        return await self._send(partial(self.http.write, statement, *arguments), StoreOutcomeUnknown)

    async def write_each(self, statement: str, arguments: Sequence[Sequence[object]]) -> int:
        """See ``CrateHttp.write_each``."""
        return await self._send(partial(self.http.write_each, statement, arguments), StoreOutcomeUnknown)

    async def _send(self, call: Callable[[], Awaitable[_T]], late: type[StoreFailure]) -> _T:
        """Call until a host answers; raise ``late`` if none has at the deadline."""
        loop = asyncio.get_running_loop()
        deadline = _deadline.get() or loop.time() + self.timeout
        if loop.time() >= deadline:
            raise self.late(StoreUnreachable)
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await call()
            except TimeoutError:
                raise self.late(late) from None
            except StoreAnsweredError as error:
                if not answers.may_answer_soon(error) or loop.time() + PAUSE_SECONDS >= deadline:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)
