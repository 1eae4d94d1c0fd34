"""CrateDB's SQL functions, for the SQLite database of the emulator."""

import math
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any


def add_functions(connection: sqlite3.Connection) -> None:
    """Add CrateDB's functions to a SQLite connection."""
    connection.create_function("greatest", -1, lambda *values: _extreme(max, values), deterministic=True)
    connection.create_function("least", -1, lambda *values: _extreme(min, values), deterministic=True)
    connection.create_function("mod", 2, _mod, deterministic=True)
    connection.create_function("like", 2, _like, deterministic=True)


def _extreme(choose: Callable[[list[Any]], Any], values: Sequence[Any]) -> Any:
    """GREATEST and LEAST ignore NULL. A REAL is an integer that overflowed in SQLite, and stays a
    REAL.
    """
    given = [value for value in values if value is not None]
    if any(isinstance(value, float) for value in given):
        return math.inf
    return choose(given) if given else None


def _mod(value: Any, size: Any) -> Any:
    """The remainder has the sign of the value, as in CrateDB. A REAL is an overflow, as above."""
    if value is None or size is None:
        return None
    if isinstance(value, float) or isinstance(size, float):
        return math.inf
    return abs(value) % abs(size) * (-1 if value < 0 else 1)


def _like(pattern: str | None, text: str | None) -> bool | None:
    """LIKE with case and escapes; SQLite's own LIKE has neither."""
    if pattern is None or text is None:
        return None
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return bool(re.fullmatch("".join(wild.get(part) or re.escape(part[-1]) for part in parts), text, re.DOTALL))
