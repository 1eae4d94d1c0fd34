"""SequenceService on the wire."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from idalloc.v1 import sequences_pb2 as pb
from idalloc.v1 import sequences_pb2_grpc
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.listen.grpcio import GRPCIO
from idalloc_server.rpc.calls import CallLayer
from idalloc_server.rpc.draining import Draining
from idalloc_server.rpc.sequences import SequencesServicer
from idalloc_server.rpc.server import add_service
from idalloc_server.telemetry.metrics import CallMetrics
from tests.support.fake_store import FakeClock, Fault, MemoryStore
from tests.support.rpc_errors import Details, details_of


@dataclass
class Served:
    """A running server and its parts."""

    sequences: sequences_pb2_grpc.SequenceServiceAsyncStub
    allocator: Allocator
    store: MemoryStore
    clock: FakeClock

    async def create(self, **fields: object) -> pb.Sequence:
        request = pb.CreateSequenceRequest(sequence=pb.Sequence(**fields))  # type: ignore[arg-type]
        return (await self.sequences.CreateSequence(request)).sequence

    async def update(self, *mask: str, **fields: object) -> pb.UpdateSequenceResponse:
        sequence = pb.Sequence(**fields)  # type: ignore[arg-type]
        paths = FieldMask(paths=mask) if mask else None
        return await self.sequences.UpdateSequence(pb.UpdateSequenceRequest(sequence=sequence, update_mask=paths))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    clock = FakeClock()
    store = MemoryStore(clock)
    allocator = Allocator(
        store, clock, AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)
    )
    servicer = SequencesServicer(SequenceService(store, clock, allocator))
    access_control = AccessControl(clock, max_ids_per_call=1_000)
    metrics = CallMetrics()
    draining = Draining(metrics)
    calls = CallLayer(metrics, draining, access_control, allocator.store_health, transport=GRPCIO, log_each=False)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_service(server, calls.service(servicer), registered=False)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(sequences_pb2_grpc.SequenceServiceStub(channel), allocator, store, clock)
    await server.stop(None)


async def error_of(call: object) -> Details:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call  # type: ignore[misc]
    return details_of(error.value)


def invalid_field_of(details: Details) -> str:
    assert (details.code, details.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    (violation,) = details.bad_request.field_violations
    return violation.field


async def test_created_sequence_has_all_fields(served: Served) -> None:
    """CreateSequence and GetSequence return all settings and the usage."""
    created = await served.create(
        name="orders", description="all", labels={"a": "b"}, step=-5, min_value=1, max_value=101
    )
    assert (created.start, created.step, created.min_value, created.max_value) == (101, -5, 1, 101)
    assert (created.kind, created.ordering, created.reset) == (
        pb.SEQUENCE_KIND_COUNTER,
        1,
        pb.RESET_NEVER,
    )
    assert (created.time_zone, created.description, dict(created.labels), created.etag) == (
        "UTC",
        "all",
        {"a": "b"},
        '"0"',
    )
    assert not created.HasField("last_value")
    assert (created.remaining, created.used_ratio) == (21, 0.0)
    assert created.generation >= served.clock.wall()
    assert created.create_time.seconds == int(served.clock.wall())
    assert not created.HasField("delete_time")
    await served.allocator.issue("orders", 2)
    got = (await served.sequences.GetSequence(pb.GetSequenceRequest(name="orders"))).sequence
    assert (got.last_value, got.remaining) == (96, 19)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\x1fb"}, "name"),
        ({"step": 0}, "step"),
        ({"min_value": 5, "max_value": 4, "start": 5}, "min_value"),
        ({"start": 0}, "start"),
        ({"max_value": 10, "start": 11}, "start"),
        ({"max_value": 2**63 - 1}, "max_value"),
        ({"format": "{colour}"}, "format"),
        ({"format": "{value"}, "format"),
        ({"format": "no value"}, "format"),
        ({"reset": pb.RESET_YEARLY, "format": "{value:06d}"}, "format"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"kind": 9}, "kind"),
        ({"ordering": 9}, "ordering"),
        ({"reset": 9}, "reset"),
        ({"min_lease_size": -1}, "min_lease_size"),
        ({"description": "x" * 1001}, "description"),
    ],
)
async def test_invalid_setting_is_named_by_its_path(served: Served, fields: dict[str, object], field: str) -> None:
    """An invalid setting is named by its path, and nothing is stored."""
    details = await error_of(served.create(**{"name": "orders", **fields}))
    assert invalid_field_of(details) == f"sequence.{field}"
    assert not served.store.rows


async def test_each_error_has_its_code_and_reason(served: Served) -> None:
    """Each error has its status code, reason and field."""
    get = served.sequences.GetSequence
    details = await error_of(get(pb.GetSequenceRequest(name="none")))
    assert (details.code, details.info.reason) == (grpc.StatusCode.NOT_FOUND, "SEQUENCE_NOT_FOUND")
    await served.create(name="orders")
    details = await error_of(served.create(name="orders"))
    assert (details.code, details.info.reason) == (grpc.StatusCode.ALREADY_EXISTS, "SEQUENCE_EXISTS")
    details = await error_of(served.update(name="orders", description="x", etag='"9"'))
    assert (details.code, details.info.reason) == (grpc.StatusCode.ABORTED, "SEQUENCE_CHANGED")
    assert details.info.metadata["etag"] == '"0"'
    delete = served.sequences.DeleteSequence
    assert (await error_of(delete(pb.DeleteSequenceRequest(name="orders", etag="*")))).info.reason == "SEQUENCE_CHANGED"
    advance = served.sequences.AdvanceSequence
    details = await error_of(advance(pb.AdvanceSequenceRequest(name="orders", past=5, request_id="five")))
    assert invalid_field_of(details) == "request_id"
    assert invalid_field_of(await error_of(advance(pb.AdvanceSequenceRequest(name="orders", past=2**63 - 1)))) == "past"
    assert (
        invalid_field_of(await error_of(advance(pb.AdvanceSequenceRequest(name="orders", past=5, period="2026"))))
        == "period"
    )
    assert invalid_field_of(await error_of(get(pb.GetSequenceRequest(name="orders", period="2026")))) == "period"
    assert invalid_field_of(await error_of(get(pb.GetSequenceRequest()))) == "name"
    assert invalid_field_of(await error_of(served.sequences.ParseId(pb.ParseIdRequest(text="1")))) == "sequence"


async def test_max_value_below_last_value_is_rejected(served: Served) -> None:
    """max_value cannot be set below the last value."""
    await served.allocator.issue("orders", 50)
    assert invalid_field_of(await error_of(served.update(name="orders", max_value=49))) == "sequence.max_value"


@pytest.mark.parametrize(
    ("mask", "field"), [("colour", "update_mask"), ("labels.a", "update_mask"), ("", "update_mask")]
)
async def test_unknown_mask_path_is_rejected(served: Served, mask: str, field: str) -> None:
    """An update mask with an unknown path is invalid."""
    await served.create(name="orders")
    assert invalid_field_of(await error_of(served.update(mask, name="orders"))) == field


async def test_update_mask_selects_the_changed_fields(served: Served) -> None:
    """AIP-134: the update mask selects the changed fields; "*" is all, no mask the set ones."""
    await served.create(name="orders", description="one", labels={"a": "b"}, max_value=500)
    only_set = (await served.update(name="orders", description="two")).sequence
    assert (only_set.description, dict(only_set.labels), only_set.max_value) == ("two", {"a": "b"}, 500)
    named = (await served.update("labels", "description", name="orders", description="three", max_value=9)).sequence
    assert (named.description, dict(named.labels), named.max_value) == ("three", {}, 500)
    back = (await served.update("max_value", name="orders")).sequence
    assert back.max_value == 2**63 - 2
    all_of_it = (await served.update("*", name="orders", max_value=70)).sequence
    assert (all_of_it.description, all_of_it.max_value, all_of_it.step) == ("", 70, 1)
    assert all_of_it.etag == '"4"'


async def test_read_sequence_can_be_written_back(served: Served) -> None:
    """A sequence can be written back as it was read, without a new generation."""
    created = await served.create(name="orders", step=10, format="A{value:08d}", description="x")
    request = pb.UpdateSequenceRequest(sequence=created, update_mask=FieldMask(paths=["*"]))
    same = await served.sequences.UpdateSequence(request)
    assert (same.sequence.generation, same.sequence.etag) == (created.generation, '"1"')
    assert same.effective_delay.ToSeconds() == 0
    assert same.effective_time.seconds <= served.clock.wall()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("kind", {"kind": pb.SEQUENCE_KIND_TIMESTAMP_MS}),
        ("step", {"step": -1}),
        ("time_zone", {"time_zone": "Europe/Vienna"}),
        ("reset", {"reset": pb.RESET_DAILY, "format": "{year}{month}{day}-{value:06d}", "max_value": 999_999}),
    ],
)
async def test_immutable_setting_cannot_be_changed(served: Served, field: str, change: dict[str, object]) -> None:
    """Kind, direction, time zone and reset of a sequence cannot be changed."""
    await served.create(name="orders")
    details = await error_of(served.update(name="orders", **change))
    assert invalid_field_of(details) == f"sequence.{field}"


async def test_repeated_create_gets_the_same_reply(served: Served) -> None:
    """AIP-155: a repeated CreateSequence with the same request_id gets the same reply."""
    request_id = str(uuid.uuid4())
    request = pb.CreateSequenceRequest(sequence=pb.Sequence(name="orders", labels={"a": "b"}), request_id=request_id)
    first = await served.sequences.CreateSequence(request)
    assert await served.sequences.CreateSequence(request) == first
    request.sequence.step = 7
    details = await error_of(served.sequences.CreateSequence(request))
    assert (details.code, details.info.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    assert details.info.metadata["request_id"] == request_id


async def test_change_returns_its_effective_time(served: Served) -> None:
    """P5: a change returns when leases of other nodes have expired."""
    await served.allocator.issue("orders", 5)
    reply = await served.sequences.AdvanceSequence(pb.AdvanceSequenceRequest(name="orders", past=100))
    assert reply.effective_delay.ToSeconds() == 181
    assert reply.effective_time.seconds == int(served.clock.wall()) + 181
    gone = await served.sequences.DeleteSequence(pb.DeleteSequenceRequest(name="orders"))
    assert gone.sequence.delete_time.seconds == int(served.clock.wall())
    assert gone.sequence.last_value == 100


async def test_advance_requires_past(served: Served) -> None:
    """AdvanceSequence without past is invalid and changes nothing; past 0 is valid."""
    created = await served.create(name="orders", min_value=-5)
    assert (
        invalid_field_of(await error_of(served.sequences.AdvanceSequence(pb.AdvanceSequenceRequest(name="orders"))))
        == "past"
    )
    assert (await served.sequences.GetSequence(pb.GetSequenceRequest(name="orders"))).sequence == created
    zero = await served.sequences.AdvanceSequence(pb.AdvanceSequenceRequest(name="orders", past=0))
    assert zero.sequence.last_value == 0
    assert zero.sequence.generation > created.generation


async def test_each_period_has_its_own_counter(served: Served) -> None:
    """Each period of a sequence has its own counter."""
    await served.create(name="bills", format="{year}-{month}-{value:06d}", reset=pb.RESET_MONTHLY)
    await served.allocator.issue("bills", 5)
    request = pb.AdvanceSequenceRequest(name="bills", past=700, period="2024-02")
    ahead = (await served.sequences.AdvanceSequence(request)).sequence
    assert (ahead.period, ahead.last_value, ahead.remaining) == ("2024-02", 700, 999_299)

    async def period_and_last_value(period: str) -> tuple[str, int | None]:
        got = (await served.sequences.GetSequence(pb.GetSequenceRequest(name="bills", period=period))).sequence
        return got.period, got.last_value if got.HasField("last_value") else None

    assert await period_and_last_value("2024-02") == ("2024-02", 700)
    assert await period_and_last_value("") == await period_and_last_value("2023-11") == ("2023-11", 5)
    assert await period_and_last_value("2022-01") == ("2022-01", None)
    for wrong in ("2023", "2023-13", "next"):
        get = served.sequences.GetSequence(pb.GetSequenceRequest(name="bills", period=wrong))
        assert invalid_field_of(await error_of(get)) == "period"


async def test_pages_continue_with_the_page_token(served: Served) -> None:
    """AIP-158: pages continue with next_page_token until it is empty."""
    for number in range(5):
        await served.create(name=f"a{number}")
    await served.create(name="b")
    request = pb.ListSequencesRequest(page_size=2, name_prefix="a")
    names = []
    while True:
        page = await served.sequences.ListSequences(request)
        names.append([sequence.name for sequence in page.sequences])
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert names == [["a0", "a1"], ["a2", "a3"], ["a4"]]


def encode_page_token(token: str) -> str:
    return base64.urlsafe_b64encode(token.encode()).decode()


async def test_invalid_page_token_is_rejected(served: Served) -> None:
    """A malformed page token, or one of another list, is invalid."""
    await served.create(name="a")
    await served.create(name="b")
    listing = served.sequences.ListSequences
    token = (await listing(pb.ListSequencesRequest(page_size=1))).next_page_token
    for request in (
        pb.ListSequencesRequest(page_token=token, name_prefix="b"),
        pb.ListSequencesRequest(page_token=token, show_deleted=True),
        pb.ListSequencesRequest(page_token="!"),
        pb.ListSequencesRequest(page_token="bnVsbA=="),
        pb.ListSequencesRequest(page_token="Int9"),
        pb.ListSequencesRequest(page_token="ä"),
        pb.ListSequencesRequest(page_token=encode_page_token(r'["\ud800", "", false]')),
        pb.ListSequencesRequest(page_token=encode_page_token('["", "", false]')),
        pb.ListSequencesRequest(page_token=encode_page_token('[1, "", false]')),
        pb.ListSequencesRequest(page_token=encode_page_token("[" * 100_000)),
        pb.ListSequencesRequest(page_token=encode_page_token("9" * 5_000)),
    ):
        assert invalid_field_of(await error_of(listing(request))) == "page_token"
    assert invalid_field_of(await error_of(listing(pb.ListSequencesRequest(page_size=-1)))) == "page_size"


async def test_list_with_a_corrupt_row_fails_and_names_it(served: Served) -> None:
    """A corrupt row is not left out of a list: the list fails with its name and the next step."""
    await served.create(name="bills")
    await served.create(name="orders")
    fault = Fault(applied=0, error=SequenceInvalid("bills", "its settings cannot be read: it is no JSON"))
    served.store.next("list", fault)
    details = await error_of(served.sequences.ListSequences(pb.ListSequencesRequest()))
    assert (details.code, details.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SEQUENCE_INVALID")
    assert details.info.metadata["sequence"] == "bills"
    for word in ("'bills'", "GetSequence", "repair", "name_prefix"):
        assert word in details.message


async def test_parse_id_returns_the_parts_of_a_text(served: Served) -> None:
    """ParseId returns the parts of a formatted id, and rejects other texts."""
    await served.create(name="bills", format="INV-{year}-{value:06d}", reset=pb.RESET_YEARLY)
    parts = await served.sequences.ParseId(pb.ParseIdRequest(sequence="bills", text="INV-2026-000042"))
    assert (parts.value, parts.year, parts.HasField("month"), parts.check) == (42, 2026, False, "")
    assert (
        invalid_field_of(await error_of(served.sequences.ParseId(pb.ParseIdRequest(sequence="bills", text="42"))))
        == "text"
    )
