"""Requests to SequenceService, and pagination of ListSequences."""

import uuid
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask

from idalloc._core.reply_checks import protocol_error, quote
from idalloc._core.requests import AnyRequest
from idalloc.v1 import sequences_pb2 as pb

# The largest page that the server returns.
PAGE_SIZE = 1000
# The most empty pages in a row. For each page a server scans at least 1,000 rows.
MAX_EMPTY_PAGES = 1_000


class SequenceSettings(TypedDict, total=False):
    """The settings of a sequence, named as the fields of ``idalloc.v1.Sequence``, which documents them.

    None stands for the default. An enum value may be a text, such as ``"rising"`` or ``"timestamp-ms"``.
    """

    description: str | None
    labels: Mapping[str, str] | None
    kind: "Literal['counter', 'timestamp-ms', 'timestamp-us'] | pb.SequenceKind.ValueType | None"
    start: int | None
    step: int | None
    min_value: int | None
    max_value: int | None
    json_safe: bool | None
    offset: int | None
    increment: int | None
    ordering: Literal["rising", "rising-per-node"] | int | None
    min_lease_size: int | None
    max_lease_size: int | None
    format: str | None
    reset: "Literal['never', 'yearly', 'monthly', 'daily'] | pb.Reset.ValueType | None"
    time_zone: str | None


# The prefix of an enum's value names; the rest of a name is the value's text.
_PREFIXES = {"SequenceKind": "SEQUENCE_KIND_", "Ordering": "ORDERING_", "Reset": "RESET_"}
_SETTINGS = frozenset(SequenceSettings.__annotations__)


def new_request_id() -> str:
    """Return a new request id, by which the server recognizes a request that it receives twice."""
    return str(uuid.uuid4())


def create_request(name: str, settings: Mapping[str, Any]) -> pb.CreateSequenceRequest:
    """Return a request to create a sequence."""
    return pb.CreateSequenceRequest(sequence=_sequence(name, settings), request_id=new_request_id())


def update_request(name: str, settings: Mapping[str, Any], etag: str) -> pb.UpdateSequenceRequest:
    """Return a request to change settings; None restores the default."""
    if not settings:
        raise ValueError("nothing to change: no setting was given")
    sequence = _sequence(name, settings)
    sequence.MergeFrom(_message(pb.Sequence, etag=etag))
    mask = FieldMask(paths=sorted(settings))
    return pb.UpdateSequenceRequest(sequence=sequence, update_mask=mask, request_id=new_request_id())


def delete_request(name: str, etag: str) -> pb.DeleteSequenceRequest:
    """Return a request to delete a sequence."""
    return _message(pb.DeleteSequenceRequest, name=name, etag=etag, request_id=new_request_id())


def advance_request(name: str, past: int, period: str, etag: str) -> pb.AdvanceSequenceRequest:
    """Return a request to move a counter past a value."""
    return _message(
        pb.AdvanceSequenceRequest, name=name, past=past, period=period, etag=etag, request_id=new_request_id()
    )


class Pages:
    """Pagination of one list.

    Attributes:
        request: The request for the next page.
    """

    def __init__(self, prefix: str, show_deleted: bool) -> None:
        self.request = _message(
            pb.ListSequencesRequest, page_size=PAGE_SIZE, name_prefix=prefix, show_deleted=show_deleted
        )
        self._last_name = ""
        self._tokens: set[int] = set()  # hashes of those since the last name, since a token may be megabytes long

    def advance(self, response: pb.ListSequencesResponse) -> bool:
        """Check a page and make ``request`` the one for the next page. Return whether there is a next page.

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
        self.request.page_token = token
        return bool(token)


def enum_texts(field: str) -> list[str]:
    """Return the texts of all values of an enum setting."""
    enum = _enum(field)
    return [_text(enum, value.name) for value in enum.values if value.number]


def enum_text(field: str, number: int) -> str:
    """Return the text of a value of an enum setting; empty if it is unspecified."""
    enum = _enum(field)
    known = enum.values_by_number.get(number)
    if known is None:  # from a newer server
        return str(number)
    return _text(enum, known.name) if number else ""


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
    if field.enum_type is None or not isinstance(value, str):
        return value
    for known in field.enum_type.values:
        if known.number and _text(field.enum_type, known.name) == value.lower().replace("_", "-"):
            return known.number
    raise ValueError(f"{field.name} must be one of {', '.join(enum_texts(field.name))}, not {value!r}")


def _enum(field: str) -> EnumDescriptor:
    enum = pb.Sequence.DESCRIPTOR.fields_by_name[field].enum_type
    if enum is None:
        raise TypeError(f"setting {field!r} is not an enum")
    return enum


def _text(enum: EnumDescriptor, name: str) -> str:
    return name.removeprefix(_PREFIXES[enum.name]).lower().replace("_", "-")
