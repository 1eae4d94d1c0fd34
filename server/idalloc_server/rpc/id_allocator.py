"""The servicer of idalloc.v1.IdAllocatorService."""

import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import Admit, AdmitRequest, AdmitStreamed, Context, MessageStream
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.document_ids.generator import DocIdGenerator, DocIdRun
from idalloc_server.domain.errors import InvalidRequest, LeaseExpired
from idalloc_server.domain.idempotency.allocator import IdempotentAllocator, with_date
from idalloc_server.domain.sequences.formats import compile_format
from idalloc_server.domain.sequences.model import Reset
from idalloc_server.domain.uuids import UUID_BYTES, UuidGenerator
from idalloc_server.notices import generated_ids
from idalloc_server.rpc.batches import MAX_BATCH_REQUESTS, RangeBatch
from idalloc_server.rpc.request_stream import RequestStream
from idalloc_server.rpc.status import Status

# What 0 means in id_count (auth/access_control.py charges as many), and in chunk_id_count.
DEFAULT_ID_COUNT = 1
DEFAULT_CHUNK = 10_000
MAX_TEXTS_PER_MESSAGE = 10_000

_BATCH = "/idalloc.v1.IdAllocatorService/BatchAllocateRanges"
_STREAM = "/idalloc.v1.IdAllocatorService/AllocateStream"
_RANGE_VIEWS = frozenset(pb.RangeView.values())
_DOC_ID_VIEWS = frozenset(pb.DocIdView.values())
_UUID_VERSIONS = frozenset(pb.UuidVersion.values())
_UUID_VIEWS = frozenset(pb.UuidView.values())
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NIL_UUID = "00000000-0000-0000-0000-000000000000"


class _RecordedRange(NamedTuple):
    """The ids of a request with a request id."""

    id_range: IdRange
    prefix: int  # the node prefix in its texts


