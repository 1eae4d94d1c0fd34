"""Opening a SQLite file, and the files that are refused."""

# ruff: noqa: ASYNC240 - a test may wait for a file

import errno
import fcntl
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.sqlite.store import SqliteStore
from tests.store.sqlite.conftest import execute, last_granted, pragma
from tests.support.fake_store import FakeClock
from tests.support.store_backends import GUIDE_TABLE


class TestOpen:
    async def test_every_commit_reaches_the_disk(self, store: SqliteStore) -> None:
        """P1: a commit reaches the disk before it is acknowledged."""
        pragmas = {}
        for name in ("journal_mode", "synchronous", "busy_timeout", "application_id"):
            pragmas[name] = await store._database._run(lambda name=name: pragma(store, name))
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 200, "application_id": 0x69646C63}

    async def test_a_missing_folder_is_created_with_mode_700(self, tmp_path: Path, clock: FakeClock) -> None:
        """A missing folder is created for the server's user only."""
        store = SqliteStore(tmp_path / "a" / "b" / "ids.db", clock)
        await store.open()
        await store.close()
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
        assert (tmp_path / "a" / "b" / "ids.db").stat().st_size > 0

    async def test_a_second_open_does_nothing(self, store: SqliteStore) -> None:
        """An open store can be opened again."""
        await store.open()
        assert await last_granted(store) == 1

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"this is no database " * 100, "file is not a database"),
            (b"SQLite format 3\0" + b"\xff" * 4080, "cannot use"),
        ],
    )
    async def test_a_file_that_is_no_database_is_refused(
        self, path: Path, clock: FakeClock, content: bytes, why: str
    ) -> None:
        """A file that is not a SQLite database is refused and not changed."""
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
    async def test_a_database_of_another_program_is_refused(
        self, path: Path, clock: FakeClock, statements: list[str]
    ) -> None:
        """A database with other tables, key or application_id is refused and not changed."""
        execute(path, *statements)
        before = path.read_bytes()
        await refused(path, clock, "is a SQLite database of another program")
        assert path.read_bytes() == before

    @pytest.mark.parametrize("where", ["", "file/ids.db", "file/sub/ids.db"])
    async def test_an_impossible_path_is_refused(self, tmp_path: Path, clock: FakeClock, where: str) -> None:
        """A path that is a folder, or below a file, is refused."""
        (tmp_path / "file").touch()
        await refused(tmp_path / where, clock, "in a folder that can be written to")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    async def test_a_read_only_folder_is_refused(self, tmp_path: Path, clock: FakeClock) -> None:
        """A folder without write permission is refused."""
        tmp_path.chmod(0o500)
        await refused(tmp_path / "ids.db", clock, "in a folder that can be written to")

    async def test_a_read_only_file_is_refused(
        self, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file that SQLite cannot write to is refused."""
        execute(path, "PRAGMA journal_mode = DELETE", f"CREATE TABLE sequences {GUIDE_TABLE}")
        connect = sqlite3.connect
        # Root may write to every file, so SQLite opens the file read-only.
        monkeypatch.setattr(sqlite3, "connect", lambda p, **options: connect(f"file:{p}?mode=ro", uri=True, **options))
        await refused(path, clock, "readonly database")

    @pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="these locks are Linux's")
    async def test_a_file_system_without_locks_is_refused(
        self, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P1: a file system that grants one lock twice is refused, and no file is left there."""
        monkeypatch.setattr(fcntl, "fcntl", lambda *_: b"")
        await refused(path, clock, "grants one lock twice")
        assert list(path.parent.iterdir()) == []

    async def test_an_untestable_lock_is_left_to_sqlite(
        self, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If a lock cannot be tested, the store opens as SQLite allows."""

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
