"""Makes idalloc's tables in a SQLite file, adopts the two-column table, and refuses a file of something else."""

import os
import sqlite3
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.permissions import make_folder
from idalloc_server.store.sqlite.errors import is_busy
from idalloc_server.store.sqlite.files import DatabaseFiles
from idalloc_server.store.sqlite.locks import check_locks

APPLICATION_ID = 0x69646C63  # "idlc": whose file it is

# PRAGMA user_version of a file; it grows with a change that older servers cannot read.
_SCHEMA_VERSION = 0

# `writes` counts the writes of idalloc to a row. With last_value it tells whether anyone wrote it: the value alone
# does not, since it comes back to what it was when another process gives its tail back, or stays where it renews.
_SEQUENCES = {
    "name": "TEXT PRIMARY KEY",
    "last_value": "INTEGER",
    "step": "INTEGER",
    "min_value": "INTEGER",
    "max_value": "INTEGER",
    "generation": "INTEGER",
    "lease_ms": "INTEGER",
    "writes": "INTEGER",
    "settings": "TEXT",
    "mode": "TEXT",
    "rev": "INTEGER",
    "rev_by": "TEXT",
    "created_at": "REAL",
    "changed_at": "REAL",
}
# The columns that get a value in every row that idalloc makes.
_WRITTEN = ("name", "last_value", "step", "min_value", "max_value", "generation", "settings")
_STARTS = "prefix INTEGER PRIMARY KEY, last_start INTEGER NOT NULL, holder TEXT, seen_at REAL"
_ALLOCATIONS = (
    "request_id TEXT PRIMARY KEY, sequence TEXT NOT NULL, first_id INTEGER NOT NULL, id_count INTEGER NOT NULL,"
    " step INTEGER NOT NULL, generation INTEGER NOT NULL, period TEXT NOT NULL, prefix INTEGER NOT NULL,"
    " node TEXT NOT NULL, written_at REAL NOT NULL, window_ms INTEGER"
)


def connect(path: Path, busy_timeout: float) -> tuple[sqlite3.Connection, DatabaseFiles]:
    """Opens a file, making it and its folder where they are missing; every commit then reaches the disk.

    Any number of processes may do this at once.

    Args:
        path: The file.
        busy_timeout: How long a statement waits while another process writes, in seconds.

    Returns:
        The connection, and its files, which are to be closed after it.

    Raises:
        StartRefused: The file is of something else, on a file system that keeps no locks, or has another name or other
            files beside it for another process; nothing in it was changed.
        sqlite3.Error: It cannot be used.
        OSError: Its folder cannot be made.
    """
    real_path = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for links in a circle
    made = _make_folder(real_path.parent)
    check_locks(real_path)
    with ExitStack() as opened:
        files = DatabaseFiles(path, real_path)
        opened.callback(files.close)
        db = sqlite3.connect(real_path, timeout=busy_timeout, isolation_level=None)
        opened.callback(db.close)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA fullfsync = ON")  # macOS: flush the drive's own cache too
        # Before anything is written: it would go over what a process with another lock writes to the same log.
        claimed = _mode(db) == "wal"
        if claimed:
            files.claim()
        _make_tables(db, path)
        _switch_to_wal(db, path, time.monotonic() + busy_timeout)
        if not claimed:
            _mode(db)
            files.claim()
        for folder in made:
            _sync(folder)
        opened.pop_all()
    return db, files


def roll_back(db: sqlite3.Connection) -> None:
    """Ends a transaction, if one is open."""
    with suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


def _mode(db: sqlite3.Connection) -> str:
    """Returns the journal's mode. Reading makes ``-wal`` and ``-shm``, which stay until the last process closes."""
    db.execute("PRAGMA schema_version").fetchone()
    mode: str = db.execute("PRAGMA journal_mode").fetchone()[0]
    return mode


def _make_folder(folder: Path) -> list[Path]:
    """Makes a folder where it is missing.

    Returns:
        The folders whose entries must reach the disk before the file in it is durable.
    """
    if folder.is_dir():
        return [folder]
    make_folder(folder)
    return [folder, *folder.parents]


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system, or a parent, that does not allow it
            os.fsync(handle)
    finally:
        os.close(handle)


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        columns = _check_ours(db, path)
        definition = ", ".join(f"{name} {kind}" for name, kind in _SEQUENCES.items())
        db.execute(f"CREATE TABLE IF NOT EXISTS sequences ({definition})")
        for name, kind in _SEQUENCES.items():
            if columns and name not in columns:
                db.execute(f"ALTER TABLE sequences ADD COLUMN {name} {kind}")
        db.execute(f"CREATE TABLE IF NOT EXISTS start_timestamps ({_STARTS})")
        db.execute(f"CREATE TABLE IF NOT EXISTS allocations ({_ALLOCATIONS})")
        if "window_ms" not in {name for _, name, *_ in db.execute("PRAGMA table_info(allocations)")}:
            db.execute("ALTER TABLE allocations ADD COLUMN window_ms INTEGER")
        db.execute("CREATE INDEX IF NOT EXISTS allocations_written_at ON allocations (written_at)")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    finally:
        roll_back(db)


def _check_ours(db: sqlite3.Connection, path: Path) -> set[str]:
    """Returns the columns that the table of sequences has, none where there is no table yet."""
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    tables = {
        name
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    }
    columns = {name: key for _, name, _, _, _, key, _ in db.execute("PRAGMA table_xinfo(sequences)")}
    ours = application_id == APPLICATION_ID or (application_id == 0 and tables <= {"sequences"})
    keys = [name for name, key in columns.items() if key]
    if not ours or (columns and (keys != ["name"] or "last_value" not in columns)):
        raise StartRefused(
            "store",
            f"{path} is a SQLite database of something else than idalloc; choose another file",
        )
    if (version := db.execute("PRAGMA user_version").fetchone()[0]) > _SCHEMA_VERSION:
        raise StartRefused(
            "store",
            f"{path} was written by a newer idalloc: its user_version is {version}, and this one knows "
            f"{_SCHEMA_VERSION}; upgrade this server",
        )
    _check_columns(db, path)
    return set(columns)


def _check_columns(db: sqlite3.Connection, path: Path) -> None:
    """Refuses an adopted table on which idalloc's statements would fail."""
    for _, name, _, not_null, default, _, hidden in db.execute("PRAGMA table_xinfo(sequences)"):
        if hidden and name in _SEQUENCES:
            why = "is generated, and idalloc writes it"
        elif not_null and default is None and not hidden and name not in _WRITTEN:
            why = "is NOT NULL without a default, and idalloc does not write it in every row"
        else:
            continue
        raise StartRefused(
            "store",
            f"the column {name} of the table sequences in {path} {why}: run ALTER TABLE sequences DROP COLUMN {name}",
        )


def _switch_to_wal(db: sqlite3.Connection, path: Path, deadline: float) -> None:
    """Switches to write-ahead logging, which stays so for every process."""
    mode = None
    while mode is None:
        try:
            mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            # SQLite itself does not wait for other processes here.
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StartRefused(
            "store", f"the file system of {path} does not allow SQLite's write-ahead log; choose a local disk"
        )
