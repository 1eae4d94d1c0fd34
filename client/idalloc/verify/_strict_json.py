"""A strict parser of JSON objects from untrusted files."""

import json
import math
from typing import Any


def parse(text: bytes) -> dict[str, Any]:
    """Parse one object.

    Raises:
        ValueError: The text is not UTF-8 or not an object, is nested too deeply, has a duplicate
            key, or has a number that JSON or a double cannot represent.
    """
    try:
        line = text.decode()
        content = _decode(line)
        if isinstance(content, dict) and line.count(":") != len(content):  # it may have a duplicate key
            content = _decode_slowly(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("is not an object")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("has a duplicate key")
    return content


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("has a number that is not finite")
    return number


_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_finite).decode
_decode_slowly = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite).decode
