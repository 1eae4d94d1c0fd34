"""The calls to IdAllocatorService and NodeService: requests, and conversion of replies."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from idalloc._core.conversions import to_doc_ids
from idalloc._core.errors import IdallocError, InvalidRequest, invalid
from idalloc._core.resumption import Stream, at_least_one
from idalloc._core.rpc_errors import from_status
from idalloc._core.text import escaped
from idalloc._core.types import Node, ParsedId, Range, from_message, to_range
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2
from idalloc.v1.sequences_pb2 import ParseIdRequest

T = TypeVar("T")
AnyRequest = TypeVar("AnyRequest", bound=Message)

# The most UUIDs that the server generates in a call.
MAX_UUIDS_PER_CALL = 10_000


class Call(NamedTuple, Generic[T]):
    """A unary call."""

    request: Message
    convert: Callable[[Any], T]  # returns what the caller gets for a checked reply
    is_repeatable: bool = False  # see docs/explanation/client-calls.md


def allocate_range(
    sequence: str,
    n: int,
    *,
    request_id: str | uuid.UUID | None = None,
    idempotent: bool = False,
    texts: bool = False,
) -> Call[Range]:
    """Return a call for a range of n ids; ``idempotent`` adds a request id if none is given."""
    if request_id is None and idempotent:
        request_id = uuid.uuid4()
    if request_id is not None and not str(request_id):  # on the wire, empty means none
        raise invalid("request_id", "must be a UUID, not empty")
    request = _range_request(sequence, n)
    if request_id is not None:
        request.request_id = str(request_id)
    if texts:
        request.view = pb.RANGE_VIEW_TEXTS
    return Call(request, to_range, is_repeatable=request_id is not None)


def allocate_ranges(requests: Iterable[tuple[str, int]]) -> Call[list[Range | IdallocError]]:
    """Return a call for a range for each sequence and count."""
    batch = pb.BatchAllocateRangesRequest(requests=[_range_request(sequence, n) for sequence, n in requests])
    return Call(batch, lambda reply: [_to_result(result) for result in reply.results])


def _range_request(sequence: str, n: int) -> pb.AllocateRangeRequest:
    at_least_one("n", n)
    try:
        return pb.AllocateRangeRequest(sequence=sequence, id_count=n)
    except (TypeError, ValueError):
        return new_request(pb.AllocateRangeRequest, sequence=sequence, id_count=n)


def _to_result(result: pb.AllocateRangeResult) -> Range | IdallocError:
    return to_range(result.response) if result.HasField("response") else from_status(result.error)


def stream_ranges(sequence: str, total: int, chunk: int, *, texts: bool, timeout: float | None) -> Stream[Range]:
    request = new_request(pb.StreamRangesRequest, sequence=sequence, total_id_count=total, chunk_id_count=chunk)
    if texts:
        request.view = pb.RANGE_VIEW_TEXTS
    return Stream(request, to_range, timeout)


def parse_id(sequence: str, text: str) -> Call[ParsedId]:
    request = new_request(ParseIdRequest, sequence=sequence, text=text)
    return Call(request, partial(from_message, ParsedId), is_repeatable=True)


def doc_ids(n: int, offset: int, increment: int) -> Call[list[str]]:
    request = new_request(
        pb.GenerateDocIdRequest,
        id_count=at_least_one("n", n),
        auto_increment_offset=offset,
        auto_increment_increment=increment,
        view=pb.DOC_ID_VIEW_COMPACT,
    )
    return Call(request, to_doc_ids)


def stream_doc_ids(total: int, chunk: int, *, offset: int, increment: int, timeout: float | None) -> Stream[list[str]]:
    request = new_request(
        pb.StreamDocIdsRequest,
        total_id_count=total,
        chunk_id_count=chunk,
        auto_increment_offset=offset,
        auto_increment_increment=increment,
        view=pb.DOC_ID_VIEW_COMPACT,
    )
    return Stream(request, to_doc_ids, timeout)


def uuids(n: int, version: int) -> Iterator[Call[list[uuid.UUID]]]:
    """Return the calls for n UUIDs, at most ``MAX_UUIDS_PER_CALL`` in each."""
    if version not in (4, 7):
        raise invalid("version", f"must be 4 or 7, not {version}")
    at_least_one("n", n)
    kind = pb.UUID_VERSION_4 if version == 4 else pb.UUID_VERSION_7
    counts = (min(MAX_UUIDS_PER_CALL, n - made) for made in range(0, n, MAX_UUIDS_PER_CALL))
    requests = (pb.GenerateUuidRequest(id_count=count, version=kind, view=pb.UUID_VIEW_BYTES) for count in counts)
    return (Call(each, lambda reply: [uuid.UUID(bytes=octets) for octets in reply.uuid_bytes]) for each in requests)


def node() -> Call[Node]:
    """Return a call for the server process that answers."""
    return Call(node_pb2.GetNodeRequest(), _to_node, is_repeatable=True)


def update_node(prefix: int | None, offset: int | None, increment: int | None, persist: bool) -> Call[Node]:
    """Return a call that changes the settings that are not None."""
    settings = {"prefix": prefix, "auto_increment_offset": offset, "auto_increment_increment": increment}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if not given:
        raise InvalidRequest("nothing to change: no setting was given")
    node = new_request(node_pb2.Node, **given)
    mask = FieldMask(paths=list(given))
    return Call(node_pb2.UpdateNodeRequest(node=node, update_mask=mask, persist=persist), _to_node)


def new_request(kind: type[AnyRequest], /, **fields: Any) -> AnyRequest:
    """Return a request; name the field of an invalid value, which protobuf does not.

    Raises:
        InvalidRequest: A value does not fit into its field. The cause is UnicodeEncodeError if a
            text is not UTF-8.
        TypeError: A value has the wrong type.
    """
    message = kind()
    for name, value in fields.items():
        try:
            message.MergeFrom(kind(**{name: value}))
        except ValueError as error:
            raise invalid(name, str(error)) from error
        except TypeError as error:
            raise TypeError(f"{name}: {escaped(str(error))}") from None
    return message


def _to_node(reply: node_pb2.GetNodeResponse | node_pb2.UpdateNodeResponse) -> Node:
    return from_message(Node, reply.node)
