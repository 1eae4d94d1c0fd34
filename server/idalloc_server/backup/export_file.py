"""The format of export files: JSON lines, formatted and parsed.

A file starts with ``{"idalloc_export": 1}`` and the name of the store, if it has one. The sequences
follow, each with the counters of its periods, then the start timestamps of document ids. 64-bit
integers are strings, as in proto3's JSON mapping, since many JSON parsers round them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from reprlib import repr as short
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from idalloc_server.domain.document_ids.start_timestamps import TIMESTAMP_END
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.calendar import check_period
from idalloc_server.domain.sequences.sequence import (
    MAX_ID,
    PERIOD_SEPARATOR,
    Kind,
    Ordering,
    Reset,
    Sequence,
    check_name,
)
from idalloc_server.domain.sequences.text import escaped, replaced
from idalloc_server.domain.sequences.validation import resolve_settings
from idalloc_server.domain.store.name_holds import is_reserved
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.store.retirement import RETIRED_BY

FORMAT = 1

_STORE = re.compile(r"[0-9a-f]{32}")
_DIGITS = re.compile(r"-?[0-9]{1,19}")
# The lowest counter that a store can hold.
_LOWEST = -MAX_ID - 1
# Larger than any generation in use; further generations fit in 63 bits.
_MAX_GENERATION = 2**62
_REPLACED = "control characters or bidirectional marks were replaced by U+FFFD"
_YEAR_10000 = 253_402_300_800
_MAX_LEASE_MS = 86_400_000  # that of the longest lease_ttl, which is 24h

_Enum = TypeVar("_Enum", bound=IntEnum)


def _parse_name(kind: type[_Enum], value: object) -> _Enum:
    if not isinstance(value, str) or value not in kind.__members__:
        raise ValueError(f"must be one of {', '.join(kind.__members__)}")
    return kind[value]


# encode() raises ValueError for an unpaired surrogate, which JSON allows.
_Text = Annotated[str, AfterValidator(lambda text: text.encode().decode())]
_decimal = BeforeValidator(lambda value: int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value)
_Setting = Annotated[int, Field(ge=-MAX_ID, le=MAX_ID), _decimal]
_Counter = Annotated[int, Field(ge=_LOWEST, le=MAX_ID), _decimal]
_Generation = Annotated[int, Field(ge=1, le=_MAX_GENERATION), _decimal]
_Time = Annotated[float, Field(ge=0, lt=_YEAR_10000, allow_inf_nan=False)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _SettingsOfLine(_Line):
    """The settings of a sequence, in the order of the line.

    One that is missing has the default of a new sequence.
    """

    start: _Setting = 0
    step: _Setting = 0
    min_value: _Setting = 0
    max_value: _Setting = 0
    min_lease_size: _Setting = 0
    max_lease_size: _Setting = 0
    kind: Annotated[Kind, BeforeValidator(partial(_parse_name, Kind))] = Kind.COUNTER
    ordering: Annotated[Ordering, BeforeValidator(partial(_parse_name, Ordering))] = Ordering.RISING
    reset: Annotated[Reset, BeforeValidator(partial(_parse_name, Reset))] = Reset.NEVER
    format: _Text = ""
    time_zone: _Text = ""
    description: _Text = ""
    labels: dict[_Text, _Text] = {}


class _SequenceLine(_Line):
    sequence: _Text
    last_value: _Counter | None
    generation: _Generation
    deleted: bool = False
    reserved: bool = False
    lease_ms: Annotated[int, Field(ge=0, le=_MAX_LEASE_MS), _decimal] = 0
    created_at: _Time | None = None
    changed_at: _Time | None = None
    settings: _SettingsOfLine


class ExportedPeriod(_Line):
    """The line of a period's counter."""

    sequence: _Text
    period: Annotated[_Text, Field(min_length=1)]
    last_value: _Counter
    generation: _Generation


class ExportedClaim(_Line):
    """The line of a prefix's last start timestamp."""

    prefix: Annotated[int, Field(ge=0, le=65_535), _decimal]
    last_start: Annotated[int, Field(ge=0, lt=TIMESTAMP_END), _decimal]


def header_line(store: str = "") -> str:
    """Return the first line of a file; ``store`` is the name of the store, empty without one."""
    return _format_line({"idalloc_export": FORMAT} | ({"store": store} if store else {}))


