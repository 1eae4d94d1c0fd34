"""Refuses the ids of a counter whose store went backwards, until an operator has advanced the sequence (P3)."""

import asyncio

import structlog

from idalloc_server.domain.allocation.counter_row import CounterRow
from idalloc_server.domain.allocation.high_water_marks import HighWaterMarks
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import Refusal, StoreWentBackwards

# How often a sequence whose store went backwards is read, to see whether it was advanced.
RECHECK_SECONDS = 1.0

_log = structlog.get_logger("idalloc.allocation")


class Backwards:
    """A counter whose store went backwards, which is logged at once.

    Args:
        row: The counter's row in the store.
        high_water_marks: The last known state of each counter.
        clock: Measures the time between two reads.
        error: The error that callers get.
    """

    __slots__ = ("_clock", "_error", "_high_water_marks", "_read", "_recheck_at", "_row")

    def __init__(
        self, row: CounterRow, high_water_marks: HighWaterMarks, clock: Clock, error: StoreWentBackwards
    ) -> None:
        self._row = row
        self._high_water_marks = high_water_marks
        self._clock = clock
        self._error = error
        self._recheck_at = clock.boot() + RECHECK_SECONDS
        self._read: asyncio.Task[bool] | None = None  # the last one; no caller's cancellation ends it
        _log.error("store_went_backwards", **{"sequence": row.sequence, **error.metadata})

    async def recheck(self) -> None:
        """Read the row at most every ``RECHECK_SECONDS``; raise the error until the sequence was advanced."""
        now = self._clock.boot()
        if now >= self._recheck_at:
            self._recheck_at = now + RECHECK_SECONDS
            if self._read is None or self._read.done():
                self._read = asyncio.create_task(self._is_advanced(), name="recheck")
            await asyncio.wait({self._read})
        if self._read is not None and self._read.done() and not self._read.cancelled() and self._read.result():
            return
        raise self._error.with_traceback(None)

    async def _is_advanced(self) -> bool:
        try:
            if self._row.name not in self._high_water_marks:
                await self._row.grant(0)  # the witness, which refused the row, compares it again
                return True
            return self._high_water_marks.accept(await self._row.read())
        except StoreWentBackwards as error:
            self._error = error
        except Refusal as refusal:
            _log.warning("recheck_failed", sequence=self._row.sequence, error=str(refusal))
        return False
