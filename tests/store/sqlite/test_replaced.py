"""A SQLite file that is removed or replaced while a store is open."""

# ruff: noqa: ASYNC240 - a test may wait for a file

from pathlib import Path

import pytest

from idalloc_server.domain.errors import StoreRefused, StoreWentBackwards
from idalloc_server.store.sqlite.store import SqliteStore
from tests.store.sqlite.conftest import execute, last_granted
from tests.support.fake_store import FakeClock
from tests.support.store_rows import new_row


class TestReplacedFile:
    async def test_a_removed_file_grants_nothing(self, store: SqliteStore, path: Path) -> None:
        """P3: a store whose file was removed grants and renews nothing."""
        assert await last_granted(store) == 1
        path.unlink()
        for wanted in (1, 0):
            with pytest.raises(StoreWentBackwards, match="found no file there"):
                await store.grant("s", wanted, 1000)

    async def test_a_new_file_in_its_place_grants_nothing(
        self, store: SqliteStore, path: Path, clock: FakeClock
    ) -> None:
        """P3: a store whose file another process replaced grants and claims nothing."""
        for leftover in path.parent.glob("idalloc.db*"):
            leftover.unlink()
        another = SqliteStore(path, clock)
        await another.open()
        await another.create(new_row("s"))
        assert await last_granted(another) == 1
        with pytest.raises(StoreWentBackwards, match="found another file there"):
            await store.grant("s", 1, 1000)
        with pytest.raises(StoreRefused, match="was replaced"):
            await store.claim_start(0, 1000, "me", 60)
        with pytest.raises(StoreRefused, match="was replaced"):
            await store.give_back("s", 1, (1, 1, 1))
        assert await last_granted(another) == 2
        await another.close()

    async def test_a_restored_backup_grants_nothing(self, store: SqliteStore, path: Path) -> None:
        """P3: a store whose file was replaced by a backup grants nothing."""
        backup = path.with_suffix(".bak")
        execute(path, f"VACUUM INTO '{backup}'")
        await last_granted(store, 10)
        backup.replace(path)
        with pytest.raises(StoreWentBackwards):
            await store.grant("s", 1, 1000)

    @pytest.mark.parametrize("beside", [["-wal"], ["-wal", "-shm"]])
    async def test_a_removed_log_stops_grants(self, store: SqliteStore, path: Path, beside: list[str]) -> None:
        """P3: a store whose write-ahead log was removed grants nothing."""
        await last_granted(store, 10)
        for each in beside:
            path.with_name(path.name + each).unlink()
        with pytest.raises(StoreWentBackwards, match="found no write-ahead log there"):
            await store.grant("s", 1, 1000)

    async def test_a_replaced_log_stops_grants(self, store: SqliteStore, path: Path) -> None:
        """P3: a store whose write-ahead log was replaced grants nothing."""
        await last_granted(store, 10)
        log = path.with_name(path.name + "-wal")
        log.rename(log.with_name("old"))
        log.touch()
        with pytest.raises(StoreWentBackwards, match="found another write-ahead log there"):
            await store.grant("s", 1, 1000)

    async def test_files_behind_a_symbolic_link_are_checked(self, tmp_path: Path, clock: FakeClock) -> None:
        """P3: the files beside the target of a symbolic link are checked."""
        (tmp_path / "disk").mkdir()
        (tmp_path / "link.db").symlink_to(tmp_path / "disk" / "ids.db")
        store = SqliteStore(tmp_path / "link.db", clock)
        await store.open()
        await store.create(new_row("s"))
        assert await last_granted(store) == 1
        (tmp_path / "disk" / "ids.db-wal").unlink()
        with pytest.raises(StoreWentBackwards):
            await store.grant("s", 1, 1000)
        await store.close()
