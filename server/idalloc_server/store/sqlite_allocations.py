"""What was answered to requests with a request id, in SQLite."""

# ruff: noqa: S608 - only names of columns and question marks get into a statement

import sqlite3
from collections.abc import Sequence as Many

from idalloc_server.domain.store import Allocation

_COLUMNS = ", ".join(Allocation._fields)
_MARKS = ", ".join("?" for _ in Allocation._fields)


def record(db: sqlite3.Connection, allocations: Many[Allocation], now: float) -> dict[str, Allocation]:
    """See ``Store.record``."""
    db.executemany(
        f"INSERT INTO allocations ({_COLUMNS}, written_at) VALUES ({_MARKS}, ?) ON CONFLICT (request_id) DO NOTHING",
        [(*allocation, now) for allocation in allocations],
    )
    standing = (recorded(db, allocation.request_id) for allocation in allocations)
    return {allocation.request_id: allocation for allocation in standing if allocation}


def recorded(db: sqlite3.Connection, request_id: str) -> Allocation | None:
    """See ``Store.recorded``."""
    found = db.execute(f"SELECT {_COLUMNS} FROM allocations WHERE request_id = ?", (request_id,)).fetchone()
    return Allocation(*found) if found else None


def forget(db: sqlite3.Connection, before: float, most: int) -> int:
    """Removes up to ``most`` of those that were written down before a time; returns how many it were."""
    return db.execute(
        "DELETE FROM allocations WHERE request_id IN"
        " (SELECT request_id FROM allocations WHERE written_at < ? ORDER BY written_at LIMIT ?)",
        (before, most),
    ).rowcount
