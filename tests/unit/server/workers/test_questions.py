"""The supervisor asks workers over the pipe."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any
from unittest.mock import Mock

import pytest

from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.settings.model import Settings
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.telemetry.metrics import Counts
from idalloc_server.workers import messages, worker
from idalloc_server.workers.pipe import Pipe
from idalloc_server.workers.supervisor_http import SupervisorHttp

Asked = tuple[SupervisorHttp, Mock, Pipe]


async def answer(issuers: object, question: str, arguments: Mapping[str, Any]) -> Any:
    """Double a number, refuse, or never answer."""
    match question:
        case "double":
            return {"twice": 2 * arguments["number"]}
        case "refuse":
            raise StoreUnavailable("the store is away")
        case "never":
            await asyncio.Event().wait()
    raise LookupError(question)


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    """The supervisor of one worker, which answers until its pipe is closed."""
    monkeypatch.setattr(worker, "answer", answer)
    ours, theirs = socket.socketpair()
    supervisor = await Pipe.over(ours)
    pipe = await Pipe.over(theirs)
    arguments = NodeSettingsFile(None, "127.0.0.1:0").arguments
    start = messages.Start(1, dict(Settings(workers=2)), arguments, requires_authentication=False, store=None)
    serving = asyncio.create_task(asyncio.Event().wait())
    one = worker.Worker(pipe, start)
    report = Mock(checks=dict, counts=Counts, series=Mock(candidates=dict))
    reporting = asyncio.create_task(one.report(report))
    handle = Mock(pipe=supervisor, is_serving=True)

    async def receive() -> None:
        while await supervisor.receive() is not None:
            pass

    tasks = [asyncio.create_task(each) for each in (one.receive_until_orphaned(serving), receive())]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    yield SupervisorHttp(Settings(), None, None, [handle], Counts), handle, pipe
    reporting.cancel()
    await asyncio.wait([reporting])
    for each in (supervisor, pipe):
        await each.close()
    await asyncio.wait(tasks)


async def test_answers_reach_the_one_who_asked(asked: Asked) -> None:
    """Concurrent questions get each its own answer."""
    http, _, _ = asked
    answers = await asyncio.gather(*(http.ask("double", {"number": each}, 10) for each in range(5)))
    assert answers == [{"twice": 2 * each} for each in range(5)]


async def test_refused_questions_raise(asked: Asked) -> None:
    """A refusal of the worker reaches the caller of ask; an unknown question is an error, too."""
    http, _, _ = asked
    with pytest.raises(StoreUnavailable, match="the store is away"):
        await http.ask("refuse", {}, 10)
    with pytest.raises(StoreUnavailable, match="unknown"):
        await http.ask("unknown", {}, 10)


async def test_wait_for_an_answer_ends(asked: Asked) -> None:
    """A question ends at its timeout, when the worker exits, and at once without a worker."""
    http, handle, pipe = asked
    with pytest.raises(StoreUnavailable, match="in time"):
        await http.ask("never", {}, 0.05)
    waiting = asyncio.create_task(http.ask("never", {}, 60))
    await asyncio.sleep(0)
    await pipe.close()
    with pytest.raises(StoreUnavailable, match="or exited"):
        await asyncio.wait_for(waiting, 10)
    handle.is_serving = False
    with pytest.raises(StoreUnavailable, match="no worker"):
        await http.ask("double", {"number": 1}, 10)
