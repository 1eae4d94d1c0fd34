"""The recorded allocations of requests with a request_id, in SQLite."""

# ruff: noqa: S608 - only names of columns and placeholders are inserted into statements

import sqlite3
from collections.abc import Sequence as Many

from idalloc_server.domain.store.records import RecordedAllocation, RecordedEnd
from idalloc_server.domain.store.retention import RecordPosition, Retention

# The least distance between the times of two records, in seconds; a REAL has finer ones.
_MIN_DISTANCE = 0.001
_COLUMNS = ", ".join(RecordedAllocation._fields)
_VALUES = ", ".join("?" for _ in RecordedAllocation._fields)


def record(db: sqlite3.Connection, allocations: Many[RecordedAllocation], now: float) -> dict[str, RecordedAllocation]:
    """See ``Store.record``.

    ``written_at`` is the clock, but always later than in all other rows, even if the clock was set
    back: pruning relies on this order.
    """
    [highest] = db.execute("SELECT max(written_at) FROM allocations").fetchone()
    at = now if highest is None else max(now, highest + _MIN_DISTANCE)
    db.executemany(
        f"INSERT INTO allocations ({_COLUMNS}, written_at) VALUES ({_VALUES}, ?) ON CONFLICT (request_id) DO NOTHING",
        [(*allocation, at) for allocation in allocations],
    )
    stored = (recorded(db, allocation.request_id) for allocation in allocations)
    return {allocation.request_id: allocation for allocation in stored if allocation}


def keep_copy(db: sqlite3.Connection, copy: RecordedAllocation) -> None:
    """Write the copy of the store's name."""
    db.execute(
        f"INSERT INTO allocations ({_COLUMNS}, written_at) VALUES ({_VALUES}, 0)"
        " ON CONFLICT (request_id) DO UPDATE SET sequence = excluded.sequence",
        copy,
    )


def recorded(db: sqlite3.Connection, request_id: str) -> RecordedAllocation | None:
    """See ``Store.recorded``."""
    found = db.execute(f"SELECT {_COLUMNS} FROM allocations WHERE request_id = ?", (request_id,)).fetchone()
    return RecordedAllocation._make(found) if found else None


def newest(db: sqlite3.Connection) -> RecordPosition | None:
    """See ``Store.newest_recorded``."""
    [highest] = db.execute("SELECT max(written_at) FROM allocations").fetchone()
    return RecordPosition(highest, written_at=highest) if highest else None


def ends(db: sqlite3.Connection) -> list[RecordedEnd]:
    """See ``Store.recorded_ends``."""
    last = "first_id + (id_count - 1) * step"
    return [
        RecordedEnd(sequence, period, step, last_id)
        for sequence, period, step, last_id in db.execute(
            f"SELECT sequence, period, step, CASE WHEN step > 0 THEN max({last}) ELSE min({last}) END"
            " FROM allocations WHERE written_at > 0 GROUP BY sequence, period, step"
        )
    ]


def count(db: sqlite3.Connection, limit: int) -> int:
    """See ``Store.count_recorded``."""
    [found] = db.execute(
        "SELECT count(*) FROM (SELECT 1 FROM allocations WHERE written_at > 0 LIMIT ?)", (limit,)
    ).fetchone()
    return int(found)


def forget(db: sqlite3.Connection, retention: Retention, limit: int) -> int:
    """See ``Store.forget_recorded``.

    The rows with the newest time stay, since ``record`` continues from it.
    """
    oldest = db.execute(
        "SELECT request_id, written_at, window_ms FROM allocations"
        " WHERE written_at > 0 AND written_at <= ? AND written_at < (SELECT max(written_at) FROM allocations)"
        " ORDER BY written_at LIMIT ?",
        (retention.last.number, limit),
    ).fetchall()
    expired = [(request_id,) for request_id, at, window_ms in oldest if retention.is_over(at, 0, window_ms)]
    db.executemany("DELETE FROM allocations WHERE request_id = ?", expired)
    return len(expired)
