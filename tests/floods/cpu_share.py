"""Limits this process's CPU time, so that a flood measures the server and not the scheduler."""

import asyncio
import time
from collections.abc import Callable

# How much unused time is kept for later, in seconds.
_CREDIT_SECONDS = 0.1


class CpuShare:
    """Keeps this process to a share of one core. Its tasks call ``pause`` after each piece of work.

    Args:
        share: The share, such as 0.3.
        cpu: Returns the CPU seconds that the process has used.
        now: Returns the time in seconds.
    """

    def __init__(
        self, share: float, cpu: Callable[[], float] = time.process_time, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._share = share
        self._cpu = cpu
        self._now = now
        self._used = cpu()
        self._free_at = now()

    def seconds_to_wait(self) -> float:
        """Count the use since the last call; return how long the process must rest, 0 if not."""
        used, now = self._cpu(), self._now()
        self._free_at = max(self._free_at, now - _CREDIT_SECONDS) + (used - self._used) / self._share
        self._used = used
        return max(0.0, self._free_at - now)

    async def pause(self) -> None:
        """Let other tasks run, and rest for as long as the limit demands."""
        await asyncio.sleep(self.seconds_to_wait())
