"""Rows as stores keep them, and what they mean.

Numbers that statements compute with are columns or fields, the other settings are JSON. The demand
of a counter is one text.
"""

import json
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from operator import getitem
from types import MappingProxyType
from typing import Any

from idalloc_server.domain.errors import NULL_LAST_VALUE, SequenceDeleted, SequenceInvalid
from idalloc_server.domain.sequences.sequence import MAX_ID, PERIOD_SEPARATOR, Kind, Ordering, Reset, Sequence
from idalloc_server.domain.store.records import Demand, Grant, Row, ids_left

DEFAULT_STEP = 1
DEFAULT_MIN_VALUE = 1
DEFAULT_GENERATION = 1

_IN_JSON = (
    "kind",
    "ordering",
    "min_lease_size",
    "max_lease_size",
    "format",
    "reset",
    "time_zone",
    "labels",
    "description",
)

# The column `mode`; NULL for an ordinary counter. Only such and counters of periods grant ids.
PERIOD = "period"
RESET = "reset"
TIMESTAMP = "timestamp"
DELETED = "deleted"
# The consequence, for the log of a store that cannot keep it.
WITHOUT_DEMAND = "a server that starts, or takes over callers, does not know how many ids they need"
# In seconds since 1970; a reply shows its milliseconds.
_YEAR_1 = -62_135_596_800
_YEAR_10000 = 253_402_300_799


def columns(name: str, sequence: Sequence, *, deleted: bool) -> dict[str, int | str | None]:
    """Return the columns of a row's settings. ``mode`` is None for an ordinary counter.

    ``settings`` is the JSON of those without their own column, except those at their default.
    """
    default = Sequence()
    settings: dict[str, object] = {"start": sequence.start}
    for field in _IN_JSON:
        value = getattr(sequence, field)
        if value != getattr(default, field):
            settings[field] = dict(value) if field == "labels" else value
    mode = None if sequence.kind == Kind.COUNTER else TIMESTAMP
    if deleted:
        mode = DELETED
    elif PERIOD_SEPARATOR in name:
        mode = PERIOD
    elif sequence.reset != Reset.NEVER:
        mode = RESET
    return {
        "step": sequence.step,
        "min_value": sequence.min_value,
        "max_value": sequence.max_value,
        "settings": json.dumps(settings, ensure_ascii=False, sort_keys=True),
        "mode": mode,
    }


def unpack(name: str, row: Mapping[str, Any]) -> Sequence:
    """Return the settings of a row, from its columns of ``columns``.

    Equal columns return the same object: unchanged rows are not parsed again. Every column may be
    missing or None (NULL), as in an adopted row.

    Raises:
        SequenceInvalid: The settings cannot be decoded.
    """
    try:
        return _unpack(row.get("step"), row.get("min_value"), row.get("max_value"), row.get("settings"))
    except (ValueError, TypeError, AttributeError) as error:
        raise SequenceInvalid(name, f"its settings cannot be read: {error}; correct them in its row") from error


def stored_time(name: str, field: str, value: object, per_second: int = 1) -> float | None:
    """Return a row's time, stored in units of ``per_second``, in seconds since 1970, or None.

    Raises:
        SequenceInvalid: The time is outside of the years 1 to 9999, so no date and no reply can
            show it.
    """
    if value is None:
        return None
    if not isinstance(value, int | float) or not _YEAR_1 <= value / per_second < _YEAR_10000:
        shown = f"{value:.0f}" if isinstance(value, float) else repr(value)
        raise SequenceInvalid(
            name, f"its {field} is {shown}, outside of the years 1 to 9999; set it to null, or to a time"
        )
    return value / per_second


def pack_demand(demand: Demand | None) -> str | None:
    """Return a demand as stored: ``RATE LARGEST_CALL AT``; see ``Demand`` for the digits."""
    return None if demand is None else f"{demand.rate:.6g} {demand.largest_call} {demand.at:.0f}"


