"""The witness in one SQLite file."""

import sqlite3
from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement
from idalloc_server.store.sqlite.database import Database
from idalloc_server.store.sqlite.schema import WITNESS_ID, create_own_tables
from idalloc_server.store.witness import is_on_same_disk, parse_mark, refused_as_witness

_log = structlog.get_logger(__name__)

_BUSY_TIMEOUT = 5.0
_TABLES = (
    "marks (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, value INTEGER NOT NULL, step INTEGER NOT NULL,"
    " token TEXT NOT NULL, gaps TEXT NOT NULL) WITHOUT ROWID",
)
_create_tables = partial(create_own_tables, application_id=WITNESS_ID, tables=_TABLES, next_step="name another file")
_READ = "SELECT generation, value, step, token, gaps FROM marks WHERE name = ?"
_REPLACE = (
    "INSERT INTO marks (name, generation, value, step, token, gaps) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
    " ON CONFLICT (name) DO UPDATE SET generation = excluded.generation, value = excluded.value,"
    " step = excluded.step, token = excluded.token, gaps = excluded.gaps WHERE token = ?7"
)
_LIST = "SELECT name, generation, value, step, token, gaps FROM marks WHERE name > ? ORDER BY name LIMIT ?"


@dataclass(eq=False)
class SqliteWitness:
    """A witness in one file; see ``Witness``.

    Each call is one transaction, and a commit survives a power cut.
    """

    path: Path  # the file; it and its folder are created if they are missing
    store: Path | None = None  # the file of the store, if it is one
    busy_timeout: float = _BUSY_TIMEOUT  # how long a transaction waits for other writers, in seconds

    def __post_init__(self) -> None:
        self.address = f"sqlite://{self.path}"
        self._database = Database(self.path, self.busy_timeout, _create_tables)

    async def open(self) -> None:
        """See ``Witness.open``. Logs a warning if the witness is on the disk of the store."""
        with refused_as_witness():
            await self._database.open()
        if self.store is not None and is_on_same_disk(self.path, self.store):
            _log.warning(
                "witness_on_the_stores_disk",
                witness=str(self.path),
                store=str(self.store),
                next_step="name a file on another disk in the setting witness",
            )

    async def read(self, names: Collection[str]) -> dict[str, Mark]:
        rows = await self._database.read(lambda db: {name: db.execute(_READ, (name,)).fetchone() for name in names})
        return {name: parse_mark(name, fields) for name, fields in rows.items() if fields}

    async def replace(self, replacements: Many[Replacement]) -> set[str]:
        def work(db: sqlite3.Connection) -> set[str]:
            db.executemany(_REPLACE, [(name, *mark, seen) for name, mark, seen in replacements])
            return {name for name, mark, _ in replacements if db.execute(_READ, (name,)).fetchone()[3] == mark.token}

        return await self._database.write(work)

    async def list(self, after: str, limit: int) -> list[tuple[str, Mark]]:
        rows = await self._database.read(lambda db: db.execute(_LIST, (after, limit)).fetchall())
        return [(name, parse_mark(name, fields)) for name, *fields in rows]

    async def forget(self, names: Collection[str]) -> int:
        keys = [(name,) for name in names]
        return await self._database.write(lambda db: db.executemany("DELETE FROM marks WHERE name = ?", keys).rowcount)

    async def close(self) -> None:
        await self._database.close()
