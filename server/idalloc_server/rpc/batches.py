"""The ranges of one call of BatchAllocateRanges."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import AdmitRequest, Refund
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.errors import LeaseExpired, Refusal, StoreUnavailable

MAX_BATCH_REQUESTS = 1_000
# How long before the deadline of the call its unfinished requests are answered, so that the reply
# arrives in time; at most a share of the time that the call has.
REPLY_SECONDS, REPLY_SHARE = 0.05, 0.25

# Returns the number of ids that a request is for, or raises ``InvalidRequest``.
CountIds = Callable[[pb.AllocateRangeRequest], int]
# Fills a reply with a range, and returns whether its lease is still valid.
Fill = Callable[[pb.AllocateRangeResponse, IdRange], bool]
# Records the error of a request, and fills the result with its status.
Fail = Callable[[pb.AllocateRangeResult, Exception], None]


@dataclass(eq=False, slots=True)
class RangeBatch:
    """Takes a range for each request of a call: from the lease at once, or after a refill."""

    allocator: Allocator
    admit: AdmitRequest  # authorizes and charges each request
    count_ids: CountIds  # checks each request
    # The range or the error of each request, in order; None until the store answered.
    _outcomes: list[IdRange | Exception | None] = field(init=False, default_factory=list)
    _sequences: list[str] = field(init=False, default_factory=list)
    _refunds: dict[int, Refund] = field(init=False, default_factory=dict)
    _waiting: list[tuple[int, str, int]] = field(init=False, default_factory=list)

    def add(self, request: pb.AllocateRangeRequest) -> None:
        """Take the range of the next request from the lease.

        If the lease has too few ids, ``wait`` takes it.
        """
        number, sequence = len(self._outcomes), request.sequence
        outcome: IdRange | Exception | None
        try:
            refund = self.admit(sequence, request.id_count)
            if refund is not None:
                self._refunds[number] = refund
            count = self.count_ids(request)
            outcome = self.allocator.issue_now(sequence, count)
            if outcome is None:
                self._waiting.append((number, sequence, count))
        except Exception as error:
            outcome = error
        self._outcomes.append(outcome)
        self._sequences.append(sequence)

    async def wait(self, seconds: float | None) -> None:
        """Take the other ranges from the store until shortly before the deadline of the call.

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
                        for number, sequence, count in self._waiting:
                            tasks.create_task(self._take(number, sequence, count))
        except asyncio.CancelledError:
            for number, outcome in enumerate(self._outcomes):
                self._burn(number, outcome, BurnCause.CANCELLED)
            raise

    async def _take(self, number: int, sequence: str, count: int) -> None:
        try:
            self._outcomes[number] = await self.allocator.issue(sequence, count)
        except Exception as error:
            self._outcomes[number] = error

    def reply(self, fill: Fill, fail: Fail) -> pb.BatchAllocateRangesResponse:
        """Return the reply.

        A request that is not finished has an error, and so has one whose lease has expired.
        """
        reply = pb.BatchAllocateRangesResponse()
        add = reply.results.add
        for number, outcome in enumerate(self._outcomes):
            result = add()
            error: Exception
            if isinstance(outcome, IdRange):
                if fill(result.response, outcome):
                    continue
                self._burn(number, outcome, BurnCause.EXPIRED)
                error = LeaseExpired(self._sequences[number])
            elif outcome is None:
                error = StoreUnavailable(
                    f"sequence {self._sequences[number]!r} got no ids from the store before the deadline; try again"
                )
            else:
                error = outcome
            if isinstance(error, Refusal) and number in self._refunds:
                self._refunds[number]()
            fail(result, error)
        return reply

    def _burn(self, number: int, outcome: IdRange | Exception | None, cause: BurnCause) -> None:
        if isinstance(outcome, IdRange):
            self.allocator.burned.add(self._sequences[number], outcome.period, cause, outcome.id_count)
