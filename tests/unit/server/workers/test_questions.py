"""The supervisor asks workers over the pipe."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.workers.messages import Answered, Asked
from idalloc_server.workers.pipe import Pipe
from idalloc_server.workers.questions import Answers, Questions


class Worker:
    """The supervisor's handle of a worker that is not a process."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.is_serving = True


async def double(arguments: Mapping[str, Any]) -> Any:
    """Answer with twice a number."""
    return {"twice": 2 * arguments["number"]}


async def refuse(arguments: Mapping[str, Any]) -> Any:
    """Refuse."""
    raise StoreUnavailable("the store is away")


async def never(arguments: Mapping[str, Any]) -> Any:
    """Never answer."""
    await asyncio.Event().wait()


@pytest.fixture
async def asked() -> AsyncIterator[tuple[Questions, Worker, Pipe]]:
    """Questions to one worker, which answers until its pipe is closed."""
    ours, theirs = socket.socketpair()
    supervisor, worker = await Pipe.over(ours), await Pipe.over(theirs)
    handle: Any = Worker(supervisor)
    questions = Questions([handle])
    answers = Answers({"double": double, "refuse": refuse, "never": never}, worker.send)

    async def answer() -> None:
        while (asked := await worker.receive()) is not None:
            assert isinstance(asked, Asked)
            answers.receive(asked)

    async def receive() -> None:
        while (answered := await supervisor.receive()) is not None:
            assert isinstance(answered, Answered)
            questions.receive(answered)

    tasks = [asyncio.create_task(each) for each in (answer(), receive())]
    yield questions, handle, worker
    await answers.close()
    for each in (supervisor, worker):
        await each.close()
    await asyncio.wait(tasks)


async def test_answers_reach_the_one_who_asked(asked: tuple[Questions, Worker, Pipe]) -> None:
    """Concurrent questions get each its own answer."""
    questions, _, _ = asked
    answers = await asyncio.gather(*(questions.ask("double", {"number": each}, 10) for each in range(5)))
    assert answers == [{"twice": 2 * each} for each in range(5)]


async def test_refused_questions_raise(asked: tuple[Questions, Worker, Pipe]) -> None:
    """A refusal of the worker reaches the caller of ask; an unknown question is an error, too."""
    questions, _, _ = asked
    with pytest.raises(StoreUnavailable, match="the store is away"):
        await questions.ask("refuse", {}, 10)
    with pytest.raises(StoreUnavailable, match="unknown"):
        await questions.ask("unknown", {}, 10)


async def test_wait_for_an_answer_ends(asked: tuple[Questions, Worker, Pipe]) -> None:
    """A question ends at its timeout, when the worker exits, and at once without a worker."""
    questions, handle, worker = asked
    with pytest.raises(StoreUnavailable, match="in time"):
        await questions.ask("never", {}, 0.05)
    waiting = asyncio.create_task(questions.ask("never", {}, 60))
    await asyncio.sleep(0)
    await worker.close()
    with pytest.raises(StoreUnavailable, match="or exited"):
        await asyncio.wait_for(waiting, 10)
    handle.is_serving = False
    with pytest.raises(StoreUnavailable, match="no worker"):
        await questions.ask("double", {"number": 1}, 10)
