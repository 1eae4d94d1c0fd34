"""Limits this process's CPU time, so that a flood measures the server and not the scheduler."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

# How much unused time is kept for later, in seconds.
_CREDIT_SECONDS = 0.1


@dataclass(eq=False)
class CpuShare:
    """Keeps this process to a share of one core; tasks call ``pause`` after each piece of work."""

    share: float  # such as 0.3
    cpu: Callable[[], float] = time.process_time  # the CPU seconds that the process has used
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._used = self.cpu()
        self._free_at = self.now()

    def seconds_to_wait(self) -> float:
        """Count the use since the last call; return how long the process must rest, 0 if not."""
        used, now = self.cpu(), self.now()
        self._free_at = max(self._free_at, now - _CREDIT_SECONDS) + (used - self._used) / self.share
        self._used = used
        return max(0.0, self._free_at - now)

    async def pause(self) -> None:
        """Let other tasks run, and rest for as long as the limit demands."""
        await asyncio.sleep(self.seconds_to_wait())
