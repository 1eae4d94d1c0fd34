"""Whether the store does what it is asked, judged once a second by the calls to it."""

import asyncio
from collections.abc import Callable

import structlog

from idalloc_server.domain.errors import Refusal

_log = structlog.get_logger("idalloc.store")


class StoreHealth:
    """The store's health, as the callers of this process and its refills see it.

    Attributes:
        error: Why the store failed in the last second in which it was asked; empty where it worked.
    """

    def __init__(self) -> None:
        self.error = ""
        self._failures = 0
        self._last_error = ""
        self._has_worked = False

    def worked(self) -> None:
        """Notes a write that was applied."""
        self._has_worked = True

    def failed(self, error: Exception) -> None:
        """Notes a call, or a refill, that failed; those that failed for another cause than the store do not count.

        Nor does a sequence that is behind: the store works for the others.
        """
        if isinstance(error, Refusal) and error.reason in ("STORE_UNAVAILABLE", "STORE_REFUSED"):
            self._failures += 1
            self._last_error = str(error)

    def judge(self) -> None:
        """Judges what was noted since the last call, and logs it where the store failed, or works again."""
        if self._failures:
            self.error = self._last_error
            _log.error("store_fails", count=self._failures, error=self.error)
        elif self._has_worked and self.error:
            self.error = ""
            _log.info("store_works_again")
        self._failures, self._has_worked = 0, False

    async def run(self, use: Callable[[str], None]) -> None:
        """Judges once a second, for ever. Its owner cancels it.

        Args:
            use: Is called with ``error`` each time.
        """
        while True:
            await asyncio.sleep(1)
            self.judge()
            use(self.error)
