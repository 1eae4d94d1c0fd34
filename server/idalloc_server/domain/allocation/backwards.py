"""Refuses the ids of a counter whose store went backwards, until its sequence is advanced (P3)."""

import asyncio
from dataclasses import dataclass, field

import structlog

from idalloc_server.domain.allocation.counter_row import CounterRow
from idalloc_server.domain.allocation.high_water_marks import HighWaterMarks
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import Refusal, StoreWentBackwards

# How often a sequence whose store went backwards is read, to see whether it was advanced.
RECHECK_SECONDS = 1.0

_log = structlog.get_logger("idalloc.allocation")


@dataclass(slots=True, eq=False)
class Backwards:
    """A counter whose store went backwards, which is logged at once."""

    _row: CounterRow
    _high_water_marks: HighWaterMarks
    _clock: Clock
    _error: StoreWentBackwards  # what callers get
    _recheck_at: float = field(init=False)  # when the next read is due, in ``Clock.boot`` seconds
    # The last read; no caller's cancellation ends it.
    _read: asyncio.Task[bool] | None = None

    def __post_init__(self) -> None:
        self._recheck_at = self._clock.boot() + RECHECK_SECONDS
        _log.error("store_went_backwards", **{"sequence": self._row.sequence, **self._error.metadata})

    async def recheck(self) -> None:
        """Read the row at most every ``RECHECK_SECONDS``; raise until the sequence is advanced."""
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
