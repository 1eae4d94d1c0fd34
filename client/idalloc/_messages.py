"""Between Python's values and the service's messages."""

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

from idalloc._doc_ids import expand
from idalloc.v1 import id_allocator_pb2 as pb

AnyRequest = TypeVar("AnyRequest", bound=Message)
AnyResponse = TypeVar("AnyResponse", bound=Message)
StreamRequest = TypeVar("StreamRequest", pb.StreamRangesRequest, pb.StreamDocIdsRequest)
StreamResponse = TypeVar("StreamResponse", pb.StreamRangesResponse, pb.StreamDocIdsResponse)


def range_request(sequence: str, n: int) -> pb.AllocateRangeRequest:
    """Asks for n ids in one range."""
    return pb.AllocateRangeRequest(sequence=sequence, id_count=at_least_one("n", n))


def stream_ranges_request(sequence: str, chunk: int) -> Callable[[int], pb.StreamRangesRequest]:
    """Asks for a number of ids, known later, in chunks."""
    return lambda total: pb.StreamRangesRequest(sequence=sequence, total_id_count=total, chunk_id_count=chunk)


def doc_ids_request(
    n: int, offset: int, increment: int, view: pb.DocIdView.ValueType = pb.DOC_ID_VIEW_COMPACT
) -> pb.GenerateDocIdRequest:
    """Asks for n document ids, in their compact form unless another one is asked for."""
    return pb.GenerateDocIdRequest(
        id_count=at_least_one("n", n),
        auto_increment_offset=offset,
        auto_increment_increment=increment,
        view=view,
    )


def stream_doc_ids_request(
    chunk: int, offset: int, increment: int, view: pb.DocIdView.ValueType = pb.DOC_ID_VIEW_COMPACT
) -> Callable[[int], pb.StreamDocIdsRequest]:
    """Asks for a number of document ids, known later, in batches."""
    return lambda total: pb.StreamDocIdsRequest(
        total_id_count=total,
        chunk_id_count=chunk,
        auto_increment_offset=offset,
        auto_increment_increment=increment,
        view=view,
    )


def at_least_one(name: str, count: int) -> int:
    """Returns the count, which must not be 0: on the wire 0 stands for "not said"."""
    if count < 1:
        raise ValueError(f"{name} must be at least 1, not {count}")
    return count


def to_range(message: pb.AllocateRangeResponse | pb.StreamRangesResponse) -> range:
    """The ids of a reply. The range ends right after its last id, so that its end, too, is within 64 bits."""
    ids = message.range
    return range(ids.first_id, ids.last_id + (1 if ids.step > 0 else -1), ids.step)


def to_doc_ids(message: pb.GenerateDocIdResponse | pb.StreamDocIdsResponse) -> list[str]:
    """The ids of a reply in their compact form."""
    doc_ids: list[str] = []
    for run in message.runs:
        doc_ids += expand(run.first_doc_id, run.step, run.id_count)
    return doc_ids


def count_ids(message: pb.StreamRangesResponse | pb.StreamDocIdsResponse) -> int:
    """How many ids a message of a stream brings."""
    if isinstance(message, pb.StreamRangesResponse):
        return message.range.id_count
    return len(message.doc_ids) or sum(run.id_count for run in message.runs)
