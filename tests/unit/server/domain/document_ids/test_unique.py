"""Document ids are unique across forks (P8), restarts, clock changes and equal prefixes (P6)."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from idalloc_server.domain.document_ids.generator import DocIdGenerator, DocIdRun
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.store.protocol import Store
from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.fake_process import FakeProcess
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.mysql import recordings
from tests.support.paths import ROOT

NOW = 1_700_000_000


async def started(store: Store, clock: float = NOW, prefix: int = 0, holder: str = "me") -> DocIdGenerator:
    """Return the generator of a process that has just started."""
    start_timestamps = StartTimestamps(store, FakeClock(wall=clock), prefix=prefix, holder=holder, max_clock_skew=1e12)
    return DocIdGenerator(start_timestamps, await start_timestamps.start())


def texts(runs: list[DocIdRun] | None) -> list[str]:
    assert runs is not None
    return [text for run in runs for text in run.texts()]


class TestFork:
    def test_a_child_issues_nothing(self) -> None:
        """P8: the child of os.fork issues no ids, even if it reuses the process id."""
        script = """
import os
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.fork import OsProcess
from tests.support.fake_store import FakeClock, MemoryStore

process = OsProcess()
starts = StartTimestamps(MemoryStore(), FakeClock(), prefix=0, holder="me", max_clock_skew=1)
doc_ids = DocIdGenerator(starts, StartTimestamp(0, 1), process=process)
assert doc_ids.issue_now(1)
for pid_is_reused in (False, True):
    if pid_is_reused:
        process.pid = lambda: 1
        doc_ids = DocIdGenerator(starts, StartTimestamp(0, 1), process=process)
        doc_ids.issue_now(1)
    child = os.fork()
    if not child:
        try:
            doc_ids.issue_now(1)
        except StoreUnavailable as refusal:
            os._exit(7 if "is a fork" in str(refusal) else 8)
        os._exit(9)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(doc_ids.issue_now(1)[0].first)
"""
        answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
        assert answer.stdout.split() == ["7", "7", "2"], answer.stderr

    async def test_a_fork_unseen_by_python_issues_nothing(self) -> None:
        """P8: a fork that Python does not notice issues no ids."""
        process = FakeProcess()
        starts = StartTimestamps(MemoryStore(), FakeClock(), prefix=0, holder="me", max_clock_skew=1)
        doc_ids = DocIdGenerator(starts, StartTimestamp(0, 1), process=process)
        assert doc_ids.issue_now(1)
        process.fork(is_noticed=False)
        with pytest.raises(StoreUnavailable, match="this process is a fork"):
            doc_ids.issue_now(1)
        with pytest.raises(StoreUnavailable, match="this process is a fork"):
            await doc_ids.issue(1)


class TestMysqlDuplicates:
    @pytest.mark.parametrize("recorded", recordings.restarts(), ids=lambda recorded: recorded.case)
    async def test_a_restart_within_a_second_repeats_no_id(self, recorded: recordings.Restart, tmp_path: Path) -> None:
        """P6: restarts for which MySQL was recorded to repeat ids repeat none."""
        issued_by_mysql = [text for _, issued in recorded.boots for text in issued]
        assert len(set(issued_by_mysql)) < len(issued_by_mysql)
        ids: list[str] = []
        for clock, issued in recorded.boots:
            store = SqliteStore(tmp_path / "ids.db", FakeClock(wall=clock))
            await store.open()
            doc_ids = await started(store, clock)
            ids += texts(doc_ids.issue_now(len(issued)))
            await store.close()  # as after a kill: the prefix is not released
        assert ids[0] == issued_by_mysql[0]
        assert ids == sorted(set(ids))

    async def test_a_clock_set_back_repeats_no_id(self, tmp_path: Path) -> None:
        """P6: ids rise over restarts while the clock is set back."""
        ids: list[str] = []
        for clock in (NOW, NOW - 3600, NOW - 7200, NOW + 10):
            store = SqliteStore(tmp_path / "ids.db", FakeClock(wall=clock))
            await store.open()
            ids += texts((await started(store, clock)).issue_now(5))
            await store.close()
        assert ids == sorted(set(ids))
        assert ids[-1].startswith(f"0000{NOW + 10:08x}")

    async def test_concurrent_starts_on_one_prefix_share_no_id(self, tmp_path: Path) -> None:
        """P6: eight processes that start in the same second with one prefix share no id."""
        stores = [SqliteStore(tmp_path / "ids.db", FakeClock(wall=NOW)) for _ in range(8)]
        for store in stores:
            await store.open()
        processes = await asyncio.gather(*(started(store, holder=f"node {n}") for n, store in enumerate(stores)))
        ids = [text for process in processes for text in texts(process.issue_now(100))]
        assert len(set(ids)) == 800
        for store in stores:
            await store.close()

    async def test_switching_to_a_used_prefix_repeats_no_id(self) -> None:
        """P6: a process that switches to another process's prefix repeats none of its ids."""
        store = MemoryStore()
        one = await started(store, prefix=1, holder="one")
        two = await started(store, prefix=2, holder="two")
        assert one.start_timestamp == two.start_timestamp  # as in MySQL
        ids = texts(one.issue_now(10))
        await two.change(prefix=1)
        ids += texts(two.issue_now(10))
        ids += texts(one.issue_now(10))
        assert len(set(ids)) == 30
