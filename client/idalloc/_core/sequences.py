"""Requests to SequenceService, and the pages of its lists."""

import uuid
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask

from idalloc._core.errors import protocol_error
from idalloc._core.replies import shown
from idalloc._core.requests import AnyRequest
from idalloc.v1 import sequences_pb2 as pb

# The most sequences that the server puts on a page.
PAGE_SIZE = 1000
# So many pages without a sequence may come in a row: a server looks through at least 1,000 rows for each.
MAX_EMPTY_PAGES = 1_000


class SequenceSettings(TypedDict, total=False):
    """What a sequence is made of: the fields of ``idalloc.v1.Sequence``, which say more on each.

    None stands for the default. Values of enums may be written as text, such as ``"rising"`` or ``"timestamp-ms"``.
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


# The texts of an enum's values are their names without this.
_PREFIXES = {"SequenceKind": "SEQUENCE_KIND_", "Ordering": "ORDERING_", "Reset": "RESET_"}
_SETTINGS = frozenset(SequenceSettings.__annotations__)


def new_request_id() -> str:
    """An id by which the server knows a request that it gets twice."""
    return str(uuid.uuid4())


def create_request(name: str, settings: Mapping[str, Any]) -> pb.CreateSequenceRequest:
    """Asks for a new sequence."""
    return pb.CreateSequenceRequest(sequence=_sequence(name, settings), request_id=new_request_id())


def update_request(name: str, settings: Mapping[str, Any], etag: str) -> pb.UpdateSequenceRequest:
    """Asks for other settings; those that are None go back to their defaults."""
    if not settings:
        raise ValueError("nothing to change")
    sequence = _sequence(name, settings)
    sequence.MergeFrom(_message(pb.Sequence, etag=etag))
    mask = FieldMask(paths=sorted(settings))
    return pb.UpdateSequenceRequest(sequence=sequence, update_mask=mask, request_id=new_request_id())


def delete_request(name: str, etag: str) -> pb.DeleteSequenceRequest:
    """Asks for a sequence to be deleted."""
    return _message(pb.DeleteSequenceRequest, name=name, etag=etag, request_id=new_request_id())


def advance_request(name: str, past: int, period: str, etag: str) -> pb.AdvanceSequenceRequest:
    """Asks for a counter to move past a value."""
    return _message(
        pb.AdvanceSequenceRequest, name=name, past=past, period=period, etag=etag, request_id=new_request_id()
    )


class Pages:
    """The pages of one list: what to ask for next, and whether a page may follow those before it.

    Attributes:
        request: Asks for the next page.
    """

    def __init__(self, prefix: str, show_deleted: bool) -> None:
        self.request = _message(
            pb.ListSequencesRequest, page_size=PAGE_SIZE, name_prefix=prefix, show_deleted=show_deleted
        )
        self._last = ""
        self._tokens: set[int] = set()  # since the last name came; as hashes, since a token may be megabytes long

    def follow(self, response: pb.ListSequencesResponse) -> bool:
        """Takes in a page, and makes the request one for the next page. Returns whether there is one.

        Raises:
            ProtocolError: The names do not rise, or pages without a name never end.
        """
        for number, sequence in enumerate(response.sequences):
            if sequence.name <= self._last:
                found, expected = f"is {shown(sequence.name)}", f"a name behind {shown(self._last)}"
                raise protocol_error(response, f"sequences[{number}].name", found, expected)
            self._last = sequence.name
            self._tokens.clear()
        token = response.next_page_token
        if hash(token) in self._tokens:
            raise protocol_error(
                response, "next_page_token", f"is {shown(token)} again", "a page that was not there yet"
            )
        if len(self._tokens) >= MAX_EMPTY_PAGES:
            found = f"is {shown(token)} behind {MAX_EMPTY_PAGES} empty pages"
            raise protocol_error(response, "next_page_token", found, "a page with a sequence, or the end of the list")
        self._tokens.add(hash(token))
        self.request.page_token = token
        return bool(token)


def enum_texts(field: str) -> list[str]:
    """The texts that stand for the values of a setting that is an enum."""
    enum = _enum(field)
    return [_text(enum, value.name) for value in enum.values if value.number]


def enum_text(field: str, number: int) -> str:
    """The text of a value of a setting that is an enum; empty where nothing was said."""
    enum = _enum(field)
    known = enum.values_by_number.get(number)
    if known is None:  # of a newer server
        return str(number)
    return _text(enum, known.name) if number else ""


def _sequence(name: str, settings: Mapping[str, Any]) -> pb.Sequence:
    if unknown := sorted(settings.keys() - _SETTINGS):
        raise TypeError(f"a sequence has no setting {unknown[0]!r}")
    fields = pb.Sequence.DESCRIPTOR.fields_by_name
    values = {key: _value(fields[key], value) for key, value in settings.items() if value is not None}
    return _message(pb.Sequence, name=name, **values)


def _message(kind: type[AnyRequest], /, **fields: Any) -> AnyRequest:
    """Makes a message. Which value it is that does not fit, protobuf does not say."""
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
        raise TypeError(f"{field} is no enum")
    return enum


def _text(enum: EnumDescriptor, name: str) -> str:
    return name.removeprefix(_PREFIXES[enum.name]).lower().replace("_", "-")
