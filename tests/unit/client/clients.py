"""Clients of both kinds, used in the same way."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from inspect import iscoroutine, ismethod
from typing import Any

import idalloc
import idalloc.aio

KINDS: dict[str, Any] = {"threads": idalloc.Client, "asyncio": idalloc.aio.Client}


class Blocking:
    """A part of the client for asyncio whose methods block, as those of the client for threads."""

    def __init__(self, part: Any, runner: asyncio.Runner) -> None:
        self._part, self._runner = part, runner

    def __getattr__(self, name: str) -> Any:
        return self._blocking(getattr(self._part, name))

    def _blocking(self, found: Any) -> Any:
        if ismethod(found):
            return self._method(found)
        if iscoroutine(found):
            return self._runner.run(found)
        if isinstance(found, AsyncIterator):
            return self._all(found)
        return Blocking(found, self._runner) if type(found).__module__.startswith("idalloc.aio.") else found

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: self._blocking(method(*args, **options))

    def _all(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        async def take() -> Any:
            return await anext(values, None)

        return iter(lambda: self._runner.run(take()), None)


@contextmanager
def blocking(client: Any) -> Iterator[Any]:
    """Use a client during the block; the one for asyncio blocks, as the one for threads does."""
    if isinstance(client, idalloc.Client):
        with client:
            yield client
        return
    with asyncio.Runner() as runner, closing(Blocking(client, runner)) as other:
        yield other


def opened(kind: str, target: str, **options: Any) -> AbstractContextManager[Any]:
    """Open a client of a kind during the block."""
    return blocking(KINDS[kind](target, **options))
