"""Opens a SQLite file: creates idalloc's tables, adopts the guide's, refuses other databases."""

import os
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.permissions import make_folder, sync_folder
from idalloc_server.store.sqlite.errors import is_busy
from idalloc_server.store.sqlite.files import DatabaseFiles, create_file
from idalloc_server.store.sqlite.locks import check_locks

# PRAGMA application_id of the store ("idlc"), the documents ("idld") and the witness ("idlw").
APPLICATION_ID = 0x69646C63
DOCUMENTS_ID = 0x69646C64
WITNESS_ID = 0x69646C77
_OWNERS = {
    APPLICATION_ID: "a store of idalloc",
    DOCUMENTS_ID: "a file of documents of idalloc",
    WITNESS_ID: "a witness of idalloc",
}

# PRAGMA user_version; it increases with each change that older servers cannot read.
_SCHEMA_VERSION = 0

# `writes` counts idalloc's writes of a row. Only it and last_value together show whether a row
# changed: a renewal keeps the value, and a tail that is given back returns to an earlier one.
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
    "demand": "TEXT",
}
# The columns that are never NULL in a row that idalloc creates.
_WRITTEN = ("name", "last_value", "step", "min_value", "max_value", "generation", "settings")
_START_TIMESTAMPS = "prefix INTEGER PRIMARY KEY, last_start INTEGER NOT NULL, holder TEXT, seen_at REAL"
_ALLOCATIONS = (
    "request_id TEXT PRIMARY KEY, sequence TEXT NOT NULL, first_id INTEGER NOT NULL, id_count INTEGER NOT NULL,"
    " step INTEGER NOT NULL, generation INTEGER NOT NULL, period TEXT NOT NULL, prefix INTEGER NOT NULL,"
    " node TEXT NOT NULL, written_at REAL NOT NULL, window_ms INTEGER"
)


def connect(
    path: Path, busy_timeout: float, create_tables: Callable[[sqlite3.Connection, Path], None]
) -> tuple[sqlite3.Connection, DatabaseFiles]:
    """Open a database, and create the file and its folder if they are missing.

    Every commit reaches the disk. Safe for concurrent calls of several processes. A statement waits
    for ``busy_timeout`` seconds while another process writes. ``create_tables`` creates the tables
    that are missing, and refuses another program's database.

    Returns:
        The connection, and its files, which must be closed after it.

    Raises:
        StartRefused: The file is not idalloc's, is empty, is missing beside its write-ahead log, is
            on a file system without locks, or has another name, or another process uses it with
            other files beside it. The file was not changed.
        sqlite3.Error: SQLite cannot use the file.
        OSError: The folder cannot be created.
    """
    real_path = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop of links
    folders = _make_folder(real_path.parent)
    check_locks(real_path)
    create_file(real_path, partial(_new_content, path, create_tables))
    with ExitStack() as opened:
        files = DatabaseFiles(path, real_path)
        opened.callback(files.close)
        db = sqlite3.connect(real_path, timeout=busy_timeout, isolation_level=None)
        opened.callback(db.close)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA fullfsync = ON")  # macOS: flush the drive's own cache too
        # Before any write, which could overwrite the log of a process with another lock file.
        claimed = _journal_mode(db) == "wal"
        if claimed:
            files.claim()
        create_tables(db, path)
        _switch_to_wal(db, path, time.monotonic() + busy_timeout)
        if not claimed:
            _journal_mode(db)
            files.claim()
        for folder in folders:
            sync_folder(folder)
        opened.pop_all()
    return db, files


def _new_content(path: Path, create_tables: Callable[[sqlite3.Connection, Path], None]) -> bytes:
    """Return the content of a database with its tables and no row."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        create_tables(db, path)
        return db.serialize()


def roll_back(db: sqlite3.Connection) -> None:
    """End a transaction, if one is open."""
    with suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


def _journal_mode(db: sqlite3.Connection) -> str:
    """Return the journal mode.

    The read creates ``-wal`` and ``-shm``, which stay until the last process closes.
    """
    db.execute("PRAGMA schema_version").fetchone()
    mode: str = db.execute("PRAGMA journal_mode").fetchone()[0]
    return mode


def _make_folder(folder: Path) -> list[Path]:
    """Create a folder if it is missing.

    Returns:
        The folders whose entries must reach the disk before the file in it is durable.
    """
    if folder.is_dir():
        return [folder]
    make_folder(folder)
    return [folder, *folder.parents]


def create_own_tables(
    db: sqlite3.Connection, path: Path, application_id: int, tables: Collection[str], next_step: str
) -> None:
    """Create the tables of a database that has no counters, from their definitions.

    Raises:
        StartRefused: It is another program's, or has other tables of idalloc; the error ends with
            ``next_step``.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        found = db.execute("PRAGMA application_id").fetchone()[0]
        if found != application_id and db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            owner = _OWNERS.get(found, "a SQLite database of another program")
            raise StartRefused("store", f"{path} is {owner}; {next_step}")
        for table in tables:
            db.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        db.execute(f"PRAGMA application_id = {application_id}")
        db.execute("COMMIT")
    finally:
        roll_back(db)


def create_tables(db: sqlite3.Connection, path: Path) -> None:
    """Create the tables of the counters, or adopt the guide's two-column table.

    Raises:
        StartRefused: The database is not idalloc's.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        columns = _check_database(db, path)
        definition = ", ".join(f"{name} {kind}" for name, kind in _SEQUENCES.items())
        db.execute(f"CREATE TABLE IF NOT EXISTS sequences ({definition})")
        for name, kind in _SEQUENCES.items():
            if columns and name not in columns:
                db.execute(f"ALTER TABLE sequences ADD COLUMN {name} {kind}")
        db.execute(f"CREATE TABLE IF NOT EXISTS start_timestamps ({_START_TIMESTAMPS})")
        db.execute(f"CREATE TABLE IF NOT EXISTS allocations ({_ALLOCATIONS})")
        if "window_ms" not in {name for _, name, *_ in db.execute("PRAGMA table_info(allocations)")}:
            db.execute("ALTER TABLE allocations ADD COLUMN window_ms INTEGER")
        db.execute("CREATE INDEX IF NOT EXISTS allocations_written_at ON allocations (written_at)")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    finally:
        roll_back(db)


def _check_database(db: sqlite3.Connection, path: Path) -> set[str]:
    """Return the columns of the table of sequences, if any; refuse another program's database."""
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    tables = {
        name
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    }
    columns = {name: key for _, name, _, _, _, key, _ in db.execute("PRAGMA table_xinfo(sequences)")}
    is_ours = application_id == APPLICATION_ID or (application_id == 0 and tables <= {"sequences"})
    keys = [name for name, key in columns.items() if key]
    if not is_ours or (columns and (keys != ["name"] or "last_value" not in columns)):
        raise StartRefused("store", f"{path} is a SQLite database of another program; choose another file")
    if (version := db.execute("PRAGMA user_version").fetchone()[0]) > _SCHEMA_VERSION:
        raise StartRefused(
            "store",
            f"{path} was written by a newer idalloc: its user_version is {version}, and this server supports "
            f"{_SCHEMA_VERSION}; upgrade this server",
        )
    _check_columns(db, path)
    return set(columns)


def _check_columns(db: sqlite3.Connection, path: Path) -> None:
    """Refuse an adopted table with a column on which idalloc's statements would fail."""
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
    """Switch the file to write-ahead logging, for every process."""
    mode = None
    while mode is None:
        try:
            mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            # The busy timeout of SQLite does not apply here.
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StartRefused(
            "store", f"the file system of {path} does not allow SQLite's write-ahead log; choose a local disk"
        )
