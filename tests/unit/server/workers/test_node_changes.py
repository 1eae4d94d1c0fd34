"""The supervisor's part of a node's change: it numbers changes, and the last one wins."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.workers import messages
from tests.support.fake_workers import FakeWorkers
from tests.support.supervised import start_both, supervised

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux only")


async def test_change_reaches_all_workers(workers: FakeWorkers) -> None:
    """A change is sent to all workers before its answer; each learns which have applied it."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.change(prefix=9)
        state, answered = one.received[-2:]
        assert isinstance(state, messages.NodeState)
        assert isinstance(answered, messages.Answered)
        assert (state.revision, state.settings["prefix"], state.applied) == (1, 9, [0, 0])
        assert await other.expect_settings(prefix=9, auto_increment_offset=1) == 1
        other.pipe.send(messages.Applied(1))
        await one.expect_applied(0, 1)


async def test_last_of_two_changes_wins(workers: FakeWorkers) -> None:
    """Changes of two workers at once are numbered in the order in which they come."""
    async with supervised(workers):
        one, other = await start_both(workers)
        one.ask_change({"prefix": 9, "auto_increment_offset": 5})
        first = await other.expect_settings(prefix=9, auto_increment_offset=5)
        other.ask_change({"prefix": 10})
        for worker in (one, other):
            assert await worker.expect_settings(prefix=10, auto_increment_offset=5) == first + 1


async def test_file_has_the_last_of_two_changes(workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that comes while an earlier one is written is written and numbered after it."""
    written: list[Mapping[str, int]] = []
    slow = asyncio.Event()

    async def update(_: NodeSettingsFile, settings: Mapping[str, int]) -> None:
        if settings == {"prefix": 9}:
            await slow.wait()
        written.append(settings)

    monkeypatch.setattr(NodeSettingsFile, "update", update)
    async with supervised(workers):
        one, other = await start_both(workers)
        one.ask_change({"prefix": 9}, persist=True)
        one.pipe.send(messages.Applied(0))  # once it is forwarded, the first write has begun
        await other.expect(messages.NodeState)
        other.ask_change({"prefix": 10}, persist=True)
        other.pipe.send(messages.Applied(0))
        await one.expect(messages.NodeState)
        slow.set()
        assert await one.expect_settings(prefix=10) == 2
        assert written == [{"prefix": 9}, {"prefix": 10}]


async def test_write_that_hangs_does_not_hold_the_stop(workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server stops while the disk of its file hangs."""

    async def update(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(NodeSettingsFile, "update", update)
    async with supervised(workers):
        one, other = await start_both(workers)
        one.ask_change({"prefix": 9}, persist=True)
        one.pipe.send(messages.Applied(0))
        await other.expect(messages.NodeState)  # the write has begun
    assert all(each.exited.is_set() for each in workers.all)


async def test_change_that_cannot_be_written_is_not_numbered(
    workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that cannot be persisted reaches no worker, present or later."""

    async def update(*_: Any) -> None:
        raise InvalidRequest("persist", "cannot write it")

    monkeypatch.setattr(NodeSettingsFile, "update", update)
    async with supervised(workers):
        one, other = await start_both(workers)
        one.ask_change({"prefix": 9}, persist=True)
        assert await one.expect(messages.Answered) == messages.Answered(1, "", "cannot write it")
        await other.change(auto_increment_offset=5)
        assert await one.expect_settings(prefix=3, auto_increment_offset=5) == 1
        await one.exit()
        settings = await (await workers.next()).serve()
        assert (settings["node_prefix"], settings["auto_increment_offset"]) == (3, 5)


async def test_change_of_a_worker_that_was_killed_is_made(workers: FakeWorkers) -> None:
    """A worker that is killed after it asked for a change gets a successor with the change."""
    async with supervised(workers):
        one, other = await start_both(workers)
        one.ask_change({"prefix": 9})
        await one.exit()
        revision = await other.expect_settings(prefix=9)
        late = await workers.next()
        assert (await late.serve())["node_prefix"] == 9
        late.pipe.send(messages.Applied(revision))
        await other.expect_applied(revision, 0)


async def test_replacement_starts_with_the_newest_settings(workers: FakeWorkers) -> None:
    """A worker that exits before it applied a change gets a successor with the new settings."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.change(prefix=9, auto_increment_increment=5)
        await other.exit()
        late = await workers.next()
        settings = await late.serve()
        assert (settings["node_prefix"], settings["auto_increment_increment"]) == (9, 5)
        revision = await late.expect_settings(prefix=9)
        late.pipe.send(messages.Applied(revision))
        await one.expect_applied(0, revision)


async def test_change_reaches_a_worker_that_starts(workers: FakeWorkers) -> None:
    """A change that is made while a replacement starts reaches it."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.exit()
        late = await workers.next()
        assert (await late.expect(messages.Start)).settings["node_prefix"] == 3
        await other.change(prefix=9)
        await late.expect_settings(prefix=9)


async def test_lagging_worker_is_neither_ended_nor_waited_for(workers: FakeWorkers) -> None:
    """A worker that has not applied a change goes on; the next change supersedes it there."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.change(prefix=9)
        first = await other.expect_settings(prefix=9)
        await one.change(prefix=10, auto_increment_offset=5)
        second = await other.expect_settings(prefix=10, auto_increment_offset=5)
        assert second > first
        assert not other.exited.is_set()
        other.pipe.send(messages.Applied(second))
        await one.expect_applied(0, second)
