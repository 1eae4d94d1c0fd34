"""Classifies SQLite's errors: may the statement succeed later, or must an operator act?

docs/operations/runbook.md lists them.
"""

import sqlite3
from pathlib import Path

from idalloc_server.domain.errors import StoreAnsweredError, StoreFailure, StoreRefused

_RESTORE = "stop all servers of the file, and restore it from a backup or an export"
# Errors that last until an operator acts; all others (busy, full disk, I/O error) may recover.
_NEXT_STEPS = {
    sqlite3.SQLITE_READONLY: "make the file, its folder and its disk writable for the user of this server",
    sqlite3.SQLITE_PERM: "make the file, its folder and its disk writable for the user of this server",
    sqlite3.SQLITE_CORRUPT: _RESTORE,
    sqlite3.SQLITE_NOTADB: _RESTORE,
    sqlite3.SQLITE_ERROR: f"a table or column is missing: {_RESTORE}",
    sqlite3.SQLITE_CONSTRAINT: "remove that constraint or trigger from the table sequences",
    sqlite3.SQLITE_MISMATCH: "remove the value that has another type from that row",
}


def failure_of(path: Path, error: sqlite3.Error | OverflowError) -> StoreFailure:
    """Return the failure of a transaction that was not applied."""
    message = f"SQLite at {path}: {error}"
    next_step = _NEXT_STEPS.get(code(error) & 0xFF)
    if next_step is None:
        return StoreAnsweredError(message, code=code(error))
    return StoreRefused(f"{message}; {next_step}", code=code(error))


def is_busy(error: Exception) -> bool:
    """Whether the error means only that another process is writing."""
    return code(error) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def code(error: Exception) -> int:
    """Return SQLite's extended result code (https://www.sqlite.org/rescode.html), or 0."""
    return getattr(error, "sqlite_errorcode", None) or 0
