"""What the CrateDB stand-in refuses, with the errors that a real CrateDB 6.4.3 gave."""

import json
import re
import sqlite3
from collections.abc import Sequence
from typing import Any

_SYSTEM_COLUMNS = ("_seq_no", "_primary_term", "_version")


class SqlError(Exception):
    """An error that CrateDB answers."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class UnknownStatement(Exception):
    """A form that the stand-in does not know."""


def check_columns(table: sqlite3.Row, columns: Sequence[str]) -> None:
    """Refuses columns that the table has not."""
    for name in columns:
        if name not in json.loads(table["columns"]) and name not in _SYSTEM_COLUMNS:
            raise SqlError(404, 4043, f"ColumnUnknownException[Column {name} unknown]")


def check_sets(found: re.Match[str]) -> None:
    """Refuses to update the key."""
    if found["sets"] and re.match(rf"(.*,\s*)?{found['key']}\s*=", found["sets"]):
        message = f"ColumnValidationException[Validation failed for {found['key']}: Updating a primary key"
        raise SqlError(400, 4003, f"{message} is not supported]")


def check_arguments(text: str, args: Sequence[Any]) -> None:
    """Refuses arguments of the wrong kind or size, and too few of them."""
    for value in args:
        if isinstance(value, bool):
            raise SqlError(400, 4000, "SQLParseException[Cannot convert a boolean]")
        if isinstance(value, float):
            raise UnknownStatement("an argument that is a float: CrateDB truncates it silently")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise SqlError(400, 4000, f"SQLParseException[Cannot detect the type of the value: {value}]")
    wanted = max([text.count("?"), *(int(number) for number in re.findall(r"\$(\d+)", text))])
    if wanted > len(args):
        message = f"The query contains a parameter placeholder ${wanted}, but there are only {len(args)}"
        raise SqlError(400, 4000, f"SQLParseException[{message} parameter values]")


def error_of(error: sqlite3.Error) -> Exception:
    """Returns what CrateDB answers where SQLite raises this."""
    text = str(error)
    if found := re.search(r"NOT NULL constraint failed: .*\.(\w+)", text):
        if found[1] in ("name", "prefix", "request_id"):
            return SqlError(400, 4000, "SQLParseException[A primary key value must not be NULL]")
        return SqlError(400, 4000, f'SQLParseException["{found[1]}" must not be null]')
    if "UNIQUE constraint failed" in text:
        message = "DuplicateKeyException[A document with the same primary key exists already]"
        return SqlError(409, 4091, message)
    if "cannot store TEXT" in text or "user-defined function" in text:
        return SqlError(400, 4000, "SQLParseException[Cannot cast value `…` to type `bigint`]")
    if "cannot store REAL" in text:
        return SqlError(400, 4000, "SQLParseException[long overflow]")
    return UnknownStatement(text)
