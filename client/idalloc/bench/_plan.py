"""What a bench is to do: the scenarios, and the calls that they are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from idalloc._core.conversions import to_doc_ids
from idalloc.v1 import id_allocator_pb2 as pb

SCENARIOS = ("unary", "stream", "docids", "mixed")

# A stream's ids, where no number is asked for.
TOTAL_IDS = 100_000

# Of so many calls of the scenario `mixed`, each kind's share.
_MIX = {"AllocateRange": 70, "GenerateDocId": 20, "StreamRanges": 6, "StreamDocIds": 4}


@dataclass(frozen=True)
class Plan:
    """What a bench is to do.

    Attributes:
        target: The server.
        scenario: One of ``SCENARIOS``.
        sequence: The sequence that ranges are taken from.
        id_count: How many ids a unary call takes.
        total_ids: How many ids a stream has; None for ``TOTAL_IDS``, and for no streams in the scenario `docids`.
        chunk: How many ids a message of a stream has.
        concurrency: How many callers there are, each with one call at a time.
        connections: How many connections they share.
        duration: For how many seconds calls are begun and counted.
        total: How many calls are begun and counted, in place of a duration.
        warm_up: For how many seconds calls are made before, and not counted.
        timeout: How many seconds a unary call, or a message of a stream, may take.
        verify: Whether to look at the ids.
    """

    target: str
    scenario: str = "unary"
    sequence: str = "bench"
    id_count: int = 1
    total_ids: int | None = None
    chunk: int = 10_000
    concurrency: int = 64
    connections: int = 4
    duration: float = 10.0
    total: int | None = None
    warm_up: float = 2.0
    timeout: float = 5.0
    verify: bool = False


@dataclass(frozen=True)
class Call:
    """One kind of call, always with the same request.

    Attributes:
        rpc: Its name.
        message: The request.
        response: The reply's class.
        ids: How many ids it asks for.
        chunk: How many ids a message of its stream has; 0 if it is unary.
        decode: Turns a reply into what a caller of the SDK gets, and says how many ids those are.
    """

    rpc: str
    message: Any
    response: Any
    ids: int
    chunk: int
    decode: Callable[[Any], int]

    @cached_property
    def request(self) -> bytes:
        """The request as it goes onto the wire."""
        data: bytes = self.message.SerializeToString()
        return data

    @property
    def of_doc_ids(self) -> bool:
        """Whether it gives document ids rather than ranges."""
        return "DocId" in self.rpc


def calls(plan: Plan) -> list[Call]:
    """The calls that each caller makes one after another, over and over."""
    sequence, total, chunk = plan.sequence, plan.total_ids or TOTAL_IDS, plan.chunk
    unary = pb.AllocateRangeRequest(sequence=sequence, id_count=plan.id_count)
    stream = pb.StreamRangesRequest(sequence=sequence, total_id_count=total, chunk_id_count=chunk)
    doc_ids = pb.GenerateDocIdRequest(id_count=plan.id_count, view=pb.DOC_ID_VIEW_COMPACT)
    doc_id_stream = pb.StreamDocIdsRequest(total_id_count=total, chunk_id_count=chunk, view=pb.DOC_ID_VIEW_COMPACT)
    kinds = {
        call.rpc: call
        for call in (
            Call("AllocateRange", unary, pb.AllocateRangeResponse, plan.id_count, 0, _range),
            Call("StreamRanges", stream, pb.StreamRangesResponse, total, chunk, _range),
            Call("GenerateDocId", doc_ids, pb.GenerateDocIdResponse, plan.id_count, 0, _doc_ids),
            Call("StreamDocIds", doc_id_stream, pb.StreamDocIdsResponse, total, chunk, _doc_ids),
        )
    }
    if plan.scenario == "mixed":
        return [kinds[name] for name in _spread(_MIX)]
    if plan.scenario == "docids":
        return [kinds["StreamDocIds" if plan.total_ids else "GenerateDocId"]]
    return [kinds["StreamRanges" if plan.scenario == "stream" else "AllocateRange"]]


def _spread(shares: dict[str, int]) -> list[str]:
    """Names, each as often as its share says, and as evenly as that goes."""
    places = [((turn + 0.5) / share, name) for name, share in shares.items() for turn in range(share)]
    return [name for _, name in sorted(places)]


def _range(reply: pb.AllocateRangeResponse | pb.StreamRangesResponse) -> int:
    return reply.range.id_count


def _doc_ids(reply: pb.GenerateDocIdResponse | pb.StreamDocIdsResponse) -> int:
    return len(to_doc_ids(reply))
