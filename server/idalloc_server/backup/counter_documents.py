"""Reads counters from documents of OpenSearch, or of Elasticsearch, which is not tested.

The documents are lines of ``_bulk``, or hits of a search. Each document is a counter: its ``_id``
is the name, and one field has the highest id in use, as a number or as text.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from idalloc_server.backup.export_file import ExportedSequence, ExportFile, Problem
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.sequences.sequence import MAX_ID, Sequence, check_name
from idalloc_server.domain.store.records import Row

_DIGITS = re.compile(r"[+-]?[0-9]{1,40}")
_ACTIONS = ("index", "create")


def read_lines(lines: Iterable[bytes], field: str = "") -> ExportFile:
    """Read a file of ``_bulk`` actions and documents, or of search hits, one JSON object a line.

    Args:
        lines: The lines.
        field: The field of the counter; empty if the documents have one field only.

    Returns:
        The sequences, each behind its counter; a problem for each line that has none.
    """
    file = ExportFile()
    names: set[str] = set()
    reader = _HitReader()
    number = 0
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip() and reader.read(line):
                name = reader.name
                if not isinstance(name, str):
                    raise InvalidRequest("_id", "must be a text, the name of the sequence")
                check_name(name, "_id")
                if name in names:
                    raise InvalidRequest("_id", f"the counter {name!r} is in an earlier line already: keep one of them")
                names.add(name)
                row = Row(name, _counter(name, reader.source, field), Sequence())
                file.items.append(ExportedSequence(number, row))
        except InvalidRequest as error:
            file.skip(number, str(error), reader.name, error.rule)
        except (ValueError, RecursionError) as error:
            file.skip(number, f"is not a counter: {error}", reader.name)
    if reader.action is not None:
        file.skip(number, "the document after this action is missing", reader.action.get("_id"))
    if not number:
        file.problems.append(Problem(1, "the file is empty"))
    return file


@dataclass
class _HitReader:
    """Reads lines, of which an action and its document are two."""

    # The action whose document is the next line; None if the next line is an action or a hit.
    action: dict[str, Any] | None = None
    name: object = None  # the name of the counter in the last line; None without one
    source: object = None  # the document in the last line

    def read(self, line: bytes) -> bool:
        """Read a line, and return whether it has a document.

        Raises:
            ValueError: The line is not a JSON object, or neither an action nor a hit.
            RecursionError: The line is nested too deeply.
        """
        action = self.action
        self.action = None
        self.name = None if action is None else action.get("_id")
        content = json.loads(line)
        if not isinstance(content, dict):
            raise ValueError("must be a JSON object")
        if action is not None:
            self.source = content
            return True
        if "_source" in content:
            self.name = content.get("_id")
            self.source = content["_source"]
            return True
        found = [content[key] for key in _ACTIONS if key in content]
        if found and isinstance(found[0], dict):
            self.action = found[0]
            return False
        parts = (each for each in content.values() if isinstance(each, dict))
        self.name = next((each["_id"] for each in parts if "_id" in each), None)
        raise ValueError("must be an index or create action of _bulk, or a hit with _source")


def _counter(name: str, source: object, field: str) -> int:
    """Return the counter of a document.

    Raises:
        InvalidRequest: The counter is missing, negative or not a whole number; the error has its
            name.
    """
    about = f"counter {name!r}"
    if not isinstance(source, dict):
        raise InvalidRequest(about, "must be a document with fields")
    if not field and len(source) != 1:
        raise InvalidRequest(about, f"has {len(source)} fields ({', '.join(source)}): name one with --counter-field")
    value = source.get(field or next(iter(source)))
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(about, f"must be a whole number, not {json.dumps(value)}")
    if value < 0:
        raise InvalidRequest(
            about, f"is negative ({value}): it wrapped at 2^31 or 2^63; set it to the highest id in use"
        )
    if value > MAX_ID:
        raise InvalidRequest(about, f"must be at most {MAX_ID}, not {value}")
    return value
