"""Conversion of SQL and JSON values to other types, as in MySQL."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias

from idalloc_xproto.documents.errors import NoNumberInJson, NotANumber, NumberTooLarge
from idalloc_xproto.documents.json_text import dump, number_text

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_LARGEST = 1.7976931348623157e308


class Type(Enum):
    """The type of an expression, which is known before a document is read.

    TEXT is the content of a JSON value, LITERAL a text of the statement, and KEY the bytes of a
    document's key. FOLDED is the BOOLEAN of an operator whose operands are constant.
    """

    NULL = "NULL"
    BOOLEAN = "BOOLEAN"
    FOLDED = "FOLDED"
    INTEGER = "INTEGER"
    DECIMAL = "DECIMAL"
    DOUBLE = "DOUBLE"
    LITERAL = "LITERAL"
    TEXT = "TEXT"
    KEY = "KEY"
    JSON = "JSON"


def number_of_text(text: str) -> float:
    """Return the number at the start of a text; 0 without one."""
    found = _NUMBER.match(text)
    return 0.0 if found is None else min(max(float(found[1]), -_LARGEST), _LARGEST)


def number_of_whole_text(text: str) -> float:
    """Return the number that the whole text is.

    Raises:
        NotANumber: The text is not a number, or too large for a double.
    """
    found = _NUMBER.match(text)
    end = 0 if found is None else found.end()
    if text[end:].rstrip(" ") or (found is not None and abs(float(found[1])) > _LARGEST):
        raise NotANumber(text)
    return number_of_text(text)


def strict_number_of_json(value: Any) -> float:
    """Return a JSON number or boolean, or the JSON text of a number, as a double.

    Raises:
        NoNumberInJson: The value is something else.
        NumberTooLarge: The number does not fit in a double.
    """
    if isinstance(value, int | float | Decimal):
        return float(value)
    if not isinstance(value, str) or value.endswith(" "):
        raise NoNumberInJson
    try:
        return number_of_whole_text(value)
    except NotANumber:
        is_number = (found := _NUMBER.match(value)) is not None and found.end() == len(value)
        raise (NumberTooLarge if is_number else NoNumberInJson) from None


def bytewise(text: str) -> str:
    """Return a text with one character for each UTF-8 byte of another, as LIKE reads the key."""
    return text.encode().decode("latin-1")


def number_of_json(value: Any) -> float:
    """Return a JSON value as a double; 0 if it is not a number."""
    if isinstance(value, str):
        return number_of_text(value)
    return float(value) if isinstance(value, int | float | Decimal) else 0.0


# The functions that convert values of each type. A value of another type is not converted.
Converters: TypeAlias = Mapping[Type, Callable[[Any], Any]]
AS_DOUBLE: Converters = {
    Type.BOOLEAN: float,
    Type.FOLDED: float,
    Type.INTEGER: float,
    Type.DECIMAL: float,
    Type.LITERAL: number_of_text,
    Type.TEXT: number_of_text,
    Type.KEY: number_of_text,
    Type.JSON: number_of_json,
}
# As AS_DOUBLE, but a value that is not a number is an error.
AS_DOUBLE_STRICTLY: Converters = {
    **AS_DOUBLE,
    Type.LITERAL: number_of_whole_text,
    Type.TEXT: number_of_whole_text,
    Type.KEY: number_of_whole_text,
    Type.JSON: strict_number_of_json,
}
AS_TEXT: Converters = {
    Type.BOOLEAN: lambda value: str(int(value)),
    Type.FOLDED: lambda value: str(int(value)),
    Type.INTEGER: str,
    Type.DECIMAL: lambda value: f"{value:f}",
    Type.DOUBLE: number_text,
    Type.JSON: dump,
}
AS_JSON: Converters = {Type.KEY: str.encode}
