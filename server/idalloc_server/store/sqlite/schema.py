"""Opens a SQLite file: creates idalloc's tables, adopts the guide's, refuses other databases."""

# ruff: noqa: S608 - only names of tables and columns are inserted into statements

import os
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from errno import ENOENT
from pathlib import Path

from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.store.identity import (
    ALLOCATIONS,
    IDENTITY,
    NAME_COLUMN,
    REPAIR,
    SEQUENCES,
    START_TIMESTAMPS,
    Opening,
    Part,
    name_in,
)
from idalloc_server.store.permissions import make_folder, sync_folder
from idalloc_server.store.sqlite.failures import is_busy
from idalloc_server.store.sqlite.files import DatabaseFiles, check_locks, create_file, is_there

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
# SQLite overwrites its log from the start after some 1,000 pages: 4.1 MB.
_LOG_BYTES = 4_500_000

# `writes` counts idalloc's writes of a row. Only it and last_value together show whether a row
# changed: a renewal keeps the value, and a tail that is given back returns to an earlier one.
_DEFINITIONS = {
    SEQUENCES: "name TEXT PRIMARY KEY, last_value INTEGER, step INTEGER, min_value INTEGER, max_value INTEGER,"
    " generation INTEGER, lease_ms INTEGER, writes INTEGER, settings TEXT, mode TEXT, rev INTEGER, rev_by TEXT,"
    " created_at REAL, changed_at REAL, demand TEXT",
    START_TIMESTAMPS: "prefix INTEGER PRIMARY KEY, last_start INTEGER NOT NULL, holder TEXT, seen_at REAL",
    ALLOCATIONS: "request_id TEXT PRIMARY KEY, sequence TEXT NOT NULL, first_id INTEGER NOT NULL,"
    " id_count INTEGER NOT NULL, step INTEGER NOT NULL, generation INTEGER NOT NULL, period TEXT NOT NULL,"
    " prefix INTEGER NOT NULL, node TEXT NOT NULL, written_at REAL NOT NULL, window_ms INTEGER",
}
# The type of each column, by table.
_TABLES = {
    table: {name: kind for name, _, kind in (column.partition(" ") for column in definition.split(", "))}
    for table, definition in _DEFINITIONS.items()
}
# The columns that are never NULL in a row that idalloc creates.
_WRITTEN = ("name", "last_value", "step", "min_value", "max_value", "generation", "settings")


def connect(
    path: Path, busy_timeout: float, create_tables: Callable[[sqlite3.Connection, Path], None], *, creates: bool
) -> tuple[sqlite3.Connection, DatabaseFiles]:
    """Open a database, and create the file and its folder if they are missing.

    Every commit reaches the disk. Safe for concurrent calls of several processes. A statement waits
    for ``busy_timeout`` seconds while another process writes. ``create_tables`` creates the tables
    that are missing, and refuses another program's database. Nothing is created unless ``creates``.

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
    folders = [real_path.parent] if creates else []  # whose entries must reach the disk
    if creates and not real_path.parent.is_dir():
        make_folder(real_path.parent)
        folders += real_path.parent.parents
    check_locks(real_path)
    if creates:
        create_file(real_path, lambda db: create_tables(db, path))
    elif not is_there(real_path):  # SQLite would delete a log without its file
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
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
        if creates:
            _extend_log(db, real_path.with_name(f"{real_path.name}-wal"))
        for folder in folders:
            sync_folder(folder)
        opened.pop_all()
    return db, files


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


def _extend_log(db: sqlite3.Connection, log: Path) -> None:
    """Give the log its final size with zeros, which SQLite ignores, so that commits overwrite it.

    On ext4 a commit that extends a file waits for a thread of the kernel: up to 4.5 s were seen.
    """
    db.execute("BEGIN IMMEDIATE")  # no other process appends a frame meanwhile
    try:
        with suppress(OSError), log.open("r+b", buffering=0) as file:  # such as a full disk
            file.write(bytes(max(0, _LOG_BYTES - file.seek(0, os.SEEK_END))))
            os.fsync(file.fileno())
    finally:
        roll_back(db)


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


def complete(db: sqlite3.Connection, name: str) -> None:
    """Create the tables and columns of the counters that are missing, for a store of this name."""
    for table, columns in _TABLES.items():
        named = {f"{NAME_COLUMN}{name}": "TEXT"} if table == START_TIMESTAMPS else {}
        definition = ", ".join(f"{column} {kind}" for column, kind in {**columns, **named}.items())
        db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({definition})")
        there = _columns(db, table)
        for column, kind in {**columns, **named}.items():
            if column not in there:
                db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind.removesuffix(' NOT NULL')}")
        for column in there:  # of another store, before a repair
            if name_in([column]) not in ("", name):
                db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    db.execute("CREATE INDEX IF NOT EXISTS allocations_written_at ON allocations (written_at)")
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def parts_of(db: sqlite3.Connection, path: Path) -> list[Part]:
    """Return what the database has of a store."""
    parts = []
    for table, wanted in _TABLES.items():
        there = _columns(db, table)
        store = ""
        has_rows = False
        if there:
            other = f"SELECT 1 FROM {table} WHERE {next(iter(wanted))} != ? LIMIT 1"
            has_rows = db.execute(other, (IDENTITY,)).fetchone() is not None
        if table == START_TIMESTAMPS:
            store = name_in(there)
        elif table == ALLOCATIONS and "sequence" in there:
            copy = db.execute("SELECT sequence FROM allocations WHERE request_id = ?", (IDENTITY,)).fetchone()
            store = copy[0] if copy else ""
        columns = wanted.keys() - {"demand"}  # which is a hint
        what = f"the table {table} in {path}"
        parts.append(Part(table, what, columns, columns - there, store=store, has_rows=has_rows))
    return parts


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {name for _, name, *_ in db.execute(f"PRAGMA table_xinfo({table})")}


def check_database(db: sqlite3.Connection, path: Path, opening: Opening) -> None:
    """Refuse another program's database, and one of idalloc that lost its sequences."""
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    tables = {
        name
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    }
    columns = db.execute("PRAGMA table_xinfo(sequences)").fetchall()
    is_ours = application_id == APPLICATION_ID or (application_id == 0 and tables <= {SEQUENCES})
    keys = [name for _, name, *_, key, _ in columns if key]
    if not is_ours or (columns and (keys != ["name"] or "last_value" not in _columns(db, SEQUENCES))):
        raise StartRefused("store", f"{path} is a SQLite database of another program; choose another file")
    if (version := db.execute("PRAGMA user_version").fetchone()[0]) > _SCHEMA_VERSION:
        raise StartRefused(
            "store",
            f"{path} was written by a newer idalloc: its user_version is {version}, and this server supports "
            f"{_SCHEMA_VERSION}; upgrade this server",
        )
    if application_id and not columns and not opening.repairs:
        raise StartRefused("store", f"the table sequences in {path} was lost; {REPAIR}")
    # idalloc's statements would fail on these columns of an adopted table.
    for _, name, _, not_null, default, _, hidden in columns:
        if hidden and name in _TABLES[SEQUENCES]:
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
