"""Criteria on documents: a small tree of expressions, evaluated with MySQL's rules.

Logic has three values. A missing field is SQL's NULL; JSON's null is a value. Values of different JSON types are never
equal, and are ordered by type: null, numbers, strings, objects, arrays, booleans.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, TypeGuard

from idalloc_server.documents.json_text import Json, dump, plain_text


class Null(Enum):
    """SQL's NULL."""

    NULL = 0


NULL = Null.NULL
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Value:
    """A literal, or the value that is bound to a placeholder."""

    value: Json | Null


@dataclass(frozen=True)
class Field:
    """A value in the document: the names of members and the indexes of items that lead to it; empty for all of it."""

    path: Path


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
    """An operator with its operands: one of ``OPERATORS``, by MySQL's name."""

    operator: str
    operands: tuple["Node", ...]

    @cached_property
    def literals(self) -> frozenset[str | int | float]:
        """The texts and numbers among the operands after the first, so that ``in`` takes no longer with many."""
        values = (other.value for other in self.operands[1:] if isinstance(other, Value))
        return frozenset(value for value in values if _is_simple(value))

    @cached_property
    def others(self) -> tuple["Node", ...]:
        """The operands after the first that are not ``literals``."""
        return tuple(other for other in self.operands[1:] if not (isinstance(other, Value) and _is_simple(other.value)))


Node: TypeAlias = Value | Field | ObjectOf | ArrayOf | Call

ID = Field(("_id",))


def evaluate(node: Node, document: Json) -> Json | Null:
    """Returns the value of an expression for a document."""
    if isinstance(node, Value):
        return node.value
    if isinstance(node, Field):
        return find(document, node.path)
    if isinstance(node, ObjectOf):
        return {name: _json(member, document) for name, member in node.members}
    if isinstance(node, ArrayOf):
        return [_json(item, document) for item in node.items]
    known = OPERATORS[node.operator](node, document)
    return NULL if known is None else known


def matches(node: Node, document: Json) -> bool:
    """Whether a document meets a condition."""
    return _truth(node, document) is True


def find(document: Json, path: Path) -> Json | Null:
    """Returns the value at a path. The item 0 of a value that is no array is the value itself."""
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
    """Returns the keys of all documents that may meet a condition; None if it does not name them."""
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


def compare(left: Json, right: Json) -> int:
    """Returns a negative number, 0 or a positive number, as the left value is before, equal to or after the right."""
    rank = _rank(left)
    if rank != (other_rank := _rank(right)):
        return rank - other_rank
    if isinstance(left, dict) and isinstance(right, dict):
        if left.keys() == right.keys() and not any(compare(left[key], right[key]) for key in left):
            return 0
        return len(left) - len(right) or _sign(dump(left), dump(right)) or 1
    if isinstance(left, list) and isinstance(right, list):
        differences = (compare(one, other) for one, other in zip(left, right, strict=False))
        return next(filter(None, differences), len(left) - len(right))
    return 0 if left is None else _sign(left, right)


class SortKey:
    """Orders the values of one expression: NULL first, then as ``compare``."""

    __slots__ = ("value",)

    def __init__(self, value: Json | Null) -> None:
        self.value = value

    def __lt__(self, other: "SortKey") -> bool:
        if isinstance(other.value, Null):
            return False
        return isinstance(self.value, Null) or compare(self.value, other.value) < 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortKey) and not self < other and not other < self

    __hash__ = None  # type: ignore[assignment]


@lru_cache(maxsize=64)
def like_pattern(pattern: str, escape: str = "\\") -> Callable[[str], bool]:
    """Returns a function that matches texts with a pattern of LIKE: ``%`` any text, ``_`` any character.

    Its time is linear in the number of ``%``; a regular expression for the whole pattern would backtrack.
    """
    parts = _between_percents(pattern, escape)
    first, *middle = ["".join(part) for part in parts]
    if not middle:
        whole = re.compile(first, re.DOTALL)
        return lambda text: whole.fullmatch(text) is not None
    head, tail = re.compile(first, re.DOTALL), re.compile(middle[-1], re.DOTALL)
    tail_length = len(parts[-1])
    between = [re.compile(part, re.DOTALL) for part in middle[:-1] if part]

    def is_match(text: str) -> bool:
        end = len(text) - tail_length
        if (found := head.match(text)) is None or end < 0 or tail.fullmatch(text, end) is None:
            return False
        for part in between:
            if (found := part.search(text, found.end(), end)) is None:
                return False
        return found.end() <= end

    return is_match


