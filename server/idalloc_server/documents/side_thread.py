"""A thread for work that would keep the event loop from others."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

_T = TypeVar("_T")
_P = ParamSpec("_P")

# Less is done at once: about two milliseconds of work.
LEAST_STEPS = 2_000


class SideThread:
    """One thread, however many statements there are: several would take turns with the event loop.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)

    async def run(self, steps: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function: in the thread if it takes ``LEAST_STEPS`` or more; see ``cost`` for steps."""
        if steps < LEAST_STEPS:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(function, *args, **kwargs))

    def close(self) -> None:
        """End the thread when its present work is done."""
        self._executor.shutdown(wait=False)
