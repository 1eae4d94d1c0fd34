"""The format of export files: JSON lines, formatted and parsed.

A file starts with ``{"idalloc_export": 1}``. The sequences follow, each with the counters of its periods, then the
start timestamps of document ids. 64-bit integers are strings, as in proto3's JSON mapping, since many JSON parsers
round them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import IntEnum
from reprlib import repr as short
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

from idalloc_server.domain.document_ids.start_timestamps import TIMESTAMP_END
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.calendar import check_period
from idalloc_server.domain.sequences.model import MAX_ID, PERIOD_SEPARATOR, Kind, Ordering, Reset, Sequence, check_name
from idalloc_server.domain.sequences.text import escaped, is_safe, replaced
from idalloc_server.domain.sequences.validation import resolve_settings
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.store.retirement import RETIRED_BY

FORMAT = 1

_ENUMS: dict[str, type[IntEnum]] = {"kind": Kind, "ordering": Ordering, "reset": Reset}
_INTEGERS = ("start", "step", "min_value", "max_value", "min_lease_size", "max_lease_size")
_TEXTS = ("format", "time_zone", "description")
_ROW_FIELDS = {"sequence", "last_value", "generation", "deleted", "lease_ms", "created_at", "changed_at", "settings"}
_PERIOD_FIELDS = {"sequence", "period", "last_value", "generation"}
_CLAIM_FIELDS = {"prefix", "last_start"}

_DIGITS = re.compile(r"-?[0-9]{1,19}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# The lowest counter that a store can hold.
_LOWEST = -MAX_ID - 1
# Larger than any generation in use; further generations fit in 63 bits.
_MAX_GENERATION = 2**62
_REPLACED = "control characters or bidirectional marks were replaced by U+FFFD"
_YEAR_10000 = 253_402_300_800
_CENTURY_MS = 100 * 366 * 86_400_000


def header_line() -> str:
    """Returns the first line of a file."""
    return _format_line({"idalloc_export": FORMAT})


def claim_line(prefix: int, last_start: int) -> str:
    """Returns the line of a prefix's last start timestamp."""
    return _format_line({"prefix": prefix, "last_start": str(last_start)})


def row_line(row: Row) -> str:
    """Returns the line of a sequence, or of a period's counter."""
    name, _, period = row.name.partition(PERIOD_SEPARATOR)
    content: dict[str, Any] = {"sequence": name}
    last_value = None if row.last_value is None else str(row.last_value)
    if period:
        return _format_line(content | {"period": period, "last_value": last_value, "generation": str(row.generation)})
    sequence = row.sequence
    content |= {
        "last_value": last_value,
        "generation": str(row.generation),
        "deleted": row.deleted and not row.revised_by.startswith(RETIRED_BY),
        "lease_ms": str(row.lease_ms),
        "created_at": row.created_at,
        "changed_at": row.changed_at,
        "settings": {
            **{name: str(getattr(sequence, name)) for name in _INTEGERS},
            **{name: getattr(sequence, name).name for name in _ENUMS},
            **{name: getattr(sequence, name) for name in _TEXTS},
            "labels": dict(sequence.labels),
        },
    }
    return _format_line(content)


class Problem(NamedTuple):
    """A line that was not imported, or not unchanged.

    Attributes:
        line: The line number, from 1.
        message: What is wrong.
    """

    line: int
    message: str


class ExportedPeriod(NamedTuple):
    """The line of a period's counter."""

    line: int
    sequence: str
    period: str
    last_value: int
    generation: int


class ExportedClaim(NamedTuple):
    """The line of a prefix's last start timestamp."""

    prefix: int
    last_start: int


@dataclass
class ExportedSequence:
    """The line of a sequence, with the lines of its periods."""

    line: int
    row: Row
    periods: list[ExportedPeriod] = field(default_factory=list)


