"""Requests to IdAllocatorService and NodeService, built from the arguments of the clients' methods."""

import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.node_pb2 import Node, UpdateNodeRequest

AnyRequest = TypeVar("AnyRequest", bound=Message)
AnyResponse = TypeVar("AnyResponse", bound=Message)
StreamRequest = TypeVar("StreamRequest", pb.StreamRangesRequest, pb.StreamDocIdsRequest)
StreamResponse = TypeVar("StreamResponse", pb.StreamRangesResponse, pb.StreamDocIdsResponse)

# The most UUIDs that the server generates in a call.
MAX_UUIDS_PER_CALL = 10_000


def range_request(
    sequence: str,
    n: int,
    *,
    request_id: str | uuid.UUID | None = None,
    exactly_once: bool = False,
    view: pb.RangeView.ValueType = pb.RANGE_VIEW_UNSPECIFIED,
) -> pb.AllocateRangeRequest:
    """Return a request for a range of n ids; ``exactly_once`` adds a new request id unless there is one."""
    if request_id is None and exactly_once:
        request_id = uuid.uuid4()
    return pb.AllocateRangeRequest(
        sequence=sequence, id_count=at_least_one("n", n), view=view, request_id=str(request_id or "")
    )


def stream_ranges_request(
    sequence: str, chunk: int, view: pb.RangeView.ValueType = pb.RANGE_VIEW_UNSPECIFIED
) -> Callable[[int], pb.StreamRangesRequest]:
    """Return a function that makes the request for a total of ids."""
    return lambda total: pb.StreamRangesRequest(
        sequence=sequence, total_id_count=total, chunk_id_count=chunk, view=view
    )


def uuid_requests(
    n: int, version: int, view: pb.UuidView.ValueType = pb.UUID_VIEW_BYTES
) -> Iterator[pb.GenerateUuidRequest]:
    """Return the requests for n UUIDs, at most ``MAX_UUIDS_PER_CALL`` in each."""
    if version not in (4, 7):
        raise ValueError(f"version must be 4 or 7, not {version}")
    at_least_one("n", n)
    kind = pb.UUID_VERSION_4 if version == 4 else pb.UUID_VERSION_7
    counts = (min(MAX_UUIDS_PER_CALL, n - made) for made in range(0, n, MAX_UUIDS_PER_CALL))
    return (pb.GenerateUuidRequest(id_count=count, version=kind, view=view) for count in counts)


def update_node_request(
    prefix: int | None, auto_increment_offset: int | None, auto_increment_increment: int | None, persist: bool
) -> UpdateNodeRequest:
    """Return a request that changes the settings that are not None."""
    arguments = {
        "prefix": prefix,
        "auto_increment_offset": auto_increment_offset,
        "auto_increment_increment": auto_increment_increment,
    }
    settings = {name: value for name, value in arguments.items() if value is not None}
    if not settings:
        raise ValueError("nothing to change: no setting was given")
    node = Node(
        prefix=settings.get("prefix", 0),
        auto_increment_offset=settings.get("auto_increment_offset", 0),
        auto_increment_increment=settings.get("auto_increment_increment", 0),
    )
    return UpdateNodeRequest(node=node, update_mask=FieldMask(paths=list(settings)), persist=persist)


def doc_ids_request(
    n: int, offset: int, increment: int, view: pb.DocIdView.ValueType = pb.DOC_ID_VIEW_COMPACT
) -> pb.GenerateDocIdRequest:
    """Return a request for n document ids."""
    return pb.GenerateDocIdRequest(
        id_count=at_least_one("n", n),
        auto_increment_offset=offset,
        auto_increment_increment=increment,
        view=view,
    )


def stream_doc_ids_request(
    chunk: int, offset: int, increment: int, view: pb.DocIdView.ValueType = pb.DOC_ID_VIEW_COMPACT
) -> Callable[[int], pb.StreamDocIdsRequest]:
    """Return a function that makes the request for a total of document ids."""
    return lambda total: pb.StreamDocIdsRequest(
        total_id_count=total,
        chunk_id_count=chunk,
        auto_increment_offset=offset,
        auto_increment_increment=increment,
        view=view,
    )


def at_least_one(name: str, count: int) -> int:
    """Return the count if it is at least 1. On the wire, 0 stands for the default."""
    if count < 1:
        raise ValueError(f"{name} must be at least 1, not {count}")
    return count
