"""Tells the files that it is given apart by what is in them, and reads those that are no logs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idalloc._log import PERIOD_MARK
from idalloc.verify._logs import Log, NoLog, open_log
from idalloc.verify._names import Names

# A node's log may begin with other lines, such as a library's warning; so many are looked at.
_FIRST_LINES = 100


@dataclass
class Exported:
    """What exports say.

    Attributes:
        last_values: The last values of each name's counter, of several exports; None where a counter was never used.
        steps: The step of each sequence.
        timestamps: The sequences whose ids are times.
        claims: The latest start timestamp of each prefix of document ids.
    """

    last_values: dict[str, list[int]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
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
    """

    names: Names
    logs: list[Log] = field(default_factory=list)
    exported: Exported | None = None
    burned: dict[str, Counter[str]] = field(default_factory=dict)


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
        raise NoLog("none of these files is a log of issued ids (--log of allocate, stream, docid, bench and the SDK)")
    return found


def _add(path: Path, found: Files) -> None:
    if not path.is_file():
        raise NoLog(f"{path}: is no file")
    if not path.stat().st_size:
        raise NoLog(f"{path}: is empty")
    log = open_log(path, len(found.logs), found.names)
    if log is not None:
        found.logs.append(log)
        return
    with path.open("rb") as file:
        first: Any = None
        for line, _ in zip(file, range(_FIRST_LINES), strict=False):
            first = first or _object(line)
        file.seek(0)
        if first and "idalloc_export" in first:
            found.exported = found.exported or Exported()
            _read_export(path, file, found.exported)
        elif first and "event" in first:
            _read_node_log(file, found.burned)
        else:
            raise NoLog(f"{path}: is no log of issued ids, no export and no log of a node")


def _read_export(path: Path, lines: Iterable[bytes], exported: Exported) -> None:
    for number, line in enumerate(lines, start=1):
        content = _object(line)
        try:
            if content is None:
                raise ValueError
            if "idalloc_export" in content or not content:
                continue
            if "prefix" in content:
                prefix, start = int(content["prefix"]), int(content["last_start"])
                exported.claims[prefix] = max(start, exported.claims.get(prefix, 0))
                continue
            sequence, period, last = content["sequence"], content.get("period"), content["last_value"]
            values = exported.last_values.setdefault(f"{sequence}{PERIOD_MARK}{period}" if period else sequence, [])
            values += [] if last is None else [int(last)]
            settings = content.get("settings") or {}
            exported.steps[sequence] = int(settings.get("step", exported.steps.get(sequence, 1)))
            if str(settings.get("kind", "")).startswith("TIMESTAMP"):
                exported.timestamps.add(sequence)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise NoLog(f"{path}: line {number} of this export cannot be read") from None


def _read_node_log(lines: Iterable[bytes], burned: dict[str, Counter[str]]) -> None:
    for content in _burned(lines):
        sequence, period = content.get("sequence"), content.get("period")
        ids, cause = content.get("ids"), content.get("cause")
        if isinstance(sequence, str) and isinstance(cause, str) and type(ids) is int:
            name = f"{sequence}{PERIOD_MARK}{period}" if period else sequence
            burned.setdefault(name, Counter())[cause] += ids


def _burned(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Finds the lines that tell of burned ids. A node that was killed may leave half a line."""
    for line in lines:
        if b'"burned"' in line:
            content = _object(line)
            if content and content.get("event") == "burned":
                yield content


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
