"""When a sequence with a reset starts over: its periods, each of which has a counter of its own."""

import math
import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.model import Reset, Sequence

_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
# How much of "2026-11-21" a period has, and how that reads.
_LENGTH = {Reset.YEARLY: 4, Reset.MONTHLY: 7, Reset.DAILY: 10}
_SHAPE = {Reset.YEARLY: "2026", Reset.MONTHLY: "2026-11", Reset.DAILY: "2026-11-21"}
_HOUR = 3600
# No clock was ever set by more than a day (Samoa left one out), so all that happens to a midnight happens this near.
_HOURS_AROUND = 26


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """Returns a time zone of the IANA database.

    Raises:
        InvalidRequest: There is none of that name; the error names ``time_zone``.
    """
    try:
        # "localtime" is another one on each machine.
        if _ZONE.fullmatch(name) and name != "localtime":
            return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # a directory of zones is an OSError
        pass
    raise InvalidRequest("time_zone", f'must be one of the IANA time zones, such as "Europe/Vienna"; is {name!r}')


def date_at(sequence: Sequence, wall: float) -> str:
    """Returns the date, such as "2026-11-21", that it is in the sequence's time zone.

    Args:
        sequence: The sequence.
        wall: Seconds since 1970, as from ``Clock.wall``.
    """
    return _date(zone(sequence.time_zone), math.floor(wall))


def period_at(sequence: Sequence, wall: float) -> str:
    """Returns the period that it is: "2026", "2026-11" or "2026-11-21"; empty where the sequence has no reset.

    Args:
        sequence: The sequence.
        wall: Seconds since 1970, as from ``Clock.wall``.
    """
    return "" if sequence.reset == Reset.NEVER else date_at(sequence, wall)[: _LENGTH[sequence.reset]]


def period_end(sequence: Sequence, wall: float) -> float:
    """Returns when the period of ``wall`` ends, in seconds since 1970: it is the same one until right before.

    Where clocks are set back over midnight, a period ends, the one before it goes on for a while, and it comes again.

    Args:
        sequence: The sequence.
        wall: Seconds since 1970, as from ``Clock.wall``.
    """
    if sequence.reset == Reset.NEVER:
        return math.inf
    time_zone = zone(sequence.time_zone)
    period = period_at(sequence, wall)
    first = date.fromisoformat(period + "-01-01"[len(period) - 4 :])
    try:
        following = _following(first, sequence.reset)
    except (ValueError, OverflowError):  # the year 10000
        return math.inf
    changes = _changes(time_zone, first) | _changes(time_zone, following)
    return min(
        (moment for moment in changes if moment > wall and _date(time_zone, moment)[: len(period)] != period),
        default=math.inf,
    )


def check_period(sequence: Sequence, text: str) -> None:
    """Refuses what is no period of the sequence. Empty is one: the present one.

    Raises:
        InvalidRequest: It is none; the error names ``period``.
    """
    if not text:
        return
    if sequence.reset == Reset.NEVER:
        raise InvalidRequest("period", "must be empty, since the sequence has no reset")
    shape = _SHAPE[sequence.reset]
    try:
        first = date.fromisoformat(text + "-01-01"[len(text) - 4 :]) if len(text) == len(shape) else None
    except ValueError:
        first = None
    if first is None or first.isoformat()[: len(shape)] != text:
        raise InvalidRequest("period", f'must be like "{shape}"; is {text!r}')


def _date(time_zone: ZoneInfo, second: int) -> str:
    # Whole seconds: a fraction would be rounded, past midnight at worst.
    return datetime.fromtimestamp(second, time_zone).date().isoformat()


def _following(first: date, reset: Reset) -> date:
    if reset == Reset.DAILY:
        return first + timedelta(days=1)
    if reset == Reset.YEARLY:
        return first.replace(year=first.year + 1)
    return first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)


def _changes(time_zone: ZoneInfo, day: date) -> set[int]:
    """Returns every second around the beginning of a day at which the date may become another one."""
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    hours = [midnight + hour * _HOUR for hour in range(-_HOURS_AROUND, _HOURS_AROUND + 1)]
    offsets = [_offset(time_zone, hour) for hour in hours]
    changes = {midnight - offset for offset in offsets}
    for hour, before, after in zip(hours, offsets, offsets[1:], strict=False):
        if before != after:  # the clocks are set somewhere in this hour
            low, high = hour, hour + _HOUR
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(time_zone, middle) == before else (low, middle)
            changes.add(high)
    return changes


def _offset(time_zone: ZoneInfo, second: int) -> int:
    offset = datetime.fromtimestamp(second, time_zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
