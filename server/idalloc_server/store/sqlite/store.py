"""The store in one SQLite file, shared by processes on one machine."""

import sqlite3
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreExchanged
from idalloc_server.domain.sequences.model import Sequence
from idalloc_server.domain.store.identity import ANY_STORE, IDENTITY, Opening, check_place
from idalloc_server.domain.store.records import (
    NO_FLOOR,
    Claim,
    Demand,
    Grant,
    GrantFloor,
    RecordedAllocation,
    RecordedEnd,
    Revision,
    Row,
    RowVersion,
)
from idalloc_server.domain.store.retention import RecordPosition, Retention
from idalloc_server.store.sqlite import recorded, rows, schema
from idalloc_server.store.sqlite.database import Database
from idalloc_server.store.sqlite.files import FilesChanged

_BUSY_TIMEOUT = 5.0


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
        self.opened: Mapping[str, str] = {}
        self._database = Database(self.path, self.busy_timeout)

    @property
    def address(self) -> str:
        return f"sqlite://{self.path}"

    async def open(self, opening: Opening = ANY_STORE) -> None:
        self._database.create_tables = partial(schema.create_tables, opening=opening)
        await self._database.open(creates=opening.creates)
        row = await self.get(IDENTITY)
        self.opened = {"name": row.sequence.description if row else "", "file": self._database.inode}
        check_place(opening, self.opened)

    async def grant(
        self, name: str, wanted: int, lease_ms: int, floor: GrantFloor = NO_FLOOR, demand: Demand | None = None
    ) -> Grant | None:
        return await self._grant(partial(rows.grant, name, wanted, lease_ms, floor, demand))

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: GrantFloor = NO_FLOOR
    ) -> Grant | None:
        return await self._grant(partial(rows.grant_timestamps, name, wanted, lease_ms, now, ahead, floor))

    async def _grant(self, work: Callable[[sqlite3.Connection], Grant | None]) -> Grant | None:
        try:
            return await self._database.transact_together(work)
        except FilesChanged as error:
            raise StoreExchanged(f"the file {self.path}", error.found) from error

    async def create(self, row: Row) -> Row:
        return await self._database.join(lambda db: rows.create(db, row))

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        await self._database.join(lambda db: rows.open_period(db, name, sequence, at_least, generation))

    async def get(self, name: str) -> Row | None:
        return await self._database.read(lambda db: rows.get(db, name))

    async def list(self, prefix: str, after: str, limit: int, *, with_deleted: bool, with_periods: bool) -> list[Row]:
        return await self._database.read(
            lambda db: rows.list_rows(db, prefix, after, limit, with_deleted=with_deleted, with_periods=with_periods)
        )

    async def revise(self, name: str, revision: int, change: Revision) -> Row | None:
        return await self._database.write(lambda db: rows.revise(db, name, revision, change))

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        return await self._database.write(lambda db: recorded.record(db, allocations, self.clock.wall()))

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        return await self._database.read(lambda db: recorded.recorded(db, request_id))

    async def newest_recorded(self) -> RecordPosition | None:
        return await self._database.read(recorded.newest)

    async def recorded_ends(self) -> Many[RecordedEnd]:
        return await self._database.read(recorded.ends)

    async def count_recorded(self, limit: int) -> int:
        return await self._database.read(lambda db: recorded.count(db, limit))

    async def forget_recorded(self, retention: Retention, limit: int) -> int:
        return await self._database.write(lambda db: recorded.forget(db, retention, limit))

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool:
        return await self._database.join(lambda db: rows.give_back(db, name, count, version))

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
