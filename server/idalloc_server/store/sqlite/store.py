"""The store in one SQLite file, shared by processes on one machine."""

import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreExchanged
from idalloc_server.domain.store.identity import ANY_STORE, IDENTITY, Opening, check_place
from idalloc_server.domain.store.records import Claim, RecordedAllocation
from idalloc_server.store.sqlite import allocation_rows, rows, schema
from idalloc_server.store.sqlite.database import Database
from idalloc_server.store.sqlite.files import FilesChanged

_BUSY_TIMEOUT = 5.0


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _transaction(
    run: Callable[[Database, Callable[[sqlite3.Connection], _T]], Awaitable[_T]],
    work: Callable[Concatenate[sqlite3.Connection, _P], _T],
) -> Callable[Concatenate["SqliteStore", _P], Coroutine[Any, Any, _T]]:
    """Return the method that runs ``work`` in a transaction of the store's file."""

    async def call(self: "SqliteStore", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await run(self._database, lambda db: work(db, *args, **kwargs))

    return call


async def _grant(database: Database, work: Callable[[sqlite3.Connection], _T]) -> _T:
    try:
        return await database.transact_together(work)
    except FilesChanged as error:
        raise StoreExchanged(f"the file {database.path}", error.found) from error


@dataclass(eq=False)
class SqliteStore:
    """A store in one file; see ``Store``.

    An acknowledged write survives a power cut. All transactions run one after another on their own
    thread. A cancelled call is dropped if its transaction has not begun; otherwise the transaction
    completes.
    """

    path: Path  # the file; it and its folder are created if they are missing
    clock: Clock  # for the times of prefix holders and recorded allocations
    busy_timeout: float = _BUSY_TIMEOUT  # how long a transaction waits for other writers, in seconds

    def __post_init__(self) -> None:
        self.address = f"sqlite://{self.path}"
        self.opened: Mapping[str, str] = {}
        self._database = Database(self.path, self.busy_timeout)

    async def open(self, opening: Opening = ANY_STORE) -> None:
        self._database.create_tables = partial(schema.create_tables, opening=opening)
        await self._database.open(creates=opening.creates)
        row = await self.get(IDENTITY)
        self.opened = {"name": row.sequence.description if row else "", "file": self._database.inode}
        check_place(opening, self.opened)

    grant = _transaction(_grant, rows.grant)
    grant_timestamps = _transaction(_grant, rows.grant_timestamps)
    create = _transaction(Database.join, rows.create)
    open_period = _transaction(Database.join, rows.open_period)
    get = _transaction(Database.read, rows.get)
    list = _transaction(Database.read, rows.list_rows)
    revise = _transaction(Database.write, rows.revise)
    give_back = _transaction(Database.join, rows.give_back)
    recorded = _transaction(Database.read, allocation_rows.recorded)
    newest_recorded = _transaction(Database.read, allocation_rows.newest)
    recorded_ends = _transaction(Database.read, allocation_rows.ends)
    count_recorded = _transaction(Database.read, allocation_rows.count)
    forget_recorded = _transaction(Database.write, allocation_rows.forget)

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        return await self._database.write(lambda db: allocation_rows.record(db, allocations, self.clock.wall()))

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        def work(db: sqlite3.Connection) -> Claim:
            rows.check_retired(db)
            found = db.execute("SELECT last_start FROM start_timestamps WHERE prefix = ?", (prefix,)).fetchone()
            start = at_least if found is None else max(at_least, found[0] + 1)
            db.execute(
                "INSERT INTO start_timestamps (prefix, last_start) VALUES (?, ?)"
                " ON CONFLICT (prefix) DO UPDATE SET last_start = excluded.last_start",
                (prefix, start),
            )
            self._set_holder(db, prefix, holder, stale_after)
            held_by, seen_at = db.execute(
                "SELECT holder, seen_at FROM start_timestamps WHERE prefix = ?", (prefix,)
            ).fetchone()
            return Claim(start, held_by, seen_at)

        return await self._database.write(work)

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        await self._database.write(lambda db: self._set_holder(db, prefix, holder, stale_after))

    async def release_prefix(self, prefix: int, holder: str) -> None:
        await self._database.write(
            lambda db: db.execute(
                "UPDATE start_timestamps SET holder = NULL WHERE prefix = ? AND holder = ?", (prefix, holder)
            )
        )

    async def claimed_starts(self) -> dict[int, int]:
        return await self._database.read(
            lambda db: dict(db.execute("SELECT prefix, last_start FROM start_timestamps").fetchall())
        )

    async def raise_start(self, prefix: int, last_start: int) -> None:
        await self._database.write(
            lambda db: db.execute(
                "INSERT INTO start_timestamps (prefix, last_start) VALUES (?, ?)"
                " ON CONFLICT (prefix) DO UPDATE SET last_start = max(last_start, excluded.last_start)",
                (prefix, last_start),
            )
        )

    async def now(self) -> float | None:
        return None

    async def close(self) -> None:
        await self._database.close()

    def _set_holder(self, db: sqlite3.Connection, prefix: int, holder: str, stale_after: float) -> None:
        now = self.clock.wall()
        db.execute(
            "UPDATE start_timestamps SET holder = ?, seen_at = ? WHERE prefix = ?"
            " AND (holder IS NULL OR holder = ? OR seen_at IS NULL OR seen_at + ? <= ?)",
            (holder, now, prefix, holder, stale_after, now),
        )
