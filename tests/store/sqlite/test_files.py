"""The files of a SQLite database: replaced, linked or renamed, before a start and while open."""

# ruff: noqa: ASYNC240 - a test may wait for a file

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from idalloc_server.domain.errors import StartRefused, StoreOutcomeUnknown, StoreRefused, StoreWentBackwards
from idalloc_server.domain.store.identity import Opening
from idalloc_server.store.sqlite.files import lock_offset
from idalloc_server.store.sqlite.store import SqliteStore
from tests.store.sqlite.conftest import execute, last_granted
from tests.support.fake_store import FakeClock
from tests.support.store_backends import GUIDE_TABLE
from tests.support.store_rows import new_row
from tests.support.waiting import until

SUFFIXES = ["", "-wal", "-shm"]
# Creates a file, and ends at a step of it as a kill does.
KILLED = """
import os, sys
from pathlib import Path
from idalloc_server.store.sqlite.schema import connect
from idalloc_server.store.sqlite.store import create_tables
path, step, link = Path(sys.argv[1]), sys.argv[2], os.link
os.link = lambda *names: (link(*names) if step == "linked" else None, os._exit(9))
os.fsync = (lambda _: os._exit(9)) if step == "fsync" else os.fsync
connect(path, 1.0, create_tables, creates=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk" / "ids.db"


@pytest.fixture
async def store(path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = await opened(path, clock)
    yield store
    await store.close()


async def opened(path: Path, clock: FakeClock) -> SqliteStore:
    store = SqliteStore(path, clock)
    await store.open()
    await store.create(new_row("s"))
    return store


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


class TestOpenStore:
    async def test_a_removed_shm_stops_grants(self, store: SqliteStore, path: Path) -> None:
        """P1: another process would create a new -shm, and see no lock of this process."""
        beside(path, "-shm").unlink()
        with pytest.raises(StoreWentBackwards, match=r"found no shared memory file \(-shm\) there"):
            await store.grant("s", 1, 1000)
        with pytest.raises(StoreRefused, match=r"was replaced: no shared memory file \(-shm\) there; follow docs"):
            await store.get("s")

    async def test_a_replaced_shm_stops_grants(self, store: SqliteStore, path: Path) -> None:
        """P1: a new -shm holds other locks."""
        lock = beside(path, "-shm")
        lock.rename(lock.with_name("old"))
        lock.touch()
        with pytest.raises(StoreWentBackwards, match=r"found another shared memory file \(-shm\) there"):
            await store.grant("s", 1, 1000)

    @pytest.mark.parametrize("suffix", SUFFIXES)
    async def test_a_second_link_stops_grants(self, store: SqliteStore, path: Path, suffix: str) -> None:
        """P1: a process that opens the other link has other files beside it, so another lock."""
        assert await last_granted(store) == 1
        link = path.with_name("link")
        link.hardlink_to(beside(path, suffix))
        with pytest.raises(StoreWentBackwards, match=r"found 2 hard links to the .*: remove all links but one"):
            await store.grant("s", 1, 1000)
        with pytest.raises(StoreRefused, match="has another name: 2 hard links"):
            await store.create(new_row("t"))
        link.unlink()
        assert await last_granted(store) == 2

    @pytest.mark.parametrize("suffix", SUFFIXES)
    async def test_a_change_during_a_transaction_is_unknown(self, store: SqliteStore, path: Path, suffix: str) -> None:
        """P1: a process paused in a transaction issues nothing if the files were replaced."""
        with pytest.raises(StoreOutcomeUnknown, match="after the commit: was replaced: no "):
            await store._database.write(lambda db: beside(path, suffix).unlink())

    async def test_a_changed_symbolic_link_stops_grants(self, path: Path, clock: FakeClock) -> None:
        """P1: the next process that opens the symbolic link uses another database."""
        first, second = path.with_name("1.link"), path.with_name("2.link")
        first.symlink_to(second)
        second.symlink_to(path)
        store = await opened(first, clock)
        assert await last_granted(store) == 1
        (path.parent / "other.db").touch()
        second.unlink()
        second.symlink_to(path.parent / "other.db")
        with pytest.raises(StoreWentBackwards, match="found another file there"):
            await store.grant("s", 1, 1000)
        await store.close()

    async def test_a_replaced_folder_stops_grants(self, store: SqliteStore, path: Path) -> None:
        """P1: the next process would find a new folder, and begin at 1."""
        path.parent.rename(path.parent.with_name("moved"))
        with pytest.raises(StoreWentBackwards, match="found no file there"):
            await store.grant("s", 1, 1000)
        path.parent.mkdir()
        path.touch()
        with pytest.raises(StoreWentBackwards, match="found another file there"):
            await store.grant("s", 1, 1000)

    async def test_a_moved_folder_with_a_symbolic_link_is_the_same(self, store: SqliteStore, path: Path) -> None:
        """P1: a process that opens the old path finds the same files."""
        path.parent.rename(path.parent.with_name("moved"))
        path.parent.symlink_to(path.parent.with_name("moved"))
        assert await last_granted(store) == 1


class TestStart:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    async def test_a_second_link_is_refused(self, path: Path, clock: FakeClock, suffix: str) -> None:
        """P1: a start on a file with two hard links is refused, and creates no file."""
        await (await opened(path, clock)).close()
        file = beside(path, suffix)
        file.touch()
        file.with_name("link").hardlink_to(file)
        store = SqliteStore(path, clock)
        with pytest.raises(StartRefused, match=f"the file {file} has 2 hard links, .*; remove all links but one$"):
            await store.open()
        await store.close()
        assert {each.name for each in path.parent.iterdir()} <= {file.name, "link", path.name}

    @pytest.mark.parametrize("suffix", SUFFIXES[1:])
    async def test_a_file_missing_beside_its_log_is_refused(self, path: Path, clock: FakeClock, suffix: str) -> None:
        """P3: a file that was moved away while its server ran is not made anew after a kill."""
        beside(path, suffix).touch()
        store = SqliteStore(path, clock)
        with pytest.raises(
            StartRefused, match=f"{path} is missing, .*{suffix} is there.*; put the file back, or delete"
        ):
            await store.open()
        assert [each.name for each in path.parent.iterdir()] == [beside(path, suffix).name]

    async def test_an_empty_file_is_refused(self, path: Path, clock: FakeClock) -> None:
        """P3: a file that lost its content is not made anew."""
        path.touch()
        with pytest.raises(StartRefused, match=f"{path} is empty, .*; put it back, or delete the file if it is new$"):
            await SqliteStore(path, clock).open()
        assert [each.stat().st_size for each in path.parent.iterdir()] == [0]

    async def test_a_command_keeps_the_log_of_a_lost_file(self, path: Path, clock: FakeClock) -> None:
        """P1: an export beside a file of 0 bytes does not let SQLite delete the newest commits."""
        store = await opened(path, clock)
        log = path.with_name(f"{path.name}-wal").read_bytes()
        path.rename(path.with_name("away"))
        for content in (None, b""):
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(StartRefused, match=r"put (it|the file) back"):
                await SqliteStore(path, clock).open(Opening(creates=False))
            assert path.with_name(f"{path.name}-wal").read_bytes() == log
        await store.close()

    @pytest.mark.parametrize("step", ["fsync", "link", "linked"])
    async def test_a_kill_at_the_first_start_leaves_no_empty_file(
        self, path: Path, clock: FakeClock, step: str
    ) -> None:
        """P3: the start after a kill at any step of the creation succeeds."""
        killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(path), step)
        assert await killed.wait() == 9
        store = await opened(path, clock)
        assert (await last_granted(store), path.stat().st_nlink) == (1, 1)
        await store.close()
        assert [each.name for each in path.parent.iterdir()] == [path.name]

    async def test_a_disk_without_links_can_be_used(
        self, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A new file does not need hard links."""

        def refuse(*_: object) -> None:
            raise PermissionError("this file system has no links")

        monkeypatch.setattr(os, "link", refuse)
        store = await opened(path, clock)
        await store.close()
        assert [each.name for each in path.parent.iterdir()] == [path.name]

    async def test_symbolic_links_are_safe(self, path: Path, clock: FakeClock) -> None:
        """P1: SQLite resolves symbolic links, so all processes use the files beside the target."""
        path.with_name("dangling").symlink_to(path)
        (path.parent.parent / "folder").symlink_to(path.parent)
        stores = [
            await opened(each, clock)
            for each in (path.with_name("dangling"), path.parent.parent / "folder" / "dangling", path)
        ]
        assert [await last_granted(store) for store in stores] == [1, 2, 3]
        assert {each.name for each in path.parent.iterdir()} == {"dangling", *(path.name + each for each in SUFFIXES)}
        for store in stores:
            await store.close()

    async def test_a_link_into_a_missing_folder_creates_it(self, path: Path, clock: FakeClock, tmp_path: Path) -> None:
        """P1: the folder of the target is created and tested for locks, not that of the link."""
        path.symlink_to(tmp_path / "new" / "ids.db")
        store = await opened(path, clock)
        assert await last_granted(store) == 1
        await store.close()
        assert [each.name for each in (tmp_path / "new").iterdir()] == ["ids.db"]

    async def test_a_loop_of_links_is_refused(self, path: Path, clock: FakeClock) -> None:
        """A start on a loop of symbolic links is refused in one line."""
        path.symlink_to(path.with_name("other"))
        path.with_name("other").symlink_to(path)
        store = SqliteStore(path, clock)
        with pytest.raises(StartRefused, match="Too many levels of symbolic links"):
            await store.open()
        await store.close()

    @pytest.mark.skipif(sys.platform != "linux", reason="these locks are Linux's")
    async def test_a_process_that_is_closing_is_waited_for(self, path: Path, clock: FakeClock) -> None:
        """P1: a closing process holds its lock after its files are removed; it refuses no start."""
        execute(path, f"CREATE TABLE sequences {GUIDE_TABLE}")
        closing = os.open(path, os.O_RDWR)
        assert lock_offset(closing, 1)
        opening = asyncio.create_task(opened(path, clock))
        await until(lambda: beside(path, "-shm").exists() or opening.done())
        os.close(closing)
        store = await opening
        assert await last_granted(store) == 1
        await store.close()
