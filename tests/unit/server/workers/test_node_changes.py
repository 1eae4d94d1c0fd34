"""The supervisor's part of a node's change: one worker changes first, then the others follow."""

import asyncio
import sys

import pytest

from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.workers import messages
from tests.support.fake_workers import FakeWorkers
from tests.support.supervised import start_both, supervised

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux only")


async def test_others_apply_what_one_worker_changed(workers: FakeWorkers) -> None:
    """What one worker changed is sent to the others, and each worker learns who applied it."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.turn(prefix=9)
        revision = await other.expect_settings(prefix=9, auto_increment_offset=1)
        await other.expect_others(revision)
        other.pipe.send(messages.Applied(revision))
        await one.expect_others(revision)


async def test_change_exchanges_six_messages(workers: FakeWorkers) -> None:
    """UpdateNode with two workers exchanges six messages."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.expect_others(0)
        await other.expect_others(0)
        one.received.clear()
        other.received.clear()
        await one.turn(prefix=9)  # two messages of the worker, one of the supervisor
        revision = await other.expect_settings(prefix=9)
        other.pipe.send(messages.Applied(revision))
        await one.expect_others(revision)
        assert (len(one.received), len(other.received)) == (2, 1)


@pytest.mark.parametrize("persisted", [True, False])
async def test_worker_killed_in_its_turn(
    workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch, persisted: bool
) -> None:
    """A change is followed if its worker was killed after it wrote the file, and only then."""
    monkeypatch.setattr(NodeSettingsFile, "read", lambda _: {"node_prefix": 9 if persisted else 4})
    async with supervised(workers):
        one, other = await start_both(workers)
        one.pipe.send(messages.TurnWanted({"prefix": 9}))
        await one.expect(messages.Turn)
        await one.exit()
        await other.turn(auto_increment_offset=5)
        await (await workers.next()).expect_settings(prefix=9 if persisted else 3, auto_increment_offset=5)


async def test_refused_change_is_not_kept(workers: FakeWorkers) -> None:
    """A change that its worker refused reaches no worker, present or later."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.turn()
        await other.turn(auto_increment_offset=5)
        await one.expect_settings(prefix=3, auto_increment_offset=5)
        await one.exit()
        settings = await (await workers.next()).serve()
        assert (settings["node_prefix"], settings["auto_increment_offset"]) == (3, 5)


async def test_replacement_starts_with_the_newest_settings(workers: FakeWorkers) -> None:
    """A worker that exits before it applied a change gets a successor with the new settings."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.turn(prefix=9, auto_increment_increment=5)
        revision = await other.expect_settings(prefix=9)
        await other.exit()
        late = await workers.next()
        settings = await late.serve()
        assert (settings["node_prefix"], settings["auto_increment_increment"]) == (9, 5)
        late.pipe.send(messages.Applied(await late.expect_settings(prefix=9)))
        await one.expect_others(revision)


async def test_change_reaches_a_worker_that_starts(workers: FakeWorkers) -> None:
    """A change that is made while a replacement starts reaches it."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.exit()
        late = await workers.next()
        assert (await late.expect(messages.Start)).settings["node_prefix"] == 3
        await other.turn(prefix=9)
        await late.expect_settings(prefix=9)


async def test_lagging_worker_is_neither_ended_nor_waited_for(workers: FakeWorkers) -> None:
    """A worker that has not applied a change goes on; the next change supersedes it there."""
    async with supervised(workers):
        one, other = await start_both(workers)
        await one.turn(prefix=9)
        first = await other.expect_settings(prefix=9)
        await one.turn(prefix=10, auto_increment_offset=5)
        second = await other.expect_settings(prefix=10, auto_increment_offset=5)
        assert second > first
        assert not other.exited.is_set()
        other.pipe.send(messages.Applied(second))
        await one.expect_others(second)


async def test_turns_are_given_in_order(workers: FakeWorkers) -> None:
    """Changes that are requested at once are made one after the other."""
    async with supervised(workers):
        one, other = await start_both(workers)
        one.pipe.send(messages.TurnWanted({}))
        turn = await one.expect(messages.Turn)
        waiting = asyncio.create_task(other.turn(prefix=10))
        assert (await asyncio.wait({waiting}, timeout=0.05))[0] == set()
        await one.end_turn(turn, prefix=9)
        await waiting
        await one.expect_settings(prefix=10)


@pytest.mark.parametrize("has_turn", [True, False])
async def test_exit_of_a_worker_ends_its_turn(workers: FakeWorkers, has_turn: bool) -> None:
    """A worker that exits in its turn, or while it waits, does not block others' changes."""
    async with supervised(workers):
        one, other = await start_both(workers)
        first, second = (one, other) if has_turn else (other, one)
        first.pipe.send(messages.TurnWanted({}))
        turn = await first.expect(messages.Turn)
        second.pipe.send(messages.TurnWanted({}))
        await one.exit()
        if not has_turn:
            await other.end_turn(turn)
            second = other
            second.pipe.send(messages.TurnWanted({}))
        await second.end_turn(await second.expect(messages.Turn), prefix=9)
        await (await workers.next()).expect_settings(prefix=9)
