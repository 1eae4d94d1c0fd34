"""Calls on a name that an import skipped, on the wire."""

from collections.abc import Awaitable, Callable

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import sequences_pb2
from idalloc_server.domain.store.name_holds import reserved_row
from tests.rpc.conftest import Served
from tests.rpc.test_batches import batch
from tests.support.rpc_errors import details_of

REASON = "sequence 'orders' is reserved: the import skipped it: is negative (-5): create it with a start, or advance it"
REQUEST_ID = "11111111-aaaa-4111-8111-111111111111"

Call = Callable[[Served], Awaitable[object]]


@pytest.fixture
async def reserved(served: Served) -> Served:
    """A server whose store has the reserved name ``orders``."""
    await served.store.create(
        reserved_row("orders", "the import skipped it: is negative (-5)", by="import", generation=1, at=1.7e9)
    )
    return served


def allocate(**fields: object) -> Call:
    request = pb.AllocateRangeRequest(sequence="orders", **fields)  # type: ignore[arg-type]
    return lambda served: served.ids.AllocateRange(request)


@pytest.mark.parametrize(
    "call",
    [
        allocate(),
        allocate(request_id=REQUEST_ID),
        allocate(view=pb.RANGE_VIEW_TEXTS),
        lambda served: served.ids.StreamRanges(pb.StreamRangesRequest(sequence="orders", total_id_count=5)).read(),
        lambda served: served.sequences.GetSequence(sequences_pb2.GetSequenceRequest(name="orders")),
    ],
    ids=["range", "request_id", "texts", "stream", "get"],
)
async def test_a_call_on_a_reserved_name_has_the_reason(reserved: Served, call: Call) -> None:
    """P1: no call takes ids of a counter that was not imported; the error has the next step."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(reserved)
    details = details_of(error.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.NOT_FOUND, "SEQUENCE_NOT_FOUND")
    assert details.message.startswith(REASON)
    assert dict(details.info.metadata)["sequence"] == "orders"


async def test_a_batch_rejects_only_the_reserved_name(reserved: Served) -> None:
    """P1: the other requests of a batch get their ids."""
    first, second = (await reserved.ids.BatchAllocateRanges(batch(("orders", 1), ("boxes", 1)))).results
    assert first.error.message.startswith(REASON)
    assert second.response.range.first_id == 1


async def test_a_creation_without_start_is_rejected(reserved: Served) -> None:
    """P1: the start of a reserved name must be given; then its ids begin there."""
    create = reserved.sequences.CreateSequence
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await create(sequences_pb2.CreateSequenceRequest(sequence=sequences_pb2.Sequence(name="orders", min_value=5)))
    details = details_of(error.value)
    assert details.code == grpc.StatusCode.INVALID_ARGUMENT
    [violation] = details.bad_request.field_violations
    assert violation.field == "sequence.start"
    assert "is negative (-5)" in violation.description
    await create(sequences_pb2.CreateSequenceRequest(sequence=sequences_pb2.Sequence(name="orders", start=701)))
    reply = await reserved.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    assert reply.range.first_id == 701


async def test_an_advance_creates_the_sequence(reserved: Served) -> None:
    """P1: an advance past the highest id in use ends the reservation at once."""
    advance = sequences_pb2.AdvanceSequenceRequest(name="orders", past=700)
    advanced = await reserved.sequences.AdvanceSequence(advance)
    assert advanced.effective_delay.ToTimedelta().total_seconds() == 0
    assert (advanced.sequence.description, advanced.sequence.HasField("delete_time")) == ("", False)
    reply = await reserved.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    assert reply.range.first_id == 701


async def test_a_list_of_deleted_sequences_shows_the_reason(reserved: Served) -> None:
    """An operator sees which names are reserved, and why."""
    reply = await reserved.sequences.ListSequences(sequences_pb2.ListSequencesRequest(show_deleted=True))
    [listed] = reply.sequences
    assert listed.HasField("delete_time")
    assert listed.description == "reserved: the import skipped it: is negative (-5)"
