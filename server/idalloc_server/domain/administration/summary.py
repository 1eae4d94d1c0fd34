"""A sequence as people see it: how much of it is used, how fast, and when it will be exhausted."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

from idalloc_server.domain.allocation.usage import LEAST_SECONDS
from idalloc_server.domain.records import Row
from idalloc_server.domain.sequences.calendar import load_zone, period_end
from idalloc_server.domain.sequences.model import Kind, Reset, Sequence

_YEAR_10000 = datetime(9999, 12, 31, tzinfo=UTC).timestamp() + 86_400


@dataclass(frozen=True, slots=True)
class SequenceSummary:
    """A sequence, and what follows from its counter.

    Attributes:
        row: The sequence as it lies in the store.
        period: The present period; empty where there is no reset.
        last_value: The last value handed out, in the present period; None where none was.
        remaining: How many ids are left, in the present period.
        used_ratio: The share of its ids that was handed out, 0 to 1.
        ids_per_second: How fast they are taken; 0 where that is not known.
        exhaust_time: When the last one will be taken, in seconds since 1970: now where none is left, None where that
            will not be.
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
        """Changes with the settings."""
        return etag_of(self.row)


def etag_of(row: Row) -> str:
    """Returns a row's etag, which changes with its settings."""
    return f'"{row.revision}"'


def summarize(row: Row, period: str, last_value: int | None, now: float, rate: float | None) -> SequenceSummary:
    """Returns a sequence as people see it.

    Args:
        row: The sequence.
        period: The present period; empty where there is no reset.
        last_value: The counter, of the period where there is one. None in an adopted row that has none.
        now: Seconds since 1970.
        rate: How many ids a second are taken, as this node saw it; None where it saw too little.
    """
    if last_value is None:
        return SequenceSummary(row, period)
    sequence = row.sequence
    total = max(0, (sequence.bound - sequence.before_start) // sequence.step)
    remaining = max(0, (sequence.bound - last_value) // sequence.step)
    used = max(0, total - remaining)
    if sequence.kind != Kind.COUNTER:
        rate = 0.0  # The values say what time it was, and not how many there were.
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
        return 0.0  # After a change, an advance say, the counter does not tell how many were used.
    since = max(row.created_at, _beginning(row.sequence, period)) if period else row.created_at
    return max(0, issued) / (now - since) if now - since >= LEAST_SECONDS else 0.0


def _beginning(sequence: Sequence, period: str) -> float:
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
