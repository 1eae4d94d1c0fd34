"""The servicer of idalloc.v1.IdAllocatorService."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.call_types import Admit, AdmitRequest, AdmitStreamed, Context, MessageStream
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import InvalidRequest, LeaseExpired
from idalloc_server.domain.uuids import UUID_BYTES, UuidGenerator
from idalloc_server.rpc.batches import MAX_BATCH_REQUESTS, RangeBatch
from idalloc_server.rpc.items import (
    DEFAULT_ID_COUNT,
    MAX_TEXTS_PER_MESSAGE,
    DocIdItem,
    DocIdSource,
    RangeItem,
    RangeSource,
    check_count,
)
from idalloc_server.rpc.request_stream import RequestStream
from idalloc_server.rpc.status import Status

# What 0 means in chunk_id_count.
DEFAULT_CHUNK = 10_000

_BATCH = "/idalloc.v1.IdAllocatorService/BatchAllocateRanges"
_STREAM = "/idalloc.v1.IdAllocatorService/AllocateStream"
_UUID_VERSIONS = frozenset(pb.UuidVersion.values())
_UUID_VIEWS = frozenset(pb.UuidView.values())


@dataclass(eq=False)
class IdAllocatorServicer:
    """Translates requests and replies of ranges, document ids and UUIDs."""

    descriptor = pb.DESCRIPTOR.services_by_name["IdAllocatorService"]
    serialized = frozenset({"AllocateRange"})

    ranges: RangeSource
    doc_ids: DocIdSource
    uuids: UuidGenerator
    # Records the error of one request of several in a call of a method, and returns its status.
    record_failure: Callable[[str, Exception], Status]

    def __post_init__(self) -> None:
        # Most replies of AllocateRange, one after another: a new message takes longer. It has only
        # the fields that ``RangeSource.fill`` always sets, and no texts, which would stay in its
        # memory.
        self._reply = pb.AllocateRangeResponse()
        self._reply_fields = (self._reply.range, self._reply.ttl)  # or each call would make these

    async def AllocateRange(self, request: pb.AllocateRangeRequest, context: Context) -> bytes:
        """See id_allocator.proto."""
        # The hot path: each Python call counts here.
        source = self.ranges
        sequence = request.sequence
        count = request.id_count or DEFAULT_ID_COUNT
        if request.view or request.request_id or not 0 < count <= source.max_ids:
            item = RangeItem(request, source)
            if not item.issue_now():
                await item.issue()
            reply = pb.AllocateRangeResponse()
            item.fill(reply)
            return reply.SerializeToString()
        reply = self._reply
        id_range = source.allocator.issue_now(sequence, count)
        if id_range is None:
            id_range = await source.allocator.issue(sequence, count)
            reply = pb.AllocateRangeResponse()
        elif id_range.period:
            reply = pb.AllocateRangeResponse()
        # From here on nothing waits, so no other call uses ``_reply``.
        if not source.fill(reply, id_range):
            source.allocator.burned.add(sequence, id_range.period, BurnCause.EXPIRED, count)
            raise LeaseExpired(sequence)
        return reply.SerializeToString()

    async def BatchAllocateRanges(
        self, request: pb.BatchAllocateRangesRequest, context: Context, admit: AdmitRequest
    ) -> pb.BatchAllocateRangesResponse:
        """See id_allocator.proto."""
        requests = request.requests
        if not 0 < len(requests) <= MAX_BATCH_REQUESTS:
            raise InvalidRequest("requests", f"must be 1 to {MAX_BATCH_REQUESTS} requests, not {len(requests)}")
        batch = RangeBatch(self.ranges, admit)
        for each in requests:
            batch.add(each)
        await batch.wait(context.time_remaining())
        return batch.reply(partial(self.record_failure, _BATCH))

    async def StreamRanges(
        self, request: pb.StreamRangesRequest, context: Context, admit: Admit
    ) -> AsyncGenerator[pb.StreamRangesResponse, None]:
        """See id_allocator.proto."""
        view = request.view
        if view not in pb.RangeView.values() or view == pb.RANGE_VIEW_NOTICE:
            raise InvalidRequest("view", f"must be a value of RangeView without a notice, not {view}")
        left = _check_total(request.total_id_count)
        chunk = check_count("chunk_id_count", request.chunk_id_count, self.ranges.max_ids_in(view), DEFAULT_CHUNK)
        wanted = pb.AllocateRangeRequest(sequence=request.sequence, view=view)
        while left:
            wanted.id_count = min(chunk, left)
            await admit(wanted.id_count)
            item = RangeItem(wanted, self.ranges)
            if not item.issue_now():
                await item.issue()
            reply = pb.StreamRangesResponse()
            item.fill(reply)
            try:
                yield reply
            except GeneratorExit:
                item.burn(BurnCause.CANCELLED)
                raise
            left -= wanted.id_count

    async def AllocateStream(self, messages: MessageStream, context: Context, admit: AdmitStreamed | None) -> None:
        """See id_allocator.proto."""
        record_failure = partial(self.record_failure, _STREAM)
        await RequestStream(messages, admit, self.ranges, self.doc_ids, record_failure=record_failure).serve()

    async def GenerateDocId(self, request: pb.GenerateDocIdRequest, context: Context) -> pb.GenerateDocIdResponse:
        """See id_allocator.proto."""
        item = DocIdItem(request, self.doc_ids)
        if not item.issue_now():
            await item.issue()
        reply = pb.GenerateDocIdResponse()
        item.fill(reply)
        return reply

    async def StreamDocIds(
        self, request: pb.StreamDocIdsRequest, context: Context, admit: Admit
    ) -> AsyncGenerator[pb.StreamDocIdsResponse, None]:
        """See id_allocator.proto."""
        most = self.doc_ids.max_ids_in(request.view)
        left = _check_total(request.total_id_count)
        chunk = check_count("chunk_id_count", request.chunk_id_count, most, DEFAULT_CHUNK)
        wanted = pb.GenerateDocIdRequest(
            auto_increment_offset=request.auto_increment_offset,
            auto_increment_increment=request.auto_increment_increment,
            view=request.view,
        )
        while left:
            wanted.id_count = min(chunk, left)
            await admit(wanted.id_count)
            item = DocIdItem(wanted, self.doc_ids)
            if not item.issue_now():
                await item.issue()
            reply = pb.StreamDocIdsResponse()
            item.fill(reply)
            yield reply
            left -= wanted.id_count

    async def GenerateUuid(self, request: pb.GenerateUuidRequest, context: Context) -> pb.GenerateUuidResponse:
        """See id_allocator.proto."""
        if request.version not in _UUID_VERSIONS:
            raise InvalidRequest("version", f"must be 4 or 7, or 0 for the default, not {request.version}")
        if request.view not in _UUID_VIEWS:
            raise InvalidRequest("view", f"must be a value of UuidView, not {request.view}")
        count = check_count("id_count", request.id_count, min(self.ranges.max_ids, MAX_TEXTS_PER_MESSAGE))
        uuids = self.uuids.v4(count) if request.version == pb.UUID_VERSION_4 else self.uuids.v7(count)
        if request.view == pb.UUID_VIEW_BYTES:
            return pb.GenerateUuidResponse(uuid_bytes=uuids)
        digits = b"".join(uuids).hex()
        each = (digits[start : start + 2 * UUID_BYTES] for start in range(0, len(digits), 2 * UUID_BYTES))
        texts = [f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in each]
        return pb.GenerateUuidResponse(uuids=texts)


def _check_total(value: int) -> int:
    if value < 1:
        raise InvalidRequest("total_id_count", f"must be at least 1, not {value}")
    return value
