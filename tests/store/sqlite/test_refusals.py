"""Faults of SQLite that need an operator, at a start and while a server runs."""

# ruff: noqa: ASYNC240 - a test may wait for a file

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from idalloc_server.domain.errors import StartRefused, StoreAnsweredError, StoreRefused
from idalloc_server.store.sqlite.failures import failure_of
from idalloc_server.store.sqlite.store import SqliteStore
from tests.store.sqlite.conftest import execute
from tests.support.fake_store import FakeClock
from tests.support.store_rows import new_row

GUIDE = "name TEXT PRIMARY KEY, last_value BIGINT"


@pytest.fixture
async def store(path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    """A store that is not open yet."""
    store = SqliteStore(path, clock, busy_timeout=0.2)
    yield store
    await store.close()


class TestRunningServer:
    async def test_a_dropped_table_is_refused(self, store: SqliteStore, path: Path) -> None:
        """STORE_REFUSED: the message asks to restore the file."""
        await store.open()
        execute(path, "DROP TABLE sequences")
        with pytest.raises(StoreRefused, match=r"no such table: sequences; .*restore it from a backup"):
            await store.grant("s", 1, 1000)

    async def test_a_failed_check_is_refused(self, store: SqliteStore, path: Path) -> None:
        """STORE_REFUSED: SQLite does not list CHECK constraints, so a start cannot refuse them."""
        execute(path, f"CREATE TABLE sequences ({GUIDE} CONSTRAINT few CHECK (last_value < 5))")
        await store.open()
        await store.create(new_row("s"))
        with pytest.raises(StoreRefused, match=r"CHECK constraint failed: few; remove that constraint"):
            await store.grant("s", 10, 1000)
        granted = await store.grant("s", 1, 1000)
        assert granted is not None
        assert granted.last_value == 1

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (sqlite3.SQLITE_READONLY, StoreRefused),
            (sqlite3.SQLITE_READONLY_DBMOVED, StoreRefused),
            (sqlite3.SQLITE_CORRUPT, StoreRefused),
            (sqlite3.SQLITE_CORRUPT_INDEX, StoreRefused),
            (sqlite3.SQLITE_NOTADB, StoreRefused),
            (sqlite3.SQLITE_CONSTRAINT_NOTNULL, StoreRefused),
            (sqlite3.SQLITE_FULL, StoreAnsweredError),
            (sqlite3.SQLITE_IOERR_WRITE, StoreAnsweredError),
            (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreAnsweredError),
            (sqlite3.SQLITE_LOCKED, StoreAnsweredError),
            (sqlite3.SQLITE_NOMEM, StoreAnsweredError),
            (sqlite3.SQLITE_CANTOPEN, StoreAnsweredError),
        ],
    )
    def test_a_recoverable_error_is_not_refused(self, path: Path, code: int, kind: type[Exception]) -> None:
        """STORE_UNAVAILABLE: errors that a retry may cure are rejected, never refused."""
        error = sqlite3.OperationalError("an error")
        error.sqlite_errorcode = code
        failure = failure_of(path, error)
        assert type(failure) is kind
        assert failure.code == code


class TestStart:
    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (f"{GUIDE}, owner TEXT NOT NULL", "the column owner of the table sequences"),
            (f"{GUIDE}, mode TEXT NOT NULL", "the column mode of the table sequences"),
            (f"{GUIDE}, step INTEGER GENERATED ALWAYS AS (2 * last_value)", "the column step of the table sequences"),
        ],
    )
    async def test_an_unsuitable_table_is_refused(
        self, store: SqliteStore, path: Path, columns: str, message: str
    ) -> None:
        """A start names the statement to run and changes nothing; after it a start succeeds."""
        execute(path, f"CREATE TABLE sequences ({columns})")
        before = path.read_bytes()
        with pytest.raises(StartRefused, match=message) as caught:
            await store.open()
        assert path.read_bytes() == before
        assert "\n" not in str(caught.value)
        execute(path, str(caught.value).partition("run ")[2])
        await store.open()
        await store.create(new_row("s"))
        assert await store.grant("s", 1, 1000) is not None

    async def test_a_not_null_column_with_a_default_is_accepted(self, store: SqliteStore, path: Path) -> None:
        """A NOT NULL column of another program with a default is accepted."""
        execute(path, f"CREATE TABLE sequences ({GUIDE} NOT NULL, owner TEXT NOT NULL DEFAULT 'us')")
        await store.open()
        assert (await store.create(new_row("s"))).name == "s"

    async def test_a_file_of_a_newer_version_is_refused(self, store: SqliteStore, path: Path, clock: FakeClock) -> None:
        """A file with a newer user_version is refused."""
        first = SqliteStore(path, clock)
        await first.open()
        await first.close()
        execute(path, "PRAGMA user_version = 7")
        with pytest.raises(StartRefused, match=r"written by a newer idalloc: its user_version is 7.*; upgrade this"):
            await store.open()
