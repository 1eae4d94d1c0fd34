"""Time as the domain sees it, so that tests can make it jump."""

import time
from typing import Protocol

# CLOCK_BOOTTIME counts suspended time and cannot be set; where it is missing (macOS), CLOCK_MONOTONIC does the same.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Two clocks: one for deadlines, one for dates."""

    def boot(self) -> float:
        """Returns seconds that no one can set back and that go on while the machine is suspended."""
        ...

    def wall(self) -> float:
        """Returns seconds since 1970-01-01T00:00:00Z, which may jump either way."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def boot(self) -> float:
        """See ``Clock.boot``."""
        return time.clock_gettime(_BOOT)

    def wall(self) -> float:
        """See ``Clock.wall``."""
        return time.time()
