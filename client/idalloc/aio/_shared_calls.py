"""Calls for ranges of one sequence that are made at the same time, as one: in the client for asyncio."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import suppress
from copy import copy
from inspect import CORO_SUSPENDED, getcoroutinestate
from typing import TYPE_CHECKING, Any, TypeAlias

from idalloc._core.errors import DeadlineExceeded, IdallocError, InvalidRequest, SequenceAheadOfClock, SequenceExhausted
from idalloc._core.pool import LARGEST
from idalloc._core.requests import range_request
from idalloc.aio._base import BaseClient

if TYPE_CHECKING:
    from idalloc.v1 import id_allocator_pb2 as pb

# Who had asked for less may have got it.
_ERRORS_OF_THE_COUNT = (SequenceExhausted, SequenceAheadOfClock, InvalidRequest)

# What a caller who waits gets: ids, an error (of the log: OSError), or None, and then it calls by itself.
_Answer: TypeAlias = range | IdallocError | OSError | None
# Those who wait, in order of arrival, and how many ids each wants.
_Waiting: TypeAlias = "dict[asyncio.Future[_Answer], int]"


class _Line:
    """Those who want ids of one sequence while a call for it is under way.

    Attributes:
        waiting: Whose call is still to be made.
        served: Whose call is under way.
        first: The call of who came first.
        task: Makes the calls after that.
    """

    def __init__(self) -> None:
        self.waiting: _Waiting = {}
        self.served: _Waiting = {}
        self.first: Coroutine[Any, Any, range] | None = None
        self.task: asyncio.Task[None] | None = None

    def is_busy(self) -> bool:
        """Whether a call is under way: it may have ended by the exception of a signal's handler, and ended nothing."""
        if self.task is not None and not self.task.done():
            return True
        return self.first is not None and getcoroutinestate(self.first) == CORO_SUSPENDED


class SharedCalls:
    """Makes one call for all who want ids of a sequence while another call for it is under way.

    Who comes when none is under way calls at once. Who comes meanwhile waits until that call ends, and shares the next
    one with all others who wait. It is sent after all of them came: a caller that starts after another one was answered
    is served by a later call, as if each had made its own.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._largest: dict[str, int] = {}  # by sequence, where the server allows less ids in a call than LARGEST
        # For each sequence that a call is under way for. By loop, too: a client that is used in a second one, where
        # gRPC refuses it, must not wait there for the first.
        self._lines: dict[tuple[asyncio.AbstractEventLoop, str], _Line] = {}

    async def allocate(self, request: "pb.AllocateRangeRequest") -> range:
        """Takes the ids that a request of a sequence and a count, and of nothing else, asks for."""
        self._client._connection.get()  # refuses when the client was closed, and in the child of a fork
        key = asyncio.get_running_loop(), request.sequence
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        elif line.is_busy():
            return await self._wait(line, request)
        line.first = call = self._client._range(request)
        try:
            return await call
        finally:
            if any(not turn.done() for turn in line.waiting):
                line.task = self._client._own(self._serve(request.sequence, line))
                line.task.add_done_callback(lambda _: self._end(key, line))
            else:
                self._end(key, line)

    async def _wait(self, line: _Line, request: "pb.AllocateRangeRequest") -> range:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._client.timeout
        turn: asyncio.Future[_Answer] = loop.create_future()
        line.waiting[turn] = request.id_count
        try:
            async with asyncio.timeout_at(deadline):
                answer = await turn
        except TimeoutError:
            raise DeadlineExceeded(f"no answer from {self._client.target} in time") from None
        finally:
            line.waiting.pop(turn, None)
        if isinstance(answer, range):
            return answer
        if answer is None:
            return await self._client._range(request, timeout=max(0.0, deadline - loop.time()))
        raise copy(answer) from answer  # each its own: a traceback grows wherever its error is raised

    async def _serve(self, sequence: str, line: _Line) -> None:
        """Calls for those who wait, until nobody does."""
        with suppress(RuntimeError):  # the client was closed: see _end
            while line.waiting:
                line.served, line.waiting = line.waiting, {}
                groups = _groups(line.served, self._largest.get(sequence, LARGEST))
                await asyncio.gather(*(self._share(sequence, group) for group in groups))

    def _end(self, key: tuple[asyncio.AbstractEventLoop, str], line: _Line) -> None:
        """Ends a line. Who is left in it, since the client is being closed, calls by itself, and so is told of it."""
        if self._lines.get(key) is line:
            del self._lines[key]
        for waiting in (line.served, line.waiting):
            _answer(waiting, [None] * len(waiting))

    async def _share(self, sequence: str, group: _Waiting) -> None:
        """Makes one call for a group."""
        total = sum(group.values())
        answers: list[_Answer]
        try:
            answers = list(_split(await self._client._range(range_request(sequence, total)), group.values()))
        except IdallocError as error:
            of_the_count = len(group) > 1 and isinstance(error, _ERRORS_OF_THE_COUNT)
            answers = [None if of_the_count else error] * len(group)
            if of_the_count and isinstance(error, InvalidRequest) and error.field == "id_count":
                # What is allowed is a sequence's own: one of timestamps has far less than others.
                self._largest[sequence] = min(self._largest.get(sequence, LARGEST), total // 2)
        except OSError as error:  # the ids could not be written down
            answers = [error] * len(group)
        _answer(group, answers)


def _groups(waiting: _Waiting, largest: int) -> list[_Waiting]:
    """Puts those who wait, as they came, into groups of at most so many ids; who wants more is alone in one."""
    groups: list[_Waiting] = []
    left = 0
    for turn, count in waiting.items():
        if count > left:
            groups.append({})
            left = largest
        groups[-1][turn] = count
        left -= count
    return groups


def _split(ids: range, counts: Iterable[int]) -> Iterator[range]:
    """Parts of a range. Each ends right after its last id, so that its end, too, is within 64 bits."""
    first = 0
    for count in counts:
        last = ids[first + count - 1]
        yield range(ids[first], last + (1 if ids.step > 0 else -1), ids.step)
        first += count


def _answer(waiting: _Waiting, answers: list[_Answer]) -> None:
    for turn, answer in zip(waiting, answers, strict=True):
        if not turn.done():  # else its caller was cancelled, or out of time: what it would have got is a gap
            turn.set_result(answer)
