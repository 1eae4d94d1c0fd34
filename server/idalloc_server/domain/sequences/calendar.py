"""Periods of sequences with a reset: the current one, and its end in the sequence's time zone."""

import math
import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.model import Reset, Sequence

_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
# The characters of an ISO 8601 date that name a period, and an example.
_PERIOD_LENGTHS = {Reset.YEARLY: 4, Reset.MONTHLY: 7, Reset.DAILY: 10}
_PERIOD_EXAMPLES = {Reset.YEARLY: "2026", Reset.MONTHLY: "2026-11", Reset.DAILY: "2026-11-21"}
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
    return _date(load_zone(sequence.time_zone), math.floor(wall))


def period_at(sequence: Sequence, wall: float) -> str:
    """Return the period at a time, such as "2026" or "2026-11-21"; empty without a reset."""
    return "" if sequence.reset == Reset.NEVER else date_at(sequence, wall)[: _PERIOD_LENGTHS[sequence.reset]]


def period_end(sequence: Sequence, wall: float) -> float:
    """Return when the period at ``wall`` ends, in seconds since 1970; infinity if it does not.

    The next period is the previous one for a while if clocks are set back over midnight.
    """
    if sequence.reset == Reset.NEVER:
        return math.inf
    time_zone = load_zone(sequence.time_zone)
    period = period_at(sequence, wall)
    first = date.fromisoformat(period + "-01-01"[len(period) - 4 :])
    try:
        following = _next_start(first, sequence.reset)
    except (ValueError, OverflowError):  # the year 10000
        return math.inf
    changes = _possible_date_changes(time_zone, first) | _possible_date_changes(time_zone, following)
    return min(
        (moment for moment in changes if moment > wall and _date(time_zone, moment)[: len(period)] != period),
        default=math.inf,
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
        first = date.fromisoformat(text + "-01-01"[len(text) - 4 :]) if len(text) == len(example) else None
    except ValueError:
        first = None
    if first is None or first.isoformat()[: len(example)] != text:
        raise InvalidRequest("period", f'must be like "{example}"; is {text!r}')


def _date(time_zone: ZoneInfo, second: int) -> str:
    # Whole seconds: fromtimestamp() rounds a fraction, possibly past midnight.
    return datetime.fromtimestamp(second, time_zone).date().isoformat()


def _next_start(first: date, reset: Reset) -> date:
    if reset == Reset.DAILY:
        return first + timedelta(days=1)
    if reset == Reset.YEARLY:
        return first.replace(year=first.year + 1)
    return first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)


@lru_cache(maxsize=1024)
def _possible_date_changes(time_zone: ZoneInfo, day: date) -> frozenset[int]:
    """Return the seconds near the start of a day at which the local date may change."""
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    hours = [midnight + hour * _HOUR for hour in range(-_SEARCH_HOURS, _SEARCH_HOURS + 1)]
    offsets = [_offset(time_zone, hour) for hour in hours]
    changes = {midnight - offset for offset in offsets}
    for hour, before, after in zip(hours, offsets, offsets[1:], strict=False):
        if before != after:  # find the second at which the offset changes
            low, high = hour, hour + _HOUR
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(time_zone, middle) == before else (low, middle)
            changes.add(high)
    return frozenset(changes)


def _offset(time_zone: ZoneInfo, second: int) -> int:
    offset = datetime.fromtimestamp(second, time_zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
