"""The ranges of one call of BatchAllocateRanges."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import AdmitRequest
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.rpc.items import RangeItem, RangeSource
from idalloc_server.rpc.status import Status

MAX_BATCH_REQUESTS = 1_000
# How long before the deadline of the call its unfinished requests are answered, so that the reply
# arrives in time; at most a share of the time that the call has.
REPLY_SECONDS = 0.05
REPLY_SHARE = 0.25


@dataclass(eq=False, slots=True)
class RangeBatch:
    """Issues a range for each request of a call: from the lease at once, or after a refill."""

    source: RangeSource
    admit: AdmitRequest  # authorizes and charges each request
    _items: list[RangeItem] = field(init=False, default_factory=list)  # in the order of the requests
    _waiting: list[RangeItem] = field(init=False, default_factory=list)

    def add(self, request: pb.AllocateRangeRequest) -> None:
        """Issue the range of the next request from the lease.

        If the lease has too few ids, ``wait`` issues it.
        """
        item = RangeItem(request, self.source)
        self._items.append(item)
        try:
            item.refund = self.admit(request.sequence, request.id_count)
            if request.view or request.request_id:
                raise InvalidRequest("view" if request.view else "request_id", "must be unset in a batch")
            if not item.issue_now():
                self._waiting.append(item)
        except Exception as error:
            item.error = error

    async def wait(self, seconds: float | None) -> None:
        """Issue the other ranges from the store until shortly before the deadline of the call.

        Each has its own task. If the call is cancelled, all ids that it took are burned.

        Args:
            seconds: The time until the deadline of the call; None if it has none.
        """
        if not self._waiting:
            return
        limit = None if seconds is None else seconds - min(REPLY_SECONDS, REPLY_SHARE * seconds)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    async with asyncio.TaskGroup() as tasks:
                        for item in self._waiting:
                            tasks.create_task(self._issue(item))
        except asyncio.CancelledError:
            for item in self._items:
                item.burn(BurnCause.CANCELLED)
            raise

    async def _issue(self, item: RangeItem) -> None:
        try:
            await item.issue()
        except Exception as error:
            item.error = error

    def reply(self, record_failure: Callable[[Exception], Status]) -> pb.BatchAllocateRangesResponse:
        """Return the reply.

        A request that is not finished has an error, and so has one whose lease has expired.

        Args:
            record_failure: Records the error of a request, and returns its status.
        """
        reply = pb.BatchAllocateRangesResponse()
        for item in self._items:
            result = reply.results.add()
            item.answer(result, result.response, record_failure)
        return reply
