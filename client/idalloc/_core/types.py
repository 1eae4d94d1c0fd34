"""The values that the clients' methods return: frozen dataclasses.

No protobuf message is public.
"""

import collections.abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from idalloc.v1 import id_allocator_pb2, node_pb2, sequences_pb2

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


class Reply:
    """A dataclass with the fields of a protobuf message.

    It may also be built by hand, for example in a test.
    """

    __slots__ = ()
    _MESSAGE: ClassVar[type[Message]]

    def to_dict(self) -> dict[str, Any]:
        """Return the reply in proto3's JSON mapping.

        Names are in lowerCamelCase, 64-bit integers are texts, enums have their names in the
        protos, times are in RFC 3339, and unset fields are absent.
        """
        from google.protobuf.json_format import MessageToDict  # imported late: most programs do not need it

        return MessageToDict(_to_message(self._MESSAGE, self))


AnyReply = TypeVar("AnyReply", bound=Reply)

_ORDERING = id_allocator_pb2.Ordering.DESCRIPTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Reply, collections.abc.Sequence[int]):
    """A contiguous range of ids: a sequence of ``int``, with ``len()``, indices and iteration.

    Attributes:
        first_id: The first id.
        last_id: The last id, inclusive.
        step: The distance between ids, never 0; negative in a sequence that counts down.
        id_count: The number of ids.
        generation: The sequence's generation. It increases when the sequence is changed, advanced
            or created again.
        ttl: How long a cache may keep unused ids, counted from before the call. A range that is
            used directly has no limit.
        ordering: ``"rising-per-node"`` or ``"rising"``.
        texts: The ids in the sequence's format, in their order, if ``texts=True`` was passed;
            otherwise empty.
        period: The period of the counter, such as ``"2026-11"``, if the sequence has a reset: other
            periods repeat these numbers. Otherwise empty.
        node_id: The server process that allocated the range: 2^32 times its prefix, plus its start
            timestamp. 0 if unknown.
        created: Whether this call created the sequence, as its first use. If you expected it to
            exist, its name may be mistyped.
    """

    _MESSAGE: ClassVar[type[Message]] = id_allocator_pb2.AllocateRangeResponse

    first_id: int
    last_id: int
    step: int
    id_count: int
    generation: int = 0
    ttl: timedelta = timedelta(0)
    ordering: str = ""
    texts: tuple[str, ...] = ()
    period: str = ""
    node_id: int = 0
    created: bool = False

    @property
    def ids(self) -> range:
        """The ids as a built-in ``range``.

        It stops right after its last id: ``stop`` is within 64 bits.
        """
        return range(self.first_id, self.last_id + (1 if self.step > 0 else -1), self.step)

    def to_numpy(self) -> "NDArray[numpy.int64]":
        """Return the ids as an array, without a Python integer for each. It needs NumPy."""
        import numpy

        return numpy.arange(self.ids.start, self.ids.stop, self.step, dtype=numpy.int64)

    def __len__(self) -> int:
        return self.id_count

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> range: ...

    def __getitem__(self, index: int | slice) -> int | range:
        return self.ids[index]

    def __iter__(self) -> collections.abc.Iterator[int]:
        return iter(self.ids)

    def __contains__(self, value: object) -> bool:
        return value in self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence(Reply):
    """A named source of ids: its settings, its counter and its forecast. All times are in UTC.

    Attributes:
        name: The name: 1 to 255 bytes of UTF-8.
        description: A description for people.
        labels: The user's own keys and values.
        kind: ``"counter"``, ``"timestamp-ms"`` or ``"timestamp-us"``.
        start: The first id. All ids are ``start`` plus a multiple of ``step``.
        step: The distance between ids; negative if it counts down.
        min_value: The lower bound of ids.
        max_value: The upper bound of ids.
        ordering: ``"rising-per-node"`` or ``"rising"``.
        min_lease_size: The fewest ids that a node takes from the store at once; 0 for the default.
        max_lease_size: The most ids that a node holds in reserve; 0 for the server's default.
        format: The text form of ids, such as ``"INV-{year}-{value:06d}"``; empty for decimal
            digits.
        reset: When it restarts: ``"never"``, ``"yearly"``, ``"monthly"`` or ``"daily"``.
        time_zone: The time zone of periods and dates, such as ``"Europe/Vienna"``.
        last_value: The last value granted to a node, in the period if there is a reset; None if
            there was none.
        remaining: The number of ids left, in the period if there is a reset; 2^63-1 means that many
            or more.
        used_ratio: The share of its ids that was granted to nodes, 0 to 1.
        ids_per_second: How fast the node that answers issued ids in the last minute, with all its
            workers.
        exhaust_time: When the last id will be taken at that rate; None if that is unknown or never.
        generation: The valid generation of leases.
        period: The period of this counter, such as ``"2026-11"``; empty if there is no reset.
        etag: Changes with the settings, not with the counter. Pass it to a change to detect
            concurrent ones.
        create_time: When it was created; None if idalloc did not create it.
        update_time: When it was last updated, advanced or deleted; None if idalloc did not create
            it.
        delete_time: When it was deleted; None if it was not.
    """

    _MESSAGE: ClassVar[type[Message]] = sequences_pb2.Sequence

    name: str
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    kind: str = ""
    start: int | None = None
    step: int | None = None
    min_value: int | None = None
    max_value: int | None = None
    ordering: str = ""
    min_lease_size: int = 0
    max_lease_size: int = 0
    format: str = ""
    reset: str = ""
    time_zone: str = ""
    last_value: int | None = None
    remaining: int = 0
    used_ratio: float = 0.0
    ids_per_second: float = 0.0
    exhaust_time: datetime | None = None
    generation: int = 0
    period: str = ""
    etag: str = ""
    create_time: datetime | None = None
    update_time: datetime | None = None
    delete_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceChange(Reply):
    """The result of an update, an advance or a delete.

    Attributes:
        sequence: The sequence as it is now.
        effective_time: When the change becomes effective on all nodes, by the clock of the node
            that answered.
        effective_delay: The time from the reply until then; 0 if it is effective at once.
    """

    _MESSAGE: ClassVar[type[Message]] = sequences_pb2.UpdateSequenceResponse

    sequence: Sequence
    effective_time: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    effective_delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedId(Reply):
    """The parts of an id's text.

    Attributes:
        value: The id.
        year: The year in the text; None, here and below, if the format lacks the part.
        month: The month, 1 to 12.
        day: The day of the month, 1 to 31.
        prefix: The prefix of the node that wrote the text, 0 to 65535.
        check: The check characters; empty if the format has none.
    """

    _MESSAGE: ClassVar[type[Message]] = sequences_pb2.ParseIdResponse

    value: int = 0
    year: int | None = None
    month: int | None = None
    day: int | None = None
    prefix: int | None = None
    check: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Reply):
    """A server: one process, or several workers that share an address, a prefix and a store.

    Attributes:
        prefix: The prefix of its document ids, 0 to 65535.
        start_timestamp: The start timestamp in its document ids, in seconds since 1970. Each worker
            has its own; this is the one of the worker that answered.
        auto_increment_offset: The default ``offset`` of document ids, 1 to 65535.
        auto_increment_increment: The default ``increment`` of document ids, 1 to 65535.
        version: The server's version, such as ``"0.1.0"``.
        store: The store's address, without passwords and tokens.
        lease_count: The number of leases that it holds, one for each sequence.
        worker_count: The number of worker processes, at least 1.
        store_error: Why the store failed in the last second; empty if it works.
        witness: The address of the witness, which keeps high-water marks outside the store, without
            passwords and tokens; empty without one.
    """

    _MESSAGE: ClassVar[type[Message]] = node_pb2.Node

    prefix: int = 0
    start_timestamp: int = 0
    auto_increment_offset: int = 0
    auto_increment_increment: int = 0
    version: str = ""
    store: str = ""
    lease_count: int = 0
    worker_count: int = 0
    store_error: str = ""
    witness: str = ""


