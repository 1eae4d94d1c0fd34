"""The ids of one request: issued from memory or by the store, then written into a reply or burned.

Every method that issues ranges or document ids uses these items: unary calls one, streams one for
each message, batches one for each of their requests.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import Refund
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.document_ids.generator import DocIdGenerator, DocIdRun
from idalloc_server.domain.errors import (
    InvalidRequest,
    LeaseExpired,
    Refusal,
    RequestIdBurned,
    RequestIdReused,
    StoreUnavailable,
)
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator, with_date
from idalloc_server.domain.sequences.formats import compile_format
from idalloc_server.domain.sequences.sequence import Reset
from idalloc_server.notices import generated_ids
from idalloc_server.rpc.status import Status

# What 0 means in id_count (auth/access_control.py charges as many).
DEFAULT_ID_COUNT = 1
MAX_TEXTS_PER_MESSAGE = 10_000

_RANGE_VIEWS = frozenset(pb.RangeView.values())
_DOC_ID_VIEWS = frozenset(pb.DocIdView.values())
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NIL_UUID = "00000000-0000-0000-0000-000000000000"

RangeReply = pb.AllocateRangeResponse | pb.StreamRangesResponse
Answer = pb.AllocateStreamResponse | pb.AllocateRangeResult
DocIdReply = pb.GenerateDocIdResponse | pb.StreamDocIdsResponse


def check_count(field: str, value: int, most: int, default: int = DEFAULT_ID_COUNT) -> int:
    """Return a number of ids of a request, or the default for 0.

    Raises:
        InvalidRequest: It is negative, or above ``most``.
    """
    if not value:
        return min(default, most)
    if not 0 < value <= most:
        raise InvalidRequest(field, f"must be between 1 and {most}, or 0 for the default, not {value}")
    return value


class Item(ABC):
    """The ids of one request.

    A batch and a stream of requests keep with it how the request was admitted, and why it failed.
    """

    __slots__ = ("error", "refund", "request")

    # The field of AllocateStream's messages that has its request and reply.
    kind: ClassVar[Literal["allocate_range", "generate_doc_id"]]
    request: Any  # has id_count
    refund: Refund | None  # refunds the ids of the request; None at first
    error: Exception | None  # why the request has no ids; None at first

    @property
    @abstractmethod
    def sequence(self) -> str | None:
        """The sequence that the request names; None for document ids."""

    @abstractmethod
    def issue_now(self) -> bool:
        """Check the request and issue its ids from memory; return False if that needs the store."""

    @abstractmethod
    async def issue(self) -> None:
        """Check the request and issue its ids, waiting for the store."""

    @abstractmethod
    def fill(self, reply: Any) -> None:
        """Write the ids into a reply.

        Raises:
            LeaseExpired: Their lease expired since they were issued, as the process was paused;
                they are burned, unless a repeated request id may still get them.
            StoreUnavailable: There are none, as the call ended before the store answered.
        """

    @abstractmethod
    def burn(self, cause: BurnCause) -> None:
        """Count the ids as burned, if there are any: no reply will have them."""

    def answer(self, answer: Answer, reply: Any, record_failure: Callable[[Exception], Status]) -> None:
        """Write the ids into the reply of an answer; or the error, which refunds them."""
        try:
            if self.error is not None:
                raise self.error
            self.fill(reply)
        except Exception as error:
            # As a unary call: of these two, the call may have burned as many ids.
            if self.refund and isinstance(error, Refusal) and not isinstance(error, RequestIdReused | RequestIdBurned):
                self.refund()
            answer.error.CopyFrom(record_failure(error).details)


@dataclass(eq=False)
class RangeSource:
    """Makes the items of ranges, and writes ranges into replies."""

    allocator: Allocator  # issues ranges
    request_ids: IdempotentAllocator  # issues ranges to requests with a request id
    doc_ids: DocIdGenerator  # has the node's prefix, which texts may show
    clock: Clock  # the clock of leases and dates
    max_ids: int  # the largest number of ids per range
    node_id: int  # the id of this process in its replies

    def item(self, request: pb.AllocateRangeRequest) -> "RangeItem":
        """Return the item of a request."""
        return RangeItem(request, self)

    def max_ids_in(self, view: pb.RangeView.ValueType) -> int:
        """Return the largest number of ids of a reply with a view."""
        return min(self.max_ids, MAX_TEXTS_PER_MESSAGE) if view == pb.RANGE_VIEW_TEXTS else self.max_ids

    def fill(self, reply: RangeReply, id_range: IdRange) -> bool:
        """Set the fields that both replies with a range share, one by one: this is the fastest way.

        Returns:
            Whether the lease of the ids is still valid.
        """
        first_id, id_count, step, generation, expires_at, sequence, period, created = id_range
        issued = reply.range
        issued.first_id = first_id
        issued.last_id = first_id + (id_count - 1) * step
        issued.step = step
        issued.id_count = id_count
        reply.generation = generation
        reply.node_id = self.node_id
        left = expires_at - self.clock.boot()
        is_valid = left > 0
        reply.ttl.seconds = int(left) if is_valid else 0
        reply.ordering = sequence.ordering  # type: ignore[assignment]
        if period:
            reply.period = period
        if created:
            reply.created = True
        return is_valid


class RangeItem(Item):
    """A range of one request."""

    __slots__ = ("_recorded", "_source", "id_range")

    kind: ClassVar[Literal["allocate_range"]] = "allocate_range"
    request: pb.AllocateRangeRequest
    id_range: IdRange | None

    def __init__(self, request: pb.AllocateRangeRequest, source: RangeSource) -> None:
        self.request = request
        self.refund = None
        self.error = None
        self.id_range = None
        self._source = source

    @property
    def sequence(self) -> str:
        """The sequence that the request names."""
        return self.request.sequence

    def issue_now(self) -> bool:
        request = self.request
        count = request.id_count or DEFAULT_ID_COUNT
        if request.view or not 0 < count <= self._source.max_ids:
            count = self._count_ids()
        if request.request_id:
            return False
        self.id_range = self._source.allocator.issue_now(request.sequence, count)
        return self.id_range is not None

    async def issue(self) -> None:
        request = self.request
        source = self._source
        count = self._count_ids()
        if not request.request_id:
            self.id_range = await source.allocator.issue(request.sequence, count)
            return
        request_id = request.request_id.lower()
        if not _UUID.fullmatch(request_id) or request_id == _NIL_UUID:
            raise InvalidRequest("request_id", "must be a UUID of 36 characters other than the nil UUID")
        # The range with the date of its texts, and the node prefix in them, as they were recorded.
        self._recorded = await source.request_ids.allocate_once(
            request.sequence, count, request_id, source.doc_ids.prefix
        )
        [dated, _] = self._recorded
        self.id_range = dated if dated.sequence.reset != Reset.NEVER else dated._replace(period="")

    def fill(self, reply: RangeReply) -> None:
        source = self._source
        id_range = self.id_range
        if id_range is None:
            raise StoreUnavailable(
                f"sequence {self.sequence!r} got no ids from the store before the deadline; try again"
            )
        if not source.fill(reply, id_range):
            self.burn(BurnCause.EXPIRED)
            raise LeaseExpired(self.request.sequence)
        view = self.request.view
        if view == pb.RANGE_VIEW_NOTICE and isinstance(reply, pb.AllocateRangeResponse):
            reply.notice.CopyFrom(generated_ids.insert_id_notice(id_range.first_id))
        elif view == pb.RANGE_VIEW_TEXTS:
            if self.request.request_id:
                dated, prefix = self._recorded
            else:
                dated = with_date(id_range, source.clock.wall())
                prefix = source.doc_ids.prefix
            values = range(dated.first_id, dated.first_id + dated.id_count * dated.step, dated.step)
            reply.texts.extend(compile_format(dated.sequence.format).format_ids(values, dated.period, prefix))

    def burn(self, cause: BurnCause) -> None:
        # A repeated request id returns its ids again.
        if self.id_range is not None and not self.request.request_id:
            burned = self._source.allocator.burned
            burned.add(self.request.sequence, self.id_range.period, cause, self.id_range.id_count)

    def _count_ids(self) -> int:
        """Return how many ids the request wants, after checks of its view and its number of ids."""
        source = self._source
        view = self.request.view
        if view not in _RANGE_VIEWS:
            raise InvalidRequest("view", f"must be a value of RangeView, not {view}")
        return check_count("id_count", self.request.id_count, source.max_ids_in(view))


@dataclass(eq=False)
class DocIdSource:
    """Makes the items of document ids."""

    generator: DocIdGenerator
    max_ids: int  # the largest number of document ids per reply in the view COMPACT

    def item(self, request: pb.GenerateDocIdRequest) -> "DocIdItem":
        """Return the item of a request."""
        return DocIdItem(request, self)

    def max_ids_in(self, view: pb.DocIdView.ValueType) -> int:
        """Return the largest number of document ids of a reply with a view.

        Raises:
            InvalidRequest: There is no such view.
        """
        if view not in _DOC_ID_VIEWS:
            raise InvalidRequest("view", f"must be a value of DocIdView, not {view}")
        return self.max_ids if view == pb.DOC_ID_VIEW_COMPACT else min(self.max_ids, MAX_TEXTS_PER_MESSAGE)


class DocIdItem(Item):
    """The document ids of one request."""

    __slots__ = ("_runs", "_source")

    kind: ClassVar[Literal["generate_doc_id"]] = "generate_doc_id"
    sequence = None
    request: pb.GenerateDocIdRequest

    def __init__(self, request: pb.GenerateDocIdRequest, source: DocIdSource) -> None:
        self.request = request
        self.refund = None
        self.error = None
        self._source = source
        self._runs: list[DocIdRun] = []

    def issue_now(self) -> bool:
        self._runs = self._source.generator.issue_now(*self._arguments()) or []
        return bool(self._runs)

    async def issue(self) -> None:
        self._runs = await self._source.generator.issue(*self._arguments())

    def fill(self, reply: DocIdReply) -> None:
        view = self.request.view or pb.DOC_ID_VIEW_FULL
        runs = self._runs
        if view in (pb.DOC_ID_VIEW_FULL, pb.DOC_ID_VIEW_COMPACT):
            reply.runs.extend(
                pb.DocIdRun(first_doc_id=run.first_doc_id, step=run.step, id_count=run.id_count) for run in runs
            )
        if view == pb.DOC_ID_VIEW_COMPACT:
            return
        texts = [text for run in runs for text in run.texts()] if len(runs) > 1 else runs[0].texts()
        if view == pb.DOC_ID_VIEW_NOTICE_FRAME:
            reply.notice_frame = generated_ids.doc_ids_frame(texts)
        else:
            reply.doc_ids.extend(texts)
        if view == pb.DOC_ID_VIEW_FULL:
            reply.notice.CopyFrom(generated_ids.doc_ids_notice(texts))

    def burn(self, cause: BurnCause) -> None:
        pass  # document ids are not counted

    def _arguments(self) -> tuple[int, int, int]:
        request = self.request
        count = check_count("id_count", request.id_count, self._source.max_ids_in(request.view))
        return count, request.auto_increment_offset, request.auto_increment_increment
