"""Records answers of idempotent requests in the store, with group commit (P7)."""

import asyncio
from collections import deque
from collections.abc import Iterable

import structlog

from idalloc_server.domain.errors import Refusal, ServerDraining, StoreOutcomeUnknown
from idalloc_server.domain.store.protocol import Store, within_timeout
from idalloc_server.domain.store.records import RecordedAllocation

# The most answers that one statement records.
MAX_BATCH_ROWS = 200

_log = structlog.get_logger("idalloc.request_ids")


# An allocation to record, and the recorded one.
_PendingAnswer = tuple[RecordedAllocation, asyncio.Future[RecordedAllocation]]


class AnswerLog:
    """Records answers. One statement runs at a time; answers that arrive meanwhile share the next one."""

    def __init__(self, store: Store, store_timeout: float) -> None:
        self._store = store
        self._store_timeout = store_timeout
        self._waiting: deque[_PendingAnswer] = deque()
        self._task: asyncio.Task[None] | None = None

    async def write(self, allocation: RecordedAllocation) -> RecordedAllocation:
        """Records an answer, unless its request id has one, and returns the recorded answer."""
        loop = asyncio.get_running_loop()
        recorded: asyncio.Future[RecordedAllocation] = loop.create_future()
        self._waiting.append((allocation, recorded))
        if self._task is None:
            self._task = loop.create_task(self._run(), name="record answers")
        return await recorded

    async def _run(self) -> None:
        batch: list[_PendingAnswer] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH_ROWS))]
                await self._write(batch)
        finally:
            # Answers are left only if the task was cancelled.
            self._task = None
            _fail([*batch, *self._waiting], ServerDraining())
            self._waiting.clear()

    async def _write(self, batch: list[_PendingAnswer]) -> None:
        try:
            stored = await within_timeout(self._store_timeout, self._store.record([each for each, _ in batch]))
        except Exception as error:
            if not isinstance(error, Refusal):
                _log.exception("record_failed")
            _fail(batch, error)
            return
        for allocation, recorded in batch:
            if not recorded.done() and allocation.request_id in stored:
                recorded.set_result(stored[allocation.request_id])
        _fail(batch, StoreOutcomeUnknown("the store did not return the answer recorded for the request_id; try again"))


def _fail(batch: Iterable[_PendingAnswer], error: Exception) -> None:
    """Fails the answers that are still pending."""
    for _, recorded in batch:
        if not recorded.done():
            recorded.set_exception(error)
