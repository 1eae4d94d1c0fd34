"""Questions to workers, for what needs the store or the allocator.

The supervisor asks them, for itself or for another worker.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from idalloc_server.domain.errors import Refusal, StoreUnavailable
from idalloc_server.node.answers import Answer
from idalloc_server.workers.messages import Answered, Asked, Message, Rates, RatesWanted
from idalloc_server.workers.worker_process import WorkerProcess


@dataclass(eq=False)
class Questions:
    """The supervisor's side: asks any worker that serves."""

    workers: Iterable[WorkerProcess]  # the present ones
    _ids: Iterator[int] = field(init=False, default_factory=partial(count, 1))
    _answers: dict[int, asyncio.Future[Answered]] = field(init=False, default_factory=dict)

    async def ask(self, question: str, arguments: Mapping[str, Any], timeout: float) -> Any:
        """Return the answer of a worker.

        Args:
            question: The name of the question.
            arguments: Its arguments, as JSON values.
            timeout: The longest wait, in seconds.

        Raises:
            StoreUnavailable: No worker serves, none answered in time, or it exited, or it refused
                with this message.
        """
        worker = next((each for each in self.workers if each.is_serving), None)
        if worker is None:
            raise StoreUnavailable("no worker serves")
        return await self._ask(worker, question, arguments, timeout)

    async def ask_all(
        self, question: str, arguments: Mapping[str, Any], timeout: float, *, exclude: WorkerProcess | None = None
    ) -> list[Any]:
        """Return the answers of all workers that serve and answered in time.

        Args:
            question: The name of the question.
            arguments: Its arguments, as JSON values.
            timeout: The longest wait, in seconds.
            exclude: A worker not to ask.
        """
        workers = [each for each in self.workers if each.is_serving and each is not exclude]
        asked = (self._ask(each, question, arguments, timeout) for each in workers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [each for each in answers if not isinstance(each, BaseException)]

    async def _ask(self, worker: WorkerProcess, question: str, arguments: Mapping[str, Any], timeout: float) -> Any:
        number = next(self._ids)
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        worker.pipe.send(Asked(number, question, dict(arguments)))
        ended = asyncio.create_task(worker.pipe.wait_until(answer.done))
        try:
            waiting: list[asyncio.Future[Any]] = [answer, ended]
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            del self._answers[number]
        if not answer.done():
            raise StoreUnavailable("the worker did not answer in time, or exited")
        answered = answer.result()
        if answered.error:
            raise StoreUnavailable(answered.error)
        return answered.result

    def receive(self, answered: Answered) -> None:
        """Pass a worker's answer to the caller of ``ask``, unless its wait has ended."""
        answer = self._answers.get(answered.number)
        if answer and not answer.done():
            answer.set_result(answered)


@dataclass(eq=False)
class OtherRates:
    """The side of a worker that wants the rates of all others."""

    send: Callable[[Message], None]  # sends a message to the supervisor
    _ids: Iterator[int] = field(init=False, default_factory=partial(count, 1))
    _answers: dict[int, asyncio.Future[Mapping[str, float]]] = field(init=False, default_factory=dict)

    async def ask(self, counters: list[str], timeout: float) -> Mapping[str, float]:
        """See ``Workers.other_rates``."""
        number = next(self._ids)
        answer: asyncio.Future[Mapping[str, float]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self.send(RatesWanted(number, counters, timeout))
        try:
            async with asyncio.timeout(2 * timeout):
                return await answer
        except TimeoutError:
            return {}  # The supervisor has exited.
        finally:
            del self._answers[number]

    def receive(self, rates: Rates) -> None:
        """Pass rates to the caller of ``ask``, unless its wait has ended."""
        answer = self._answers.get(rates.number)
        if answer and not answer.done():
            answer.set_result(rates.rates)


@dataclass(eq=False)
class Answers:
    """The worker's side: answers in a task for each question."""

    known: Mapping[str, Answer]  # by the name of the question; an answer must fit into a message of the pipe
    send: Callable[[Message], None]  # sends a message to the supervisor
    _running: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def receive(self, asked: Asked) -> None:
        """Begin to answer a question."""
        task = asyncio.create_task(self._answer(asked))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cancel all answers, and wait for their end."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _answer(self, asked: Asked) -> None:
        error, result = "", None
        try:
            result = await self.known[asked.question](asked.arguments)
        except Refusal as refusal:
            error = str(refusal)
        except Exception as fault:
            error = f"the question {asked.question} failed: {fault!r}"
        self.send(Answered(asked.number, error, result))
