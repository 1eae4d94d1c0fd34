"""The health of the store, from the results of its calls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from idalloc_server.domain.errors import StoreExchanged, StoreFailure, StoreRefused

_log = structlog.get_logger("idalloc.store")


@dataclass(eq=False)
class StoreHealth:
    """Collects the results of store calls, and evaluates them once a second."""

    error: str = ""  # the last error, while the store fails; empty while it works
    _failures: int = 0
    _last_error: StoreFailure | None = None
    _has_succeeded: bool = False
    _is_exchanged: bool = False  # whether the sequences were, until a grant of them succeeds

    def record_success(self) -> None:
        """Record a grant that the store made."""
        self._has_succeeded = True
        self._is_exchanged = False

    def record_heartbeat(self) -> None:
        """Record another write of the store, which does not show that the sequences are back."""
        self._has_succeeded = not self._is_exchanged

    def record_failure(self, error: Exception) -> None:
        """Record a failed call or refill.

        Only errors of the store count, and not those of a single sequence.
        """
        if isinstance(error, StoreFailure) and error.is_of_store:
            self._failures += 1
            self._is_exchanged |= isinstance(error, StoreExchanged)
            self._last_error = error

    def evaluate(self) -> None:
        """Update ``error`` from the results since the last call.

        Logs failures under the reason of the last one, and the recovery.
        """
        if self._last_error:
            self.error = str(self._last_error)
            if isinstance(self._last_error, StoreRefused):
                _log.error("store_refused", count=self._failures, error=self.error)
            else:
                _log.error("store_unavailable", count=self._failures, error=self.error)
        elif self._has_succeeded and self.error:
            self.error = ""
            _log.info("store_recovered")
        self._failures = 0
        self._last_error = None
        self._has_succeeded = False

    async def evaluate_every_second(self, report: Callable[[str], None]) -> None:
        """Evaluate once a second until cancelled, and pass ``error`` to ``report`` each time."""
        while True:
            await asyncio.sleep(1)
            self.evaluate()
            report(self.error)
