"""How sequences are shown to people: one as its fields, many as a table."""

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from idalloc.cli import _output

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from idalloc.v1.sequences_pb2 import Sequence

COLUMNS = ("name", "last value", "used", "rate", "exhausted", "settings")
# The bound of a sequence of which none was said: the largest number that CrateDB stores.
LARGEST = 2**63 - 2


def write_sequence(sequence: "Sequence", effective_time: "Timestamp | None" = None) -> None:
    """Prints a sequence, and from when on a change of it holds."""
    pairs = list(_fields(sequence))
    if effective_time is not None:
        pairs.append(("effective time", moment(effective_time)))
    _output.write_pairs(pairs)


def write_table(sequences: Iterable["Sequence"]) -> None:
    """Prints sequences: as a table on a terminal, else one on a line, its columns divided by tabs."""
    if sys.stdout.isatty():
        rows = [("dim" if each.HasField("delete_time") else "", _columns(each)) for each in sequences]
        if rows:
            _output.write_table(COLUMNS, ("last value", "used", "rate"), rows)
        else:
            _output.write_lines(["no sequences"])
        return
    for sequence in sequences:
        _output.write_columns(text or "-" for text in _columns(sequence))


def is_exhausted(sequence: "Sequence") -> bool:
    """Whether no id is left. Without a last value it was not used, or its row in the store has none."""
    return sequence.remaining == 0 and sequence.HasField("last_value") and not sequence.HasField("delete_time")


def moment(time: "Timestamp") -> str:
    """A point in time, to the second."""
    return f"{time.ToDatetime():%Y-%m-%dT%H:%M:%SZ}"


def _columns(sequence: "Sequence") -> tuple[str, ...]:
    return (
        sequence.name,
        str(sequence.last_value) if sequence.HasField("last_value") else "",
        _percent(sequence.used_ratio),
        _rate(sequence.ids_per_second),
        _exhausted(sequence),
        ", ".join(_remarkable(sequence)),
    )


def _exhausted(sequence: "Sequence") -> str:
    if is_exhausted(sequence):
        return "exhausted"
    return moment(sequence.exhaust_time) if sequence.HasField("exhaust_time") else ""


def _remarkable(sequence: "Sequence") -> Iterator[str]:
    """What differs from a sequence of which nothing was said."""
    from idalloc._core.sequences import enum_text

    if sequence.HasField("delete_time"):
        yield f"deleted {moment(sequence.delete_time)}"
    kind = enum_text("kind", sequence.kind)
    if kind not in ("", "counter"):
        yield kind
    if sequence.step not in (0, 1):
        yield f"step {sequence.step}"
    lowest, highest = (sequence.min_value, sequence.max_value) if sequence.HasField("max_value") else (1, LARGEST)
    if (lowest, highest) != (1, LARGEST):
        yield f"{lowest}…{highest}"
    if enum_text("ordering", sequence.ordering) == "rising" and kind in ("", "counter"):
        yield "rising"
    if sequence.format:
        yield sequence.format
    reset = enum_text("reset", sequence.reset)
    if reset not in ("", "never"):
        yield f"{reset} in {sequence.time_zone or 'UTC'}"
    for key, value in sorted(sequence.labels.items()):
        yield f"{key}={value}"


def _fields(sequence: "Sequence") -> Iterator[tuple[str, str]]:
    """All that is known of a sequence, but for what is not said or not there."""
    from google.protobuf.timestamp_pb2 import Timestamp

    from idalloc._core.sequences import enum_text

    shown = {"used_ratio": _percent, "ids_per_second": _rate}
    for field in sequence.DESCRIPTOR.fields:
        value = getattr(sequence, field.name)
        if field.has_presence and not sequence.HasField(field.name):  # type: ignore[arg-type]
            continue
        if field.name == "exhaust_time" and is_exhausted(sequence):
            continue  # that is now, whenever one looks
        name = {"used_ratio": "used", "ids_per_second": "rate"}.get(field.name, field.name.replace("_", " "))
        if field.name in shown:
            yield name, shown[field.name](value)
        elif field.name == "labels":
            for key, label in sorted(value.items()):
                yield "label", f"{key}={label}"
        elif isinstance(value, Timestamp):
            yield name, moment(value)
        elif field.enum_type is not None:
            if value:
                yield name, enum_text(field.name, value)
        elif field.has_presence or field.name in ("remaining", "generation") or value:
            yield name, str(value)
            if field.name == "remaining" and is_exhausted(sequence):
                yield "exhausted", "yes"


def _percent(ratio: float) -> str:
    if 0 < ratio < 0.001:
        return "<0.1 %"
    return f"{int(ratio * 1000) / 10:.1f} %"  # rounded down: 100 % is when none is left


def _rate(ids_per_second: float) -> str:
    if 0 < ids_per_second < 0.1:
        return "<0.1/s"
    return f"{ids_per_second:,.1f}/s"
