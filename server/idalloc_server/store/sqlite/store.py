"""The store in one SQLite file, shared by processes on one machine.

All arithmetic is in Python, because SQLite silently turns an integer that overflows into a REAL.
"""

# ruff: noqa: S608 - only names of columns and placeholders are inserted into statements

import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import NULL_LAST_VALUE, SequenceDeleted, SequenceInvalid, StoreExchanged
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Sequence
from idalloc_server.domain.store.identity import (
    ANY_STORE,
    IDENTITY,
    Opening,
    check_parts,
    check_place,
    copy_of,
    identity_row,
    listed,
    new_name,
)
from idalloc_server.domain.store.records import (
    NO_MARK,
    Claim,
    Demand,
    Grant,
    Mark,
    RecordedAllocation,
    Row,
    RowChange,
    RowVersion,
    ids_left,
)
from idalloc_server.domain.store.retirement import RETIREMENT, raise_if_retired, retirement_blocks
from idalloc_server.store import stored_rows
from idalloc_server.store.bounds import CounterGrant, advance_counter, timestamp_grant
from idalloc_server.store.sqlite import allocation_rows, schema
from idalloc_server.store.sqlite.database import Database
from idalloc_server.store.sqlite.files import FilesChanged

_BUSY_TIMEOUT = 5.0


_P = ParamSpec("_P")
_T = TypeVar("_T")

_COLUMNS = (
    *("name", "last_value", "step", "min_value", "max_value", "settings", "mode", "generation", "lease_ms", "writes"),
    *("rev", "rev_by", "created_at", "changed_at"),
)
# A grant alone writes the demand.
_ALL_COLUMNS = (*_COLUMNS, "demand")
_INTEGER = (int, type(None))
_SELECT = f"SELECT {', '.join(_ALL_COLUMNS)} FROM sequences WHERE"
# REPLACE would clear columns that another program added.
_WRITE = (
    f"INSERT INTO sequences ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
    f" ON CONFLICT (name) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[1:])}"
)


class _StoredRow(NamedTuple):
    """A row and its internal columns."""

    row: Row  # the row that the store returns
    mode: str | None  # its mode; see ``stored_rows.mode``
    writes: int  # the number of idalloc's writes of it
    demand: Any  # its packed demand; any value that SQLite can hold

    @property
    def counter(self) -> int:
        """The counter; raises ``SequenceInvalid`` if it is NULL."""
        if self.row.last_value is None:
            raise SequenceInvalid(self.row.name, NULL_LAST_VALUE)
        return self.row.last_value


def grant(
    db: sqlite3.Connection,
    name: str,
    wanted: int,
    lease_ms: int,
    floor: Mark = NO_MARK,
    demand: Demand | None = None,
) -> Grant | None:
    """See ``Store.grant``."""
    found = _read_present(db, name)
    if found is None:
        return None
    sequence = found.row.sequence
    before = found.counter
    left = 0
    if found.mode in (None, stored_rows.PERIOD):
        left = ids_left(before, sequence.step, sequence.min_value, sequence.max_value)
    granted = 0 if wanted > left or floor.is_ahead_of(found.row.generation, before) else wanted
    packed = stored_rows.pack_demand(demand) or found.demand
    result = CounterGrant(before + granted * sequence.step, granted, remaining=left - granted)
    return _write_grant(db, found, lease_ms, result, packed_demand=packed)


def grant_timestamps(
    db: sqlite3.Connection, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mark = NO_MARK
) -> Grant | None:
    """See ``Store.grant_timestamps``."""
    found = _read_present(db, name)
    if found is None:
        return None
    if found.mode != stored_rows.TIMESTAMP or floor.is_ahead_of(found.row.generation, found.counter):
        return _write_grant(db, found, lease_ms, CounterGrant(found.counter, granted=0, remaining=0))
    result = timestamp_grant(found.counter, found.row.sequence.max_value, wanted=wanted, now=now, ahead=ahead)
    return _write_grant(db, found, lease_ms, result)


def give_back(db: sqlite3.Connection, name: str, count: int, version: RowVersion) -> bool:
    """See ``Store.give_back``."""
    found = _read(db, name)
    if found is None or (found.writes, found.row.last_value, found.row.generation) != version:
        return False
    db.execute(
        "UPDATE sequences SET last_value = ?, writes = ? WHERE name = ?",
        (found.counter - count * found.row.sequence.step, found.writes + 1, name),
    )
    return True


