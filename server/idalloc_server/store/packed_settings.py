"""How the settings of a sequence lie in a row: numbers that statements compute with as columns, the rest as JSON."""

import json
from functools import lru_cache
from types import MappingProxyType

from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.domain.sequences.model import MAX_ID, PERIOD_MARK, Kind, Ordering, Reset, Sequence

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

# What a row is, in the column `mode`. Ids are granted from those that have none, and from the counters of periods.
PERIOD = "period"
RESET = "reset"
TIMESTAMP = "timestamp"
DELETED = "deleted"


def mode(name: str, sequence: Sequence, deleted: bool) -> str | None:
    """Returns what a row is; None for an ordinary counter."""
    if deleted:
        return DELETED
    if PERIOD_MARK in name:
        return PERIOD
    if sequence.reset != Reset.NEVER:
        return RESET
    return None if sequence.kind == Kind.COUNTER else TIMESTAMP


def pack(sequence: Sequence) -> str:
    """Returns the settings that have no column of their own, without those that are at their default."""
    plain = Sequence()
    settings: dict[str, object] = {"start": sequence.start}
    for name in _IN_JSON:
        value = getattr(sequence, name)
        if value != getattr(plain, name):
            settings[name] = dict(value) if name == "labels" else value
    return json.dumps(settings, ensure_ascii=False, sort_keys=True)


def unpack(name: str, step: int | None, min_value: int | None, max_value: int | None, settings: str | None) -> Sequence:
    """Returns the settings of a row. Equal ones are one object, so that nothing is parsed for a row that stayed.

    Args:
        name: The row's name, for the error.
        step: Its column; each of them may be NULL in an adopted row.
        min_value: Likewise.
        max_value: Likewise.
        settings: What ``pack`` made, or NULL.

    Raises:
        SequenceInvalid: They cannot be read.
    """
    try:
        return _unpack(step, min_value, max_value, settings)
    except (ValueError, TypeError, AttributeError) as error:
        raise SequenceInvalid(name, f"its settings cannot be read: {error}") from error


@lru_cache(maxsize=4096)
def _unpack(step: int | None, min_value: int | None, max_value: int | None, settings: str | None) -> Sequence:
    step = DEFAULT_STEP if step is None else step
    min_value = DEFAULT_MIN_VALUE if min_value is None else min_value
    max_value = MAX_ID if max_value is None else max_value
    if step == 0:
        raise ValueError("its step is 0")
    found = json.loads(settings) if settings else {}
    # A row of a table that was adopted says no start: its counter goes on from wherever it is.
    found.setdefault("start", min_value if step > 0 else max_value)
    for field, kind in (("kind", Kind), ("ordering", Ordering), ("reset", Reset), ("labels", MappingProxyType)):
        if field in found:
            found[field] = kind(found[field])
    plain = Sequence()
    for field, value in found.items():
        if not isinstance(value, type(getattr(plain, field))):
            raise TypeError(f"{field} is {value!r}")
    return Sequence(step=step, min_value=min_value, max_value=max_value, **found)
