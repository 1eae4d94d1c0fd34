"""idalloc.v1.IdAllocatorService."""

from collections.abc import AsyncGenerator
from typing import Any

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from idalloc_server.api.rpc import Context
from idalloc_server.domain.allocator import Allocator
from idalloc_server.domain.burned import Cause
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.doc_id import DocIdRun, DocIds
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.range import Range
from idalloc_server.xproto import notice

DEFAULT_CHUNK = 10_000
MAX_DOC_IDS_PER_MESSAGE = 10_000

_RISING_PER_NODE = pb.ORDERING_RISING_PER_NODE
_RANGE_VIEWS = frozenset(pb.RangeView.values())
_DOC_ID_VIEWS = frozenset(pb.DocIdView.values())


class IdAllocatorServicer(id_allocator_pb2_grpc.IdAllocatorServiceServicer):
    """Ranges and document ids.

    Args:
        allocator: Issues ranges.
        doc_ids: Makes document ids.
        clock: Tells how long a range may be kept.
        max_ids_per_call: The most ids of a range, or of a batch of document ids without texts.
    """

    def __init__(self, allocator: Allocator, doc_ids: DocIds, clock: Clock, max_ids_per_call: int) -> None:
        self._allocator = allocator
        self._doc_ids = doc_ids
        self._clock = clock
        self._max_ids = max_ids_per_call

    async def AllocateRange(self, request: pb.AllocateRangeRequest, context: Context) -> pb.AllocateRangeResponse:
        """See id_allocator.proto."""
        count = self._count("id_count", request.id_count, default=1, most=self._max_ids)
        view = request.view
        if view not in _RANGE_VIEWS:
            raise InvalidRequest("view", f"{view} is not a RangeView")
        taken = self._allocator.take(request.sequence, count)
        if taken is None:
            taken = await self._allocator.allocate(request.sequence, count)
        reply = pb.AllocateRangeResponse(**self._reply(taken))
        if view == pb.RANGE_VIEW_NOTICE:
            reply.notice.CopyFrom(notice.insert_id_notice(taken.first_id))
        return reply

    async def StreamRanges(
        self, request: pb.StreamRangesRequest, context: Context
    ) -> AsyncGenerator[pb.StreamRangesResponse, None]:
        """See id_allocator.proto."""
        left = _total(request.total_id_count)
        chunk = self._count("chunk_id_count", request.chunk_id_count, default=DEFAULT_CHUNK, most=self._max_ids)
        while left:
            count = min(chunk, left)
            taken = self._allocator.take(request.sequence, count)
            if taken is None:
                taken = await self._allocator.allocate(request.sequence, count)
            try:
                yield pb.StreamRangesResponse(**self._reply(taken))
            except GeneratorExit:
                self._allocator.burned.add(Cause.CANCELLED, count)
                raise
            left -= count

    async def GenerateDocId(self, request: pb.GenerateDocIdRequest, context: Context) -> pb.GenerateDocIdResponse:
        """See id_allocator.proto."""
        view = _doc_id_view(request.view)
        count = self._count("id_count", request.id_count, default=1, most=self._most_doc_ids(view))
        runs = await self._generate(count, request)
        return pb.GenerateDocIdResponse(**_forms(runs, view))

    async def StreamDocIds(
        self, request: pb.StreamDocIdsRequest, context: Context
    ) -> AsyncGenerator[pb.StreamDocIdsResponse, None]:
        """See id_allocator.proto."""
        view = _doc_id_view(request.view)
        left = _total(request.total_id_count)
        most = self._most_doc_ids(view)
        chunk = self._count("chunk_id_count", request.chunk_id_count, default=min(DEFAULT_CHUNK, most), most=most)
        while left:
            count = min(chunk, left)
            runs = await self._generate(count, request)
            yield pb.StreamDocIdsResponse(**_forms(runs, view))
            left -= count

    def _reply(self, taken: Range) -> dict[str, Any]:
        """Returns the fields that both replies with a range have. Dicts, since they cost half as much as messages."""
        first_id, id_count, step, generation, expires_at = taken
        left = expires_at - self._clock.boot()
        return {
            "range": {
                "first_id": first_id,
                "last_id": first_id + (id_count - 1) * step,
                "step": step,
                "id_count": id_count,
            },
            "generation": generation,
            "use_within": {"seconds": int(left)} if left > 0 else {},
            "ordering": _RISING_PER_NODE,
        }

    def _count(self, field: str, value: int, default: int, most: int) -> int:
        if not value:
            return min(default, most)
        if not 0 < value <= most:
            raise InvalidRequest(field, f"must be between 1 and {most}, or 0 for the default, not {value}")
        return value

    def _most_doc_ids(self, view: pb.DocIdView.ValueType) -> int:
        return self._max_ids if view == pb.DOC_ID_VIEW_COMPACT else MAX_DOC_IDS_PER_MESSAGE

    async def _generate(self, count: int, request: pb.GenerateDocIdRequest | pb.StreamDocIdsRequest) -> list[DocIdRun]:
        offset, increment = request.auto_increment_offset, request.auto_increment_increment
        runs = self._doc_ids.take(count, offset, increment)
        if runs is None:
            runs = await self._doc_ids.generate(count, offset, increment)
        return runs


def _total(value: int) -> int:
    if value < 1:
        raise InvalidRequest("total_id_count", f"must be set, and at least 1, not {value}")
    return value


def _doc_id_view(view: pb.DocIdView.ValueType) -> pb.DocIdView.ValueType:
    if view not in _DOC_ID_VIEWS:
        raise InvalidRequest("view", f"{view} is not a DocIdView")
    return view or pb.DOC_ID_VIEW_FULL


def _forms(runs: list[DocIdRun], view: pb.DocIdView.ValueType) -> dict[str, Any]:
    """Returns the fields that both replies with document ids have, as the view asks for them."""
    forms: dict[str, Any] = {}
    if view in (pb.DOC_ID_VIEW_FULL, pb.DOC_ID_VIEW_COMPACT):
        forms["runs"] = [
            pb.DocIdRun(first_doc_id=run.first_doc_id, step=run.step, id_count=run.id_count) for run in runs
        ]
    if view != pb.DOC_ID_VIEW_COMPACT:
        texts = [text for run in runs for text in run.texts()] if len(runs) > 1 else runs[0].texts()
        if view == pb.DOC_ID_VIEW_NOTICE_FRAME:
            forms["notice_frame"] = notice.document_ids_frame(texts)
        else:
            forms["doc_ids"] = texts
        if view == pb.DOC_ID_VIEW_FULL:
            forms["notice"] = notice.document_ids_notice(texts)
    return forms
