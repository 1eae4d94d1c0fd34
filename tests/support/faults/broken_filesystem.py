"""Runs the real server as on a file system that SQLite cannot use safely.

python -m tests.support.faults.broken_filesystem --lacks locks|memory [the server's own flags]

``locks``: every lock request succeeds. ``memory``: files cannot be mapped as shared memory, as on
network file systems.
"""

import fcntl
import runpy
import sqlite3
import sys
from typing import Any

_connect = sqlite3.connect


def _grant_all(*_: object) -> bytes:
    return b""


def _connect_without_memory(path: object, **options: Any) -> sqlite3.Connection:
    # SQLite's VFS unix-none has neither shared memory nor locks.
    connection: sqlite3.Connection = _connect(f"file:{path}?vfs=unix-none", uri=True, **options)
    return connection


if __name__ == "__main__":
    at = sys.argv.index("--lacks")
    _, lacks = sys.argv[at : at + 2]
    del sys.argv[at : at + 2]
    if lacks == "locks":
        fcntl.fcntl = _grant_all  # type: ignore[assignment]
    else:
        sqlite3.connect = _connect_without_memory  # type: ignore[assignment]
    runpy.run_module("idalloc_server", run_name="__main__")
