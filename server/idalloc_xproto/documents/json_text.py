"""JSON text as MySQL 8.0.31 reads and normalises it.

See ``Json_dom`` and ``Json_wrapper::to_string`` there.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, NoReturn, TypeAlias

from idalloc_xproto.documents.errors import InvalidJson, KeyTooLong, TooDeep, TooManyValues

Json: TypeAlias = dict[str, Any] | list[Any] | str | int | float | bool | None

# MySQL's limits of nesting, and of the column _id.
MAX_DEPTH = 100
MAX_KEY_BYTES = 32
# The most values of a document, and arrays and objects among them. Each takes up to 200 bytes of
# memory. Nothing else in the process runs while the parser does, which takes half a millisecond for
# a thousand arrays.
MAX_VALUES = 250_000
MAX_CONTAINERS = 50_000

_MIN_INTEGER = -(2**63)
_MAX_INTEGER = 2**64 - 1
_LONGEST_INTEGER = 20  # characters
_WHOLE_BELOW = 1e15
_PLAIN_FROM = 1e-15
_INFINITY = float("inf")

_SCALAR = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?', re.DOTALL)
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")

_INVALID_VALUE = "Invalid value."
_REASONS = {
    "Expecting property name": "Missing a name for object member.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
    "Illegal trailing comma before end of array": _INVALID_VALUE,
    "Extra data": "The document root must not be followed by other values.",
    "Expecting ':'": "Missing a colon after a name of object member.",
    "Unterminated string": "Missing a closing quotation mark in string.",
    "Invalid control character": "Invalid encoding in string.",
    "Invalid \\": "Invalid escape character in string.",
}


class _NotANumber(Exception):
    """A number that JSON or MySQL does not have."""


def parse(text: str) -> Json:
    """Return the value of a JSON text; of equal keys of an object the last one wins.

    Raises:
        InvalidJson: The text is not JSON, or has a number that does not fit in a double.
        TooDeep: It is nested deeper than ``MAX_DEPTH``.
        TooManyValues: It has more than ``MAX_VALUES`` values, or ``MAX_CONTAINERS`` arrays and
            objects.
    """
    # Its strings are removed only if it seems to have too many with them, which is rare.
    if len(text) > MAX_CONTAINERS and _has_too_many(text) and _has_too_many(bare := _STRING.sub("", text)):
        if "[" * (MAX_DEPTH + 1) in bare or "{:" * (MAX_DEPTH + 1) in bare:
            raise TooDeep
        raise TooManyValues(f"a document has at most {MAX_VALUES} values, with {MAX_CONTAINERS} arrays and objects")
    try:
        value: Json = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        _raise_invalid(text, error)
    except _NotANumber:
        _raise_not_a_number(text)
    except RecursionError:
        raise TooDeep from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        check_depth(value)
    if "\\u" in text and _SURROGATE.search(dump(value)):
        raise InvalidJson("The surrogate pair in string is invalid.", _bytes(text, text.index("\\u")))
    return value


def load(text: str) -> dict[str, Json]:
    """Return the value of a stored document's text, without checks."""
    value: dict[str, Json] = json.loads(text)
    return value


def dump(value: Json) -> str:
    """Return the normalised text: keys sorted by length, then by bytes; numbers as in MySQL."""
    return _TEXTS[type(value)](value)


def sorted_keys(value: dict[str, Any]) -> list[tuple[int, str]]:
    """Return the keys of an object in MySQL's order, as pairs of length in bytes and key."""
    return sorted([(len(key) if key.isascii() else len(key.encode(errors="surrogatepass")), key) for key in value])


def number_text(value: float) -> str:
    """Return a double as MySQL writes it."""
    whole = value == int(value)
    if whole and abs(value) < _WHOLE_BELOW:
        return repr(value)[:-2]
    number = Decimal(repr(value)).normalize()
    if not whole and abs(value) >= _PLAIN_FROM:
        return f"{number:f}"
    mantissa, _, exponent = f"{number:e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def plain_text(value: Json) -> str:
    """Return the content of a string, and the JSON text of any other value (JSON_UNQUOTE)."""
    return value if isinstance(value, str) else dump(value)