def create(db: sqlite3.Connection, row: Row) -> Row:
    """See ``Store.create``."""
    if retirement_blocks(row.name):
        check_retired(db, row.name)
    found = _read(db, row.name)
    if found is not None:
        return _with_times(found.row)
    _write(db, row, writes=0)
    return row


def open_period(db: sqlite3.Connection, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
    """See ``Store.open_period``."""
    found = _read(db, name)
    if found is None:
        last_value = advance_counter(sequence.before_start, at_least, sequence)
        _write(db, Row(name, last_value, sequence, generation), writes=0)
    elif found.row.generation < generation:
        last_value = advance_counter(found.counter, at_least, sequence)
        row = found.row._replace(last_value=last_value, sequence=sequence, generation=generation)
        _write(db, row, found.writes + 1)


def check_retired(db: sqlite3.Connection, name: str = "") -> None:
    """Raise ``StoreRetired`` if the store is retired."""
    raise_if_retired(get_row(db, RETIREMENT), name)


def get_row(db: sqlite3.Connection, name: str) -> Row | None:
    """See ``Store.get``."""
    found = _read(db, name)
    return _with_times(found.row) if found else None


def list_rows(
    db: sqlite3.Connection, prefix: str, after: str, limit: int, *, with_deleted: bool, with_periods: bool
) -> list[Row]:
    """See ``Store.list``."""
    # These operators compare text by its bytes; LIKE would ignore case.
    found = db.execute(
        f"{_SELECT} name > :after AND name >= :prefix AND substr(name, 1, :length) = :prefix"
        " AND (:with_deleted OR mode IS NOT :deleted) AND (:with_periods OR instr(name, :separator) = 0)"
        " ORDER BY name LIMIT :limit",
        {
            "after": after,
            "prefix": prefix,
            "length": len(prefix),
            "with_deleted": with_deleted,
            "deleted": stored_rows.DELETED,
            "with_periods": with_periods,
            "separator": PERIOD_SEPARATOR,
            "limit": limit,
        },
    )
    return [_with_times(_stored_row(columns).row) for columns in found]


def revise(db: sqlite3.Connection, name: str, revision: int, change: RowChange) -> Row | None:
    """See ``Store.revise``."""
    if retirement_blocks(name, change):
        check_retired(db, name)
    found = _read(db, name)
    if found is None:
        return None
    _with_times(found.row)
    before = found.counter
    too_far = change.limit is not None and change.sequence.is_past(before, change.limit)
    if found.row.revision != revision or too_far:
        return found.row
    row = found.row._replace(
        last_value=advance_counter(before, change.at_least, change.sequence),
        sequence=change.sequence,
        generation=max(found.row.generation + change.ends_leases, change.generation),
        revision=revision + 1,
        revised_by=change.by,
        changed_at=change.at,
        deleted=change.deleted,
    )
    _write(db, row, found.writes + 1)
    return row


def _read(db: sqlite3.Connection, name: str) -> _StoredRow | None:
    columns = db.execute(f"{_SELECT} name = ?", (name,)).fetchone()
    return _stored_row(columns) if columns else None


def _with_times(row: Row) -> Row:
    """Return the row if its times can be shown; grants do without."""
    for field in ("created_at", "changed_at"):
        stored_rows.stored_time(row.name, field, getattr(row, field))
    return row


def _stored_row(columns: tuple[Any, ...]) -> _StoredRow:
    name, last_value, step, min_value, max_value, settings, mode, generation, lease_ms, writes, *others = columns
    revision, revised_by, created_at, changed_at, demand = others
    for each in (last_value, step, min_value, max_value, generation, lease_ms, writes, revision):
        if not isinstance(each, _INTEGER):  # a column of a SQLite table may hold any type
            raise SequenceInvalid(str(name), "a column that must be an integer has another type")
    packed = {"step": step, "min_value": min_value, "max_value": max_value, "settings": settings}
    row = Row(
        name=name,
        last_value=last_value,
        sequence=stored_rows.unpack(name, packed),
        generation=stored_rows.DEFAULT_GENERATION if generation is None else generation,
        lease_ms=lease_ms or 0,
        revision=revision or 0,
        revised_by=revised_by or "",
        created_at=created_at,
        changed_at=changed_at,
        deleted=mode == stored_rows.DELETED,
    )
    return _StoredRow(row, mode, writes or 0, demand)


def _read_present(db: sqlite3.Connection, name: str) -> _StoredRow | None:
    found = _read(db, name)
    if found is not None and found.row.deleted:
        check_retired(db, name)
        raise SequenceDeleted(name)
    return found


def _write_grant(
    db: sqlite3.Connection, found: _StoredRow, lease_ms: int, result: CounterGrant, packed_demand: Any = None
) -> Grant:
    """Write and return a grant.

    Without a packed demand the row keeps its own one, which is not returned.
    """
    row = found.row
    writes = found.writes + 1
    db.execute(
        "UPDATE sequences SET last_value = ?, lease_ms = ?, writes = ?, demand = coalesce(?, demand) WHERE name = ?",
        (result.last_value, max(row.lease_ms, lease_ms), writes, packed_demand, row.name),
    )
    return Grant(
        last_value=result.last_value,
        granted=result.granted,
        sequence=row.sequence,
        remaining=result.remaining,
        generation=row.generation,
        version=(writes, result.last_value, row.generation),
        writes=writes,
        demand=stored_rows.unpack_demand(packed_demand),
    )


def _write(db: sqlite3.Connection, row: Row, writes: int) -> None:
    values = {
        "name": row.name,
        "last_value": row.last_value,
        **stored_rows.columns(row.name, row.sequence, deleted=row.deleted),
        "generation": row.generation,
        "lease_ms": row.lease_ms,
        "writes": writes,
        "rev": row.revision,
        "rev_by": row.revised_by,
        "created_at": row.created_at,
        "changed_at": row.changed_at,
    }
    db.execute(_WRITE, values)


def create_tables(db: sqlite3.Connection, path: Path, opening: Opening = ANY_STORE) -> None:
    """Create the tables of the counters, or adopt the guide's two-column table, and name the store.

    Raises:
        StartRefused: The database is not idalloc's, or was lost in part.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        schema.check_database(db, path, opening)
        parts = schema.parts_of(db, path)
        found = None
        if "settings" not in parts[0].lacks:
            found = db.execute("SELECT settings FROM sequences WHERE name = ?", (IDENTITY,)).fetchone()
        settings = stored_rows.unpack(IDENTITY, {"settings": found[0]}) if found else None
        name = check_parts(parts, settings, opening)
        if opening.creates:
            name = name or new_name(parts, opening)
            schema.complete(db, name)
            row = create(db, identity_row(name))
            allocation_rows.keep_copy(db, copy_of(name))  # each part has a copy of the name
            if change := listed(row, name, schema.parts_of(db, path)):
                revise(db, IDENTITY, row.revision, change)
        db.execute("COMMIT")
    finally:
        schema.roll_back(db)


def _transaction(
    run: Callable[[Database, Callable[[sqlite3.Connection], _T]], Awaitable[_T]],
    work: Callable[Concatenate[sqlite3.Connection, _P], _T],
) -> Callable[Concatenate["SqliteStore", _P], Coroutine[Any, Any, _T]]:
    """Return the method that runs ``work`` in a transaction of the store's file."""

    async def call(self: "SqliteStore", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await run(self._database, lambda db: work(db, *args, **kwargs))
        except FilesChanged as error:  # of ``transact_together``, which runs grants
            raise StoreExchanged(f"the file {self._database.path}", error.found) from error

    return call


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
        self._database = Database(self.path, self.busy_timeout, create_tables)

    async def open(self, opening: Opening = ANY_STORE) -> None:
        self._database.create_tables = partial(create_tables, opening=opening)
        await self._database.open(creates=opening.creates)
        row = await self.get(IDENTITY)
        self.opened = {"name": row.sequence.description if row else "", "file": self._database.inode}
        check_place(opening, self.opened)

    grant = _transaction(Database.transact_together, grant)
    grant_timestamps = _transaction(Database.transact_together, grant_timestamps)
    create = _transaction(Database.join, create)
    open_period = _transaction(Database.join, open_period)
    get = _transaction(Database.read, get_row)
    list = _transaction(Database.read, list_rows)
    revise = _transaction(Database.write, revise)
    give_back = _transaction(Database.join, give_back)
    recorded = _transaction(Database.read, allocation_rows.recorded)
    newest_recorded = _transaction(Database.read, allocation_rows.newest)
    recorded_ends = _transaction(Database.read, allocation_rows.ends)
    count_recorded = _transaction(Database.read, allocation_rows.count)
    forget_recorded = _transaction(Database.write, allocation_rows.forget)

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        return await self._database.write(lambda db: allocation_rows.record(db, allocations, self.clock.wall()))

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        def work(db: sqlite3.Connection) -> Claim:
            check_retired(db)
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
