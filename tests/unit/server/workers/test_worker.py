"""What a worker and its supervisor tell each other, where that is not seen through real processes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain import change_events
from idalloc_server.domain.change_events import ChangedSettings
from idalloc_server.domain.errors import WorkerFailed
from idalloc_server.workers.pipe import Pipe, decode_error, encode_error
from idalloc_server.workers.worker import Worker
from tests.support.fake_store import FakeClock


class Broken:
    async def change(self, **_: object) -> None:
        raise ZeroDivisionError("of its own")


async def test_a_change_that_fails_by_a_fault_of_the_worker_is_replied_to() -> None:
    one, other = socket.socketpair()
    supervisor = await Pipe.over(one)
    worker = Worker(await Pipe.over(other), 2, 1.0)
    broken: Any = Broken()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.hear())
        supervisor.tell("serve")
        await worker.join(broken, AccessControl(FakeClock(), 1), "here")
        assert await supervisor.hear() == {"what": "serves", "welcome": "here"}
        supervisor.tell("change", offset=5)
        reply = await supervisor.hear()
        assert reply is not None
        assert reply["what"] == "refused"
        error = decode_error(reply["error"])
        assert isinstance(error, WorkerFailed)
        assert "of its own" in str(error)
        await supervisor.close()
    await worker._pipe.close()


async def test_a_change_of_all_workers_is_witnessed_also_where_the_caller_leaves(pipes: tuple[Pipe, Pipe]) -> None:
    supervisor, ours = pipes
    worker = Worker(ours, 2, 1.0)
    told: list[tuple[ChangedSettings, ChangedSettings]] = []
    doc_ids: Any = SimpleNamespace(settings={"prefix": 1, "auto_increment_offset": 1})
    supervisor.tell("stop")
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        hearing = tasks.create_task(worker.hear())
        await worker.join(doc_ids, AccessControl(FakeClock(), 1), "here")
        await supervisor.hear()
        with change_events.listening(lambda *change: told.append(change)):
            calls = [tasks.create_task(worker.change({"prefix": prefix}, persist=False)) for prefix in (2, 3)]
        for call, prefix, error in ((calls[0], 2, None), (calls[1], 3, encode_error(WorkerFailed("x")))):
            question = await supervisor.hear()
            assert question is not None
            call.cancel()
            await asyncio.wait({call})
            if error is None:
                doc_ids.settings = {"prefix": prefix, "auto_increment_offset": 5}  # and another one's change
            supervisor.tell("answer", number=question["number"], error=error)
        await supervisor.close()
        await hearing
    assert told == [({"prefix": 1}, {"prefix": 2})]


@pytest.fixture
async def pipes() -> AsyncIterator[tuple[Pipe, Pipe]]:
    one, other = socket.socketpair()
    supervisor, ours = await Pipe.over(one), await Pipe.over(other)
    yield supervisor, ours
    await supervisor.close()
    await ours.close()


@pytest.mark.parametrize("told", ["before", "after"])
async def test_a_worker_asks_who_calls_when_another_one_does(pipes: tuple[Pipe, Pipe], told: str) -> None:
    supervisor, ours = pipes
    worker, access_control, doc_ids = Worker(ours, 2, 1.0), AccessControl(FakeClock(), 1, AccessPolicy()), Any
    supervisor.tell("asks")
    supervisor.tell("stop")  # so that it is known what was heard, and joining does not wait
    async with asyncio.timeout(10):
        if told == "after":
            worker.stopping.set()
            await worker.join(doc_ids, access_control, "here")  # type: ignore[arg-type]
            worker.stopping.clear()
            assert not access_control.requires_authentication
        hearing = asyncio.create_task(worker.hear())
        await worker.stopping.wait()
        if told == "before":
            await worker.join(doc_ids, access_control, "here")  # type: ignore[arg-type]
        assert access_control.requires_authentication
        worker.ask()
        worker.joined()
        assert [(await supervisor.hear() or {})["what"] for _ in range(2)] == ["serves", "joined"]  # it was known
        hearing.cancel()


async def test_a_worker_tells_once_that_it_asks_who_calls(pipes: tuple[Pipe, Pipe]) -> None:
    supervisor, ours = pipes
    worker, doc_ids = Worker(ours, 2, 1.0), Any
    worker.stopping.set()  # so that joining does not wait
    await worker.join(doc_ids, AccessControl(FakeClock(), 1, AccessPolicy(), requires_authentication=True), "here")  # type: ignore[arg-type]
    worker.ask()
    worker.joined()
    assert [(await supervisor.hear() or {})["what"] for _ in range(3)] == ["asks", "serves", "joined"]


@pytest.mark.parametrize("all_stop", [True, False])
async def test_a_worker_that_closed_waits_for_the_others(pipes: tuple[Pipe, Pipe], all_stop: bool) -> None:
    """A worker that stops by itself does not wait: the others go on."""
    supervisor, ours = pipes
    worker = Worker(ours, 2, 1.0)
    hearing = asyncio.create_task(worker.hear())
    async with asyncio.timeout(10):
        if all_stop:
            supervisor.tell("stop")
            await worker.stopping.wait()
        closed = asyncio.create_task(worker.closed())
        assert await supervisor.hear() == {"what": "closed"}
        assert closed.done() is not all_stop
        supervisor.tell("refuse")
        await closed
    hearing.cancel()
