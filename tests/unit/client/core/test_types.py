"""The dataclasses that the clients return: their fields, their ids and their JSON."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

import idalloc
from idalloc._core.types import from_message, to_range
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2, sequences_pb2

NOON = datetime(2026, 11, 22, 12, 0, 0, 5000, UTC)
TIMESTAMP = Timestamp(seconds=int(NOON.timestamp()), nanos=5_000_000)
SEQUENCE = sequences_pb2.Sequence(
    name="orders",
    labels={"team": "shop"},
    kind=sequences_pb2.SEQUENCE_KIND_TIMESTAMP_MS,
    start=0,
    step=-2,
    ordering=pb.ORDERING_RISING_PER_NODE,
    reset=99,  # type: ignore[arg-type]  # a newer server's
    remaining=2**62,
    used_ratio=0.25,
    create_time=TIMESTAMP,
    etag='"1"',
)
RANGE = pb.IdRange(first_id=0, last_id=-4, step=-2, id_count=3)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (idalloc.Range, pb.AllocateRangeResponse(range=RANGE, ttl=Duration(seconds=180), created=True)),
        (idalloc.Range, pb.StreamRangesResponse(range=RANGE, ttl=Duration(), texts=["a", "b", "c"], node_id=2**40)),
        (idalloc.Sequence, SEQUENCE),
        (idalloc.Sequence, sequences_pb2.Sequence(name="empty", last_value=0)),
        (
            idalloc.SequenceChange,
            sequences_pb2.DeleteSequenceResponse(
                sequence=SEQUENCE, effective_time=TIMESTAMP, effective_delay=Duration(seconds=1, nanos=500_000_000)
            ),
        ),
        (idalloc.ParsedId, sequences_pb2.ParseIdResponse(value=5, year=2026, prefix=0, check="7")),
        (idalloc.Node, node_pb2.Node(prefix=7, start_timestamp=2**33, version="1.2.3", lease_count=3)),
    ],
    ids=["range", "chunk", "sequence", "unused", "change", "parsed", "node"],
)
def test_to_dict_is_the_messages_json(kind: Any, message: Any) -> None:
    """to_dict() returns what protobuf's JSON mapping of the reply is."""
    is_range = isinstance(message, pb.AllocateRangeResponse | pb.StreamRangesResponse)
    reply = to_range(message) if is_range else from_message(kind, message)
    assert reply.to_dict() == MessageToDict(message)


def test_dataclasses_have_the_fields_of_the_messages() -> None:
    """A dataclass has each field of its message that a server sets and a client requests."""
    not_returned = {"json_safe", "offset", "increment", "notice", "range"}
    of_range = set(pb.IdRange.DESCRIPTOR.fields_by_name)
    for kind in (idalloc.Range, idalloc.Sequence, idalloc.SequenceChange, idalloc.ParsedId, idalloc.Node):
        names = {field.name for field in fields(kind)} - (of_range if kind is idalloc.Range else set())
        assert names == set(kind._MESSAGE.DESCRIPTOR.fields_by_name) - not_returned


def test_values_have_python_types() -> None:
    """Enums are texts, times are in UTC, unset fields are None."""
    sequence = from_message(idalloc.Sequence, SEQUENCE)
    assert (sequence.kind, sequence.ordering, sequence.reset) == ("timestamp-ms", "rising-per-node", "99")
    assert (sequence.start, sequence.last_value, sequence.labels) == (0, None, {"team": "shop"})
    assert (sequence.create_time, sequence.delete_time) == (NOON, None)
    reply = pb.AllocateRangeResponse(range=RANGE, ttl=Duration(seconds=86_400), ordering=pb.ORDERING_RISING)
    assert (to_range(reply).ttl, to_range(reply).ordering) == (timedelta(1), "rising")


def test_all_replies_are_hashable() -> None:
    """Equal replies have equal hashes, also those with labels."""
    sequences = {from_message(idalloc.Sequence, SEQUENCE), from_message(idalloc.Sequence, SEQUENCE)}
    assert len(sequences) == 1
    assert len({idalloc.SequenceChange(sequence=each) for each in sequences}) == 1


def test_negative_enum_values_have_json() -> None:
    """to_dict() keeps an unknown enum value that is negative, as the reply's JSON does."""
    message = sequences_pb2.Sequence(name="orders", reset=-3)  # type: ignore[arg-type]
    assert from_message(idalloc.Sequence, message).to_dict() == MessageToDict(message)


def test_a_range_is_a_sequence_of_its_ids() -> None:
    """A Range has the ids as a built-in range, and behaves like it."""
    allocated = to_range(pb.AllocateRangeResponse(range=RANGE))
    assert allocated.ids == range(0, -5, -2)
    assert list(allocated) == [0, -2, -4]
    assert (len(allocated), allocated[-1], allocated[1:], allocated.index(-2)) == (3, -4, range(-2, -5, -2), 1)
    assert -2 in allocated
    assert -1 not in allocated
    last = 2**63 - 2
    assert replace(allocated, first_id=last, last_id=last, step=5, id_count=1).ids == range(last, last + 1, 5)


@pytest.mark.parametrize("ids", [range(1, 6), range(9, 0, -3), range(7, 8), range(2**63 - 12, 2**63 - 1, 10), range(0)])
def test_a_range_as_an_array_has_its_ids(ids: range) -> None:
    """to_numpy() returns the ids as int64, in an array of its own."""
    last = ids.start + (len(ids) - 1) * ids.step
    array = idalloc.Range(first_id=ids.start, last_id=last, step=ids.step, id_count=len(ids)).to_numpy()
    assert (array.tolist(), str(array.dtype), array.base) == ([*ids], "int64", None)
