"""Periods of sequences with a reset: the current one, and its end in the sequence's time zone."""

import math
import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.sequence import Reset, Sequence

_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
# The name of a period is the beginning of an ISO 8601 date.
_PERIOD_EXAMPLES = {Reset.YEARLY: "2026", Reset.MONTHLY: "2026-11", Reset.DAILY: "2026-11-21"}
# The days from the first one of a period to one in the next period.
_DAYS_TO_NEXT = {Reset.YEARLY: 366, Reset.MONTHLY: 31, Reset.DAILY: 1}
_HOUR = 3600
# The largest offset change ever was one day (Samoa skipped a date), so each date change is this
# close to midnight UTC.
_SEARCH_HOURS = 26


@lru_cache(maxsize=1024)
def load_zone(name: str) -> ZoneInfo:
    """Return a time zone of the IANA database.

    Raises:
        InvalidRequest: The zone is unknown; the error names ``time_zone``.
    """
    try:
        # "localtime" depends on the machine.
        if _ZONE_NAME.fullmatch(name) and name != "localtime":
            return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # OSError: the name is a directory, such as "Europe"
        pass
    raise InvalidRequest("time_zone", f'must be one of the IANA time zones, such as "Europe/Vienna"; is {name!r}')


def date_at(sequence: Sequence, wall: float) -> str:
    """Return the date at a time in the sequence's time zone, such as "2026-11-21".

    ``wall`` is in seconds since 1970, as from ``Clock.wall``.
    """
    # Whole seconds: fromtimestamp() rounds a fraction, possibly past midnight.
    return datetime.fromtimestamp(math.floor(wall), load_zone(sequence.time_zone)).date().isoformat()


def period_at(sequence: Sequence, wall: float) -> str:
    """Return the period at a time, such as "2026" or "2026-11-21"; empty without a reset."""
    return "" if sequence.reset == Reset.NEVER else date_at(sequence, wall)[: len(_PERIOD_EXAMPLES[sequence.reset])]


def period_end(sequence: Sequence, wall: float) -> float:
    """Return when the period at ``wall`` ends, in seconds since 1970; infinity if it does not.

    The next period is the previous one for a while if clocks are set back over midnight.
    """
    if sequence.reset == Reset.NEVER:
        return math.inf
    time_zone = load_zone(sequence.time_zone)
    period = period_at(sequence, wall)
    first = _first_day(period)
    try:
        later = first + timedelta(days=_DAYS_TO_NEXT[sequence.reset])
    except OverflowError:  # the year 10000
        return math.inf
    following = _first_day(later.isoformat()[: len(period)])
    changes = _possible_date_changes(time_zone, first) | _possible_date_changes(time_zone, following)
    return min(
        (moment for moment in changes if moment > wall and period_at(sequence, moment) != period), default=math.inf
    )


def check_period(sequence: Sequence, text: str) -> None:
    """Validate the name of a period. Empty means the current period.

    Raises:
        InvalidRequest: The sequence has no such period; the error names ``period``.
    """
    if not text:
        return
    if sequence.reset == Reset.NEVER:
        raise InvalidRequest("period", "must be empty, since the sequence has no reset")
    example = _PERIOD_EXAMPLES[sequence.reset]
    try:
        first = _first_day(text) if len(text) == len(example) else None
    except ValueError:
        first = None
    if first is None or first.isoformat()[: len(example)] != text:
        raise InvalidRequest("period", f'must be like "{example}"; is {text!r}')


def _first_day(period: str) -> date:
    return date.fromisoformat(period + "-01-01"[len(period) - 4 :])


@lru_cache(maxsize=1024)
def _possible_date_changes(time_zone: ZoneInfo, day: date) -> frozenset[int]:
    """Return the seconds near the start of a day at which the local date may change."""
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    hours = [midnight + hour * _HOUR for hour in range(-_SEARCH_HOURS, _SEARCH_HOURS + 1)]
    offsets = [datetime.fromtimestamp(hour, time_zone).utcoffset() for hour in hours]
    changes = {midnight - int(offset.total_seconds()) for offset in offsets if offset is not None}
    for hour, before, after in zip(hours, offsets, offsets[1:], strict=False):
        if before != after:  # find the second at which the offset changes
            low = hour
            high = hour + _HOUR
            while high - low > 1:
                middle = (low + high) // 2
                if datetime.fromtimestamp(middle, time_zone).utcoffset() == before:
                    low = middle
                else:
                    high = middle
            changes.add(high)
    return frozenset(changes)
