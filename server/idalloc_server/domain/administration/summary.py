"""Summary of a sequence: its settings, usage, rate, and a forecast of when it is exhausted."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from idalloc_server.domain.sequences.calendar import period_end
from idalloc_server.domain.sequences.sequence import Kind, Reset, name_of_period
from idalloc_server.domain.store.records import Row

_YEAR_10000 = datetime(9999, 12, 31, tzinfo=UTC).timestamp() + 86_400


@dataclass(frozen=True, slots=True)
class SequenceSummary:
    """A sequence with its usage, in the current period if it has a reset."""

    row: Row  # the sequence's row in the store
    period: str = ""  # the period; empty without a reset
    last_value: int | None = None  # the last value allocated by the store; None if there is none
    remaining: int = 0  # number of ids left
    used_ratio: float = 0.0  # share of the ids that is used, 0 to 1
    ids_per_second: float = 0.0  # how fast the server issues ids; 0 for timestamps
    # Forecast of when no id is left, in seconds since 1970; the current time if that is now, None
    # if there is no forecast.
    exhaust_time: float | None = None

    @property
    def etag(self) -> str:
        """The etag, which changes with the settings."""
        return etag_of(self.row)

    @property
    def counter(self) -> str:
        """The name of the counter's row."""
        return name_of_period(self.row.name, self.period) if self.period else self.row.name

    def at_rate(self, rate: float, now: float) -> "SequenceSummary":
        """Return the summary with a rate, in ids a second, and the forecast at it.

        ``now`` is in seconds since 1970.
        """
        sequence = self.row.sequence
        if self.row.last_value is None or sequence.kind != Kind.COUNTER:
            return self  # Timestamps do not count ids.
        at = None
        if self.remaining == 0:
            at = now
        elif rate > 0:
            at = now + self.remaining / rate
            if at >= _YEAR_10000 or (sequence.reset != Reset.NEVER and at >= period_end(sequence, now)):
                at = None
        return replace(self, ids_per_second=rate, exhaust_time=None if self.row.deleted else at)


def etag_of(row: Row) -> str:
    """Return the etag of a row, which changes with its settings."""
    return f'"{row.revision}"'
