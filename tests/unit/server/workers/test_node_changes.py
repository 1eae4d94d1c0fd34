"""A change of the node settings, in all workers or in none."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from idalloc_server.domain.errors import (
    InvalidRequest,
    PrefixInUse,
    Refusal,
    WorkerFailed,
)
from idalloc_server.node_settings import NodeSettingsFile
from idalloc_server.workers.pipe import decode_error, encode_error
from tests.support.fake_workers import SECONDS, FakeWorkers
from tests.support.supervised import start_both, supervised

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux only")


def failing(error: Refusal, awaited: bool) -> Callable[[object], Any]:
    def fail(_: object) -> None:
        raise error

    async def fail_later(_: object) -> None:
        raise error

    return fail_later if awaited else fail


class TestChanging:
    async def test_commit_waits_until_all_have_prepared(self, workers: FakeWorkers) -> None:
        """A change commits in no worker before all have prepared it."""
        async with supervised(workers):
            one, other = await start_both(workers)
            one.request("change", given={"prefix": 9}, persist=False)
            slow = await other.expect("change")
            fast = asyncio.create_task(one.change("prepared"))
            assert (await asyncio.wait({fast}, timeout=0.05))[0] == set()
            other.pipe.send("prepared")
            assert (await other.expect("decide"))["commit"] is True
            other.pipe.send("changed")
            assert await asyncio.wait_for(fast, SECONDS) == (slow, True) == ({"kind": "change", "prefix": 9}, True)
            assert (await one.response())["error"] is None

    async def test_rejection_by_one_worker_aborts_the_change(self, workers: FakeWorkers) -> None:
        """A change that one worker rejects applies to none, and the caller gets its error."""
        async with supervised(workers):
            one, other = await start_both(workers)
            one.request("change", given={"prefix": 9}, persist=False)
            refused = encode_error(PrefixInUse(9, "there:1"))
            (_, committed), _ = await asyncio.gather(one.change("prepared"), other.change("rejected", error=refused))
            assert committed is False
            error = decode_error((await one.response())["error"])
            assert isinstance(error, PrefixInUse)
            await other.exit()
            assert (await (await workers.next()).serve())["node_prefix"] == 3

    async def test_worker_exit_during_a_change_does_not_abort_it(self, workers: FakeWorkers) -> None:
        """A worker that exits during a change is replaced with the new settings."""
        async with supervised(workers):
            one, other = await start_both(workers)
            one.request("change", given={"prefix": 9, "increment": 5}, persist=False)
            await other.expect("change")
            await other.exit()
            assert (await one.change("prepared"))[1] is True
            assert (await one.response())["error"] is None
            settings = await (await workers.next()).serve()
            assert (settings["node_prefix"], settings["auto_increment_increment"]) == (9, 5)

    async def test_unresponsive_worker_aborts_a_change(self, workers: FakeWorkers, short_timeout: str) -> None:
        """A change aborts if a worker does not prepare in time; its replacement has the old settings."""
        async with supervised(workers, store_timeout=short_timeout):
            one, other = await start_both(workers)
            one.request("change", given={"prefix": 9}, persist=False)
            assert (await one.change("prepared"))[1] is False
            error = decode_error((await one.response())["error"])
            assert isinstance(error, WorkerFailed)
            assert "worker 2 did not answer" in str(error)
            assert other.exited.is_set()
            assert (await (await workers.next()).serve())["node_prefix"] == 3

    async def test_unresponsive_worker_after_commit_is_replaced(self, workers: FakeWorkers, short_timeout: str) -> None:
        """A worker unresponsive after the commit is replaced with the new settings."""
        async with supervised(workers, store_timeout=short_timeout):
            one, other = await start_both(workers)
            one.request("change", given={"prefix": 9}, persist=False)
            await other.expect("change")
            other.pipe.send("prepared")
            assert (await one.change("prepared"))[1] is True
            assert (await one.response())["error"] is None
            assert other.exited.is_set()
            assert (await (await workers.next()).serve())["node_prefix"] == 9

    async def test_settings_are_persisted_once_all_have_prepared(self, workers: FakeWorkers, tmp_path: Path) -> None:
        """A change is written to the file after all workers have prepared it."""
        node_settings = NodeSettingsFile(tmp_path, "127.0.0.1:50051")
        async with supervised(workers, node_settings):
            one, other = await start_both(workers)
            one.request("change", given={"offset": 9}, persist=True)
            await other.expect("change")
            assert node_settings.read() == {}
            other.pipe.send("prepared")
            assert (await one.change("prepared"))[1] is True
            assert node_settings.read() == {"auto_increment_offset": 9}

    @pytest.mark.parametrize("fail", ["check", "save"])
    async def test_change_that_cannot_be_persisted_is_aborted(
        self, workers: FakeWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str
    ) -> None:
        """A change that cannot be persisted applies to no worker."""
        node_settings = NodeSettingsFile(tmp_path, "127.0.0.1:50051")
        monkeypatch.setattr(node_settings, fail, failing(InvalidRequest("persist", "the disk is full"), fail == "save"))
        async with supervised(workers, node_settings):
            one, other = await start_both(workers)
            one.request("change", given={"prefix": 9}, persist=True)
            if fail == "save":
                decided = await asyncio.gather(one.change("prepared"), other.change("prepared"))
                assert [committed for _, committed in decided] == [False, False]
            error = decode_error((await one.response())["error"])
            assert isinstance(error, InvalidRequest)
            assert error.field == "persist"
