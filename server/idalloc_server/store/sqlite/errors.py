"""SQLite's errors: which of them recover by themselves. docs/runbook.md lists them."""

import sqlite3
from pathlib import Path

from idalloc_server.domain.errors import StoreFailure, StoreRefused, StoreRejected

_NEW_TABLES = "stop all servers of the file, and restore it from a backup or an export"
# What an operator must do; everything else (busy, a full disk, an I/O error, no memory) may recover by itself.
_NEXT_STEPS = {
    sqlite3.SQLITE_READONLY: "make the file, its folder and its disk writable for the user of this server",
    sqlite3.SQLITE_PERM: "make the file, its folder and its disk writable for the user of this server",
    sqlite3.SQLITE_CORRUPT: _NEW_TABLES,
    sqlite3.SQLITE_NOTADB: _NEW_TABLES,
    sqlite3.SQLITE_ERROR: f"a table or column is missing: {_NEW_TABLES}",
    sqlite3.SQLITE_CONSTRAINT: "remove that constraint or trigger from the table sequences",
    sqlite3.SQLITE_MISMATCH: "remove the value that has another type from that row",
}


def failure_of(path: Path, error: sqlite3.Error | OverflowError) -> StoreFailure:
    """Returns the error of a transaction that was not applied."""
    message = f"SQLite at {path}: {error}"
    next_step = _NEXT_STEPS.get(code(error) & 0xFF)
    if next_step is None:
        return StoreRejected(message, code=code(error))
    return StoreRefused(f"{message}; {next_step}", code=code(error))


def is_busy(error: Exception) -> bool:
    """Whether an error says no more than that another process is writing."""
    return code(error) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def code(error: Exception) -> int:
    """Returns SQLite's extended result code; 0 for an error of Python's own."""
    return getattr(error, "sqlite_errorcode", None) or 0
