"""The lines of an exported file: written from what a store has, and read again.

A file begins with ``{"idalloc_export": 1}``. Then come the sequences, each followed by the counters of its periods, and
the start timestamps of document ids. 64-bit numbers are texts, as in proto3's JSON, since many readers of JSON round
them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from idalloc_server.domain.epoch import TIMESTAMP_END
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.rules import settle
from idalloc_server.domain.sequence import MAX_ID, PERIOD_MARK, Kind, Ordering, Reset, check_name
from idalloc_server.domain.store import Row

FORMAT = 1
# How the author of a retirement is told from others: such a sequence was not deleted, but has moved.
RETIRED_BY = "retire:"

_ENUMS: dict[str, type[IntEnum]] = {"kind": Kind, "ordering": Ordering, "reset": Reset}
_INTEGERS = ("start", "step", "min_value", "max_value", "min_lease_size", "max_lease_size")
_TEXTS = ("format", "time_zone", "description")


def first_line() -> str:
    """Returns the line that every file begins with."""
    return _line({"idalloc_export": FORMAT})


def line_of_claim(prefix: int, last_start: int) -> str:
    """Returns the line of a prefix of document ids."""
    return _line({"prefix": prefix, "last_start": str(last_start)})


def line_of_row(row: Row) -> str:
    """Returns the line of a sequence, or of the counter of a period."""
    name, _, period = row.name.partition(PERIOD_MARK)
    content: dict[str, Any] = {"sequence": name}
    last_value = None if row.last_value is None else str(row.last_value)
    if period:
        return _line(content | {"period": period, "last_value": last_value, "generation": str(row.generation)})
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
    return _line(content)


class Problem(NamedTuple):
    """A line that was not brought to the store.

    Attributes:
        line: Its number, from 1.
        why: What is wrong.
    """

    line: int
    why: str


class Counter(NamedTuple):
    """The line of a period's counter."""

    line: int
    sequence: str
    period: str
    last_value: int
    generation: int


class Claim(NamedTuple):
    """The line of a prefix."""

    prefix: int
    last_start: int


@dataclass
class Item:
    """The line of a sequence, with the lines of its periods."""

    line: int
    row: Row
    periods: list[Counter] = field(default_factory=list)


@dataclass
class File:
    """An exported file that was read.

    Attributes:
        problems: The lines that could not be understood.
    """

    problems: list[Problem] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)


def read(lines: Iterable[bytes]) -> File:
    """Reads an exported file. Nothing is written anywhere."""
    file = File()
    by_name: dict[str, Item] = {}
    counters: list[Counter] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError("must be a JSON object")
            if number == 1:
                if content.get("idalloc_export") != FORMAT:
                    raise ValueError(f'must be {{"idalloc_export": {FORMAT}}} in a file that can be read here')
            elif "prefix" in content:
                file.claims.append(_to_claim(content))
            elif "period" in content:
                counters.append(_to_counter(number, content))
            else:
                item = Item(number, _to_row(content))
                if item.row.name in by_name:
                    raise ValueError(f"sequence {item.row.name!r} is in line {by_name[item.row.name].line} already")
                by_name[item.row.name] = item
                file.items.append(item)
        except json.JSONDecodeError as error:
            file.problems.append(Problem(number, f"is not JSON: {error}"))
        except (ValueError, InvalidRequest) as error:
            file.problems.append(Problem(number, str(error)))
    if not number:
        file.problems.append(Problem(1, "the file is empty"))
    for counter in counters:
        if (parent := by_name.get(counter.sequence)) is None:
            file.problems.append(Problem(counter.line, f"its sequence {counter.sequence!r} is not in the file"))
        else:
            parent.periods.append(counter)
    file.problems.sort()
    return file


def _to_row(content: dict[str, Any]) -> Row:
    name = _text(content, "sequence")
    check_name(name)
    settings = content.get("settings")
    if not isinstance(settings, dict):
        raise ValueError("settings: must be an object")
    if unknown := settings.keys() - {*_INTEGERS, *_ENUMS, *_TEXTS, "labels"}:
        raise ValueError(f"settings: there is no {min(unknown)}")
    given: dict[str, Any] = {}
    for key in settings:
        if key in _INTEGERS:
            given[key] = _integer(settings, key)
        elif key in _ENUMS:
            given[key] = _enum(settings, key)
        elif key in _TEXTS:
            given[key] = _text(settings, key)
        else:
            labels = settings[key]
            if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
                raise ValueError("labels: must be an object of texts")
            given[key] = MappingProxyType(labels)
    return Row(
        name=name,
        last_value=None if content.get("last_value", 0) is None else _integer(content, "last_value"),
        sequence=settle(given),
        generation=_integer(content, "generation", 1),
        lease_ms=_integer(content, "lease_ms", 0) if "lease_ms" in content else 0,
        created_at=_time(content, "created_at"),
        changed_at=_time(content, "changed_at"),
        deleted=content.get("deleted") is True,
    )


def _to_counter(line: int, content: dict[str, Any]) -> Counter:
    return Counter(
        line,
        _text(content, "sequence"),
        _text(content, "period"),
        _integer(content, "last_value"),
        _integer(content, "generation", 1),
    )


def _to_claim(content: dict[str, Any]) -> Claim:
    return Claim(_integer(content, "prefix", 0, 65_535), _integer(content, "last_start", 0, TIMESTAMP_END - 1))


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)


def _integer(content: dict[str, Any], key: str, least: int = -MAX_ID, most: int = MAX_ID) -> int:
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{key}: must be an integer, not {value!r}")
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"{key}: must be an integer, not {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"{key}: must be between {least} and {most}, not {number}")
    return number


def _enum(content: dict[str, Any], key: str) -> IntEnum:
    names: Mapping[str, IntEnum] = _ENUMS[key].__members__
    if content[key] not in names:
        raise ValueError(f"{key}: must be one of {', '.join(names)}, not {content[key]!r}")
    return names[content[key]]


def _text(content: dict[str, Any], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key}: must be a text, not {value!r}")
    return value


def _time(content: dict[str, Any], key: str) -> float | None:
    value = content.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{key}: must be seconds since 1970, not {value!r}")
    return value
