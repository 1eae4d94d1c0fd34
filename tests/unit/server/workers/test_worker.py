"""Messages between a worker and its supervisor."""

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


async def test_bug_during_a_change_is_reported() -> None:
    """A worker rejects a change that fails by a bug, so that the supervisor does not wait."""
    one, other = socket.socketpair()
    supervisor = await Pipe.over(one)
    worker = Worker(await Pipe.over(other), 2, 1.0)
    broken: Any = Broken()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.receive_until_orphaned())
        supervisor.send("serve")
        await worker.wait_all_ready(broken, AccessControl(FakeClock(), 1), "here")
        assert await supervisor.receive() == {"kind": "ready", "welcome": "here"}
        supervisor.send("change", offset=5)
        reply = await supervisor.receive()
        assert reply is not None
        assert reply["kind"] == "rejected"
        error = decode_error(reply["error"])
        assert isinstance(error, WorkerFailed)
        assert "of its own" in str(error)
        await supervisor.close()
    await worker._pipe.close()


async def test_cancelled_change_still_publishes_its_event(pipes: tuple[Pipe, Pipe]) -> None:
    """A committed change is published even if its caller has cancelled the call."""
    supervisor, ours = pipes
    worker = Worker(ours, 2, 1.0)
    events: list[tuple[ChangedSettings, ChangedSettings]] = []
    doc_ids: Any = SimpleNamespace(settings={"prefix": 1, "auto_increment_offset": 1})
    supervisor.send("stop")
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(worker.receive_until_orphaned())
        await worker.wait_all_ready(doc_ids, AccessControl(FakeClock(), 1), "here")
        await supervisor.receive()
        with change_events.listening(lambda *change: events.append(change)):
            calls = [tasks.create_task(worker.change({"prefix": prefix}, persist=False)) for prefix in (2, 3)]
        for call, prefix, error in ((calls[0], 2, None), (calls[1], 3, encode_error(WorkerFailed("x")))):
            request = await supervisor.receive()
            assert request is not None
            call.cancel()
            await asyncio.wait({call})
            if error is None:
                doc_ids.settings = {"prefix": prefix, "auto_increment_offset": 5}  # with another call's change
            supervisor.send("response", id=request["id"], error=error)
        await supervisor.close()
        await receiving
    assert events == [({"prefix": 1}, {"prefix": 2})]


@pytest.fixture
async def pipes() -> AsyncIterator[tuple[Pipe, Pipe]]:
    one, other = socket.socketpair()
    supervisor, ours = await Pipe.over(one), await Pipe.over(other)
    yield supervisor, ours
    await supervisor.close()
    await ours.close()


@pytest.mark.parametrize("order", ["before", "after"])
async def test_worker_follows_required_authentication(pipes: tuple[Pipe, Pipe], order: str) -> None:
    """A worker requires authentication when the supervisor does, during its start or later."""
    supervisor, ours = pipes
    worker, access_control, doc_ids = Worker(ours, 2, 1.0), AccessControl(FakeClock(), 1, AccessPolicy()), Any
    supervisor.send("require_authentication")
    supervisor.send("stop")  # It marks the end of the messages, and wait_all_ready returns.
    async with asyncio.timeout(10):
        if order == "after":
            worker.stop_requested.set()
            await worker.wait_all_ready(doc_ids, access_control, "here")  # type: ignore[arg-type]
            worker.stop_requested.clear()
            assert not access_control.requires_authentication
        receiving = asyncio.create_task(worker.receive_until_orphaned())
        await worker.stop_requested.wait()
        if order == "before":
            await worker.wait_all_ready(doc_ids, access_control, "here")  # type: ignore[arg-type]
        assert access_control.requires_authentication
        worker.require_authentication()
        worker.report_serving()
        kinds = [(await supervisor.receive() or {})["kind"] for _ in range(2)]
        assert kinds == ["ready", "serving"]  # The supervisor required authentication, so it gets no such report.
        receiving.cancel()


async def test_worker_reports_required_authentication_once(pipes: tuple[Pipe, Pipe]) -> None:
    """A worker reports once that it requires authentication."""
    supervisor, ours = pipes
    worker, doc_ids = Worker(ours, 2, 1.0), Any
    worker.stop_requested.set()  # wait_all_ready returns at once
    access_control = AccessControl(FakeClock(), 1, AccessPolicy(), requires_authentication=True)
    await worker.wait_all_ready(doc_ids, access_control, "here")  # type: ignore[arg-type]
    worker.require_authentication()
    worker.report_serving()
    kinds = [(await supervisor.receive() or {})["kind"] for _ in range(3)]
    assert kinds == ["require_authentication", "ready", "serving"]


@pytest.mark.parametrize("all_stop", [True, False])
async def test_closed_worker_waits_for_all_if_all_stop(pipes: tuple[Pipe, Pipe], all_stop: bool) -> None:
    """A closed worker waits for the others only if the whole server stops."""
    supervisor, ours = pipes
    worker = Worker(ours, 2, 1.0)
    receiving = asyncio.create_task(worker.receive_until_orphaned())
    async with asyncio.timeout(10):
        if all_stop:
            supervisor.send("stop")
            await worker.stop_requested.wait()
        closed = asyncio.create_task(worker.wait_all_closed())
        assert await supervisor.receive() == {"kind": "closed"}
        assert closed.done() is not all_stop
        supervisor.send("all_closed")
        await closed
    receiving.cancel()
