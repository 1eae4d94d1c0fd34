"""One SQLite file, used by one thread of this process."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
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
            raise StoreRefused(f"the file {self.path} {error}; restart this node") from error

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

    # The methods below run on the file's thread.

    def _transaction(self, work: Callable[[sqlite3.Connection], _T], begin: str) -> _T:
        db, files = self._connection, self._files
        if db is None or files is None:
            raise StoreUnreachable("the store is not open")
        try:
            db.execute(begin)
            files.check()
            answer = work(db)
        except (sqlite3.Error, OverflowError) as error:
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
