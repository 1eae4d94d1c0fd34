"""MySQL's rules to compare two values: the types of the operands decide which one applies."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from idalloc_xproto.documents.conversion import AS_DOUBLE, AS_DOUBLE_STRICTLY, AS_JSON, AS_TEXT, Converters, Type
from idalloc_xproto.documents.errors import NotServed
from idalloc_xproto.documents.json_text import sorted_keys

# Raises an error if the statement must end: its time is over, or its caller has left.
Check: TypeAlias = Callable[[], None]

TEXTS = frozenset({Type.NULL, Type.LITERAL, Type.TEXT, Type.KEY, Type.JSON})
EXACT = frozenset({Type.BOOLEAN, Type.FOLDED, Type.INTEGER, Type.DECIMAL})


def no_check() -> None:
    """Let every statement continue."""


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule of comparison."""

    converters: Converters  # convert each operand first, by its type
    # Compares two converted values: returns a negative number, 0 or a positive number.
    difference: Callable[[Any, Any], int]
    # Returns a hashable key that is equal for equal values; None if there is no such function.
    key: Callable[[Any], Any] | None = None


def rule_of(types: set[Type], is_strict: bool) -> Rule:
    """Return the rule for operands of these types, as in BETWEEN and IN.

    Args:
        types: The types of all operands.
        is_strict: Whether a value that is compared as a number must be one.

    Raises:
        NotServed: All are texts of the statement, which MySQL compares by a language's collation.
    """
    if types <= TEXTS:
        if Type.KEY in types:
            return _BYTES
        if Type.LITERAL in types and not types & {Type.TEXT, Type.JSON}:
            raise NotServed("comparison of two texts of the statement")
        return _PADDED
    if types <= EXACT:
        return _NUMBERS
    return STRICT_DOUBLES if is_strict else _DOUBLES


def compare_json(left: Any, right: Any, check: Check = no_check) -> int:
    """Compare two JSON values; values of different types are ordered by type, objects by length.

    ``check`` is called before each array and object.
    """
    rank = _RANKS[type(left)]
    if rank != (other_rank := _RANKS[type(right)]):
        return rank - other_rank
    if rank == _OBJECT:
        check()
        if difference := len(left) - len(right):
            return difference
        for (_, one), (_, other) in zip(sorted_keys(left), sorted_keys(right), strict=True):
            if difference := _compare(one, other) or compare_json(left[one], right[other], check):
                return difference
        return 0
    if rank == _ARRAY:
        check()
        for one, other in zip(left, right, strict=False):
            if difference := compare_json(one, other, check):
                return difference
        return len(left) - len(right)
    if rank == _NUMBER and type(left) is not type(right):
        return _compare(exact(left), exact(right))
    return 0 if left is None else _compare(left, right)


def contains(target: Any, candidate: Any, check: Check = no_check) -> bool:
    """Return whether a JSON value contains another one (JSON_CONTAINS).

    ``check`` is called before each item of a candidate that is an array.
    """
    if isinstance(target, list):
        wanted = candidate if isinstance(candidate, list) else [candidate]
        arrays = [each for each in target if isinstance(each, list)]
        for one in wanted:
            check()
            if not any(contains(each, one, check) for each in (arrays if isinstance(one, list) else target)):
                return False
        return True
    if isinstance(target, dict) and isinstance(candidate, dict):
        return all(key in target and contains(target[key], each, check) for key, each in candidate.items())
    return compare_json(target, candidate, check) == 0


_NUMBER = 1
_OBJECT = 3
_ARRAY = 4
_RANKS: dict[type, int] = {
    type(None): 0,
    int: _NUMBER,
    float: _NUMBER,
    Decimal: _NUMBER,
    str: 2,
    dict: _OBJECT,
    list: _ARRAY,
    bool: 5,
    bytes: 6,
}


def same(value: Any) -> Any:
    """Return the value itself."""
    return value


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def exact(number: int | float | Decimal) -> int | Decimal:
    """Return a number as MySQL compares it with an exact one: a double as its shortest text."""
    return Decimal(repr(number)) if isinstance(number, float) else number


def _compare_padded(left: str, right: str) -> int:
    """Compare two texts; the shorter one is padded with spaces."""
    if left == right:
        return 0
    length = max(len(left), len(right))
    return _compare(left.ljust(length), right.ljust(length))


JSON_RULE = Rule(AS_JSON, compare_json)
_DOUBLES = Rule(AS_DOUBLE, _compare, same)
STRICT_DOUBLES = Rule(AS_DOUBLE_STRICTLY, _compare, same)
_NUMBERS = Rule({}, _compare, same)
_PADDED = Rule(AS_TEXT, _compare_padded, lambda text: text.rstrip(" "))
_BYTES = Rule(AS_TEXT, _compare, same)
