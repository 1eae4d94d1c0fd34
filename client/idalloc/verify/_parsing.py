"""Parses what files contain: JSON objects, and names of sequences, periods and document ids."""

import json
import math
import re
from functools import lru_cache
from typing import Any

from idalloc._issued_log.format import PERIOD_SEPARATOR, SHARED_LENGTH

# The limits of the server: the name of a sequence, a period, and the shared part of document ids.
_MAX_BYTES = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PERIOD = re.compile(r"[0-9]{4}(-[0-9]{2}){0,2}")
_SHARED = re.compile(f"[0-9a-f]{{{SHARED_LENGTH}}}")


@lru_cache(maxsize=2**16)
def sequence_name(sequence: object, period: object = "") -> str:
    """Return the name of a sequence or of its period.

    Raises:
        ValueError: The name or the period is invalid.
        TypeError: An argument is not hashable.
    """
    if not isinstance(sequence, str) or not isinstance(period, str):
        raise ValueError("a name must be a string")
    if not 0 < len(sequence.encode()) <= _MAX_BYTES or _CONTROL.search(sequence):
        raise ValueError(f"a name is empty, longer than {_MAX_BYTES} bytes, or has control characters")
    if period and not _PERIOD.fullmatch(period):
        raise ValueError("invalid period")
    return f"{sequence}{PERIOD_SEPARATOR}{period}" if period else sequence


def is_name(text: str) -> bool:
    """Return whether a text is a valid name of a sequence, or of a period in a log's form."""
    sequence, mark, period = text.partition(PERIOD_SEPARATOR)
    try:
        sequence_name(sequence, period)
    except ValueError:
        return False
    return bool(period) == bool(mark)


def begins_name(text: str) -> bool:
    """Return whether a text may be the beginning of a valid name."""
    return _CONTROL.search(text.replace(PERIOD_SEPARATOR, "", 1)) is None


def is_shared_part(text: str) -> bool:
    """Return whether a text is the shared part of document ids."""
    return _SHARED.fullmatch(text) is not None


class Names:
    """Numbers the names of sequences, of periods, and the shared parts of document ids."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def number(self, text: str, *, doc_ids: bool = False) -> int:
        """Return the number of a name, which is odd for document ids."""
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        return 2 * number + doc_ids

    def text(self, number: int) -> str:
        """Return the name with its period, or the 12 shared characters of document ids."""
        return self._texts[number // 2]

    def parts(self, number: int) -> tuple[str, str]:
        """Return the sequence and its period, which may be empty."""
        sequence, _, period = self.text(number).partition(PERIOD_SEPARATOR)
        return sequence, period


def parse(text: bytes) -> dict[str, Any]:
    """Parse one JSON object, strictly.

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