def claim_line(prefix: int, last_start: int) -> str:
    """Return the line of a prefix's last start timestamp."""
    return _format_line({"prefix": prefix, "last_start": str(last_start)})


def row_line(row: Row) -> str:
    """Return the line of a sequence, or of a period's counter."""
    name, _, period = row.name.partition(PERIOD_SEPARATOR)
    content: dict[str, Any] = {"sequence": name}
    last_value = None if row.last_value is None else str(row.last_value)
    if period:
        return _format_line(content | {"period": period, "last_value": last_value, "generation": str(row.generation)})
    settings: dict[str, Any] = {}
    for setting in _SettingsOfLine.model_fields:
        value = getattr(row.sequence, setting)
        if isinstance(value, IntEnum):
            value = value.name
        elif isinstance(value, int):
            value = str(value)
        settings[setting] = dict(value) if isinstance(value, Mapping) else value
    content |= {
        "last_value": last_value,
        "generation": str(row.generation),
        "deleted": row.deleted and not row.revised_by.startswith(RETIRED_BY),
        "lease_ms": str(row.lease_ms),
        "created_at": row.created_at,
        "changed_at": row.changed_at,
        "settings": settings,
    }
    if is_reserved(row):  # A server that does not know the field rejects the line.
        content["reserved"] = True
    return _format_line(content)


class Problem(NamedTuple):
    """A line that was not imported, or was imported with changes."""

    line: int  # its number, from 1
    message: str  # what is wrong


@dataclass
class ExportedSequence:
    """The line of a sequence, with the counters of its periods by line."""

    line: int
    row: Row
    periods: dict[int, ExportedPeriod] = field(default_factory=dict)


@dataclass
class ExportFile:
    """The contents of an export file."""

    problems: list[Problem] = field(default_factory=list)  # the invalid lines
    notes: list[Problem] = field(default_factory=list)  # the lines whose texts were changed
    items: list[ExportedSequence] = field(default_factory=list)
    claims: list[ExportedClaim] = field(default_factory=list)
    store: str = ""  # the name of the exported store; empty if it had none
    # Why a name must be reserved unless the store has it: its line is invalid, or exports a
    # reservation.
    reserved: dict[str, str] = field(default_factory=dict)

    def skip(self, line: int, message: str, name: object = None, why: str = "") -> None:
        """Add an invalid line, and reserve its name.

        Args:
            line: The line number, from 1.
            message: What is wrong.
            name: The name in the line; any other value than a valid name is ignored.
            why: The message without the name; empty if ``message`` has no name.
        """
        self.problems.append(Problem(line, message))
        with suppress(ValueError, InvalidRequest):  # ValueError: an unpaired surrogate
            if isinstance(name, str):
                check_name(name)
                self.reserved.setdefault(name, f"the import skipped it: {why or message}")


def read_export(lines: Iterable[bytes]) -> ExportFile:
    """Parse an export file.

    It aligns each counter to its lattice in the direction of the step, as a store does.
    """
    reader = _LineReader()
    file = reader.file
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        content: dict[str, Any] = {}
        try:
            content = _parse_json(line)
            reader.read(number, content)
        except ValidationError as error:
            file.skip(number, _first_message(error), content.get("sequence"))
        except (ValueError, InvalidRequest) as error:
            file.skip(number, str(error), content.get("sequence"))
    if not number:
        file.problems.append(Problem(1, "the file is empty"))
    for problem in _assign_periods(reader.counters, reader.by_name):
        file.skip(problem.line, problem.message, reader.counters[problem.line].sequence)
    file.problems.sort()
    return file