@dataclass(eq=False)
class IdAllocatorServicer:
    """Translates requests and replies of ranges, document ids and UUIDs; an ``IdSource``."""

    descriptor = pb.DESCRIPTOR.services_by_name["IdAllocatorService"]
    serialized = frozenset({"AllocateRange"})

    allocator: Allocator  # issues ranges
    doc_ids: DocIdGenerator  # generates document ids, and has the node's prefix
    clock: Clock  # the clock of leases and dates
    max_ids: int  # the largest number of ids per range, or per batch of document ids
    request_ids: IdempotentAllocator  # issues ranges to requests with a request id
    uuids: UuidGenerator
    node_id: int  # the id of this process in its replies
    # Records the error of one request of several in a call of a method, and returns its status.
    record_failure: Callable[[str, Exception], Status]

    def __post_init__(self) -> None:
        self._max_texts = min(self.max_ids, MAX_TEXTS_PER_MESSAGE)
        # Most replies of AllocateRange, one after another: a new message takes longer. It has only
        # the fields that ``_fill`` always sets, and no texts, which would stay in its memory.
        self._reply = pb.AllocateRangeResponse()
        self._reply_parts = (self._reply.range, self._reply.ttl)  # or each call would make these

    async def AllocateRange(self, request: pb.AllocateRangeRequest, context: Context) -> bytes:
        """See id_allocator.proto."""
        # The hot path: each Python call counts here.
        view, sequence, count = request.view, request.sequence, request.id_count or DEFAULT_ID_COUNT
        if view or not 0 < count <= self.max_ids:
            count = self._count_ids(request)
        if request.request_id:
            reply = pb.AllocateRangeResponse()
            self._fill_recorded(reply, request, await self._take_recorded(request, count))
            return reply.SerializeToString()
        reply = self._reply
        id_range = self.allocator.issue_now(sequence, count)
        if id_range is None:
            id_range = await self.allocator.issue(sequence, count)
            reply = pb.AllocateRangeResponse()
        elif view or id_range.period:
            reply = pb.AllocateRangeResponse()
        # From here on nothing waits, so no other call uses ``_reply``.
        if not self._fill(reply, id_range):
            self._refuse_expired(sequence, id_range)
        if view:
            self._add_view(reply, view, with_date(id_range, self.clock.wall()), self.doc_ids.prefix)
        return reply.SerializeToString()

    async def BatchAllocateRanges(
        self, request: pb.BatchAllocateRangesRequest, context: Context, admit: AdmitRequest
    ) -> pb.BatchAllocateRangesResponse:
        """See id_allocator.proto."""
        requests = request.requests
        if not 0 < len(requests) <= MAX_BATCH_REQUESTS:
            raise InvalidRequest("requests", f"must be 1 to {MAX_BATCH_REQUESTS} requests, not {len(requests)}")
        batch = RangeBatch(self.allocator, admit, self._count_ids_in_batch)
        for each in requests:
            batch.add(each)
        await batch.wait(context.time_remaining())
        return batch.reply(self._fill, self._fail)

    async def StreamRanges(
        self, request: pb.StreamRangesRequest, context: Context, admit: Admit
    ) -> AsyncGenerator[pb.StreamRangesResponse, None]:
        """See id_allocator.proto."""
        view = request.view
        if view not in _RANGE_VIEWS or view == pb.RANGE_VIEW_NOTICE:
            raise InvalidRequest("view", f"must be a value of RangeView without a notice, not {view}")
        left = _check_total(request.total_id_count)
        most = self._max_ids_in(view)
        chunk = self._check_count("chunk_id_count", request.chunk_id_count, default=DEFAULT_CHUNK, most=most)
        while left:
            count = min(chunk, left)
            await admit(count)
            id_range = self.allocator.issue_now(request.sequence, count)
            reply = pb.StreamRangesResponse()
            if id_range is None:
                id_range = await self.allocator.issue(request.sequence, count)
            if not self._fill(reply, id_range):
                self._refuse_expired(request.sequence, id_range)
            if view == pb.RANGE_VIEW_TEXTS:
                self._add_view(reply, view, with_date(id_range, self.clock.wall()), self.doc_ids.prefix)
            try:
                yield reply
            except GeneratorExit:
                self.allocator.burned.add(request.sequence, id_range.period, BurnCause.CANCELLED, count)
                raise
            left -= count

    async def AllocateStream(self, messages: MessageStream, context: Context, admit: AdmitStreamed | None) -> None:
        """See id_allocator.proto."""
        await RequestStream(messages, admit, self).serve()

    async def GenerateDocId(self, request: pb.GenerateDocIdRequest, context: Context) -> pb.GenerateDocIdResponse:
        """See id_allocator.proto."""
        count = self._count_doc_ids(request)
        runs = await self._generate(count, request)
        return pb.GenerateDocIdResponse(**_doc_id_fields(runs, _check_doc_id_view(request.view)))

    async def StreamDocIds(
        self, request: pb.StreamDocIdsRequest, context: Context, admit: Admit
    ) -> AsyncGenerator[pb.StreamDocIdsResponse, None]:
        """See id_allocator.proto."""
        view = _check_doc_id_view(request.view)
        left = _check_total(request.total_id_count)
        most = self._max_doc_ids_in(view)
        chunk = self._check_count("chunk_id_count", request.chunk_id_count, default=min(DEFAULT_CHUNK, most), most=most)
        while left:
            count = min(chunk, left)
            await admit(count)
            runs = await self._generate(count, request)
            yield pb.StreamDocIdsResponse(**_doc_id_fields(runs, view))
            left -= count

    async def GenerateUuid(self, request: pb.GenerateUuidRequest, context: Context) -> pb.GenerateUuidResponse:
        """See id_allocator.proto."""
        if request.version not in _UUID_VERSIONS:
            raise InvalidRequest("version", f"must be 4 or 7, or 0 for the default, not {request.version}")
        if request.view not in _UUID_VIEWS:
            raise InvalidRequest("view", f"must be a value of UuidView, not {request.view}")
        count = self._check_count("id_count", request.id_count, most=self._max_texts)
        uuids = self.uuids.v4(count) if request.version == pb.UUID_VERSION_4 else self.uuids.v7(count)
        if request.view == pb.UUID_VIEW_BYTES:
            return pb.GenerateUuidResponse(uuid_bytes=uuids)
        return pb.GenerateUuidResponse(uuids=_format_uuids(uuids))

    def take_now(self, request: pb.AllocateStreamRequest) -> IdRange | list[DocIdRun] | None:
        if request.HasField("allocate_range"):
            wanted = request.allocate_range
            count = wanted.id_count or DEFAULT_ID_COUNT
            if wanted.view or not 0 < count <= self.max_ids:
                count = self._count_ids(wanted)
            return None if wanted.request_id else self.allocator.issue_now(wanted.sequence, count)
        if not request.HasField("generate_doc_id"):
            raise InvalidRequest("request", "must have allocate_range or generate_doc_id")
        doc_ids = request.generate_doc_id
        return self.doc_ids.issue_now(
            self._count_doc_ids(doc_ids), doc_ids.auto_increment_offset, doc_ids.auto_increment_increment
        )

    async def take(self, request: pb.AllocateStreamRequest) -> IdRange | _RecordedRange | list[DocIdRun]:
        if not request.HasField("allocate_range"):
            return await self._generate(self._count_doc_ids(request.generate_doc_id), request.generate_doc_id)
        wanted = request.allocate_range
        count = self._count_ids(wanted)
        if wanted.request_id:
            return await self._take_recorded(wanted, count)
        return await self.allocator.issue(wanted.sequence, count)

    def fill(self, response: pb.AllocateStreamResponse, request: pb.AllocateStreamRequest, taken: Any) -> None:
        if isinstance(taken, IdRange):
            self._fill_range(response.allocate_range, request.allocate_range, taken)
        elif isinstance(taken, _RecordedRange):
            self._fill_recorded(response.allocate_range, request.allocate_range, taken)
        else:
            fields = _doc_id_fields(taken, _check_doc_id_view(request.generate_doc_id.view))
            response.generate_doc_id.CopyFrom(pb.GenerateDocIdResponse(**fields))

    def fill_error(self, response: pb.AllocateStreamResponse, error: Exception) -> None:
        response.error.CopyFrom(self.record_failure(_STREAM, error).details)

    def burn(self, request: pb.AllocateStreamRequest, taken: Any) -> None:
        """See ``IdSource``. A repeated request id returns its ids again."""
        if isinstance(taken, IdRange):
            sequence = request.allocate_range.sequence
            self.allocator.burned.add(sequence, taken.period, BurnCause.CANCELLED, taken.id_count)

    async def _take_recorded(self, request: pb.AllocateRangeRequest, count: int) -> _RecordedRange:
        request_id = request.request_id.lower()
        if not _UUID.fullmatch(request_id) or request_id == _NIL_UUID:
            raise InvalidRequest("request_id", "must be a UUID of 36 characters other than the nil UUID")
        return _RecordedRange(
            *await self.request_ids.allocate_once(request.sequence, count, request_id, self.doc_ids.prefix)
        )

    def _fill_recorded(
        self, reply: pb.AllocateRangeResponse, request: pb.AllocateRangeRequest, recorded: _RecordedRange
    ) -> None:
        """Fill a reply with ids that were taken, as they were recorded.

        Raises:
            LeaseExpired: Their lease expired since they were taken; a repeated request gets an
                answer from the store.
        """
        id_range, prefix = recorded
        has_period = id_range.sequence.reset != Reset.NEVER
        if not self._fill(reply, id_range if has_period else id_range._replace(period="")):
            raise LeaseExpired(request.sequence)
        self._add_view(reply, request.view, id_range, prefix)

    def _fill_range(self, reply: pb.AllocateRangeResponse, request: pb.AllocateRangeRequest, id_range: IdRange) -> None:
        """Fill a reply with ids that were taken.

        Raises:
            LeaseExpired: Their lease expired since they were taken; they are burned.
        """
        if not self._fill(reply, id_range):
            self._refuse_expired(request.sequence, id_range)
        if (view := request.view) > pb.RANGE_VIEW_BASIC:
            self._add_view(reply, view, with_date(id_range, self.clock.wall()), self.doc_ids.prefix)

    def _count_ids(self, request: pb.AllocateRangeRequest) -> int:
        """Return how many ids a request wants, after checks of its view and its number of ids."""
        view = request.view
        if view not in _RANGE_VIEWS:
            raise InvalidRequest("view", f"must be a value of RangeView, not {view}")
        return self._check_count("id_count", request.id_count, most=self._max_ids_in(view) if view else self.max_ids)

    def _count_doc_ids(self, request: pb.GenerateDocIdRequest) -> int:
        """Return how many document ids a request wants, after checks as in ``_count_ids``."""
        most = self._max_doc_ids_in(_check_doc_id_view(request.view))
        return self._check_count("id_count", request.id_count, most=most)

    def _count_ids_in_batch(self, request: pb.AllocateRangeRequest) -> int:
        if request.view:
            raise InvalidRequest("view", "must be unset in a batch")
        if request.request_id:
            raise InvalidRequest("request_id", "must be unset in a batch")
        return self._check_count("id_count", request.id_count, most=self.max_ids)

    def _fail(self, result: pb.AllocateRangeResult, error: Exception) -> None:
        result.error.CopyFrom(self.record_failure(_BATCH, error).details)

    def _fill(self, reply: pb.AllocateRangeResponse | pb.StreamRangesResponse, id_range: IdRange) -> bool:
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

    def _refuse_expired(self, sequence: str, id_range: IdRange) -> NoReturn:
        """Burn ids whose lease expired after they were taken, since the process was paused.

        Raises:
            LeaseExpired: Always.
        """
        self.allocator.burned.add(sequence, id_range.period, BurnCause.EXPIRED, id_range.id_count)
        raise LeaseExpired(sequence)

    def _add_view(
        self,
        reply: pb.AllocateRangeResponse | pb.StreamRangesResponse,
        view: pb.RangeView.ValueType,
        id_range: IdRange,
        prefix: int,
    ) -> None:
        """Add the view's fields besides the range. The range's texts show its period."""
        if view == pb.RANGE_VIEW_TEXTS:
            values = range(id_range.first_id, id_range.first_id + id_range.id_count * id_range.step, id_range.step)
            reply.texts.extend(compile_format(id_range.sequence.format).format_ids(values, id_range.period, prefix))
        elif view == pb.RANGE_VIEW_NOTICE and isinstance(reply, pb.AllocateRangeResponse):
            reply.notice.CopyFrom(generated_ids.insert_id_notice(id_range.first_id))

    def _check_count(self, field: str, value: int, most: int, default: int = DEFAULT_ID_COUNT) -> int:
        if not value:
            return min(default, most)
        if not 0 < value <= most:
            raise InvalidRequest(field, f"must be between 1 and {most}, or 0 for the default, not {value}")
        return value

    def _max_ids_in(self, view: pb.RangeView.ValueType) -> int:
        return self._max_texts if view == pb.RANGE_VIEW_TEXTS else self.max_ids

    def _max_doc_ids_in(self, view: pb.DocIdView.ValueType) -> int:
        return self.max_ids if view == pb.DOC_ID_VIEW_COMPACT else self._max_texts

    async def _generate(self, count: int, request: pb.GenerateDocIdRequest | pb.StreamDocIdsRequest) -> list[DocIdRun]:
        offset, increment = request.auto_increment_offset, request.auto_increment_increment
        runs = self.doc_ids.issue_now(count, offset, increment)
        if runs is None:
            runs = await self.doc_ids.issue(count, offset, increment)
        return runs