@dataclass
class ExportFile:
    """The contents of an export file.

    Attributes:
        problems: The invalid lines.
        notes: The lines whose texts were changed.
        items: The sequences.
        claims: The start timestamps.
    """

    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    items: list[ExportedSequence] = field(default_factory=list)
    claims: list[ExportedClaim] = field(default_factory=list)


def read_export(lines: Iterable[bytes]) -> ExportFile:
    """Parses an export file; aligns each counter to its lattice, in the direction of the step, as a store does."""
    file = ExportFile()
    by_name: dict[str, ExportedSequence] = {}
    counters: list[ExportedPeriod] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = _parse_line(line)
            if number == 1:
                if content.get("idalloc_export") != FORMAT:
                    raise ValueError(f'must be {{"idalloc_export": {FORMAT}}} in an export of this version')
            elif "prefix" in content:
                file.claims.append(_parse_claim(content))
            elif "period" in content:
                counters.append(_parse_period(number, content))
            else:
                unsafe = _replace_unsafe(content.get("settings"))
                item = ExportedSequence(number, _parse_row(content))
                if item.row.name in by_name:
                    raise ValueError(f"sequence {item.row.name!r} is in line {by_name[item.row.name].line} already")
                by_name[item.row.name] = item
                file.items.append(item)
                file.notes += [Problem(number, f"{name}: {_REPLACED}") for name in unsafe]
        except (ValueError, InvalidRequest) as error:
            file.problems.append(Problem(number, str(error)))
    if not number:
        file.problems.append(Problem(1, "the file is empty"))
    file.problems += _assign_periods(counters, by_name)
    file.problems.sort()
    return file


def _assign_periods(counters: Iterable[ExportedPeriod], by_name: Mapping[str, ExportedSequence]) -> Iterator[Problem]:
    """Adds the counters of periods to their sequences, and yields the invalid ones."""
    lines: dict[tuple[str, str], int] = {}
    for counter in counters:
        parent = by_name.get(counter.sequence)
        first = lines.setdefault((counter.sequence, counter.period), counter.line)
        if parent is None:
            yield Problem(counter.line, f"its sequence {counter.sequence!r} is not in the file")
        elif first != counter.line:
            yield Problem(counter.line, f"period {counter.period!r} is in line {first} already")
        else:
            sequence = parent.row.sequence
            try:
                check_period(sequence, counter.period)
            except InvalidRequest as error:
                yield Problem(counter.line, str(error))
            else:
                # May be before a start that was raised later.
                parent.periods.append(counter._replace(last_value=_aligned(sequence, counter.last_value)))


def _replace_unsafe(settings: object) -> list[str]:
    """Replaces unsafe characters in the description and labels.

    The name and the format are kept: they determine the sequence and the texts of its ids.

    Returns:
        The names of the changed settings.
    """
    changed: list[str] = []
    if not isinstance(settings, dict):
        return changed
    description, labels = settings.get("description"), settings.get("labels")
    if isinstance(description, str) and not is_safe(description):
        settings["description"] = replaced(description)
        changed.append("description")
    if isinstance(labels, dict):
        texts = [text for pair in labels.items() for text in pair]
        if all(map(_is_text, texts)) and not all(map(is_safe, texts)):
            settings["labels"] = {replaced(key): replaced(value) for key, value in labels.items()}
            changed.append("labels")
    return changed


def _parse_row(content: dict[str, Any]) -> Row:
    _check_fields(content, _ROW_FIELDS)
    name = _text(content, "sequence")
    check_name(name)
    settings = content.get("settings")
    if not isinstance(settings, dict):
        raise ValueError("settings: must be an object")
    sequence = _parse_settings(settings)
    deleted = content.get("deleted", False)
    if not isinstance(deleted, bool):
        raise ValueError(f"deleted: must be true or false, not {short(deleted)}")
    return Row(
        name=name,
        last_value=_parse_last_value(content, sequence),
        sequence=sequence,
        generation=_integer(content, "generation", 1, _MAX_GENERATION),
        lease_ms=_integer(content, "lease_ms", 0, _CENTURY_MS) if "lease_ms" in content else 0,
        created_at=_time(content, "created_at"),
        changed_at=_time(content, "changed_at"),
        deleted=deleted,
    )