@dataclass
class _LineReader:
    """Reads the lines of an export file, each by its kind."""

    file: ExportFile = field(default_factory=ExportFile)
    by_name: dict[str, ExportedSequence] = field(default_factory=dict)  # with those of reserved names
    counters: dict[int, ExportedPeriod] = field(default_factory=dict)  # by line

    def read(self, number: int, content: dict[str, Any]) -> None:
        """Read the content of a line.

        Raises:
            ValueError: The line is invalid; pydantic's ValidationError is one.
            InvalidRequest: A name or a setting in it is invalid.
        """
        if number == 1:
            if content.get("idalloc_export") != FORMAT:
                raise ValueError(f'must be {{"idalloc_export": {FORMAT}}} in an export of this version')
            self.file.store = content.get("store", "")
            if self.file.store != "" and not _STORE.fullmatch(str(self.file.store)):
                raise ValueError(f"store: must be 32 hexadecimal digits, not {short(self.file.store)}")
        elif "prefix" in content:
            self.file.claims.append(ExportedClaim.model_validate(content))
        elif "period" in content:
            self.counters[number] = ExportedPeriod.model_validate(content)
        else:
            line = _SequenceLine.model_validate(content)
            # The name and the format are kept: they determine the sequence and its ids' texts.
            labels = {replaced(key): replaced(value) for key, value in line.settings.labels.items()}
            clean = {"description": replaced(line.settings.description), "labels": labels}
            unsafe = [setting for setting, value in clean.items() if value != getattr(line.settings, setting)]
            for setting in unsafe:
                setattr(line.settings, setting, clean[setting])
            item = ExportedSequence(number, _to_row(line))
            first = self.by_name.setdefault(line.sequence, item)
            if first is not item:
                raise ValueError(f"sequence {line.sequence!r} is in line {first.line} already")
            if line.reserved:
                self.file.reserved[line.sequence] = item.row.sequence.description
            else:
                self.file.items.append(item)
                self.file.notes += [Problem(number, f"{setting}: {_REPLACED}") for setting in unsafe]


def _assign_periods(
    counters: Mapping[int, ExportedPeriod], by_name: Mapping[str, ExportedSequence]
) -> Iterator[Problem]:
    """Add the counters of periods to their sequences, and yield the invalid ones."""
    lines: dict[tuple[str, str], int] = {}
    for line, counter in counters.items():
        parent = by_name.get(counter.sequence)
        first = lines.setdefault((counter.sequence, counter.period), line)
        if parent is None:
            yield Problem(line, f"its sequence {counter.sequence!r} is not in the file")
        elif first != line:
            yield Problem(line, f"period {counter.period!r} is in line {first} already")
        else:
            sequence = parent.row.sequence
            try:
                check_period(sequence, counter.period)
            except InvalidRequest as error:
                yield Problem(line, str(error))
            else:
                # May be before a start that was raised later.
                counter.last_value = _aligned(sequence, counter.last_value)
                parent.periods[line] = counter


def _to_row(line: _SequenceLine) -> Row:
    check_name(line.sequence)
    sequence = resolve_settings({name: getattr(line.settings, name) for name in line.settings.model_fields_set})
    last_value = line.last_value
    if last_value is not None:
        first = sequence.before_start
        if sequence.is_past(first, last_value):
            side = "at least" if sequence.step > 0 else "at most"
            raise ValueError(f"last_value: must be {side} {first}, one step before start, not {last_value}")
        if sequence.kind != Kind.COUNTER:
            # May be ahead of this clock: another node issued it.
            latest = min(sequence.max_value, _YEAR_10000 * sequence.kind.per_second - 1)
            if last_value > latest:
                raise ValueError(f"last_value: must be a time up to {latest}, not {last_value}")
        last_value = _aligned(sequence, last_value)
    others = line.model_dump(exclude={"sequence", "last_value", "settings", "reserved"})
    return Row(line.sequence, last_value, sequence, **others)


def _aligned(sequence: Sequence, value: int) -> int:
    """Return the counter that a store keeps.

    It is aligned to the lattice in the direction of the step, and within BIGINT.
    """
    return max(_LOWEST, min(MAX_ID, sequence.align(value)))


def _parse_json(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("must be a JSON object")
    return content


def _first_message(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = first["loc"][1:] if first["loc"][:1] == ("settings",) else first["loc"]
    name = place[0] if place else "settings" if first["loc"] else "a field"
    if first["type"] == "extra_forbidden":
        return f"unknown field {short(name)}"
    if first["type"] == "missing":
        return f"{name}: is missing"
    rule = "must be an object" if first["type"] == "model_type" else first["msg"].removeprefix("Value error, ")
    return f"{name}: {rule.replace('Input should', 'must')}, not {short(first['input'])}"


def _format_line(content: dict[str, Any]) -> str:
    return escaped(json.dumps(content, ensure_ascii=False))
