"""The clocks of the domain; tests replace them."""

import time
from functools import partial
from typing import Protocol

# CLOCK_BOOTTIME counts suspended time and cannot be set. macOS lacks it; its CLOCK_MONOTONIC does
# the same.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A clock for deadlines and a clock for dates."""

    def boot(self) -> float:
        """Return monotonic seconds, including the time that the machine was suspended."""

    def wall(self) -> float:
        """Return seconds since 1970-01-01T00:00:00Z. May jump in either direction."""


class SystemClock:
    """The clocks of the operating system; see ``Clock``."""

    # Built-in functions: every call of an RPC reads a clock.
    boot = staticmethod(partial(time.clock_gettime, _BOOT))
    wall = staticmethod(time.time)
