"""SQLite: failed transactions and the store's thread."""

import asyncio
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from idalloc_server.domain.errors import StoreAnsweredError, StoreOutcomeUnknown, StoreRefused
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.store.sqlite.store import SqliteStore
from tests.store.sqlite.conftest import execute, last_granted, pragma
from tests.support.fake_store import FakeClock
from tests.support.store_backends import GUIDE_TABLE
from tests.support.store_rows import new_row
from tests.support.waiting import hold_for_async, settle


class TestFailures:
    async def test_a_busy_database_is_rejected_after_a_timeout(self, store: SqliteStore, path: Path) -> None:
        """STORE_UNAVAILABLE: a lock past the busy timeout rejects a grant; the next succeeds."""
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreAnsweredError, match="database is locked") as caught:
            await store.grant("s", 5, 1000)
        assert caught.value.code == sqlite3.SQLITE_BUSY
        other.execute("ROLLBACK")
        other.close()
        assert await last_granted(store) == 1

    async def test_a_short_lock_is_waited_for(self, store: SqliteStore, path: Path) -> None:
        """A grant waits for another process's transaction."""
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.05, other.execute, ["ROLLBACK"]).start()
        assert await last_granted(store) == 1
        other.close()

    async def test_a_busy_database_at_the_start_is_retryable(self, path: Path, clock: FakeClock) -> None:
        """A start on a locked database raises StoreAnsweredError, not StartRefused."""
        execute(path, f"CREATE TABLE sequences {GUIDE_TABLE}")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        store = SqliteStore(path, clock, busy_timeout=0.05)
        with pytest.raises(StoreAnsweredError, match="locked"):
            await store.open()
        other.close()
        await store.open()
        await store.close()

    async def test_a_full_disk_is_rejected_and_recovers(self, store: SqliteStore) -> None:
        """STORE_UNAVAILABLE: a full disk rejects writes until there is room."""
        pages = await store._database._run(lambda: pragma(store, "page_count"))
        await store._database._run(lambda: pragma(store, f"max_page_count = {pages}"))
        with pytest.raises(StoreAnsweredError, match="full") as caught:
            for number in range(10_000):
                await store.create(new_row(f"{number:0255}"))
        assert caught.value.code == sqlite3.SQLITE_FULL
        await store._database._run(lambda: pragma(store, "max_page_count = 100000"))
        await store.create(new_row("x" * 255))
        assert await last_granted(store) == 1

    async def test_a_read_only_database_is_refused(self, store: SqliteStore) -> None:
        """STORE_REFUSED: a database that became read-only refuses grants until it is writable."""
        assert store._database._connection is not None
        await store._database._run(lambda: store._database._connection.execute("PRAGMA query_only = ON"))  # type: ignore[union-attr]
        with pytest.raises(StoreRefused, match="readonly"):
            await store.grant("s", 5, 1000)
        await store._database._run(lambda: store._database._connection.execute("PRAGMA query_only = OFF"))  # type: ignore[union-attr]
        assert await last_granted(store) == 1

    @pytest.mark.parametrize(
        ("statement", "code", "expected"),
        [
            ("BEGIN", sqlite3.SQLITE_IOERR_READ, StoreAnsweredError),
            ("UPDATE", sqlite3.SQLITE_IOERR_WRITE, StoreAnsweredError),
            ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, StoreOutcomeUnknown),
            ("COMMIT", sqlite3.SQLITE_FULL, StoreOutcomeUnknown),
            ("COMMIT", sqlite3.SQLITE_BUSY, StoreAnsweredError),
        ],
    )
    async def test_only_a_failed_commit_is_unknown(
        self, store: SqliteStore, statement: str, code: int, expected: type[Exception]
    ) -> None:
        """P9: only a failed COMMIT, unless it was busy, has an unknown outcome."""
        healthy = store._database._connection
        store._database._connection = FailingConnection(healthy, statement, code)  # type: ignore[assignment]
        with pytest.raises(expected) as caught:
            await store.grant("s", 5, 1000)
        assert type(caught.value) is expected
        store._database._connection = healthy
        assert await last_granted(store) == 1

    async def test_a_value_beyond_64_bits_is_rejected(self, store: SqliteStore) -> None:
        """P1: a value that is too large for SQLite is rejected, not rounded."""
        with pytest.raises(StoreAnsweredError):
            await store.create(new_row("t", Sequence(start=-(2**63), min_value=-(2**63))))
        assert await store.grant("t", 1, 1000) is None


class TestLog:
    async def test_commits_overwrite_the_log(self, store: SqliteStore, path: Path) -> None:
        """P1: grants keep the log's size, and a copy of both files has the last one."""
        log = path.with_name("idalloc.db-wal")
        size = log.stat().st_size
        last = [await last_granted(store) for _ in range(500)].pop()
        assert log.stat().st_size == size
        copy = path.with_name("copy.db")  # as after a crash
        shutil.copy(path, copy)
        shutil.copy(log, path.with_name("copy.db-wal"))
        assert execute(copy, "SELECT last_value FROM sequences WHERE name = 's'") == [(last,)]

    async def test_a_start_keeps_a_short_log(self, path: Path, clock: FakeClock) -> None:
        """P1: a start beside a process with a short log loses none of its commits."""
        execute(path, f"CREATE TABLE sequences {GUIDE_TABLE}", "PRAGMA journal_mode = WAL")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("INSERT INTO sequences (name, last_value) VALUES ('s', 41)")
            store = SqliteStore(path, clock)
            await store.open()
            assert await last_granted(store) == 42
            other.execute("UPDATE sequences SET last_value = 50 WHERE name = 's'")
            assert await last_granted(store) == 51
            await store.close()
            assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


class FailingConnection:
    """A connection on which one statement fails."""

    def __init__(self, below: sqlite3.Connection | None, statement: str, code: int) -> None:
        assert below is not None
        self._below = below
        self._statement = statement
        self._code = code

    @property
    def in_transaction(self) -> bool:
        return self._below.in_transaction

    def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
        if statement.startswith(self._statement):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            raise error
        return self._below.execute(statement, *args)


class TestThread:
    async def test_a_waiting_transaction_does_not_block_the_loop(self, store: SqliteStore, path: Path) -> None:
        """P10: the event loop runs while SQLite waits for a lock."""
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.grant("s", 5, 1000))
        longest, last = 0.0, time.monotonic()
        while not waiting.done():
            await hold_for_async(0.005, "a turn of the loop, which the transaction must not block")
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        with pytest.raises(StoreAnsweredError):
            await waiting
        other.close()
        assert longest < 0.15

    async def test_a_queued_call_that_is_cancelled_does_nothing(self, store: SqliteStore) -> None:
        """P9: a grant that is cancelled before its transaction takes no ids."""
        gate = threading.Event()
        blocking = store._database._run(gate.wait)
        await asyncio.sleep(0)
        granting = asyncio.create_task(store.grant("s", 5, 1000))
        await settle()
        granting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await granting
        gate.set()
        await blocking
        assert await last_granted(store) == 1

    async def test_a_running_call_that_is_cancelled_completes(self, store: SqliteStore) -> None:
        """P9: a grant that is cancelled within its transaction takes its ids, and burns them."""
        has_begun, go = threading.Event(), threading.Event()

        def hold(_: str) -> None:
            has_begun.set()
            go.wait()

        await store._database._run(lambda: store._database._connection.set_trace_callback(hold))  # type: ignore[union-attr]
        granting = asyncio.create_task(store.grant("s", 5, 1000))
        await asyncio.to_thread(has_begun.wait)
        granting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await granting
        go.set()
        assert await last_granted(store) == 6