def _parse_settings(content: dict[str, Any]) -> Sequence:
    _check_fields(content, {*_INTEGERS, *_ENUMS, *_TEXTS, "labels"})
    given: dict[str, Any] = {}
    for key in content:
        if key in _INTEGERS:
            given[key] = _integer(content, key)
        elif key in _ENUMS:
            given[key] = _enum(content, key)
        elif key in _TEXTS:
            given[key] = _text(content, key)
        else:
            labels = content[key]
            if not isinstance(labels, dict) or not all(_is_text(text) for pair in labels.items() for text in pair):
                raise ValueError("labels: must be an object of strings")
            given[key] = MappingProxyType(labels)
    return resolve_settings(given)


def _parse_last_value(content: dict[str, Any], sequence: Sequence) -> int | None:
    if content.get("last_value", 0) is None:
        return None
    last_value = _integer(content, "last_value", _LOWEST)
    first = sequence.before_start
    if sequence.is_past(first, last_value):
        side = "at least" if sequence.step > 0 else "at most"
        raise ValueError(f"last_value: must be {side} {first}, one step before start, not {last_value}")
    if sequence.kind != Kind.COUNTER:
        # May be ahead of this clock: another node issued it.
        latest = min(sequence.max_value, _YEAR_10000 * sequence.kind.per_second - 1)
        if last_value > latest:
            raise ValueError(f"last_value: must be a time up to {latest}, not {last_value}")
    return _aligned(sequence, last_value)


def _aligned(sequence: Sequence, value: int) -> int:
    """Returns the counter that a store keeps: aligned to the lattice, in the direction of the step, within BIGINT."""
    return max(_LOWEST, min(MAX_ID, sequence.align(value)))


def _parse_period(line: int, content: dict[str, Any]) -> ExportedPeriod:
    _check_fields(content, _PERIOD_FIELDS)
    period = _text(content, "period")
    if not period:
        raise ValueError("period: must not be empty")
    return ExportedPeriod(
        line,
        _text(content, "sequence"),
        period,
        _integer(content, "last_value", _LOWEST),
        _integer(content, "generation", 1, _MAX_GENERATION),
    )


def _parse_claim(content: dict[str, Any]) -> ExportedClaim:
    _check_fields(content, _CLAIM_FIELDS)
    return ExportedClaim(_integer(content, "prefix", 0, 65_535), _integer(content, "last_start", 0, TIMESTAMP_END - 1))


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("must be a JSON object")
    return content


def _check_fields(content: dict[str, Any], known: Set[str]) -> None:
    if unknown := content.keys() - known:
        raise ValueError(f"unknown field {short(min(unknown))}")


def _format_line(content: dict[str, Any]) -> str:
    return escaped(json.dumps(content, ensure_ascii=False))


def _integer(content: dict[str, Any], key: str, low: int = -MAX_ID, high: int = MAX_ID) -> int:
    value = content.get(key)
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key}: must be an integer, not {short(value)}")
    if not low <= value <= high:
        raise ValueError(f"{key}: must be between {low} and {high}, not {short(value)}")
    return value


def _enum(content: dict[str, Any], key: str) -> IntEnum:
    names: Mapping[str, IntEnum] = _ENUMS[key].__members__
    value = content[key]
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{key}: must be one of {', '.join(names)}, not {short(value)}")
    return names[value]


def _text(content: dict[str, Any], key: str) -> str:
    value = content.get(key)
    if not _is_text(value):
        raise ValueError(f"{key}: must be a string, not {short(value)}")
    return value


def _is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a string that UTF-8 can encode: JSON allows unpaired surrogates."""
    return isinstance(value, str) and not _SURROGATE.search(value)


def _time(content: dict[str, Any], key: str) -> float | None:
    value = content.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _YEAR_10000:
        raise ValueError(f"{key}: must be seconds since 1970, not {short(value)}")
    return value
