"""What is SQLite's alone: its file, and its failures."""

# ruff: noqa: ASYNC240 - a test may wait for a file

import asyncio
import errno
import fcntl
import os
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from idalloc_server.domain.errors import (
    SequenceInvalid,
    StartRefused,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreRejected,
    StoreWentBackwards,
)
from idalloc_server.domain.records import RecordedAllocation, Revision
from idalloc_server.domain.sequences.model import Sequence
from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.fake_store import FakeClock
from tests.support.store_rows import made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "idalloc.db"


@pytest.fixture
async def store(path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock, busy_timeout=0.2)
    await store.open()
    await store.create(made("s"))
    yield store
    await store.close()


def make(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            db.execute(statement)
    finally:
        db.close()


async def last_of(store: SqliteStore, wanted: int = 1) -> int:
    granted = await store.grant("s", wanted, 1000)
    assert granted is not None
    return granted.last_value


class TestFile:
    async def test_every_commit_reaches_the_disk(self, store: SqliteStore) -> None:
        pragmas = {}
        for name in ("journal_mode", "synchronous", "busy_timeout", "application_id"):
            pragmas[name] = await store._run(lambda name=name: _pragma(store, name))  # type: ignore[misc]
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 200, "application_id": 0x69646C63}

    async def test_a_missing_folder_is_made_for_its_owner_alone(self, tmp_path: Path, clock: FakeClock) -> None:
        store = SqliteStore(tmp_path / "a" / "b" / "ids.db", clock)
        await store.open()
        await store.close()
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
        assert (tmp_path / "a" / "b" / "ids.db").stat().st_size > 0

    async def test_opening_twice_is_opening_once(self, store: SqliteStore) -> None:
        await store.open()
        assert await last_of(store) == 1

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"this is no database " * 100, "file is not a database"),
            (b"SQLite format 3\0" + b"\xff" * 4080, "cannot use"),
        ],
    )
    async def test_a_file_that_is_no_database_is_refused_and_left_alone(
        self, path: Path, clock: FakeClock, content: bytes, why: str
    ) -> None:
        path.write_bytes(content)
        await refused(path, clock, why)
        assert path.read_bytes() == content

    @pytest.mark.parametrize(
        "statements",
        [
            ["CREATE TABLE books (title TEXT)"],
            ["CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value BIGINT)", "CREATE TABLE books (title TEXT)"],
            ["CREATE TABLE sequences (name TEXT, last_value BIGINT)"],
            ["CREATE TABLE sequences (name TEXT, kind TEXT, last_value BIGINT, PRIMARY KEY (name, kind))"],
            ["CREATE TABLE sequences (name TEXT PRIMARY KEY, value BIGINT)"],
            ["PRAGMA application_id = 1", "PRAGMA user_version = 1"],
        ],
    )
    async def test_a_database_of_something_else_is_refused_and_left_alone(
        self, path: Path, clock: FakeClock, statements: list[str]
    ) -> None:
        make(path, *statements)
        before = path.read_bytes()
        await refused(path, clock, "is a SQLite database of another program")
        assert path.read_bytes() == before

    @pytest.mark.parametrize("where", ["", "file/ids.db", "file/sub/ids.db"])
    async def test_where_there_can_be_no_file(self, tmp_path: Path, clock: FakeClock, where: str) -> None:
        (tmp_path / "file").touch()
        await refused(tmp_path / where, clock, "in a folder that can be written to")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    async def test_a_folder_that_may_not_be_written_to(self, tmp_path: Path, clock: FakeClock) -> None:
        tmp_path.chmod(0o500)
        await refused(tmp_path / "ids.db", clock, "in a folder that can be written to")

    async def test_a_read_only_file(self, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        make(path, "PRAGMA journal_mode = DELETE", "CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value BIGINT)")
        connect = sqlite3.connect
        # Root may write to every file: SQLite itself is told not to.
        monkeypatch.setattr(sqlite3, "connect", lambda p, **options: connect(f"file:{p}?mode=ro", uri=True, **options))
        await refused(path, clock, "readonly database")

    @pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="these locks are Linux's")
    async def test_a_file_system_that_grants_one_lock_twice(
        self, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fcntl, "fcntl", lambda *_: b"")
        await refused(path, clock, "grants one lock twice")
        assert list(path.parent.iterdir()) == []

    async def test_one_on_which_locks_cannot_be_tried_is_left_to_sqlite(
        self, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> bytes:
            raise OSError(errno.EINVAL, "Invalid argument")

        monkeypatch.setattr(fcntl, "fcntl", refuse)
        store = SqliteStore(path, clock)
        await store.open()
        await store.close()


async def refused(path: Path, clock: FakeClock, why: str) -> None:
    store = SqliteStore(path, clock)
    with pytest.raises(StartRefused, match=why) as caught:
        await store.open()
    await store.close()
    assert caught.value.setting == "store"
    assert "\n" not in str(caught.value)


def _pragma(store: SqliteStore, name: str) -> Any:
    assert store._connection is not None
    return store._connection.execute(f"PRAGMA {name}").fetchone()[0]


class TestAReplacedFile:
    async def test_one_that_was_removed_grants_nothing_more(self, store: SqliteStore, path: Path) -> None:
        assert await last_of(store) == 1
        path.unlink()
        for wanted in (1, 0):
            with pytest.raises(StoreWentBackwards, match="found no file there"):
                await store.grant("s", wanted, 1000)

    async def test_nor_one_in_whose_place_another_process_began_anew(
        self, store: SqliteStore, path: Path, clock: FakeClock
    ) -> None:
        for leftover in path.parent.glob("idalloc.db*"):
            leftover.unlink()
        another = SqliteStore(path, clock)
        await another.open()
        await another.create(made("s"))
        assert await last_of(another) == 1
        with pytest.raises(StoreWentBackwards, match="found another file there"):
            await store.grant("s", 1, 1000)
        with pytest.raises(StoreRefused, match="was replaced"):
            await store.claim_start(0, 1000, "me", 60)
        with pytest.raises(StoreRefused, match="was replaced"):
            await store.give_back("s", 1, (1, 1, 1))
        assert await last_of(another) == 2
        await another.close()

    async def test_nor_a_backup_that_was_moved_into_its_place(self, store: SqliteStore, path: Path) -> None:
        backup = path.with_suffix(".bak")
        make(path, f"VACUUM INTO '{backup}'")
        await last_of(store, 10)
        backup.replace(path)
        with pytest.raises(StoreWentBackwards):
            await store.grant("s", 1, 1000)

    @pytest.mark.parametrize("beside", [["-wal"], ["-wal", "-shm"]])
    async def test_nor_one_whose_log_was_removed(self, store: SqliteStore, path: Path, beside: list[str]) -> None:
        await last_of(store, 10)
        for each in beside:
            path.with_name(path.name + each).unlink()
        with pytest.raises(StoreWentBackwards, match="found no write-ahead log there"):
            await store.grant("s", 1, 1000)

    async def test_nor_one_whose_log_was_begun_anew(self, store: SqliteStore, path: Path) -> None:
        await last_of(store, 10)
        log = path.with_name(path.name + "-wal")
        log.rename(log.with_name("old"))
        log.touch()
        with pytest.raises(StoreWentBackwards, match="found another write-ahead log there"):
            await store.grant("s", 1, 1000)

    async def test_one_behind_a_link_is_watched_where_it_is(self, tmp_path: Path, clock: FakeClock) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "link.db").symlink_to(tmp_path / "disk" / "ids.db")
        store = SqliteStore(tmp_path / "link.db", clock)
        await store.open()
        await store.create(made("s"))
        assert await last_of(store) == 1
        (tmp_path / "disk" / "ids.db-wal").unlink()
        with pytest.raises(StoreWentBackwards):
            await store.grant("s", 1, 1000)
        await store.close()


