"""Counters and start timestamps in one SQLite file, for any number of processes on one machine."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    SequenceInvalid,
    StartRefused,
    StoreOutcomeUnknown,
    StoreRejected,
    StoreUnreachable,
    StoreWentBackwards,
)
from idalloc_server.domain.sequence import Sequence
from idalloc_server.domain.store import Claim, Grant
from idalloc_server.store import sqlite_schema
from idalloc_server.store.bounds import DEFAULT_GENERATION, DEFAULT_STEP, ids_left
from idalloc_server.store.sqlite_schema import code, is_busy, roll_back

_T = TypeVar("_T")

_BUSY_TIMEOUT = 5.0


class _Replaced(Exception):
    """The file is not the one that was opened."""


class _Row(NamedTuple):
    """A sequence's row, with what may be NULL filled in, but for the bounds."""

    last_value: int
    step: int
    min_value: int | None
    max_value: int | None
    generation: int
    lease_ms: int
    writes: int


class SqliteStore:
    """A store in one file; see ``Store``.

    An acknowledged write survives a power cut. All statements run on one thread of their own, each transaction in
    one go: a call that is cancelled is not run if its turn had not come, and is finished otherwise.

    Args:
        path: The file; it and its folder are made where they are missing.
        clock: Tells when a prefix's holder was seen.
        busy_timeout: How long to wait while another process writes, in seconds.
    """

    def __init__(self, path: Path, clock: Clock, busy_timeout: float = _BUSY_TIMEOUT) -> None:
        self._path = path
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._thread = ThreadPoolExecutor(1, "sqlite")
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def address(self) -> str:
        """See ``Store.address``."""
        return f"sqlite://{self._path}"

    async def open(self) -> None:
        """See ``Store.open``."""
        await self._call(self._open)

    async def grant(self, name: str, wanted: int, lease_ms: int) -> Grant | None:
        """See ``Store.grant``."""

        # In Python, because SQLite turns an integer that overflows into a REAL, silently.
        def work(db: sqlite3.Connection) -> Grant | None:
            row = _read(db, name)
            if row is None:
                return None
            left = ids_left(row.last_value, row.step, row.min_value, row.max_value)
            granted = min(wanted, left)
            last_value = row.last_value + granted * row.step
            db.execute(
                "UPDATE sequences SET last_value = ?, lease_ms = ?, writes = ? WHERE name = ?",
                (last_value, max(row.lease_ms, lease_ms), row.writes + 1, name),
            )
            return Grant(
                last_value=last_value,
                granted=granted,
                step=row.step,
                remaining=left - granted,
                generation=row.generation,
                version=(last_value, row.writes + 1),
            )

        try:
            return await self._call(lambda: self._transaction(work))
        except _Replaced as error:
            raise StoreWentBackwards(name, seen=f"the file {self._path}", found=str(error)) from error

    async def create(self, name: str, sequence: Sequence) -> None:
        """See ``Store.create``."""
        before = sequence.start - sequence.step
        values = (name, before, sequence.step, sequence.min_value, sequence.max_value, DEFAULT_GENERATION)
        await self._write(
            lambda db: db.execute(
                "INSERT INTO sequences (name, last_value, step, min_value, max_value, generation)"
                " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
                values,
            )
        )

    async def give_back(self, name: str, count: int, version: tuple[int, int]) -> bool:
        """See ``Store.give_back``."""

        def work(db: sqlite3.Connection) -> bool:
            row = _read(db, name)
            if row is None or (row.last_value, row.writes) != version:
                return False
            db.execute(
                "UPDATE sequences SET last_value = ?, writes = ? WHERE name = ?",
                (row.last_value - count * row.step, row.writes + 1, name),
            )
            return True

        return await self._write(work)

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        """See ``Store.claim_start``."""

        def work(db: sqlite3.Connection) -> Claim:
            found = db.execute("SELECT last_start FROM start_timestamps WHERE prefix = ?", (prefix,)).fetchone()
            start = at_least if found is None else max(at_least, found[0] + 1)
            db.execute(
                "INSERT INTO start_timestamps (prefix, last_start) VALUES (?, ?)"
                " ON CONFLICT (prefix) DO UPDATE SET last_start = excluded.last_start",
                (prefix, start),
            )
            self._hold(db, prefix, holder, stale_after)
            held_by, seen_at = db.execute(
                "SELECT holder, seen_at FROM start_timestamps WHERE prefix = ?", (prefix,)
            ).fetchone()
            return Claim(start, held_by, seen_at)

        return await self._write(work)

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        """See ``Store.keep_prefix``."""
        await self._write(lambda db: self._hold(db, prefix, holder, stale_after))

    async def release_prefix(self, prefix: int, holder: str) -> None:
        """See ``Store.release_prefix``."""
        await self._write(
            lambda db: db.execute(
                "UPDATE start_timestamps SET holder = NULL WHERE prefix = ? AND holder = ?", (prefix, holder)
            )
        )

    async def now(self) -> float | None:
        """See ``Store.now``."""
        return None

    async def close(self) -> None:
        """See ``Store.close``."""
        with suppress(StoreUnreachable):  # closed before
            await self._call(self._close)
        self._thread.shutdown(wait=False)

    def _hold(self, db: sqlite3.Connection, prefix: int, holder: str, stale_after: float) -> None:
        now = self._clock.wall()
        db.execute(
            "UPDATE start_timestamps SET holder = ?, seen_at = ? WHERE prefix = ?"
            " AND (holder IS NULL OR holder = ? OR seen_at IS NULL OR seen_at + ? <= ?)",
            (holder, now, prefix, holder, stale_after, now),
        )

    async def _write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return await self._call(lambda: self._transaction(work))
        except _Replaced as error:
            raise StoreRejected(f"the file {self._path} was replaced: {error}; restart this node") from error

    async def _call(self, job: Callable[[], _T]) -> _T:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._thread, job)
        except RuntimeError as error:  # the executor was shut down
            raise StoreUnreachable("the store is closed") from error
        return await running

    # From here on everything runs on the store's thread.

    def _transaction(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        db = self._connection
        if db is None:
            raise StoreUnreachable("the store is not open")
        try:
            db.execute("BEGIN IMMEDIATE")
            self._check_file()
            answer = work(db)
        except (sqlite3.Error, OverflowError) as error:
            raise StoreRejected(f"SQLite at {self._path}: {error}", code=code(error)) from error
        else:
            self._commit(db)
            return answer
        finally:
            roll_back(db)

    def _commit(self, db: sqlite3.Connection) -> None:
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            kind = StoreRejected if is_busy(error) else StoreOutcomeUnknown
            raise kind(f"SQLite at {self._path}, at the commit: {error}", code=code(error)) from error

    def _check_file(self) -> None:
        """Sees that the path still leads to the file that was opened.

        One that was removed can be written to on and on, while another process starts a new one at 1.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise _Replaced("no file there") from None
        except OSError as error:
            raise StoreRejected(f"the file {self._path} cannot be looked at: {error.strerror}") from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise _Replaced("another file there")

    def _open(self) -> None:
        if self._connection is not None:
            return
        try:
            db = sqlite_schema.connect(self._path, self._busy_timeout)
            found = self._path.stat()
        except (OSError, sqlite3.Error) as error:
            if is_busy(error):
                raise StoreRejected(f"SQLite at {self._path}: {error}", code=code(error)) from error
            why = error.strerror if isinstance(error, OSError) else error
            raise StartRefused(
                "store",
                f"cannot use {self._path} as a SQLite database: {why}; "
                "choose a file that is idalloc's or new, in a folder that can be written to",
            ) from error
        self._identity = (found.st_dev, found.st_ino)
        self._connection = db

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _read(db: sqlite3.Connection, name: str) -> _Row | None:
    found = db.execute(
        "SELECT last_value, step, min_value, max_value, generation, lease_ms, writes FROM sequences WHERE name = ?",
        (name,),
    ).fetchone()
    if found is None:
        return None
    last_value, step, min_value, max_value, generation, lease_ms, writes = found
    if last_value is None:
        raise SequenceInvalid(name, "its last_value is NULL")
    # Any column of a SQLite table holds any type.
    if not all(value is None or isinstance(value, int) for value in found):
        raise SequenceInvalid(name, "a column that must be an integer is not")
    if step == 0:
        raise SequenceInvalid(name, "its step is 0")
    return _Row(
        last_value=last_value,
        step=DEFAULT_STEP if step is None else step,
        min_value=min_value,
        max_value=max_value,
        generation=DEFAULT_GENERATION if generation is None else generation,
        lease_ms=lease_ms or 0,
        writes=writes or 0,
    )
