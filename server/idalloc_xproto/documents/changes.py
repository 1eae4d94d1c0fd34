"""Changes to a document: set, replace and remove fields, and merge patches (RFC 7396), as in MySQL.

All values are computed from the document before the first change. ``_id`` never changes.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from idalloc_xproto.documents.cost import Budget
from idalloc_xproto.documents.criteria import NULL, Null, Path, find
from idalloc_xproto.documents.errors import NotADocument
from idalloc_xproto.documents.evaluation import Run
from idalloc_xproto.documents.json_text import Json, check_depth, dump, load, parse


class Kind(Enum):
    """What a change does to the field at its path.

    SET writes it if its parent exists, REPLACE only if it exists itself. REMOVE removes it. PATCH
    merges an object into the whole document.
    """

    SET = "set"
    REPLACE = "replace"
    REMOVE = "remove"
    PATCH = "patch"


@dataclass(frozen=True)
class Change:
    """One change."""

    kind: Kind
    path: Path  # the field; empty for the whole document
    value: Run | None = None  # returns the new value for a document; None for REMOVE


def apply_changes(text: str, changes: Sequence[Change], budget: Budget) -> str:
    """Return the text of a document after changes, with its ``_id``.

    Raises:
        DocumentTooLarge: It is larger than the budget of the statement allows.
        NotADocument: The result is not a JSON object.
        InvalidJson: A patch is a text that is not JSON.
        TooDeep: The result is nested too deeply.
    """
    document = load(text)
    result: Json = copy.deepcopy(document)
    size = 0
    for change in changes:
        value = None if change.value is None else change.value(document)
        size = budget.add_value(value, size)
        value = copy.deepcopy(value)
        if change.kind is Kind.PATCH:
            result = _merged(result, parse(value) if isinstance(value, str) else value)
        elif change.kind is Kind.REMOVE:
            _remove(result, change.path)
        elif not change.path:
            result = value
        elif change.kind is Kind.SET or find(result, change.path) is not NULL:
            _set(result, change.path, value)
    if not isinstance(result, dict):
        raise NotADocument("the result of an update is not a JSON object")
    result["_id"] = document["_id"]
    check_depth(result)
    return budget.check_document(dump(result))


def _set(document: Json, path: Path, value: Json) -> None:
    parent = find(document, path[:-1])
    last = path[-1]
    if isinstance(last, str):
        if isinstance(parent, dict):
            parent[last] = value
    elif isinstance(parent, list):
        parent[last : last + 1] = [value]  # past the end, it is appended
    elif not isinstance(parent, Null) and len(path) > 1:
        _set(document, path[:-1], [parent, value] if last else value)


def _remove(document: Json, path: Path) -> None:
    parent = find(document, path[:-1])
    last = path[-1]
    if isinstance(last, str):
        if isinstance(parent, dict):
            parent.pop(last, None)
    elif isinstance(parent, list):
        del parent[last : last + 1]


def _merged(document: Json, patch: Json) -> Json:
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
