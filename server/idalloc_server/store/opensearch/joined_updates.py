"""Sends updates of rows: each alone while few are under way, then those that wait in one request.

The first ``MAX_REQUESTS`` requests are sent at once, each with one row. Later updates wait, and
share the request that is sent when one ends. A request that hangs does not hold the others: if none
ended for ``STALL_SECONDS``, one more is sent.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from idalloc_server.domain.errors import StoreOutcomeUnknown
from idalloc_server.store.cluster.connections import WrongAnswer
from idalloc_server.store.opensearch.http import OpenSearchHttp
from idalloc_server.store.opensearch.requests import Requests, RowUpdate
from idalloc_server.store.opensearch.results import Outcome, Written, WrongItems

MAX_REQUESTS = 8
MAX_JOINED = 64  # the most updates of a request
STALL_SECONDS = 0.1


@dataclass(eq=False, slots=True)
class _Waiting:
    """An update that waits for its request, or for the answer."""

    update: RowUpdate
    answer: asyncio.Future[Written | None]  # done also if the caller has left
    joined: "_Joined | None" = None  # the request, once it is sent


@dataclass(eq=False, slots=True)
class _Joined:
    """A request of updates that waited."""

    updates: list[_Waiting]
    task: asyncio.Task[Sequence[Outcome]]

    def end_if_left(self) -> None:
        """End the request, which closes its connection, if all callers have left."""
        if all(each.answer.done() for each in self.updates):
            self.task.cancel()

    def settle(self) -> None:
        """Give each update its outcome, after the end of the request."""
        if self.task.cancelled():
            for each in self.updates:
                each.answer.cancel()
            return
        failure = self.task.exception()
        outcomes = [failure] * len(self.updates) if failure else self.task.result()
        for each, outcome in zip(self.updates, outcomes, strict=True):
            if each.answer.done():
                continue
            if isinstance(outcome, BaseException):
                each.answer.set_exception(outcome)
            else:
                each.answer.set_result(outcome)


class JoinedUpdates:
    """Sends updates of rows of sequences; each has its own outcome.

    An update whose caller is cancelled before it is sent is not sent. A request never has two
    updates of one row.
    """

    def __init__(self, http: OpenSearchHttp, requests: Requests) -> None:
        self._http = http
        self._requests = requests
        self._running = 0  # the number of requests under way
        self._waiting: deque[_Waiting] = deque()  # empty unless MAX_REQUESTS are under way
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, update: RowUpdate) -> Written | None:
        """Return the row after an update; None if there is no row.

        Raises:
            StoreFailure: As ``Transport.send_write``, or OpenSearch refused this update alone.
            StoreExchanged: The write went to another index than the opened one.
        """
        if self._running >= MAX_REQUESTS:
            return await self._join(update)
        self._running += 1
        try:
            return await self._http.send_write(self._requests.update_row(update))
        finally:
            self._go_on()

    async def _join(self, update: RowUpdate) -> Written | None:
        waiting = _Waiting(update, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._timer is None:
            self._watch()
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            if waiting.joined:
                waiting.joined.end_if_left()
            raise

    def _go_on(self) -> None:
        """Send what waits, after the end of a request."""
        self._running -= 1
        self._begin()
        while self._waiting and self._running < MAX_REQUESTS:  # such as a second update of a row
            self._begin()
        self._watch()

    def _watch(self) -> None:
        """Send one more request if none ends for a while."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(STALL_SECONDS, self._begin_late)

    def _begin_late(self) -> None:
        self._begin()
        self._watch()

    def _begin(self) -> None:
        """Send a request of the oldest updates that wait."""
        chosen: dict[str, _Waiting] = {}
        left: list[_Waiting] = []
        while self._waiting and len(chosen) < MAX_JOINED:
            waiting = self._waiting.popleft()
            if waiting.update.name in chosen:
                left.append(waiting)
            elif not waiting.answer.done():
                chosen[waiting.update.name] = waiting
        self._waiting.extendleft(reversed(left))
        if not chosen:
            return
        sending = self._send([waiting.update for waiting in chosen.values()])
        joined = _Joined([*chosen.values()], asyncio.get_running_loop().create_task(sending, name="update rows"))
        for waiting in joined.updates:
            waiting.joined = joined
        self._running += 1
        # Not in the task itself, which may be cancelled before it begins.
        joined.task.add_done_callback(partial(self._end, joined))

    def _end(self, joined: _Joined, _: object) -> None:
        joined.settle()
        self._go_on()

    async def _send(self, updates: Sequence[RowUpdate]) -> Sequence[Outcome]:
        if len(updates) == 1:
            return [await self._http.send_write(self._requests.update_row(updates[0]))]
        try:
            return await self._http.send_write(self._requests.update_rows(updates))
        except StoreOutcomeUnknown as error:
            if not isinstance(error.__cause__, WrongItems):
                raise
            return [error if isinstance(each, WrongAnswer) else each for each in error.__cause__.outcomes]
