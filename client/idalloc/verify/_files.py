"""Recognizes input files by content, opens logs of issued ids, reads exports and nodes' logs."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from idalloc.verify._logs import MAX_MESSAGES, InvalidFile, Log, TruncatedHeader, open_log
from idalloc.verify._parsing import Names, parse, sequence_name

# A node's log may begin with other lines, such as a library's warning: the kind is in one of this
# many lines.
_FIRST_LINES = 100
# The longest line of an export or a node's log.
_MAX_LINE = 2**20
_EXPORT_FORMAT = 1
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_CAUSE = re.compile(r"[a-z_]{1,50}")
# The bounds of counters, start timestamps and prefixes in a store.
_MAX_ID = 2**63 - 2
_MIN_ID = -(2**63) + 1
_MAX_START = 2**32 - 1
_MAX_PREFIX = 65_535


@dataclass
class Exported:
    """The content of all exports."""

    files: int = 0  # the number of exports
    # The last values of each name's counter, one for each export; empty for an unused counter.
    last_values: dict[str, list[int]] = field(default_factory=dict)
    timestamps: set[str] = field(default_factory=set)  # the sequences whose ids are timestamps
    # The latest start timestamp of each prefix of document ids.
    claims: dict[int, int] = field(default_factory=dict)


@dataclass
class Files:
    """The input files."""

    names: Names = field(default_factory=Names)
    logs: list[Log] = field(default_factory=list)
    exported: Exported = field(default_factory=Exported)
    # The burned ids in logs of nodes, by name and cause.
    burned: dict[str, Counter[str]] = field(default_factory=dict)
    malformed: int = 0  # the number of malformed places in files that are not in `logs`
    examples: list[str] = field(default_factory=list)  # the messages of the first of them

    def add_malformed(self, message: str) -> None:
        self.malformed += 1
        if len(self.examples) < MAX_MESSAGES:
            self.examples.append(message)


def read_files(paths: Iterable[Path]) -> Files:
    """Open logs, and read exports and logs of nodes.

    Raises:
        InvalidFile: A file cannot be read or is of no known kind, or no file is a log of issued
            ids.
    """
    files = Files()
    seen = set[tuple[int, int]]()
    for path in paths:
        try:
            status = path.stat()
            if (status.st_dev, status.st_ino) not in seen:  # two paths of one file are one log
                _add(path, files)
            seen.add((status.st_dev, status.st_ino))
        except OSError as error:
            raise InvalidFile(f"{path}: {error.strerror}") from None
    if not files.logs:
        if files.examples:
            raise InvalidFile(files.examples[0])
        raise InvalidFile(
            "none of these files is a log of issued ids (--log of allocate, stream, docid, bench and the SDK)"
        )
    return files


def _add(path: Path, files: Files) -> None:
    if not path.is_file():
        raise InvalidFile(f"{path}: is not a regular file")
    try:
        log = open_log(path, len(files.logs), files.names)
    except TruncatedHeader as error:
        files.add_malformed(str(error))
        return
    if log is not None:
        files.logs.append(log)
        return
    with path.open("rb") as file:
        first = next(filter(None, map(_parse_leniently, islice(_lines(file), _FIRST_LINES))), {})
        file.seek(0)
        if "idalloc_export" in first:
            files.exported.files += 1
            _read_export(path, file, files.exported)
        elif "event" in first:
            _read_node_log(path, file, files)
        else:
            raise InvalidFile(f"{path}: is not a log of issued ids, an export or a node's log")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; a line that is too long comes in parts."""
    return iter(lambda: file.readline(_MAX_LINE), b"")


def _read_export(path: Path, file: BinaryIO, exported: Exported) -> None:
    known = set[object]()  # an entry may be in several exports, but only once in each
    number = 0
    try:
        for number, line in enumerate(_lines(file), start=1):
            content = parse(line)
            if number == 1 or "idalloc_export" in content:
                form = content.get("idalloc_export")
                if number > 1 or type(form) is not int or form != _EXPORT_FORMAT:
                    raise ValueError(f'{{"idalloc_export": {_EXPORT_FORMAT}}} must be its first line and no other line')
                continue
            key: object
            if "prefix" in content:
                key = prefix = _integer(content["prefix"], "prefix", 0, _MAX_PREFIX)
                start = _integer(content["last_start"], "last_start", 0, _MAX_START)
                exported.claims[prefix] = max(start, exported.claims.get(prefix, 0))
            else:
                key = _read_counter(content, exported)
            if key in known:
                raise ValueError(f"{key!r} appears twice in this export")
            known.add(key)
    except (ValueError, TypeError, KeyError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InvalidFile(f"{path}: line {number} of this export cannot be read: {why[:200]}") from None


def _read_counter(content: dict[str, Any], exported: Exported) -> str:
    name = sequence_name(content["sequence"], content.get("period", ""))
    last = content["last_value"]
    settings = content.get("settings", {})
    if not isinstance(settings, dict):
        raise ValueError("settings must be an object")
    values = exported.last_values.setdefault(name, [])
    if last is not None:
        values.append(_integer(last, "last_value"))
    _integer(settings.get("step", 1), "step")
    if str(settings.get("kind", "")).startswith("TIMESTAMP"):
        exported.timestamps.add(content["sequence"])
    return name


def _integer(value: object, field: str, minimum: int = _MIN_ID, maximum: int = _MAX_ID) -> int:
    """Read an integer or its decimal text, as proto3's JSON mapping writes 64-bit integers."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{field} must be an integer from {minimum} to {maximum}")
    return value


def _read_node_log(path: Path, file: BinaryIO, files: Files) -> None:
    """Add up burned ids.

    Other lines are ignored: a killed node's last line, and lines of libraries.
    """
    for number, line in enumerate(_lines(file), start=1):
        content = _parse_leniently(line) if b'"burned"' in line else {}
        if content.get("event") != "burned":
            continue
        try:
            content = parse(line)
            name = sequence_name(content["sequence"], content.get("period", ""))
            ids = content["ids"]
            cause = content["cause"]
            if type(ids) is not int or not 0 <= ids < 2**63 or not _CAUSE.fullmatch(cause):
                raise ValueError
        except (ValueError, TypeError, KeyError):
            files.add_malformed(f"{path}: line {number} is not a valid record of burned ids")
        else:
            files.burned.setdefault(name, Counter())[cause] += ids


def _parse_leniently(line: bytes) -> dict[str, Any]:
    """Parse an object that `parse` might reject; return an empty one if it is not an object."""
    try:
        content = json.loads(line.decode())
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
