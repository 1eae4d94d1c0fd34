"""Group commit: one call to a store at a time; what arrives meanwhile shares the next one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from idalloc_server.domain.errors import ServerDraining

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


@dataclass(eq=False)
class Batches(Generic[_Item, _Answer]):
    """Passes items to a call that takes many of them.

    A caller that is cancelled gets no answer; its item may still be passed.
    """

    _name: str  # the name of the task that makes the calls
    # Takes a batch, and returns the answer, or the error, of each item in order. What it raises is
    # the error of each item.
    _call: Callable[[list[_Item]], Awaitable[Iterable[_Answer | Exception]]]
    _most: int  # the most items of a call
    _waiting: deque[tuple[_Item, asyncio.Future[_Answer]]] = field(default_factory=deque)
    _task: asyncio.Task[None] | None = None

    async def add(self, item: _Item) -> _Answer:
        """Return the answer to an item, or raise its error; ServerDraining after a cancellation."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        self._waiting.append((item, answer))
        if self._task is None:
            self._task = loop.create_task(self._run(), name=self._name)
        return await answer

    async def _run(self) -> None:
        batch: list[tuple[_Item, asyncio.Future[_Answer]]] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
                try:
                    answers = await self._call([item for item, _ in batch])
                except Exception as error:
                    answers = [error] * len(batch)
                for (_, future), answer in zip(batch, answers, strict=True):
                    settle(future, answer)
        finally:
            # Items are left only if the task was cancelled.
            self._task = None
            for _, future in [*batch, *self._waiting]:
                settle(future, ServerDraining())
            self._waiting.clear()


def settle(future: "asyncio.Future[_Answer]", outcome: "_Answer | BaseException") -> None:
    """Give a caller its answer, or its error, unless it was cancelled."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