class TestFailures:
    async def test_a_database_that_is_busy_for_too_long(self, store: SqliteStore, path: Path) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreRejected, match="database is locked") as caught:
            await store.grant("s", 5, 1000)
        assert caught.value.code == sqlite3.SQLITE_BUSY
        other.execute("ROLLBACK")
        other.close()
        assert await last_of(store) == 1

    async def test_one_that_is_busy_for_a_moment_is_waited_for(self, store: SqliteStore, path: Path) -> None:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.05, other.execute, ["ROLLBACK"]).start()
        assert await last_of(store) == 1
        other.close()

    async def test_one_that_is_busy_at_the_start_is_no_wrong_setting(self, path: Path, clock: FakeClock) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        store = SqliteStore(path, clock, busy_timeout=0.05)
        with pytest.raises(StoreRejected, match="locked"):
            await store.open()
        other.close()
        await store.open()
        await store.close()

    async def test_a_full_disk_takes_nothing_and_recovers(self, store: SqliteStore) -> None:
        pages = await store._run(lambda: _pragma(store, "page_count"))
        await store._run(lambda: _pragma(store, f"max_page_count = {pages}"))
        with pytest.raises(StoreRejected, match="full") as caught:
            for number in range(10_000):
                await store.create(made(f"{number:0255}"))
        assert caught.value.code == sqlite3.SQLITE_FULL
        await store._run(lambda: _pragma(store, "max_page_count = 100000"))
        await store.create(made("x" * 255))
        assert await last_of(store) == 1

    async def test_a_database_that_became_read_only(self, store: SqliteStore) -> None:
        assert store._connection is not None
        await store._run(lambda: store._connection.execute("PRAGMA query_only = ON"))  # type: ignore[union-attr]
        with pytest.raises(StoreRefused, match="readonly"):
            await store.grant("s", 5, 1000)
        await store._run(lambda: store._connection.execute("PRAGMA query_only = OFF"))  # type: ignore[union-attr]
        assert await last_of(store) == 1

    @pytest.mark.parametrize(
        ("statement", "code", "expected"),
        [
            ("BEGIN", sqlite3.SQLITE_IOERR_READ, StoreRejected),
            ("UPDATE", sqlite3.SQLITE_IOERR_WRITE, StoreRejected),
            ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, StoreOutcomeUnknown),
            ("COMMIT", sqlite3.SQLITE_FULL, StoreOutcomeUnknown),
            ("COMMIT", sqlite3.SQLITE_BUSY, StoreRejected),
        ],
    )
    async def test_only_a_failed_commit_leaves_the_outcome_unknown(
        self, store: SqliteStore, statement: str, code: int, expected: type[Exception]
    ) -> None:
        healthy = store._connection
        store._connection = FailingConnection(healthy, statement, code)  # type: ignore[assignment]
        with pytest.raises(expected) as caught:
            await store.grant("s", 5, 1000)
        assert type(caught.value) is expected
        store._connection = healthy
        assert await last_of(store) == 1

    async def test_a_value_beyond_64_bits_is_rejected(self, store: SqliteStore) -> None:
        with pytest.raises(StoreRejected):
            await store.create(made("t", Sequence(start=-(2**63), min_value=-(2**63))))
        assert await store.grant("t", 1, 1000) is None


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
    async def test_the_event_loop_goes_on_while_sqlite_waits(self, store: SqliteStore, path: Path) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.grant("s", 5, 1000))
        longest, last = 0.0, time.monotonic()
        while not waiting.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        with pytest.raises(StoreRejected):
            await waiting
        other.close()
        assert longest < 0.15

    async def test_a_call_cancelled_before_its_turn_does_nothing(self, store: SqliteStore) -> None:
        gate = threading.Event()
        blocking = asyncio.create_task(store._run(gate.wait))
        await asyncio.sleep(0)
        granting = asyncio.create_task(store.grant("s", 5, 1000))
        await asyncio.sleep(0.01)
        granting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await granting
        gate.set()
        await blocking
        assert await last_of(store) == 1

    async def test_a_call_cancelled_in_the_middle_is_finished(self, store: SqliteStore, path: Path) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        granting = asyncio.create_task(store.grant("s", 5, 1000))
        await asyncio.sleep(0.05)
        granting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await granting
        other.execute("ROLLBACK")
        other.close()
        assert await last_of(store) == 6


