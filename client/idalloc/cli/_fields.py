"""Texts of replies: the fields of one, or a sequence's columns in the list."""

from collections.abc import Callable, Iterator
from dataclasses import fields as fields_of
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idalloc import Node, ParsedId, Sequence

COLUMNS = ("name", "last value", "used", "rate", "exhausted", "settings")
# The columns that hold numbers.
NUMBERS = ("last value", "used", "rate")
# The default max_value: the largest id that CrateDB stores.
MAX_ID = 2**63 - 2


def fields(reply: "Node | ParsedId | Sequence") -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the fields of a reply that are set."""
    formatters: dict[str, Callable[[Any], str]] = {"used_ratio": _percent, "ids_per_second": _rate}
    names = {"used_ratio": "used", "ids_per_second": "rate"}
    for field in fields_of(reply):
        name = field.name
        value = getattr(reply, name)
        if name == "labels":
            yield from (("label", f"{key}={label}") for key, label in sorted(value.items()))
        elif value not in (None, ""):
            yield names.get(name, name.replace("_", " ")), formatters.get(name, text)(value)


def sequence_fields(sequence: "Sequence") -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the fields of a sequence, and whether it is exhausted."""
    exhausted = is_exhausted(sequence)
    for name, value in fields(sequence):
        if name == "exhaust time" and exhausted:
            continue  # the server sends the present time
        if value == "0" and name in ("min lease size", "max lease size"):
            continue  # the default
        yield name, value
        if name == "remaining" and exhausted:
            yield "exhausted", "yes"


def columns(sequence: "Sequence") -> tuple[str, ...]:
    """Return the cells of a sequence in the list, those of ``COLUMNS``."""
    return (
        sequence.name,
        "" if sequence.last_value is None else str(sequence.last_value),
        _percent(sequence.used_ratio),
        _rate(sequence.ids_per_second),
        "exhausted" if is_exhausted(sequence) else text(sequence.exhaust_time or ""),
        ", ".join(_changed_settings(sequence)),
    )


def is_exhausted(sequence: "Sequence") -> bool:
    """Return whether no id is left.

    A sequence without a last value is unused, or its stored row is corrupt.
    """
    return sequence.remaining == 0 and sequence.last_value is not None and sequence.delete_time is None


def text(value: Any) -> str:
    """Return a value as text; a point in time in UTC, to the second (RFC 3339)."""
    return f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else str(value)


def _changed_settings(sequence: "Sequence") -> Iterator[str]:
    """Yield the settings that differ from the defaults."""
    if sequence.delete_time is not None:
        yield f"deleted {text(sequence.delete_time)}"
        if sequence.description.startswith("reserved: "):  # by an import, with the reason
            yield sequence.description
    counts = sequence.kind in ("", "counter")
    low = 1 if sequence.min_value is None else sequence.min_value
    high = MAX_ID if sequence.max_value is None else sequence.max_value
    changes = (
        (not counts, sequence.kind),
        (sequence.step not in (None, 0, 1), f"step {sequence.step}"),
        ((low, high) != (1, MAX_ID), f"{low}…{high}"),
        (sequence.ordering == "rising" and counts, "rising"),
        (bool(sequence.format), sequence.format),
        (sequence.reset not in ("", "never"), f"{sequence.reset} in {sequence.time_zone or 'UTC'}"),
    )
    yield from (shown for is_changed, shown in changes if is_changed)
    yield from (f"{key}={value}" for key, value in sorted(sequence.labels.items()))


def _percent(ratio: float) -> str:
    if 0 < ratio < 0.001:
        return "<0.1 %"
    return f"{int(ratio * 1000) / 10:.1f} %"  # rounded down: 100 % means exhausted


def _rate(ids_per_second: float) -> str:
    if 0 < ids_per_second < 0.1:
        return "<0.1/s"
    return f"{ids_per_second:,.1f}/s"