def _check_total(value: int) -> int:
    if value < 1:
        raise InvalidRequest("total_id_count", f"must be at least 1, not {value}")
    return value


def _check_doc_id_view(view: pb.DocIdView.ValueType) -> pb.DocIdView.ValueType:
    if view not in _DOC_ID_VIEWS:
        raise InvalidRequest("view", f"must be a value of DocIdView, not {view}")
    return view or pb.DOC_ID_VIEW_FULL


def _doc_id_fields(runs: list[DocIdRun], view: pb.DocIdView.ValueType) -> dict[str, Any]:
    """Return the fields that both replies with document ids share, as the view has them."""
    fields: dict[str, Any] = {}
    if view in (pb.DOC_ID_VIEW_FULL, pb.DOC_ID_VIEW_COMPACT):
        fields["runs"] = [
            pb.DocIdRun(first_doc_id=run.first_doc_id, step=run.step, id_count=run.id_count) for run in runs
        ]
    if view != pb.DOC_ID_VIEW_COMPACT:
        texts = [text for run in runs for text in run.texts()] if len(runs) > 1 else runs[0].texts()
        if view == pb.DOC_ID_VIEW_NOTICE_FRAME:
            fields["notice_frame"] = generated_ids.doc_ids_frame(texts)
        else:
            fields["doc_ids"] = texts
        if view == pb.DOC_ID_VIEW_FULL:
            fields["notice"] = generated_ids.doc_ids_notice(texts)
    return fields


def _format_uuids(uuids: list[bytes]) -> list[str]:
    digits = b"".join(uuids).hex()
    starts = range(0, len(digits), 2 * UUID_BYTES)
    each = (digits[start : start + 2 * UUID_BYTES] for start in starts)
    return [f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in each]