def _between_percents(pattern: str, escape: str) -> list[list[str]]:
    """Returns what is between the ``%`` of a pattern of LIKE: for each part, a regular expression a character."""
    parts: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            parts[-1].append(re.escape(next(characters, escape)))
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append("." if character == "_" else re.escape(character))
    return parts


def _json(node: Node, document: Json) -> Json:
    value = evaluate(node, document)
    return None if isinstance(value, Null) else value


def _truth(node: Node, document: Json) -> bool | None:
    if isinstance(node, Call):
        return OPERATORS[node.operator](node, document)
    value = evaluate(node, document)
    if isinstance(value, Null):
        return None
    if isinstance(node, Field):  # MySQL compares a JSON value with the number 0
        return isinstance(value, bool) or value != 0
    if isinstance(value, str):
        number = re.match(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", value)
        return number is not None and float(number[0]) != 0
    return value is not None and (isinstance(value, dict | list) or bool(value))


def _rank(value: Json) -> int:
    if value is None:
        return 0
    if isinstance(value, bool):
        return 5
    if isinstance(value, int | float):
        return 1
    return 2 if isinstance(value, str) else 3 if isinstance(value, dict) else 4


def _sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _difference(left: Node, right: Node, document: Json) -> int | None:
    """Compares two operands; None if one of them is NULL. ``_id`` and a text compare as the key and the text."""
    one, other = evaluate(left, document), evaluate(right, document)
    if isinstance(one, Null) or isinstance(other, Null):
        return None
    if left == ID and isinstance(right, Value) and isinstance(other, str):
        one = plain_text(one)
    elif right == ID and isinstance(left, Value) and isinstance(one, str):
        other = plain_text(other)
    return compare(one, other)


def _is_simple(value: Json | Null) -> TypeGuard[str | int | float]:
    """Whether a value equals another one exactly if Python says so."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _not(known: bool | None) -> bool | None:
    return None if known is None else not known


def _all(known: Iterator[bool | None]) -> bool | None:
    unknown = False
    for each in known:
        if each is False:
            return False
        unknown |= each is None
    return None if unknown else True


_Operator: TypeAlias = Callable[[Call, Json], bool | None]


def _comparison(holds: Callable[[int], bool]) -> _Operator:
    def run(call: Call, document: Json) -> bool | None:
        left, right = call.operands
        difference = _difference(left, right, document)
        return None if difference is None else holds(difference)

    return run


def _and(call: Call, document: Json) -> bool | None:
    return _all(_truth(operand, document) for operand in call.operands)


def _or(call: Call, document: Json) -> bool | None:
    return _not(_all(_not(_truth(operand, document)) for operand in call.operands))


def _is(call: Call, document: Json) -> bool:
    tested, expected = call.operands
    wanted = evaluate(expected, document)
    if isinstance(wanted, Null):
        return isinstance(evaluate(tested, document), Null)
    return _truth(tested, document) is (_truth(expected, document) is True)


def _in(call: Call, document: Json) -> bool | None:
    tested = call.operands[0]
    value = evaluate(tested, document)
    if isinstance(value, Null):
        return None
    if _is_simple(value) and value in call.literals:
        return True
    if tested == ID and plain_text(value) in call.literals:
        return True
    differences = (_difference(tested, other, document) for other in call.others)
    return _not(_all(None if each is None else each != 0 for each in differences))


def _between(call: Call, document: Json) -> bool | None:
    tested, low, high = call.operands
    above, below = _difference(tested, low, document), _difference(tested, high, document)
    return _all(iter((None if above is None else above >= 0, None if below is None else below <= 0)))


def _like(call: Call, document: Json) -> bool | None:
    values = [evaluate(operand, document) for operand in call.operands]
    texts = [plain_text(value) for value in values if not isinstance(value, Null)]
    if len(texts) < len(values):
        return None
    return like_pattern(*texts[1:])(texts[0])


def _negated(operator: _Operator) -> _Operator:
    return lambda call, document: _not(operator(call, document))


def _negation(call: Call, document: Json) -> bool | None:
    return _not(_truth(call.operands[0], document))


OPERATORS: Mapping[str, _Operator] = {
    "==": _comparison(lambda difference: difference == 0),
    "!=": _comparison(lambda difference: difference != 0),
    "<": _comparison(lambda difference: difference < 0),
    "<=": _comparison(lambda difference: difference <= 0),
    ">": _comparison(lambda difference: difference > 0),
    ">=": _comparison(lambda difference: difference >= 0),
    "&&": _and,
    "||": _or,
    "not": _negation,
    "!": _negation,
    "is": _is,
    "is_not": _negated(_is),
    "in": _in,
    "not_in": _negated(_in),
    "between": _between,
    "not_between": _negated(_between),
    "like": _like,
    "not_like": _negated(_like),
}