def unpack_demand(packed: object) -> Demand | None:
    """Return the demand of a row. It is a hint that people can edit: None if it is invalid."""
    if not isinstance(packed, str):
        return None
    try:
        rate, largest_call, at = packed.split()
        demand = Demand(float(rate), int(largest_call), float(at))
    except ValueError:
        return None
    is_plausible = 0 < demand.rate <= MAX_ID and 0 < demand.largest_call <= MAX_ID and 0 <= demand.at < _YEAR_10000
    return demand if is_plausible else None


@lru_cache(maxsize=4096)
def _unpack(step: int | None, min_value: int | None, max_value: int | None, settings: str | None) -> Sequence:
    step = DEFAULT_STEP if step is None else step
    min_value = DEFAULT_MIN_VALUE if min_value is None else min_value
    max_value = MAX_ID if max_value is None else max_value
    if step == 0:
        raise ValueError("its step is 0")
    found = json.loads(settings) if settings else {}
    # An adopted row has no start: its counter continues from its value.
    found.setdefault("start", min_value if step > 0 else max_value)
    for field, kind in (("kind", Kind), ("ordering", Ordering), ("reset", Reset), ("labels", MappingProxyType)):
        if field in found:
            found[field] = kind(found[field])
    default = Sequence()
    for field, value in found.items():
        if not isinstance(value, type(getattr(default, field))):
            raise TypeError(f"{field} is {value!r}")
    return Sequence(step=step, min_value=min_value, max_value=max_value, **found)


Source = Mapping[str, Any]


def parse_row(name: str, source: Source) -> Row:
    """Return the row of a sequence.

    Raises:
        SequenceInvalid: The settings cannot be decoded.
    """
    return Row(
        name=name,
        last_value=source.get("last_value"),
        sequence=unpack(name, source),
        generation=generation_of(source),
        lease_ms=source.get("lease_ms") or 0,
        revision=source.get("rev") or 0,
        revised_by=source.get("rev_by") or "",
        created_at=stored_time(name, "created_at", source.get("created_at"), 1000),
        changed_at=stored_time(name, "changed_at", source.get("changed_at"), 1000),
        deleted=source.get("mode") == DELETED,
    )


def parse_grant(
    name: str,
    source: Source,
    version: tuple[int, int],
    modes: Collection[str | None],
    written: Callable[[Source, str], int] = getitem,
) -> Grant:
    """Return the grant of an answer. A row of another mode has nothing left to grant.

    ``source`` is the row after the write, ``version`` its sequence number and primary term.
    ``written`` reads a number that the write has put into the row.

    Raises:
        SequenceDeleted: The row is a tombstone.
        SequenceInvalid: The row has no last_value.
    """
    if source.get("mode") == DELETED:
        raise SequenceDeleted(name)
    if source.get("last_value") is None:
        raise SequenceInvalid(name, NULL_LAST_VALUE)
    sequence = unpack(name, source)
    generation = generation_of(source)
    last_value = source["last_value"]
    left = ids_left(last_value, sequence.step, source.get("min_value"), source.get("max_value"))
    return Grant(
        last_value=last_value,
        granted=written(source, "granted"),
        sequence=sequence,
        remaining=left if source.get("mode") in modes else 0,
        generation=generation,
        version=(*version, generation),
        writes=written(source, "writes"),
        demand=unpack_demand(source.get("demand")),
    )


def columns_of(row: Row) -> dict[str, int | str | None]:
    """Return the columns of a new row; None for those without a value."""
    return {
        "name": row.name,
        "last_value": row.last_value,
        **columns(row.name, row.sequence, deleted=row.deleted),
        "generation": row.generation,
        "lease_ms": row.lease_ms,
        "rev": row.revision,
        "rev_by": row.revised_by,
        "created_at": milliseconds(row.created_at),
        "changed_at": milliseconds(row.changed_at),
    }


def generation_of(source: Source) -> int:
    """Return the generation of a row; an adopted row has none yet."""
    found = source.get("generation")
    return DEFAULT_GENERATION if found is None else int(found)


def milliseconds(seconds: float | None) -> int | None:
    """Return a time as it is stored."""
    return None if seconds is None else round(seconds * 1000)
