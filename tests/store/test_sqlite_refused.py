"""What does not recover by itself in SQLite, at a start and while a server runs."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from idalloc_server.domain.errors import StartRefused, StoreRefused, StoreRejected
from idalloc_server.store.sqlite.errors import failure_of
from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.fake_store import FakeClock
from tests.support.store_rows import made

GUIDE = "name TEXT PRIMARY KEY, last_value BIGINT"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "idalloc.db"


@pytest.fixture
async def store(path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock, busy_timeout=0.2)
    yield store
    await store.close()


def execute(path: Path, *statements: str) -> None:
    """Runs statements past idalloc."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def content(path: Path) -> bytes:
    """Reads the file."""
    return path.read_bytes()


class TestWhileAServerRuns:
    async def test_a_dropped_table_is_refused(self, store: SqliteStore, path: Path) -> None:
        await store.open()
        execute(path, "DROP TABLE sequences")
        with pytest.raises(StoreRefused, match=r"no such table: sequences; .*restore it from a backup"):
            await store.grant("s", 1, 1000)

    async def test_a_check_of_an_adopted_table_is_refused(self, store: SqliteStore, path: Path) -> None:
        """SQLite tells no program of its CHECK constraints, so a start cannot."""
        execute(path, f"CREATE TABLE sequences ({GUIDE} CONSTRAINT few CHECK (last_value < 5))")
        await store.open()
        await store.create(made("s"))
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
            (sqlite3.SQLITE_FULL, StoreRejected),
            (sqlite3.SQLITE_IOERR_WRITE, StoreRejected),
            (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreRejected),
            (sqlite3.SQLITE_LOCKED, StoreRejected),
            (sqlite3.SQLITE_NOMEM, StoreRejected),
            (sqlite3.SQLITE_CANTOPEN, StoreRejected),
        ],
    )
    def test_what_recovers_by_itself_is_no_refusal(self, path: Path, code: int, kind: type[Exception]) -> None:
        error = sqlite3.OperationalError("it said so")
        error.sqlite_errorcode = code
        failure = failure_of(path, error)
        assert type(failure) is kind
        assert failure.code == code


class TestStarts:
    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            (f"{GUIDE}, owner TEXT NOT NULL", "the column owner of the table sequences"),
            (f"{GUIDE}, mode TEXT NOT NULL", "the column mode of the table sequences"),
            (f"{GUIDE}, step INTEGER GENERATED ALWAYS AS (2 * last_value)", "the column step of the table sequences"),
        ],
    )
    async def test_a_table_is_refused_with_the_statement(
        self, store: SqliteStore, path: Path, columns: str, says: str
    ) -> None:
        """The start changes nothing; after the statement that it names, it succeeds."""
        execute(path, f"CREATE TABLE sequences ({columns})")
        before = content(path)
        with pytest.raises(StartRefused, match=says) as caught:
            await store.open()
        assert content(path) == before
        assert "\n" not in str(caught.value)
        execute(path, str(caught.value).partition("run ")[2])
        await store.open()
        await store.create(made("s"))
        assert await store.grant("s", 1, 1000) is not None

    async def test_a_default_will_do(self, store: SqliteStore, path: Path) -> None:
        execute(path, f"CREATE TABLE sequences ({GUIDE} NOT NULL, owner TEXT NOT NULL DEFAULT 'us')")
        await store.open()
        assert (await store.create(made("s"))).name == "s"

    async def test_a_file_of_a_newer_version_is_refused(self, store: SqliteStore, path: Path, clock: FakeClock) -> None:
        first = SqliteStore(path, clock)
        await first.open()
        await first.close()
        execute(path, "PRAGMA user_version = 7")
        with pytest.raises(StartRefused, match=r"written by a newer idalloc: its user_version is 7.*; upgrade this"):
            await store.open()
