"""Tells the files that it is given apart by what is in them, and reads those that are no logs."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from idalloc._issued_log.format import MAGIC
from idalloc.verify._json import parse
from idalloc.verify._lines import open_lines
from idalloc.verify._logs import MOST_MESSAGES, EndsInHeader, Log, NoLog
from idalloc.verify._names import Names, sequence_name
from idalloc.verify._rows import open_rows

# A node's log may begin with other lines, such as a library's warning; so many are looked at.
_FIRST_LINES = 100
# No line of an export or of a node is longer.
_MOST_LINE = 2**20
_EXPORT_FORMAT = 1
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_CAUSE = re.compile(r"[a-z_]{1,50}")
# No store has a higher or lower counter, and no prefix a later start.
_MOST_ID = 2**63 - 2
_LEAST_ID = -(2**63) + 1
_MOST_START = 2**32 - 1
_MOST_PREFIX = 65_535


@dataclass
class Exported:
    """What exports say.

    Attributes:
        last_values: The last values of each name's counter, of several exports; None where a counter was never used.
        timestamps: The sequences whose ids are times.
        claims: The latest start timestamp of each prefix of document ids.
    """

    last_values: dict[str, list[int]] = field(default_factory=dict)
    timestamps: set[str] = field(default_factory=set)
    claims: dict[int, int] = field(default_factory=dict)


@dataclass
class Files:
    """What was found in files.

    Attributes:
        names: The names of all that is in the logs.
        logs: The logs of issued ids.
        exported: What exports say; None without any.
        burned: What the logs of nodes say: the ids burned, by name and cause.
        malformed: How many places in files that are not in ``logs`` cannot be.
        examples: The first of them, in words.
    """

    names: Names
    logs: list[Log] = field(default_factory=list)
    exported: Exported | None = None
    burned: dict[str, Counter[str]] = field(default_factory=dict)
    malformed: int = 0
    examples: list[str] = field(default_factory=list)

    def add_malformed(self, finding: str) -> None:
        """Counts a place that cannot be."""
        self.malformed += 1
        if len(self.examples) < MOST_MESSAGES:
            self.examples.append(finding)


def find(paths: Iterable[Path], names: Names) -> Files:
    """Opens files.

    Raises:
        NoLog: One cannot be read, or is none of those that are known, or none is a log of issued ids.
    """
    found = Files(names)
    seen = set[tuple[int, int]]()
    for path in paths:
        try:
            status = path.stat()
            if (status.st_dev, status.st_ino) not in seen:  # the same file under two names is no second witness
                _add(path, found)
            seen.add((status.st_dev, status.st_ino))
        except OSError as error:
            raise NoLog(f"{path}: {error.strerror}") from None
    if not found.logs:
        if found.examples:
            raise NoLog(found.examples[0])
        raise NoLog("none of these files is a log of issued ids (--log of allocate, stream, docid, bench and the SDK)")
    return found


def _add(path: Path, found: Files) -> None:
    if not path.is_file():
        raise NoLog(f"{path}: is no file")
    try:
        log = _open_log(path, len(found.logs), found.names)
    except EndsInHeader as error:
        found.add_malformed(str(error))
        return
    if log is not None:
        found.logs.append(log)
        return
    with path.open("rb") as file:
        first = next(filter(None, map(_lenient, islice(_lines(file), _FIRST_LINES))), {})
        file.seek(0)
        if "idalloc_export" in first:
            found.exported = found.exported or Exported()
            _read_export(path, file, found.exported)
        elif "event" in first:
            _read_node_log(path, file, found)
        else:
            raise NoLog(f"{path}: is no log of issued ids, no export and no log of a node")


def _open_log(path: Path, number: int, names: Names) -> Log | None:
    """Opens a log, in either of its forms; returns None if it is none.

    Raises:
        EndsInHeader: It is one, and ends before its first record.
        NoLog: Its header cannot be read.
    """
    magic = MAGIC[:-1]
    with path.open("rb") as file:
        begin = file.read(len(magic))
        if len(begin) < len(magic) and magic.startswith(begin):
            raise EndsInHeader(path)
        if begin == magic:
            return open_rows(path, number, names, file)
        file.seek(0)
        return open_lines(path, number, names, file)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, of which those that are too long come in parts."""
    return iter(lambda: file.readline(_MOST_LINE), b"")


def _read_export(path: Path, file: BinaryIO, exported: Exported) -> None:
    known = set[object]()  # exports of several times may be given, but each has everything once
    number = 0
    try:
        for number, line in enumerate(_lines(file), start=1):
            content = parse(line)
            if number == 1 or "idalloc_export" in content:
                _check_first_line(content, number)
                continue
            key = _read_claim(content, exported) if "prefix" in content else _read_counter(content, exported)
            if key in known:
                raise ValueError(f"{key!r} is in this export already")
            known.add(key)
    except (ValueError, TypeError, KeyError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise NoLog(f"{path}: line {number} of this export cannot be read: {why[:200]}") from None


def _check_first_line(content: dict[str, Any], number: int) -> None:
    form = content.get("idalloc_export")
    if number > 1 or type(form) is not int or form != _EXPORT_FORMAT:
        raise ValueError(f'{{"idalloc_export": {_EXPORT_FORMAT}}} must be its first line and no other')


def _read_claim(content: dict[str, Any], exported: Exported) -> int:
    prefix = _integer(content["prefix"], "prefix", 0, _MOST_PREFIX)
    start = _integer(content["last_start"], "last_start", 0, _MOST_START)
    exported.claims[prefix] = max(start, exported.claims.get(prefix, 0))
    return prefix


def _read_counter(content: dict[str, Any], exported: Exported) -> str:
    name = sequence_name(content["sequence"], content.get("period", ""))
    last = content["last_value"]
    settings = content.get("settings", {})
    if not isinstance(settings, dict):
        raise ValueError("settings must be an object")
    sequence = content["sequence"]
    exported.last_values.setdefault(name, []).extend(
        [] if last is None else [_integer(last, "last_value", _LEAST_ID, _MOST_ID)]
    )
    _integer(settings.get("step", 1), "step")
    if str(settings.get("kind", "")).startswith("TIMESTAMP"):
        exported.timestamps.add(sequence)
    return name


def _integer(value: object, field: str, least: int = _LEAST_ID, most: int = _MOST_ID) -> int:
    """Reads a number that may be a text, as 64-bit numbers are in proto3's JSON."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{field} must be an integer from {least} to {most}")
    return value


def _read_node_log(path: Path, file: BinaryIO, found: Files) -> None:
    """Adds up burned ids. A node that was killed may leave half a line, and libraries log lines of their own."""
    for number, line in enumerate(_lines(file), start=1):
        content = _lenient(line) if b'"burned"' in line else {}
        if content.get("event") != "burned":
            continue
        try:
            content = parse(line)
            name = sequence_name(content["sequence"], content.get("period", ""))
            ids, cause = content["ids"], content["cause"]
            if type(ids) is not int or not 0 <= ids < 2**63 or not _CAUSE.fullmatch(cause):
                raise ValueError
        except (ValueError, TypeError, KeyError):
            found.add_malformed(f"{path}: line {number} is no record of burned ids")
        else:
            found.burned.setdefault(name, Counter())[cause] += ids


def _lenient(line: bytes) -> dict[str, Any]:
    """An object that may have what ``parse`` refuses; empty if it is none."""
    try:
        content = json.loads(line.decode())
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
