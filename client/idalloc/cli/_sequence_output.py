"""Prints sequences: one as its fields, many as a table."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from idalloc.cli import _output

if TYPE_CHECKING:
    from datetime import datetime

    from idalloc import Sequence

COLUMNS = ("name", "last value", "used", "rate", "exhausted", "settings")
# The default max_value: the largest id that CrateDB stores.
MAX_ID = 2**63 - 2


def write_sequence(sequence: "Sequence", effective_time: "datetime | None" = None) -> None:
    """Print the fields of a sequence, and when a change of it becomes effective on all nodes."""
    pairs = list(_fields(sequence))
    if effective_time is not None:
        pairs.append(("effective time", moment(effective_time)))
    _output.write_pairs(pairs)


def write_table(sequences: Iterable["Sequence"]) -> None:
    """Print sequences: as a table on a terminal, else one on a line with columns separated by tabs."""
    if sys.stdout.isatty():
        rows = [("dim" if each.delete_time else "", _columns(each)) for each in sequences]
        if rows:
            _output.write_table(COLUMNS, ("last value", "used", "rate"), rows)
        else:
            _output.write_lines(["no sequences"])
        return
    for sequence in sequences:
        _output.write_columns(text or "-" for text in _columns(sequence))


def is_exhausted(sequence: "Sequence") -> bool:
    """Return whether no id is left. A sequence without a last value is unused, or its stored row is corrupt."""
    return sequence.remaining == 0 and sequence.last_value is not None and not sequence.delete_time


def moment(time: "datetime") -> str:
    """Format a point in time in UTC, to the second (RFC 3339)."""
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _columns(sequence: "Sequence") -> tuple[str, ...]:
    return (
        sequence.name,
        "" if sequence.last_value is None else str(sequence.last_value),
        _percent(sequence.used_ratio),
        _rate(sequence.ids_per_second),
        _exhausted(sequence),
        ", ".join(_changed_settings(sequence)),
    )


def _exhausted(sequence: "Sequence") -> str:
    if is_exhausted(sequence):
        return "exhausted"
    return moment(sequence.exhaust_time) if sequence.exhaust_time else ""


def _changed_settings(sequence: "Sequence") -> Iterator[str]:
    """Yield the settings that differ from the defaults."""
    if sequence.delete_time:
        yield f"deleted {moment(sequence.delete_time)}"
    kind = sequence.kind
    if kind not in ("", "counter"):
        yield kind
    if sequence.step not in (None, 0, 1):
        yield f"step {sequence.step}"
    bounds = (sequence.min_value, sequence.max_value) if sequence.max_value is not None else (1, MAX_ID)
    if bounds != (1, MAX_ID):
        yield f"{bounds[0]}…{bounds[1]}"
    if sequence.ordering == "rising" and kind in ("", "counter"):
        yield "rising"
    if sequence.format:
        yield sequence.format
    if sequence.reset not in ("", "never"):
        yield f"{sequence.reset} in {sequence.time_zone or 'UTC'}"
    for key, value in sorted(sequence.labels.items()):
        yield f"{key}={value}"


def _fields(sequence: "Sequence") -> Iterator[tuple[str, str]]:
    """Yield the names and texts of all fields that are set."""
    formatters = {"used_ratio": _percent, "ids_per_second": _rate}
    for field in fields(sequence):
        value = getattr(sequence, field.name)
        if field.name == "exhaust_time" and is_exhausted(sequence):
            continue  # the server sends the present time
        name = {"used_ratio": "used", "ids_per_second": "rate"}.get(field.name, field.name.replace("_", " "))
        if field.name in formatters:
            yield name, formatters[field.name](value)
        elif field.name == "labels":
            for key, label in sorted(value.items()):
                yield "label", f"{key}={label}"
        elif field.name.endswith("_time"):
            if value is not None:
                yield name, moment(value)
        elif field.name in ("remaining", "generation") or value not in (None, ""):
            if value == 0 and field.name in ("min_lease_size", "max_lease_size"):
                continue
            yield name, str(value)
            if field.name == "remaining" and is_exhausted(sequence):
                yield "exhausted", "yes"


def _percent(ratio: float) -> str:
    if 0 < ratio < 0.001:
        return "<0.1 %"
    return f"{int(ratio * 1000) / 10:.1f} %"  # rounded down: 100 % means exhausted


def _rate(ids_per_second: float) -> str:
    if 0 < ids_per_second < 0.1:
        return "<0.1/s"
    return f"{ids_per_second:,.1f}/s"