class TestRows:
    async def test_a_column_of_another_type_is_refused(self, store: SqliteStore, path: Path) -> None:
        make(path, "UPDATE sequences SET last_value = 1.5 WHERE name = 's'")
        with pytest.raises(SequenceInvalid, match="a column that must be an integer has another type"):
            await store.grant("s", 1, 1000)

    async def test_all_64_bits_are_integers_in_the_file(self, store: SqliteStore, path: Path) -> None:
        make(path, f"UPDATE sequences SET last_value = -9223372036854775808, max_value = {2**63 - 1} WHERE name = 's'")
        assert await last_of(store, 2**63 - 1) == -1
        assert await last_of(store, 2**63 - 1) == 2**63 - 2
        assert await last_of(store, 5) == 2**63 - 2
        db = sqlite3.connect(path)
        assert db.execute("SELECT last_value, typeof(last_value) FROM sequences").fetchone() == (2**63 - 2, "integer")
        db.close()

    async def test_many_processes_claim_and_grant_on_one_file(self, store: SqliteStore, path: Path) -> None:
        others = [SqliteStore(path, FakeClock()) for _ in range(3)]
        await asyncio.gather(*(other.open() for other in others))
        stores = [store, *others]
        lasts = await asyncio.gather(*(last_of(each, 3) for each in stores * 5))
        claims = await asyncio.gather(*(each.claim_start(1, 1000, "me", 60) for each in stores * 5))
        for other in others:
            await other.close()
        assert sorted(lasts) == list(range(3, 61, 3))
        assert sorted(claim.start_timestamp for claim in claims) == list(range(1000, 1020))

    async def test_a_column_of_someone_elses_keeps_what_is_in_it(self, store: SqliteStore, path: Path) -> None:
        make(path, "ALTER TABLE sequences ADD COLUMN owner TEXT", "UPDATE sequences SET owner = 'sales'")
        await store.revise("s", 0, Revision(Sequence(), 5, "me", 1.5))
        db = sqlite3.connect(path)
        assert db.execute("SELECT owner, last_value, changed_at FROM sequences").fetchall() == [("sales", 5, 1.5)]
        db.close()

    async def test_reads_do_not_wait_for_a_writer(self, store: SqliteStore, path: Path) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE sequences SET last_value = 99")
        assert await store.get("s") == made("s")
        assert await store.list("", "", 9, deleted=True, periods=True) == [made("s")]
        assert await store.recorded("r") is None
        assert await store.claimed_starts() == {}
        other.execute("COMMIT")
        other.close()
        assert await store.get("s") == made("s", last_value=99)

    async def test_what_was_made_before_settings_had_columns_goes_on(self, path: Path, clock: FakeClock) -> None:
        make(
            path,
            "PRAGMA application_id = 0x69646C63",
            "CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value INTEGER, step INTEGER, generation INTEGER)",
            "INSERT INTO sequences VALUES ('s', 41, 1, 3)",
        )
        store = SqliteStore(path, clock)
        await store.open()
        assert await store.get("s") == made("s", last_value=41, generation=3)
        await store.record([RecordedAllocation("r", "s", 1, 1, 1, 3, "", 0, "node")])
        assert await store.newest_recorded() is not None
        await store.close()

    async def test_answers_of_an_older_version_get_a_window(self, path: Path, clock: FakeClock) -> None:
        """P7: the table of recorded answers gets the column that it lacks, and its rows stay."""
        make(
            path,
            "PRAGMA application_id = 0x69646C63",
            "CREATE TABLE allocations (request_id TEXT PRIMARY KEY, sequence TEXT NOT NULL, first_id INTEGER NOT NULL,"
            " id_count INTEGER NOT NULL, step INTEGER NOT NULL, generation INTEGER NOT NULL, period TEXT NOT NULL,"
            " prefix INTEGER NOT NULL, node TEXT NOT NULL, written_at REAL NOT NULL)",
            "INSERT INTO allocations VALUES ('r', 's', 1, 1, 1, 3, '', 0, 'node', 5.0)",
        )
        store = SqliteStore(path, clock)
        await store.open()
        assert await store.recorded("r") == RecordedAllocation("r", "s", 1, 1, 1, 3, "", 0, "node")
        new = RecordedAllocation("q", "s", 2, 1, 1, 3, "", 0, "node", 1000)
        assert await store.record([new]) == {"q": new}
        await store.close()

    async def test_a_replaced_file_is_not_read_either(self, store: SqliteStore, path: Path) -> None:
        path.unlink()
        for asked in (store.get("s"), store.recorded("r"), store.claimed_starts()):
            with pytest.raises(StoreRefused, match="was replaced"):
                await asked
        with pytest.raises(StoreWentBackwards):
            await store.grant_timestamps("s", 1, 1000, 1, 1)
