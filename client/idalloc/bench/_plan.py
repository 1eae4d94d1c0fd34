"""The options of a bench, and the calls of its scenarios."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from idalloc._core.conversions import to_doc_ids
from idalloc.v1 import id_allocator_pb2 as pb

# The default of a stream's ids.
TOTAL_IDS = 100_000

# The scenario `mixed`: calls of each RPC in a hundred.
_MIX = {"AllocateRange": 70, "GenerateDocId": 20, "StreamRanges": 6, "StreamDocIds": 4}


@dataclass(frozen=True)
class Plan:
    """The options of a bench."""

    target: str
    scenario: str = "unary"  # or stream, docids, mixed
    sequence: str = "bench"  # the sequence to allocate from
    id_count: int = 1  # the ids of a unary call
    # The ids of a stream; None for `TOTAL_IDS`, or for unary calls in the scenario `docids`.
    total_ids: int | None = None
    chunk: int = 10_000  # the ids of a stream's message
    concurrency: int = 64  # the number of callers, each with one call at a time
    connections: int = 4  # the number of connections that they share
    duration: float = 10.0  # for how many seconds to start and count calls
    total: int | None = None  # how many calls to count, instead of a duration
    warm_up: float = 2.0  # for how many seconds to call before counting
    timeout: float = 5.0  # the limit in seconds of a unary call, and of each message of a stream


@dataclass(frozen=True)
class Call:
    """An RPC with a fixed request."""

    rpc: str
    message: Any  # the request, not serialized
    response: Any  # the reply's class
    # Decodes a reply as the SDK does, and returns the number of its ids.
    decode: Callable[[Any], int]
    ids: int  # the ids that it requests
    chunk: int = 0  # the ids of its stream's messages; 0 for a unary call

    @cached_property
    def request(self) -> bytes:
        """The serialized request."""
        data: bytes = self.message.SerializeToString()
        return data


def planned_calls(plan: Plan) -> list[Call]:
    """Return the calls that each caller repeats in this order."""
    total = plan.total_ids or TOTAL_IDS
    chunk = plan.chunk
    unary = pb.AllocateRangeRequest(sequence=plan.sequence, id_count=plan.id_count)
    stream = pb.StreamRangesRequest(sequence=plan.sequence, total_id_count=total, chunk_id_count=chunk)
    doc_ids = pb.GenerateDocIdRequest(id_count=plan.id_count, view=pb.DOC_ID_VIEW_COMPACT)
    doc_id_stream = pb.StreamDocIdsRequest(total_id_count=total, chunk_id_count=chunk, view=pb.DOC_ID_VIEW_COMPACT)
    kinds = {
        call.rpc: call
        for call in (
            Call("AllocateRange", unary, pb.AllocateRangeResponse, _range, ids=plan.id_count),
            Call("StreamRanges", stream, pb.StreamRangesResponse, _range, ids=total, chunk=chunk),
            Call("GenerateDocId", doc_ids, pb.GenerateDocIdResponse, _doc_ids, ids=plan.id_count),
            Call("StreamDocIds", doc_id_stream, pb.StreamDocIdsResponse, _doc_ids, ids=total, chunk=chunk),
        )
    }
    if plan.scenario == "mixed":
        # Each as often as its share, spread evenly.
        places = [((turn + 0.5) / share, name) for name, share in _MIX.items() for turn in range(share)]
        return [kinds[name] for _, name in sorted(places)]
    if plan.scenario == "docids":
        return [kinds["StreamDocIds" if plan.total_ids else "GenerateDocId"]]
    return [kinds["StreamRanges" if plan.scenario == "stream" else "AllocateRange"]]


def _range(reply: pb.AllocateRangeResponse | pb.StreamRangesResponse) -> int:
    return reply.range.id_count


def _doc_ids(reply: pb.GenerateDocIdResponse | pb.StreamDocIdsResponse) -> int:
    return len(to_doc_ids(reply))