def key_of(value: Json) -> str:
    """Return the key of a document, which is the plain text of its ``_id``.

    Raises:
        KeyTooLong: It has more than ``MAX_KEY_BYTES`` bytes.
    """
    key = plain_text(value)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise KeyTooLong(f"an _id has at most {MAX_KEY_BYTES} bytes")
    return key


def check_depth(value: Json) -> None:
    """Check how deep the objects and arrays of a value are nested.

    Raises:
        TooDeep: Deeper than ``MAX_DEPTH``.
    """
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Json] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return
    raise TooDeep


def _has_too_many(text: str) -> bool:
    containers = text.count("[") + text.count("{")
    # Each value is after a comma, or the first one of an array or an object that is not empty.
    values = 1 + containers + text.count(",") - text.count("[]") - text.count("{}")
    return values > MAX_VALUES or containers > MAX_CONTAINERS


def _integer(text: str) -> int | float:
    if len(text) <= _LONGEST_INTEGER and _MIN_INTEGER <= (value := int(text)) <= _MAX_INTEGER:
        return value
    return _float(text)


def _float(text: str) -> float:
    value = float(text)
    if abs(value) == _INFINITY:
        raise _NotANumber
    return value


def _refuse_constant(_: str) -> NoReturn:
    raise _NotANumber


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_refuse_constant)


def _double(value: float) -> str:
    text = number_text(value)
    return text if "e" in text or "." in text else f"{text}.0"


def _object(value: dict[str, Any]) -> str:
    members = [f"{encode_basestring(key)}: {dump(value[key])}" for _, key in sorted_keys(value)]
    return f"{{{', '.join(members)}}}"


# Decimals of a statement and the bytes of a key are in projections only, not in documents.
_TEXTS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    dict: _object,
    list: lambda value: f"[{', '.join(map(dump, value))}]",
    int: str,
    float: _double,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
    Decimal: lambda value: f"{value:f}",
    bytes: lambda value: f'"base64:type15:{b64encode(value).decode()}"',
}


def _raise_invalid(text: str, error: json.JSONDecodeError) -> NoReturn:
    position = error.pos
    if error.msg.startswith("Illegal trailing comma"):
        position += 1
    while text[position : position + 1].isspace() and "string" not in error.msg and "control" not in error.msg:
        position += 1
    reason = next((reason for start, reason in _REASONS.items() if error.msg.startswith(start)), _INVALID_VALUE)
    if error.msg.startswith("Expecting ','"):
        closing = "'}' after an object member" if _is_in_object(text[: error.pos]) else "']' after an array element"
        reason = f"Missing a comma or {closing}."
    elif not text.strip():
        reason = "The document is empty."
    elif error.msg.startswith("Unterminated string"):
        position = len(text)
    elif reason is _INVALID_VALUE and text[position : position + 1] in ("n", "t", "f"):
        position += 1  # MySQL's parser reads the first character of null, true and false
    raise InvalidJson(reason, _bytes(text, position)) from None


def _raise_not_a_number(text: str) -> NoReturn:
    for found in _SCALAR.finditer(text):
        if found[0] in ("NaN", "Infinity", "-Infinity"):
            raise InvalidJson(_INVALID_VALUE, _bytes(text, found.start() + (found[0][0] == "-"))) from None
        if not found[0].startswith('"') and abs(float(found[0])) == _INFINITY:
            raise InvalidJson("Number too big to be stored in double.", _bytes(text, found.start())) from None
    raise InvalidJson(_INVALID_VALUE, 0) from None


def _is_in_object(text: str) -> bool:
    open_brackets: list[str] = []
    for found in _NESTING.findall(text):
        if found in "{[":
            open_brackets.append(found)
        elif found in "}]" and open_brackets:
            open_brackets.pop()
    return open_brackets[-1:] == ["{"]


def _bytes(text: str, position: int) -> int:
    return len(text[:position].encode(errors="surrogatepass"))
