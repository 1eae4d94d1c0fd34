"""The calls to SequenceService, and pagination of ListSequences."""

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from idalloc._core.calls import Call
from idalloc._core.reply_checks import protocol_error, quote
from idalloc._core.types import Sequence, SequenceChange, enum_texts, enum_value, from_message
from idalloc.v1 import sequences_pb2 as pb

AnyRequest = TypeVar("AnyRequest", bound=Message)

# The largest page that the server returns.
PAGE_SIZE = 1000
# The most empty pages in a row. For each page a server scans at least 1,000 rows.
MAX_EMPTY_PAGES = 1_000


class SequenceSettings(TypedDict, total=False):
    """The settings of a sequence, named as the fields of ``idalloc.v1.Sequence``, which documents them.

    None stands for the default.
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
    """Return a call that creates a sequence."""
    return Call(_with_request_id(pb.CreateSequenceRequest, sequence=_sequence(name, settings)), _to_sequence)


def get(name: str, period: str) -> Call[Sequence]:
    """Return a call for a sequence."""
    return Call(pb.GetSequenceRequest(name=name, period=period), _to_sequence)


def update(name: str, settings: Mapping[str, Any], etag: str) -> Call[SequenceChange]:
    """Return a call that changes settings; None restores the default."""
    if not settings:
        raise ValueError("nothing to change: no setting was given")
    sequence = _sequence(name, settings)
    sequence.MergeFrom(_message(pb.Sequence, etag=etag))
    mask = FieldMask(paths=sorted(settings))
    return _change(pb.UpdateSequenceRequest, sequence=sequence, update_mask=mask)


def delete(name: str, etag: str) -> Call[SequenceChange]:
    """Return a call that deletes a sequence."""
    return _change(pb.DeleteSequenceRequest, name=name, etag=etag)


def advance(name: str, past: int, period: str, etag: str) -> Call[SequenceChange]:
    """Return a call that moves a counter past a value."""
    return _change(pb.AdvanceSequenceRequest, name=name, past=past, period=period, etag=etag)


def _change(kind: type[Message], **fields: Any) -> Call[SequenceChange]:
    return Call(_with_request_id(kind, **fields), partial(from_message, SequenceChange))


def _with_request_id(kind: type[Message], **fields: Any) -> Message:
    # By the request id the server recognizes a request that it receives twice.
    return _message(kind, request_id=str(uuid.uuid4()), **fields)


def _to_sequence(reply: pb.CreateSequenceResponse | pb.GetSequenceResponse) -> Sequence:
    return from_message(Sequence, reply.sequence)


class Pages:
    """Pagination of one list.

    Attributes:
        more: Whether there is a next page.
    """

    def __init__(self, prefix: str, show_deleted: bool) -> None:
        self.more = True
        self._request = _message(
            pb.ListSequencesRequest, page_size=PAGE_SIZE, name_prefix=prefix, show_deleted=show_deleted
        )
        self._last_name = ""
        self._tokens: set[int] = set()  # hashes of those since the last name, since a token may be megabytes long

    def next_page(self) -> Call[list[Sequence]]:
        """Return the call for the next page."""
        return Call(self._request, self._advance)

    def _advance(self, response: pb.ListSequencesResponse) -> list[Sequence]:
        """Check the order of a page, and make the request the one for the next page.

        Raises:
            ProtocolError: The names are not in ascending order, or empty pages never end.
        """
        for number, sequence in enumerate(response.sequences):
            if sequence.name <= self._last_name:
                found, expected = f"is {quote(sequence.name)}", f"a name after {quote(self._last_name)}"
                raise protocol_error(response, f"sequences[{number}].name", found, expected)
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
    return _message(pb.Sequence, name=name, **values)


def _message(kind: type[AnyRequest], /, **fields: Any) -> AnyRequest:
    """Return a message; name the field of an invalid value, which protobuf does not."""
    message = kind()
    for name, value in fields.items():
        try:
            message.MergeFrom(kind(**{name: value}))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    return message


def _value(field: FieldDescriptor, value: Any) -> Any:
    enum = field.enum_type
    if enum is None:
        return value
    text = str(value).lower().replace("_", "-")
    if text not in enum_texts(enum):
        raise ValueError(f"{field.name} must be one of {', '.join(enum_texts(enum))}, not {value!r}")
    return enum_value(enum, text)
