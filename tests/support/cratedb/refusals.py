"""The errors of the CrateDB emulator, as a real CrateDB 6.4.3 answered them."""

import json
import re
import sqlite3
from collections.abc import Sequence
from typing import Any

_SYSTEM_COLUMNS = ("_seq_no", "_primary_term", "_version")


class SqlError(Exception):
    """An error in CrateDB's answer."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class UnknownStatement(Exception):
    """A statement form that the emulator does not know."""


def check_columns(table: sqlite3.Row, columns: Sequence[str]) -> None:
    """Refuse columns that the table does not have."""
    for name in columns:
        if name not in json.loads(table["columns"]) and name not in _SYSTEM_COLUMNS:
            raise SqlError(404, 4043, f"ColumnUnknownException[Column {name} unknown]")


def check_usable(table: sqlite3.Row, operation: str) -> None:
    """Refuse an operation on a table that is closed or blocked, as recorded for each block."""
    settings = json.loads(table["settings"])
    message = f"""The relation "{table["schema"]}.{table["name"]}" doesn't support or allow {operation} operations"""
    if json.loads(table["properties"])["closed"] and operation != "OPEN":
        raise SqlError(400, 4007, f"OperationOnInaccessibleRelationException[{message}, as it is currently closed.]")
    writes = ("INSERT", "UPDATE", "DELETE")
    for block, operations in {
        "write": writes,
        "read_only": (*writes, "REFRESH", "ALTER"),
        "read": ("READ",),
        "metadata": ("ALTER",),
    }.items():
        if settings.get(f"blocks.{block}") == "true" and operation in operations:
            raise SqlError(400, 4007, f"OperationOnInaccessibleRelationException[{message}]")
    if settings.get("blocks.read_only_allow_delete") == "true" and operation in (*writes, "DROP"):
        block = "RELATION_READ_DELETE_ONLY/12/index read-only / allow delete (api)"
        raise SqlError(403, 4037, f"ClusterBlockException[blocked by: [{block}];]")


def check_table(db: sqlite3.Connection, table: sqlite3.Row) -> None:
    """Refuse a statement if a row violates a CHECK afterwards; the caller rolls back."""
    for name, (clause, _) in json.loads(table["properties"])["checks"].items():
        sql = f'SELECT 1 FROM "{table["schema"]}.{table["name"]}" WHERE NOT ({clause})'
        if db.execute(sql).fetchone():
            raise SqlError(400, 4000, f"SQLParseException[Failed CONSTRAINT {name} CHECK ({clause}) for values: […]]")


def check_sets(found: re.Match[str]) -> None:
    """Refuse an update of the primary key."""
    if found["sets"] and re.match(rf"(.*,\s*)?{found['key']}\s*=", found["sets"]):
        message = f"ColumnValidationException[Validation failed for {found['key']}: Updating a primary key"
        raise SqlError(400, 4003, f"{message} is not supported]")


def check_arguments(text: str, args: Sequence[Any]) -> None:
    """Refuse arguments of a wrong type or size, and missing ones."""
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
    """Return CrateDB's error for an error of SQLite."""
    text = str(error)
    if found := re.search(r"NOT NULL constraint failed: .*\.(\w+)", text):
        if found[1] in ("name", "prefix", "request_id"):
            return SqlError(400, 4000, "SQLParseException[A primary key value must not be NULL]")
        return SqlError(400, 4000, f'SQLParseException["{found[1]}" must not be null]')
    if "UNIQUE constraint failed" in text:
        message = "DuplicateKeyException[A document with the same primary key exists already]"
        return SqlError(409, 4091, message)
    if "cannot store TEXT" in text or "datatype mismatch" in text or "user-defined function" in text:
        return SqlError(400, 4000, "SQLParseException[Cannot cast value `…` to type `bigint`]")
    if "cannot store REAL" in text:
        return SqlError(400, 4000, "SQLParseException[long overflow]")
    return UnknownStatement(text)
