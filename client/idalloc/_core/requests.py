"""Between Python's values and the service's messages."""

import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from idalloc._core.doc_ids import expand
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.node_pb2 import Node, UpdateNodeRequest

AnyRequest = TypeVar("AnyRequest", bound=Message)
AnyResponse = TypeVar("AnyResponse", bound=Message)
StreamRequest = TypeVar("StreamRequest", pb.StreamRangesRequest, pb.StreamDocIdsRequest)
StreamResponse = TypeVar("StreamResponse", pb.StreamRangesResponse, pb.StreamDocIdsResponse)

# The server makes at most so many UUIDs in a call.
MOST_UUIDS = 10_000


def range_request(
    sequence: str,
    n: int,
    *,
    request_id: str | uuid.UUID | None = None,
    exactly_once: bool = False,
    view: pb.RangeView.ValueType = pb.RANGE_VIEW_UNSPECIFIED,
) -> pb.AllocateRangeRequest:
    """Asks for n ids in one range, under a request id where one is given or wanted."""
    if request_id is None and exactly_once:
        request_id = uuid.uuid4()
    return pb.AllocateRangeRequest(
        sequence=sequence, id_count=at_least_one("n", n), view=view, request_id=str(request_id or "")
    )


def stream_ranges_request(
    sequence: str, chunk: int, view: pb.RangeView.ValueType = pb.RANGE_VIEW_UNSPECIFIED
) -> Callable[[int], pb.StreamRangesRequest]:
    """Asks for a number of ids, known later, in chunks."""
    return lambda total: pb.StreamRangesRequest(
        sequence=sequence, total_id_count=total, chunk_id_count=chunk, view=view
    )


def uuid_requests(
    n: int, version: int, view: pb.UuidView.ValueType = pb.UUID_VIEW_BYTES
) -> Iterator[pb.GenerateUuidRequest]:
    """Asks for n UUIDs, in as many calls as that takes."""
    if version not in (4, 7):
        raise ValueError(f"version must be 4 or 7, not {version}")
    at_least_one("n", n)
    kind = pb.UUID_VERSION_4 if version == 4 else pb.UUID_VERSION_7
    counts = (min(MOST_UUIDS, n - made) for made in range(0, n, MOST_UUIDS))
    return (pb.GenerateUuidRequest(id_count=count, version=kind, view=view) for count in counts)


def to_uuids(message: pb.GenerateUuidResponse) -> list[uuid.UUID]:
    """The UUIDs of a reply that has them as bytes."""
    return [uuid.UUID(bytes=octets) for octets in message.uuid_bytes]


def update_node_request(
    prefix: int | None, auto_increment_offset: int | None, auto_increment_increment: int | None, persist: bool
) -> UpdateNodeRequest:
    """Asks for those settings of a node to be changed that are given."""
    given = {
        name: value
        for name, value in (
            ("prefix", prefix),
            ("auto_increment_offset", auto_increment_offset),
            ("auto_increment_increment", auto_increment_increment),
        )
        if value is not None
    }
    if not given:
        raise ValueError("nothing to change")
    node = Node(
        prefix=given.get("prefix", 0),
        auto_increment_offset=given.get("auto_increment_offset", 0),
        auto_increment_increment=given.get("auto_increment_increment", 0),
    )
    return UpdateNodeRequest(node=node, update_mask=FieldMask(paths=list(given)), persist=persist)


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
