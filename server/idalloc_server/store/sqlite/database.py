"""One SQLite file, and the thread of this process that uses it."""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeAlias, TypeVar

from idalloc_server.domain.errors import (
    StartRefused,
    StoreAnsweredError,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
)
from idalloc_server.domain.store.store_calls import settle
from idalloc_server.store.sqlite import schema
from idalloc_server.store.sqlite.failures import code, failure_of, is_busy
from idalloc_server.store.sqlite.files import DatabaseFiles, FilesChanged
from idalloc_server.store.sqlite.schema import roll_back

_T = TypeVar("_T")
_Work: TypeAlias = Callable[[sqlite3.Connection], Any]

_SQLITE_ERRORS = (sqlite3.Error, OverflowError)
# The most writes that share a transaction. A commit costs as much as some ten adds of a document.
MAX_JOINED_WRITES = 64


@dataclass(eq=False)
class JobThread:
    """Runs jobs one after another on a thread of its own.

    It costs half as much as an executor of one thread. A job whose future is cancelled before it
    begins is dropped; otherwise it completes. The process can exit while a job runs, which then
    ends as in a crash.
    """

    name: str  # of the thread
    _jobs: SimpleQueue[Callable[[], None] | None] = field(default_factory=SimpleQueue, init=False)
    _thread: Thread | None = field(default=None, init=False)
    is_closed: bool = field(default=False, init=False)  # whether ``close`` was called

    def run(self, job: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Queue a job, and return its future, which belongs to the running event loop.

        Raises:
            RuntimeError: As ``queue``.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self.queue(partial(_run_job, loop, future, partial(job, *arguments)))
        return future

    def queue(self, job: Callable[[], None]) -> None:
        """Queue a job that raises nothing, and passes its answer on by itself.

        Raises:
            RuntimeError: The thread was closed, or cannot be started.
        """
        if self.is_closed:
            raise RuntimeError("the thread is closed")
        if self._thread is None:
            thread = Thread(target=self._run_jobs, name=self.name, daemon=True)
            thread.start()  # raises RuntimeError at a limit of threads
            self._thread = thread
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread after the queued jobs, without waiting for them.

        Later jobs are rejected.
        """
        self.is_closed = True
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # or it would live until the next one


def _run_job(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], job: Callable[[], Any]) -> None:
    if future.cancelled():
        return
    try:
        outcome = job()
    except BaseException as error:
        outcome = error
    with suppress(RuntimeError):  # the event loop is closed
        loop.call_soon_threadsafe(settle, future, outcome)
    # Or an error would keep itself in memory, by its traceback, this frame and the future.
    del future, job, outcome


class _JoinedWrite(NamedTuple):
    """A write that shares a transaction with those that wait beside it."""

    work: _Work
    is_one_statement: bool  # whether it writes by one statement, which SQLite undoes if it fails
    future: asyncio.Future[Any]  # its caller's


@dataclass(eq=False)
class Database:
    """A SQLite file whose transactions run one after another on a thread.

    An acknowledged write survives a power cut. A cancelled call is dropped if its transaction has
    not begun; otherwise the transaction completes.
    """

    path: Path  # the file; it and its folder are created if they are missing
    busy_timeout: float  # how long a transaction waits for other writers, in seconds
    # Creates the tables that are missing, and refuses another program's database.
    create_tables: Callable[[sqlite3.Connection, Path], None]
    inode: str = field(default="", init=False)  # the device and inode of the open file
    _thread: JobThread = field(default_factory=lambda: JobThread("sqlite"), init=False)
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _files: DatabaseFiles | None = field(default=None, init=False)
    _waiting: deque[_JoinedWrite] = field(default_factory=deque, init=False)
    _is_queued: bool = field(default=False, init=False)  # whether a job of the thread will take them
    _was_shared: bool = field(default=False, init=False)  # whether the last transaction had several writes

    async def open(self, *, creates: bool = True) -> None:
        """Open the file; create it and its folder if they are missing, and ``creates`` is true.

        Raises:
            StartRefused: It cannot be used.
        """
        await self._run(self._open, creates)

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
            return await self._run(self._transaction, work, begin)
        except FilesChanged as error:
            raise self._refused(error) from error

    async def join(self, work: Callable[[sqlite3.Connection], _T], *, is_one_statement: bool = False) -> _T:
        """Run a write as ``transact_together`` does.

        Raises:
            StoreFailure: SQLite failed, or the files were replaced.
        """
        try:
            return await self.transact_together(work, is_one_statement=is_one_statement)
        except FilesChanged as error:
            raise self._refused(error) from error

    def transact_together(
        self, work: Callable[[sqlite3.Connection], _T], *, is_one_statement: bool = False
    ) -> asyncio.Future[_T]:
        """Begin a write in one transaction with up to 63 others that wait for the file.

        An exception of ``work`` undoes this write alone. A failure of the transaction, also of its
        commit, is the failure of each write in it. Returns the future of this write.

        Args:
            work: Writes.
            is_one_statement: Whether it writes by one statement, and succeeds if that does: SQLite
                undoes a statement that fails, so it needs no savepoint.

        Raises:
            StoreUnreachable: The store is closed.
            FilesChanged: From the future: the files were replaced; nothing was applied.
            StoreFailure: From the future: SQLite failed.
        """
        if self._thread.is_closed:
            raise StoreUnreachable("the store is closed")
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_JoinedWrite(work, is_one_statement, future))
        if not self._is_queued:
            self._is_queued = True
            if self._was_shared:
                # The callbacks that are ready may bring more writes for the transaction.
                asyncio.get_running_loop().call_soon(self._queue_waiting)
            else:
                self._queue_waiting()
        return future

    def _queue_waiting(self) -> None:
        """Let the thread run the writes that wait."""
        try:
            self._thread.queue(partial(self._run_waiting, asyncio.get_running_loop()))
        except RuntimeError:  # closed
            self._is_queued = False
            error = StoreUnreachable("the store is closed")
            with suppress(IndexError):  # empty; a job that runs may take some
                while True:
                    settle(self._waiting.popleft().future, error)

    def _settle(self, turn: list[_JoinedWrite], outcomes: list[Any]) -> None:
        """Give each write of a transaction its outcome."""
        self._was_shared = len(turn) > 1
        for joined, outcome in zip(turn, outcomes, strict=True):
            settle(joined.future, outcome)
        # The frames in the tracebacks of errors have these lists, which must not have the errors.
        turn.clear()
        outcomes.clear()
        if self._waiting and not self._is_queued:  # more than one transaction takes
            self._is_queued = True
            self._queue_waiting()

    def _run(self, job: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        try:
            return self._thread.run(job, *arguments)
        except RuntimeError as error:  # closed
            raise StoreUnreachable("the store is closed") from error

    def _refused(self, error: FilesChanged) -> StoreRefused:
        return StoreRefused(
            f"the file {self.path} {error}; follow docs/operations/runbook.md "
            "(the SQLite file was moved, lost or replaced)"
        )

    # The methods below run on the file's thread.

    def _run_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the oldest writes that wait in one transaction, and settle them on the event loop."""
        self._is_queued = False  # a write that comes from now on may be too late for this transaction
        turn: list[_JoinedWrite] = []
        while self._waiting and len(turn) < MAX_JOINED_WRITES:
            turn.append(self._waiting.popleft())
            if turn[-1].future.cancelled():
                turn.pop()
        if not turn:
            return
        try:
            if len(turn) == 1:
                outcomes = [self._transaction(turn[0].work, "BEGIN IMMEDIATE")]
            else:
                works = [(each.work, each.is_one_statement) for each in turn]
                outcomes = self._transaction(lambda db: [self._run_one(db, *work) for work in works], "BEGIN IMMEDIATE")
        except BaseException as error:
            outcomes = [error] * len(turn)
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(self._settle, turn, outcomes)

    def _run_one(self, db: sqlite3.Connection, work: _Work, is_one_statement: bool) -> Any:
        """Run a write so that its failure leaves the earlier ones; return its answer or error."""
        if not is_one_statement:
            db.execute("SAVEPOINT joined")
        try:
            answer = work(db)
        except Exception as error:
            if not db.in_transaction:  # SQLite has undone all of it
                raise
            if not is_one_statement:
                db.execute("ROLLBACK TO joined")
                db.execute("RELEASE joined")
            return failure_of(self.path, error) if isinstance(error, _SQLITE_ERRORS) else error
        if not is_one_statement:
            db.execute("RELEASE joined")
        return answer

    def _transaction(self, work: Callable[[sqlite3.Connection], _T], begin: str) -> _T:
        db = self._connection
        files = self._files
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
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                kind = StoreAnsweredError if is_busy(error) else StoreOutcomeUnknown
                raise kind(f"SQLite at {self.path}, at the commit: {error}", code=code(error)) from error
        finally:
            if db.in_transaction:
                roll_back(db)
        try:
            files.check()
        except (FilesChanged, OSError) as error:
            # Others may have replaced the files while the process was paused after the first check.
            raise StoreOutcomeUnknown(f"SQLite at {self.path}, after the commit: {error}") from error
        return answer

    def _open(self, creates: bool) -> None:
        if self._connection is not None:
            return
        try:
            self._connection, self._files = schema.connect(
                self.path, self.busy_timeout, self.create_tables, creates=creates
            )
            self.inode = self._files.inode
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
