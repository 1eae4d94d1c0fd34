"""`client.sequences`: what both clients ask SequenceService for, and the methods for threads."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from idalloc._errors import broken
from idalloc._replies import shown
from idalloc.v1 import sequences_pb2 as pb

if TYPE_CHECKING:
    from typing import Unpack

    import grpc

    from idalloc._client import Client, Stubs

AnyRequest = TypeVar("AnyRequest", bound=Message)
AnyResponse = TypeVar("AnyResponse", bound=Message)

# The most sequences that the server puts on a page.
PAGE_SIZE = 1000
# So many pages without a sequence may come in a row: a server looks through at least 1,000 rows for each.
MAX_EMPTY_PAGES = 1_000


class Settings(TypedDict, total=False):
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
_SETTINGS = frozenset(Settings.__annotations__)


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
                raise broken(response, f"sequences[{number}].name", found, expected)
            self._last = sequence.name
            self._tokens.clear()
        token = response.next_page_token
        if hash(token) in self._tokens:
            raise broken(response, "next_page_token", f"is {shown(token)} again", "a page that was not there yet")
        if len(self._tokens) >= MAX_EMPTY_PAGES:
            found = f"is {shown(token)} behind {MAX_EMPTY_PAGES} empty pages"
            raise broken(response, "next_page_token", found, "a page with a sequence, or the end of the list")
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


class Sequences:
    """The sequences of a server: ``client.sequences``.

    A change carries a request id of its own, so that it is done once also where its answer was lost and gRPC sent it
    again. Nodes may work by what was before until the ``effective_time`` in the reply; ``effective_in`` says how long
    that is.

    All raise what calls of the client do, and before anything is sent ``ValueError`` for a value that does not fit
    into its field (a number beyond 64 bits, a word that the setting does not know) and ``TypeError`` for one of
    another type; both name the argument.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client

    def create(self, name: str, **settings: "Unpack[Settings]") -> pb.Sequence:
        """Creates a sequence. Under the name of a deleted one, it goes on behind that one's last id.

        Args:
            name: Its name: 1 to 255 bytes of UTF-8 without control characters.
            settings: What it is made of, see ``Settings``; what is left out is the default.

        Raises:
            SequenceExists: There is one of that name.
            InvalidRequest: A setting breaks its rule.
            ValueError: A setting is none of its words, or does not fit into its field.
            TypeError: A setting is of another type, or there is none of that name.
        """
        return self._call(lambda stubs: stubs.sequences.CreateSequence, create_request(name, settings)).sequence

    def get(self, name: str, period: str = "") -> pb.Sequence:
        """Gets a sequence: its settings, its counter, and when it will be exhausted.

        Args:
            name: Its name.
            period: As in ``advance``.
        """
        request = pb.GetSequenceRequest(name=name, period=period)
        return self._call(lambda stubs: stubs.sequences.GetSequence, request).sequence

    def list(self, prefix: str = "", *, show_deleted: bool = False) -> Iterator[pb.Sequence]:
        """Lists sequences by name, asking for page after page.

        Args:
            prefix: Only those whose names begin with this.
            show_deleted: Whether also deleted ones.
        """
        pages, more = Pages(prefix, show_deleted), True
        while more:
            response = self._call(lambda stubs: stubs.sequences.ListSequences, pages.request)
            more = pages.follow(response)
            yield from response.sequences

    def update(self, name: str, *, etag: str = "", **settings: "Unpack[Settings]") -> pb.UpdateSequenceResponse:
        """Changes settings of a sequence.

        Args:
            name: Its name.
            etag: Where it is given, the sequence must not have been changed since this etag of it was read.
            settings: What to change, see ``Settings``; None puts the default back, labels are replaced as a whole.
                Kind, reset, time zone and the sign of step stay for ever.

        Raises:
            SequenceChanged: The etag is not the present one.
            ValueError: There is nothing to change, or as in ``create``.
        """
        request = update_request(name, settings, etag)
        return self._call(lambda stubs: stubs.sequences.UpdateSequence, request)

    def delete(self, name: str, *, etag: str = "") -> pb.DeleteSequenceResponse:
        """Deletes a sequence. Its name stays known: created again, it goes on behind its last id.

        Args:
            name: Its name.
            etag: As in ``update``.
        """
        return self._call(lambda stubs: stubs.sequences.DeleteSequence, delete_request(name, etag))

    def advance(self, name: str, past: int, *, period: str = "", etag: str = "") -> pb.AdvanceSequenceResponse:
        """Moves a sequence past a value, as after an import of rows that have ids already. It never moves back.

        From ``effective_time`` on no id at or below ``past`` is given (at or above, where the sequence counts down),
        neither by a node nor by ``ids()``.

        Args:
            name: Its name.
            past: The largest id in use, or the smallest one where the sequence counts down.
            period: Which period's counter, such as ``"2026-11"``, where the sequence has a reset; empty for the
                present one.
            etag: As in ``update``.
        """
        request = advance_request(name, past, period, etag)
        return self._call(lambda stubs: stubs.sequences.AdvanceSequence, request)

    def _call(
        self,
        method: "Callable[[Stubs], grpc.UnaryUnaryMultiCallable[AnyRequest, AnyResponse]]",
        request: AnyRequest,
    ) -> AnyResponse:
        return self._client._call(method, request)