def to_range(reply: id_allocator_pb2.AllocateRangeResponse | id_allocator_pb2.StreamRangesResponse) -> Range:
    """Return the range of a checked reply.

    Written out, because ranges are far more frequent than other replies.
    """
    ids = reply.range
    ttl = reply.ttl
    return Range(
        first_id=ids.first_id,
        last_id=ids.last_id,
        step=ids.step,
        id_count=ids.id_count,
        generation=reply.generation,
        ttl=timedelta(0, ttl.seconds, ttl.nanos // 1000),
        ordering=enum_text(_ORDERING, reply.ordering),
        texts=tuple(reply.texts),
        period=reply.period,
        node_id=reply.node_id,
        created=reply.created,
    )


def from_message(kind: type[AnyReply], message: Message) -> AnyReply:
    """Return a checked message as a dataclass. Fields of a newer server are ignored."""
    values = {descriptor.name: _python_value(descriptor, value) for descriptor, value in message.ListFields()}
    names: tuple[str, ...] = kind.__slots__
    return kind(**{name: values[name] for name in names if name in values})


@lru_cache
def enum_text(enum: EnumDescriptor, number: int) -> str:
    """Return an enum value's text, such as ``"rising"``: empty for 0, a number if it is unknown."""
    if not number:
        return ""
    known = enum.values_by_number.get(number)
    return str(number) if known is None else known.name.removeprefix(_prefix(enum)).lower().replace("_", "-")


def enum_texts(enum: EnumDescriptor) -> list[str]:
    """Return the texts of all values of an enum, without the unspecified one."""
    return [enum_text(enum, value.number) for value in enum.values if value.number]


def enum_value(enum: EnumDescriptor, text: str) -> str | int:
    """Return the name, or the number, of the enum value with a text."""
    if text.removeprefix("-").isdecimal():
        return int(text)
    return _prefix(enum) + (text or "unspecified").upper().replace("-", "_")


def _prefix(enum: EnumDescriptor) -> str:
    return enum.values[0].name.removesuffix("UNSPECIFIED")


def _python_value(descriptor: FieldDescriptor, value: Any) -> Any:
    if descriptor.enum_type is not None:
        return enum_text(descriptor.enum_type, value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Timestamp):
        return value.ToDatetime(UTC)
    if isinstance(value, Duration):
        return value.ToTimedelta()
    if isinstance(value, sequences_pb2.Sequence):
        return from_message(Sequence, value)
    return dict(value) if isinstance(value, Mapping) else tuple(value)


def _to_message(kind: type[Message], reply: Reply) -> Message:
    fields: dict[str, Any] = {}
    for descriptor in kind.DESCRIPTOR.fields:
        if descriptor.message_type is id_allocator_pb2.IdRange.DESCRIPTOR:
            fields[descriptor.name] = _to_message(id_allocator_pb2.IdRange, reply)
            continue
        value = getattr(reply, descriptor.name, None)
        if isinstance(value, Reply):
            value = _to_message(value._MESSAGE, value)
        elif descriptor.enum_type is not None and value is not None:
            value = enum_value(cast("EnumDescriptor", descriptor.enum_type), value)
        fields[descriptor.name] = value
    return kind(**fields)
