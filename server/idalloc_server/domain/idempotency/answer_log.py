"""Records answers of idempotent requests in the store, with group commit (P7)."""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from idalloc_server.domain.errors import Refusal, StoreOutcomeUnknown
from idalloc_server.domain.store.batches import Batches
from idalloc_server.domain.store.protocol import Store, within_timeout
from idalloc_server.domain.store.records import RecordedAllocation

# The most answers that one statement records.
MAX_BATCH_ROWS = 200

_log = structlog.get_logger("idalloc.request_ids")


@dataclass(eq=False)
class AnswerLog:
    """Records answers.

    One statement runs at a time; answers that arrive meanwhile share the next one.
    """

    _store: Store
    _store_timeout: float  # of a store call, in seconds

    def __post_init__(self) -> None:
        self._batches = Batches("record answers", self._write, MAX_BATCH_ROWS)

    async def write(self, allocation: RecordedAllocation) -> RecordedAllocation:
        """Record an answer, unless its request id has one, and return the recorded answer."""
        return await self._batches.add(allocation)

    async def _write(self, batch: list[RecordedAllocation]) -> Iterable[RecordedAllocation | Exception]:
        try:
            stored = await within_timeout(self._store_timeout, self._store.record(batch))
        except Exception as error:
            if not isinstance(error, Refusal):
                _log.exception("record_failed")
            raise
        unknown = StoreOutcomeUnknown("the store did not return the answer recorded for the request_id; try again")
        return [stored.get(each.request_id, unknown) for each in batch]
