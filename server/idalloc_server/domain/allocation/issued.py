"""Issued ids by counter: a call only adds to a number, and a sample makes a rate of it."""

from typing import NamedTuple, Protocol

# A rate covers the last minute, or the time since the first id if that is shorter. Before the
# second time has passed, a few calls would look like a huge rate.
WINDOW_SECONDS = 60.0
MIN_SECONDS = 5.0
# The ids of this long are counted together, as if they were issued evenly.
SPAN_SECONDS = 10.0


class _Span(NamedTuple):
    """Ids that were issued between two times, and the total before them."""

    since: float
    until: float
    before: int


class RecentUse:
    """Counts the ids that were issued in the last minute. Times are in ``Clock.boot`` seconds."""

    __slots__ = ("_spans", "_total")

    def __init__(self) -> None:
        self._spans: tuple[_Span, ...] = ()  # a tuple takes less memory than a list
        self._total = 0

    def add(self, ids: int, since: float, now: float) -> None:
        """Add ids, the first of which was issued at ``since``."""
        spans = self._spans
        if spans and since - spans[-1].since < SPAN_SECONDS:
            self._spans = (*spans[:-1], spans[-1]._replace(until=now))
        else:
            kept = [span for span in spans if span.until > now - WINDOW_SECONDS]
            if not kept:
                self._total = 0  # the count starts again
            self._spans = (*kept, _Span(since, now, self._total))
        self._total += ids

    def per_second(self, now: float) -> float:
        """Return the rate in ids a second; 0 if none was issued within ``WINDOW_SECONDS``."""
        start = now - WINDOW_SECONDS
        spans = [span for span in self._spans if span.until > start]
        if not spans:
            return 0.0
        first = spans[0]
        if first.since >= start and first.before == 0:
            return self._total / max(MIN_SECONDS, now - first.since)
        after = spans[1].before if len(spans) > 1 else self._total
        outside = max(0.0, start - first.since) / max(first.until - first.since, 1e-9)
        return (self._total - first.before - (after - first.before) * outside) / WINDOW_SECONDS


class _Row(Protocol):
    sequence: str


class Issuer(Protocol):
    """Issues ids of a sequence."""

    new_ids: int  # the ids issued since the last sample
    new_since: float  # when the first of them was issued, in ``Clock.boot`` seconds
    use: RecentUse  # the ids of all samples

    @property
    def row(self) -> _Row:
        """The counter's row, which has the sequence's name."""
        ...
