"""One SQLite file, used by one thread of this process."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from idalloc_server.domain.errors import (
    StartRefused,
    StoreAnsweredError,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
)
from idalloc_server.store.sqlite import schema
from idalloc_server.store.sqlite.errors import code, failure_of, is_busy
from idalloc_server.store.sqlite.files import DatabaseFiles, FilesChanged
from idalloc_server.store.sqlite.job_thread import JobThread
from idalloc_server.store.sqlite.schema import roll_back

_T = TypeVar("_T")

_SQLITE_ERRORS = (sqlite3.Error, OverflowError)
# The most writes that share a transaction. A commit costs as much as some ten adds of a document.
MAX_JOINED_WRITES = 64


@dataclass(eq=False, slots=True)
class _JoinedWrite:
    """A write that shares a transaction with those that wait beside it."""

    work: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any] | None = None  # its caller's
    outcome: Any = None  # the answer of ``work``, or an exception
    has_run: bool = False


@dataclass(eq=False)
class Database:
    """A SQLite file whose transactions run one after another on a thread.

    An acknowledged write survives a power cut. A cancelled call is dropped if its transaction has
    not begun; otherwise the transaction completes.
    """

    path: Path  # the file; it and its folder are created if they are missing
    busy_timeout: float  # how long a transaction waits for other writers, in seconds
    # Creates the tables that are missing, and refuses another program's database.
    create_tables: Callable[[sqlite3.Connection, Path], None] = schema.create_tables
    _thread: JobThread = field(default_factory=lambda: JobThread("sqlite"), init=False)
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _files: DatabaseFiles | None = field(default=None, init=False)
    _waiting: deque[_JoinedWrite] = field(default_factory=deque, init=False)

    async def open(self) -> None:
        """Open the file.

        Raises:
            StartRefused: It cannot be used.
        """
        await self._run(self._open)

    async def close(self) -> None:
        """Close the file."""
        with suppress(StoreUnreachable):  # already closed
            await self._run(self._close)
        self._thread.close()

    async def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a transaction that changes nothing; see ``write``."""
        return await self.write(work, "BEGIN")

    async def write(self, work: Callable[[sqlite3.Connection], _T], begin: str = "BEGIN IMMEDIATE") -> _T:
        """Run a transaction. An exception of ``work`` rolls it back.

        Raises:
            StoreFailure: SQLite failed, or the files were replaced.
        """
        try:
            return await self.transact(work, begin)
        except FilesChanged as error:
            raise self._refused(error) from error

    async def join(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a write in one transaction with up to 63 others that wait for the file.

        An exception of ``work`` undoes this write alone. A failure of the transaction, also of its
        commit, is the failure of each write in it.

        Raises:
            StoreFailure: SQLite failed, or the files were replaced.
        """
        joined = _JoinedWrite(work)
        joined.future = self._run(self._join, joined)
        self._waiting.append(joined)  # the job may have run meanwhile
        try:
            answer: _T = await joined.future
        except FilesChanged as error:
            raise self._refused(error) from error
        return answer

    def transact(self, work: Callable[[sqlite3.Connection], _T], begin: str = "BEGIN IMMEDIATE") -> asyncio.Future[_T]:
        """Begin a transaction as ``write`` does, and return its future.

        Raises:
            StoreUnreachable: The store is closed.
            FilesChanged: From the future: the files were replaced; nothing was applied.
            StoreFailure: From the future: SQLite failed.
        """
        return self._run(self._transaction, work, begin)

    def _run(self, job: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        try:
            return self._thread.run(job, *arguments)
        except RuntimeError as error:  # closed
            raise StoreUnreachable("the store is closed") from error

    def _refused(self, error: FilesChanged) -> StoreRefused:
        return StoreRefused(f"the file {self.path} {error}; restart this node")

    # The methods below run on the file's thread.

    def _join(self, joined: _JoinedWrite) -> Any:
        """Return the answer of a write, which may have run with an earlier one."""
        if not joined.has_run:
            self._run_together([joined, *self._take_waiting(joined)])
        if isinstance(joined.outcome, BaseException):
            raise joined.outcome
        return joined.outcome

    def _take_waiting(self, first: _JoinedWrite) -> Iterator[_JoinedWrite]:
        """Yield the writes to run together with a write, the oldest first."""
        taken = 1
        while self._waiting and taken < MAX_JOINED_WRITES:
            joined = self._waiting.popleft()
            is_cancelled = joined.future is not None and joined.future.cancelled()
            if joined is not first and not joined.has_run and not is_cancelled:
                taken += 1
                yield joined

    def _run_together(self, turn: list[_JoinedWrite]) -> None:
        try:
            if len(turn) == 1:
                outcomes = [self._transaction(turn[0].work, "BEGIN IMMEDIATE")]
            else:
                outcomes = self._transaction(partial(self._run_each, turn), "BEGIN IMMEDIATE")
        except BaseException as error:
            outcomes = [error] * len(turn)
        for joined, outcome in zip(turn, outcomes, strict=True):
            joined.outcome, joined.has_run = outcome, True

    def _run_each(self, turn: list[_JoinedWrite], db: sqlite3.Connection) -> list[Any]:
        """Run each write in a savepoint, so that one that fails leaves the others."""
        outcomes: list[Any] = []
        for joined in turn:
            db.execute("SAVEPOINT joined")
            try:
                outcomes.append(joined.work(db))
            except Exception as error:
                if not db.in_transaction:  # SQLite has undone all of it
                    raise
                db.execute("ROLLBACK TO joined")
                outcomes.append(failure_of(self.path, error) if isinstance(error, _SQLITE_ERRORS) else error)
            db.execute("RELEASE joined")
        return outcomes

    def _transaction(self, work: Callable[[sqlite3.Connection], _T], begin: str) -> _T:
        db, files = self._connection, self._files
        if db is None or files is None:
            raise StoreUnreachable("the store is not open")
        try:
            db.execute(begin)
            files.check()
            answer = work(db)
        except _SQLITE_ERRORS as error:
            raise failure_of(self.path, error) from error
        except PermissionError as error:
            raise StoreRefused(
                f"the file {error.filename} cannot be examined: {error.strerror}; let the user of this server read it"
            ) from error
        except OSError as error:
            raise StoreAnsweredError(f"the file {error.filename} cannot be examined: {error.strerror}") from error
        else:
            self._commit(db)
        finally:
            if db.in_transaction:
                roll_back(db)
        try:
            files.check()
        except (FilesChanged, OSError) as error:
            # Others may have replaced the files while the process was paused after the first check.
            raise StoreOutcomeUnknown(f"SQLite at {self.path}, after the commit: {error}") from error
        return answer

    def _commit(self, db: sqlite3.Connection) -> None:
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            kind = StoreAnsweredError if is_busy(error) else StoreOutcomeUnknown
            raise kind(f"SQLite at {self.path}, at the commit: {error}", code=code(error)) from error

    def _open(self) -> None:
        if self._connection is not None:
            return
        try:
            self._connection, self._files = schema.connect(self.path, self.busy_timeout, self.create_tables)
        except (OSError, sqlite3.Error) as error:
            if is_busy(error):
                raise StoreAnsweredError(f"SQLite at {self.path}: {error}", code=code(error)) from error
            why = error.strerror if isinstance(error, OSError) else error
            raise StartRefused(
                "store",
                f"cannot use {self.path} as a SQLite database: {why}; "
                "choose a new file or one of idalloc's, in a folder that can be written to",
            ) from error

    def _close(self) -> None:
        if self._connection is not None and self._files is not None:
            self._connection.close()
            self._files.close()
            self._connection = self._files = None
