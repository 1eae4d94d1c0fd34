"""`client.sequences`, texts, UUIDs, request ids and nodes, in both clients."""

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest

import idalloc
from idalloc._core.sequences import SequenceSettings
from idalloc.v1 import sequences_pb2 as pb
from idalloc.v1.id_allocator_pb2 import ORDERING_RISING
from tests.support.fake_server import FakeServer
from tests.unit.client.clients import opened

Call = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture
def call(server: FakeServer, kind: str) -> Iterator[Call]:
    """Run a call in a client, and return its result; a list for an iterator."""
    with opened(kind, server.target) as client:

        def run(do: Callable[[Any], Any]) -> Any:
            done = do(client)
            return list(done) if isinstance(done, Iterator) else done

        yield run


def test_the_settings_are_fields_of_the_proto() -> None:
    """SequenceSettings has the settings of idalloc.v1.Sequence."""
    fields = {field.name for field in pb.Sequence.DESCRIPTOR.fields if field.number in range(2, 18)}
    assert set(SequenceSettings.__annotations__) == fields


def create_daily(client: Any, name: str) -> Any:
    return client.sequences.create(name, reset="daily")


def test_create_get_list(server: FakeServer, call: Call) -> None:
    """create, get and list send settings and filters, and return sequences."""
    created = call(
        lambda client: client.sequences.create("a", step=-2, kind="timestamp-ms", ordering="rising", start=None)
    )
    assert (created.step, created.kind, created.ordering) == (-2, "timestamp-ms", "rising")
    [sent] = server.requests["CreateSequence"]
    assert (sent.sequence.kind, sent.sequence.ordering) == (pb.SEQUENCE_KIND_TIMESTAMP_MS, ORDERING_RISING)
    assert call(lambda client: client.sequences.get("a")) == created
    call(lambda client: client.sequences.get("a", period="2026-11"))
    assert [request.period for request in server.requests["GetSequence"]] == ["", "2026-11"]
    for name in ("b", "c", "d", "e"):
        call(partial(create_daily, name=name))
    call(lambda client: client.sequences.delete("c"))
    assert [each.name for each in call(lambda client: client.sequences.list())] == ["a", "b", "d", "e"]
    assert len(call(lambda client: client.sequences.list(show_deleted=True))) == 5
    assert [each.name for each in call(lambda client: client.sequences.list("b"))] == ["b"]


def test_list_continues_after_empty_pages(server: FakeServer, call: Call) -> None:
    """list() continues after empty pages."""
    for name in ("a", "b", "c"):
        call(partial(create_daily, name=name))
    server.empty_pages = 3
    assert [each.name for each in call(lambda client: client.sequences.list())] == ["a", "b", "c"]
    assert server.empty_pages == 0


def test_invalid_arguments_raise_before_a_request_is_sent(server: FakeServer, call: Call) -> None:
    """An argument that does not fit raises an error that names it, before a request is sent."""
    with pytest.raises(TypeError, match="'cycle'"):
        call(lambda client: client.sequences.create("a", cycle=True))
    with pytest.raises(ValueError, match="rising-per-node, rising"):
        call(lambda client: client.sequences.create("a", ordering="falling"))
    with pytest.raises(ValueError, match="rising-per-node, rising"):
        call(lambda client: client.sequences.create("a", ordering=ORDERING_RISING))
    with pytest.raises(ValueError, match="nothing"):
        call(lambda client: client.sequences.update("a"))
    with pytest.raises(ValueError, match="nothing"):
        call(lambda client: client.update_node(persist=True))
    with pytest.raises(ValueError, match=r"^max_value: .*1180591620717411303424"):
        call(lambda client: client.sequences.create("a", max_value=2**70))
    with pytest.raises(TypeError, match=r"^description: "):
        call(lambda client: client.sequences.update("a", description=5))
    with pytest.raises(ValueError, match=r"^name: "):
        call(lambda client: client.sequences.delete("\udcff"))
    with pytest.raises(ValueError, match=r"^past: "):
        call(lambda client: client.sequences.advance("a", 2**70))
    with pytest.raises(TypeError, match=r"^name_prefix: "):
        call(lambda client: client.sequences.list(5))
    with pytest.raises(ValueError, match="4 or 7"):
        call(lambda client: client.uuids(1, 1))
    assert not server.requests


