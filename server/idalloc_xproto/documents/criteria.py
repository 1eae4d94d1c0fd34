"""Criteria on documents: a tree of expressions, which ``evaluation`` evaluates as MySQL does.

A missing field is SQL's NULL; JSON's null is a value.
"""

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import NoReturn, TypeAlias

from idalloc_xproto.documents.errors import InvalidJson, InvalidLiteral
from idalloc_xproto.documents.json_text import Json


class Null(Enum):
    """SQL's NULL."""

    NULL = 0


NULL = Null.NULL
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Value:
    """A literal, or the value that is bound to a placeholder."""

    # SQL's text, number, boolean or NULL, unless ``is_json``.
    value: Json | Decimal | Null
    is_json: bool = False  # whether it is a JSON value


@dataclass(frozen=True)
class NotJson:
    """A text that must be JSON and is not: its evaluation fails."""

    error: InvalidJson

    def fail(self, _: Json) -> NoReturn:
        """Fail as the evaluation does.

        Raises:
            InvalidLiteral: Always.
        """
        raise InvalidLiteral(self.error.reason, self.error.position)


@dataclass(frozen=True)
class Field:
    """A value in the document."""

    path: Path  # the names of members and the indexes of items; empty for the whole document


@dataclass(frozen=True)
class Key:
    """The column ``_id`` of MySQL's table: the key of the document, as bytes."""


@dataclass(frozen=True)
class ObjectOf:
    """An object with these members."""

    members: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True)
class ArrayOf:
    """An array of these items."""

    items: tuple["Node", ...]


@dataclass(frozen=True)
class Call:
    """An operator with its operands: one of ``evaluation.OPERATORS``, by MySQL's name."""

    operator: str
    operands: tuple["Node", ...]


Node: TypeAlias = Value | NotJson | Field | Key | ObjectOf | ArrayOf | Call

ID = Field(("_id",))


def find(document: Json, path: Path) -> Json | Null:
    """Return the value at a path. Item 0 of a value that is not an array is the value itself."""
    found = document
    for step in path:
        if isinstance(step, str):
            if not isinstance(found, dict) or step not in found:
                return NULL
            found = found[step]
        elif isinstance(found, list):
            if step >= len(found):
                return NULL
            found = found[step]
        elif step:
            return NULL
    return found


def keys_of(node: Node) -> frozenset[str] | None:
    """Return the keys of all documents that may meet a condition; None if it does not name them."""
    if not isinstance(node, Call):
        return None
    if node.operator == "&&":
        named = [keys for operand in node.operands if (keys := keys_of(operand)) is not None]
        return frozenset.intersection(*named) if named else None
    if node.operator not in ("==", "in"):
        return None
    first, *others = node.operands
    if node.operator == "==" and others == [ID]:
        first, others = ID, [first]
    texts = [other.value for other in others if isinstance(other, Value) and isinstance(other.value, str)]
    return frozenset(texts) if first == ID and len(texts) == len(others) else None
