"""The waits of tests: for an event, with a deadline; ``scripts/lint_waits.py`` allows no others."""

import asyncio
import time
from collections.abc import Callable

POLL_SECONDS = 0.01
# More turns than any chain of callbacks in a test.
TURNS = 100_000


def wait_until(condition: Callable[[], object], what: str = "the condition", seconds: float = 60) -> None:
    """Poll a condition until it holds, and fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(POLL_SECONDS)


async def until(condition: Callable[[], object], what: str = "the condition", seconds: float = 60) -> None:
    """Poll a condition until it holds; fail after ``seconds``. The event loop runs meanwhile."""
    deadline = time.monotonic() + seconds
    turns = 0
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        turns += 1
        await asyncio.sleep(0 if turns < 100 else POLL_SECONDS)  # most conditions need no other process


async def settle() -> None:
    """Run this loop's tasks until each waits for an event, a timer, a thread or a socket."""
    loop = asyncio.get_running_loop()
    for _ in range(TURNS):
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]  # its queue of callbacks
            return
    raise AssertionError("the tasks never wait")


def hold_for(seconds: float, reason: str) -> None:
    """Let time pass where time is what is tested: how long a store hangs or a lease lives."""
    assert reason
    time.sleep(max(0.0, seconds))


async def hold_for_async(seconds: float, reason: str) -> None:
    """Let time pass like ``hold_for`` while the event loop runs."""
    assert reason
    await asyncio.sleep(max(0.0, seconds))
