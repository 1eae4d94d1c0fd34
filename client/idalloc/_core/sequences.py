"""The calls to SequenceService, and pagination of ListSequences."""

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypedDict

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from idalloc._core.calls import Call, new_request
from idalloc._core.errors import InvalidRequest, invalid
from idalloc._core.reply_checks import protocol_error, quote
from idalloc._core.types import Sequence, SequenceChange, enum_texts, enum_value, from_message
from idalloc.v1 import sequences_pb2 as pb

# The largest page that the server returns.
PAGE_SIZE = 1000
# The most empty pages in a row. For each page a server scans at least 1,000 rows.
MAX_EMPTY_PAGES = 1_000


class SequenceSettings(TypedDict, total=False):
    """The settings of a sequence, for ``sequences.create`` and ``update``.

    None stands for the default.

    Attributes:
        description: What it is for, up to 1,000 characters.
        labels: The user's own keys and values.
        kind: ``"counter"`` (the default), ``"timestamp-ms"`` or ``"timestamp-us"``. Fixed at
            creation.
        start: The first id; by default ``min_value``, or ``max_value`` if ``step`` is negative.
        step: The distance between ids, 1 by default; a negative one counts down. Its sign is fixed
            at creation.
        min_value: The lower bound of ids, 1 by default.
        max_value: The upper bound of ids; by default 2^63-2, or the largest one for which
            ``format`` has room.
        json_safe: Whether the bounds stay within 2^53-1, so that JavaScript does not lose digits.
        offset: For several independent installations that must not issue the same id: the number of
            this one, 1 to ``increment``. Ids differ from it by multiples of ``increment``.
        increment: The number of installations; it replaces ``step``.
        ordering: ``"rising-per-node"`` (the default) or ``"rising"`` over all nodes, which costs
            store writes.
        min_lease_size: The fewest ids that a node takes from the store at a time.
        max_lease_size: The most ids that a node holds in reserve.
        format: The text form of ids, such as ``"INV-{year}-{value:06d}"``; by default decimal
            digits.
        reset: When it restarts: ``"never"`` (the default), ``"yearly"``, ``"monthly"`` or
            ``"daily"``. Fixed at creation.
        time_zone: The IANA time zone of periods and dates, such as ``"Europe/Vienna"``; by default
            UTC. Fixed at creation.
    """

    description: str | None
    labels: Mapping[str, str] | None
    kind: Literal["counter", "timestamp-ms", "timestamp-us"] | None
    start: int | None
    step: int | None
    min_value: int | None
    max_value: int | None
    json_safe: bool | None
    offset: int | None
    increment: int | None
    ordering: Literal["rising", "rising-per-node"] | None
    min_lease_size: int | None
    max_lease_size: int | None
    format: str | None
    reset: Literal["never", "yearly", "monthly", "daily"] | None
    time_zone: str | None


_SETTINGS = frozenset(SequenceSettings.__annotations__)


def create(name: str, settings: Mapping[str, Any]) -> Call[Sequence]:
    return Call(_with_request_id(pb.CreateSequenceRequest, sequence=_sequence(name, settings)), _to_sequence)


def get(name: str, period: str) -> Call[Sequence]:
    return Call(pb.GetSequenceRequest(name=name, period=period), _to_sequence, is_repeatable=True)


def update(name: str, settings: Mapping[str, Any], etag: str) -> Call[SequenceChange]:
    """Return a call that changes settings; None restores the default."""
    if not settings:
        raise InvalidRequest("nothing to change: no setting was given")
    sequence = _sequence(name, settings)
    sequence.MergeFrom(new_request(pb.Sequence, etag=etag))
    mask = FieldMask(paths=sorted(settings))
    return _change(pb.UpdateSequenceRequest, sequence=sequence, update_mask=mask)


def delete(name: str, etag: str) -> Call[SequenceChange]:
    return _change(pb.DeleteSequenceRequest, name=name, etag=etag)


def advance(name: str, past: int, period: str, etag: str) -> Call[SequenceChange]:
    """Return a call that moves a counter past a value."""
    return _change(pb.AdvanceSequenceRequest, name=name, past=past, period=period, etag=etag)


def _change(kind: type[Message], **fields: Any) -> Call[SequenceChange]:
    return Call(_with_request_id(kind, **fields), partial(from_message, SequenceChange))


def _with_request_id(kind: type[Message], **fields: Any) -> Message:
    # By the request id the server recognizes a request that it receives twice.
    return new_request(kind, request_id=str(uuid.uuid4()), **fields)


def _to_sequence(reply: pb.CreateSequenceResponse | pb.GetSequenceResponse) -> Sequence:
    return from_message(Sequence, reply.sequence)


class Pages:
    """Pagination of one list."""

    def __init__(self, prefix: str, show_deleted: bool) -> None:
        self.more = True  # whether there is a next page
        self._request = new_request(
            pb.ListSequencesRequest, page_size=PAGE_SIZE, name_prefix=prefix, show_deleted=show_deleted
        )
        self._last_name = ""
        self._tokens: set[int] = set()  # hashes of those since the last name, since a token may be megabytes long

    def next_page(self) -> Call[list[Sequence]]:
        """Return the call for the next page."""
        return Call(self._request, self._advance, is_repeatable=True)

    def _advance(self, response: pb.ListSequencesResponse) -> list[Sequence]:
        """Check the order of a page, and prepare the request for the next page.

        Raises:
            ProtocolError: The names are not in ascending order, or empty pages never end.
        """
        for number, sequence in enumerate(response.sequences):
            if sequence.name <= self._last_name:
                expected = f"a name after {quote(self._last_name)}"
                raise protocol_error(response, f"sequences[{number}].name", f"is {quote(sequence.name)}", expected)
            self._last_name = sequence.name
            self._tokens.clear()
        token = response.next_page_token
        if hash(token) in self._tokens:
            raise protocol_error(response, "next_page_token", f"is {quote(token)} again", "the token of a new page")
        if len(self._tokens) >= MAX_EMPTY_PAGES:
            found = f"is {quote(token)} after {MAX_EMPTY_PAGES} empty pages"
            raise protocol_error(response, "next_page_token", found, "a page with a sequence, or the end of the list")
        self._tokens.add(hash(token))
        self._request.page_token = token
        self.more = bool(token)
        return [from_message(Sequence, sequence) for sequence in response.sequences]


def _sequence(name: str, settings: Mapping[str, Any]) -> pb.Sequence:
    if unknown := sorted(settings.keys() - _SETTINGS):
        raise TypeError(f"unknown sequence setting {unknown[0]!r}")
    fields = pb.Sequence.DESCRIPTOR.fields_by_name
    values = {key: _value(fields[key], value) for key, value in settings.items() if value is not None}
    return new_request(pb.Sequence, name=name, **values)


def _value(field: FieldDescriptor, value: Any) -> Any:
    enum = field.enum_type
    if enum is None:
        return value
    text = str(value).lower().replace("_", "-")
    if text not in enum_texts(enum):
        raise invalid(field.name, f"must be one of {', '.join(enum_texts(enum))}, not {value!r}")
    return enum_value(enum, text)
