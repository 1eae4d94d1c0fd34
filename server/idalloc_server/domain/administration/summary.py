"""Summary of a sequence: its settings, usage, rate, and a forecast of when it is exhausted."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

from idalloc_server.domain.allocation.usage import MIN_SECONDS
from idalloc_server.domain.sequences.calendar import load_zone, period_end
from idalloc_server.domain.sequences.model import Kind, Reset, Sequence
from idalloc_server.domain.store.records import Row

_YEAR_10000 = datetime(9999, 12, 31, tzinfo=UTC).timestamp() + 86_400


@dataclass(frozen=True, slots=True)
class SequenceSummary:
    """A sequence with its usage, in the current period if it has a reset.

    Attributes:
        row: The sequence's row in the store.
        period: The period; empty without a reset.
        last_value: The last value allocated by the store; None if there is none.
        remaining: Number of ids left.
        used_ratio: Share of the ids that is used, 0 to 1.
        ids_per_second: Rate of allocation; 0 if unknown.
        exhaust_time: Forecast of when no id is left, in seconds since 1970; the current time if that is now, None if
            there is no forecast.
    """

    row: Row
    period: str = ""
    last_value: int | None = None
    remaining: int = 0
    used_ratio: float = 0.0
    ids_per_second: float = 0.0
    exhaust_time: float | None = None

    @property
    def etag(self) -> str:
        """The etag, which changes with the settings."""
        return etag_of(self.row)


def etag_of(row: Row) -> str:
    """Returns the etag of a row, which changes with its settings."""
    return f'"{row.revision}"'


def summarize(row: Row, period: str, last_value: int | None, now: float, rate: float | None) -> SequenceSummary:
    """Returns the summary of a sequence.

    Args:
        row: The sequence's row.
        period: The period; empty without a reset.
        last_value: The counter of the period, or of the sequence without a reset; None in an adopted row without one.
        now: Seconds since 1970.
        rate: Ids per second that this node observed; None if it observed too few.
    """
    if last_value is None:
        return SequenceSummary(row, period)
    sequence = row.sequence
    total = max(0, (sequence.bound - sequence.before_start) // sequence.step)
    remaining = max(0, (sequence.bound - last_value) // sequence.step)
    used = max(0, total - remaining)
    if sequence.kind != Kind.COUNTER:
        rate = 0.0  # Timestamps do not count ids.
    elif rate is None:
        rate = _rate_since_creation(row, period, (last_value - sequence.before_start) // sequence.step, now)
    return SequenceSummary(
        row,
        period,
        None if last_value == sequence.before_start else last_value,
        remaining,
        used / total if total else 1.0,
        rate,
        _exhaust_time(row, remaining, rate, now),
    )


def _rate_since_creation(row: Row, period: str, issued: int, now: float) -> float:
    if row.created_at is None or row.revision:
        return 0.0  # A change such as an advance may have moved the counter.
    since = max(row.created_at, _period_start(row.sequence, period)) if period else row.created_at
    return max(0, issued) / (now - since) if now - since >= MIN_SECONDS else 0.0


def _period_start(sequence: Sequence, period: str) -> float:
    first = date.fromisoformat(period + "-01-01"[len(period) - 4 :])
    return datetime(first.year, first.month, first.day, tzinfo=load_zone(sequence.time_zone)).timestamp()


def _exhaust_time(row: Row, remaining: int, rate: float, now: float) -> float | None:
    if row.deleted or row.sequence.kind != Kind.COUNTER:
        return None
    if remaining == 0:
        return now
    if rate <= 0:
        return None
    at = now + remaining / rate
    if at >= _YEAR_10000 or (row.sequence.reset != Reset.NEVER and at >= period_end(row.sequence, now)):
        return None
    return at