def test_update_advance_and_delete(server: FakeServer, call: Call) -> None:
    """update, advance and delete send their arguments and return the changed sequence."""
    call(lambda client: client.sequences.create("a", max_value=100, labels={"x": "y"}))
    server.effective_delay = 5
    changed = call(lambda client: client.sequences.update("a", max_value=None, description="d", etag='"1"'))
    assert changed.sequence.max_value is None
    assert (changed.sequence.description, changed.sequence.labels["x"]) == ("d", "y")
    assert changed.effective_delay.total_seconds() == 5
    advanced = call(lambda client: client.sequences.advance("a", -7, period="2026"))
    assert advanced.sequence.last_value == -7
    assert server.requests["AdvanceSequence"][0].period == "2026"
    call(lambda client: client.sequences.advance("a", 0))
    assert server.requests["AdvanceSequence"][1].HasField("past")
    assert call(lambda client: client.sequences.delete("a")).sequence.delete_time is not None
    with pytest.raises(idalloc.SequenceChanged) as caught:
        call(lambda client: client.sequences.delete("a", etag="old"))
    assert caught.value.etag == '"1"'


def test_a_retried_change_keeps_its_request_id(server: FakeServer, call: Call) -> None:
    """A change whose reply was lost is retried with the same request id, and applied once."""
    server.replies_to_lose = 2
    assert call(lambda client: client.sequences.create("a")).name == "a"
    ids = [request.request_id for request in server.requests["CreateSequence"]]
    assert len(ids) == 3
    assert len(set(ids)) == 1
    with pytest.raises(idalloc.SequenceExists):
        call(lambda client: client.sequences.create("a"))
    assert uuid.UUID(ids[0]).version == 4


def test_request_ids_are_sent_only_on_demand(server: FakeServer, call: Call) -> None:
    """P7: a request id is sent only if it is given, or if idempotent is True."""
    given = uuid.uuid4()
    assert call(lambda client: client.allocate_range("a", 2, request_id=given)).ids == range(1, 3)
    assert call(lambda client: client.allocate_range("a", 2, request_id=str(given))).ids == range(1, 3)
    for _ in range(2):
        call(lambda client: client.allocate_range("a", idempotent=True))
    call(lambda client: client.allocate_range("a"))
    *_, once, again, none = (request.request_id for request in server.requests["AllocateRange"])
    assert uuid.UUID(once).version == uuid.UUID(again).version == 4
    assert once != again
    assert none == ""


def test_idempotent_keeps_its_request_id_in_retries(server: FakeServer, call: Call) -> None:
    """P7: idempotent sends one request id in all retries of a call."""
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, times=2)
    call(lambda client: client.allocate_range("a", idempotent=True))
    assert len({request.request_id for request in server.requests["AllocateRange"]}) == 1


def test_texts_and_parse_id(server: FakeServer, call: Call) -> None:
    """texts=True returns texts, and parse_id their parts."""
    assert call(lambda client: client.allocate_range("b", 2, texts=True)).texts == ("T-0001", "T-0002")
    streamed = call(lambda client: client.stream_ranges("c", 3, 2, texts=True))
    assert [each.texts for each in streamed] == [("T-0001", "T-0002"), ("T-0003",)]
    parts = call(lambda client: client.parse_id("a", "T-0042"))
    assert (parts.value, parts.year, parts.month, parts.check) == (42, 2026, None, "7")
    with pytest.raises(idalloc.InvalidRequest):
        call(lambda client: client.parse_id("a", "?"))


def test_uuids_are_generated_in_several_calls(server: FakeServer, call: Call) -> None:
    """uuids() makes as many calls as needed, and returns UUIDs of the requested version."""
    created = call(lambda client: client.uuids(25_000))
    assert len(set(created)) == 25_000
    assert created == sorted(created)
    assert {each.version for each in created} == {7}
    assert [request.id_count for request in server.requests["GenerateUuid"]] == [10_000, 10_000, 5_000]
    assert call(lambda client: client.uuids(1, 4))[0].version == 4


def test_update_node(server: FakeServer, call: Call) -> None:
    """update_node changes only the settings that are given; it rejects values of other types."""
    assert call(lambda client: client.update_node(prefix=0, auto_increment_offset=3)).prefix == 0
    node = call(lambda client: client.node())
    assert (node.prefix, node.auto_increment_offset, node.version) == (0, 3, "1.2.3")
    with pytest.raises(TypeError):
        call(lambda client: client.update_node(prefix=""))
    assert len(server.requests["UpdateNode"]) == 1


def test_ids_rejects_a_sequence_with_a_reset(server: FakeServer, call: Call) -> None:
    """P1: ids() of a sequence with a reset raises InvalidRequest, because its numbers repeat."""
    server.period = "2026"
    with pytest.raises(idalloc.InvalidRequest, match="texts=True"):
        call(lambda client: next(client.ids("a")))
