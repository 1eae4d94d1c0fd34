"""A thread for work that would block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

_T = TypeVar("_T")
_P = ParamSpec("_P")

# The least work that the thread does, about two milliseconds of it; the event loop does less.
LEAST_STEPS = 2_000


class SideThread:
    """One thread for all statements: several would take turns with the event loop."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)

    async def run(self, steps: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function, in the thread if it takes ``LEAST_STEPS`` steps of ``cost`` or more."""
        if steps < LEAST_STEPS:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(function, *args, **kwargs))

    def close(self) -> None:
        """End the thread after its present work, without waiting."""
        self._executor.shutdown(wait=False)
