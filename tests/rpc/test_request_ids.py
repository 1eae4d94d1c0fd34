"""AllocateRange with a request_id on the wire."""

from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.sequences.sequence import Reset, Sequence
from tests.rpc.conftest import Served, until
from tests.support.fake_store import lost_reply
from tests.support.memory_rows import Row
from tests.support.rpc_errors import details_of

ONE = "11111111-aaaa-4111-8111-111111111111"


def request(**fields: object) -> pb.AllocateRangeRequest:
    return pb.AllocateRangeRequest(**{"sequence": "orders", "id_count": 5, "request_id": ONE, **fields})  # type: ignore[arg-type]


async def test_retry_gets_the_same_ids_in_any_letter_case(served: Served) -> None:
    """P7: a retry gets the same ids, also with its request_id in upper case."""
    first = await served.ids.AllocateRange(request())
    assert first.range == pb.IdRange(first_id=1, last_id=5, step=1, id_count=5)
    assert 170 < first.ttl.seconds <= 180
    assert first.ordering == pb.ORDERING_RISING_PER_NODE
    again = await served.ids.AllocateRange(request(request_id=ONE.upper()))
    assert again.range == first.range
    assert list(served.store.allocations) == [ONE]


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "00000000-0000-0000-0000-000000000000",
        ONE.replace("-", ""),
        f"{{{ONE}}}",
        f"{ONE}\n",
        f" {ONE}",
        f"{ONE[:-1]}g",
        f"{ONE[:-1]}\u0661",
        f"{ONE[:-1]}\u212a",
    ],
)
async def test_invalid_request_id_is_rejected_and_takes_no_ids(served: Served, text: str) -> None:
    """A request_id other than a UUID's 36 characters is invalid, and no id is taken."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(request(request_id=text))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in details.bad_request.field_violations] == ["request_id"]
    assert not served.store.calls_of("grant")


async def test_invalid_sequence_name_is_rejected(served: Served) -> None:
    """A call with a request_id rejects an invalid sequence name."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(request(sequence="a\nb"))
    assert details_of(failed.value).info.metadata["field"] == "sequence"


async def test_retry_after_lost_store_reply_gets_the_written_ids(served: Served) -> None:
    """P7: after a lost reply of the store a retry gets the ids that were recorded."""
    served.store.next("record", lost_reply())
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(request())
    details = details_of(failed.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
    assert (await served.ids.AllocateRange(request())).range.first_id == 1


@pytest.mark.parametrize("other", [{"id_count": 6}, {"sequence": "others"}], ids=str)
async def test_request_id_of_another_request_is_rejected(served: Served, other: dict[str, object]) -> None:
    """A request_id of another request is REQUEST_ID_REUSED, without a retry delay."""
    await served.ids.AllocateRange(request())
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(request(**other))
    details = details_of(failed.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    assert details.info.metadata["request_id"] == ONE
    assert not details.retry.HasField("retry_delay")


async def test_retry_after_a_new_generation_is_burned(served: Served) -> None:
    """P5: ids recorded under an older generation are REQUEST_ID_BURNED."""
    await served.ids.AllocateRange(request())
    served.store.rows["orders"].generation += 1
    await served.allocator.drop_lease("orders")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(request())
    details = details_of(failed.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.ABORTED, "REQUEST_ID_BURNED")
    assert dict(details.info.metadata) == {"request_id": ONE, "first_id": "1", "last_id": "5"}


async def test_retry_gets_the_same_texts_after_a_prefix_change(served: Served) -> None:
    """P7: a retry gets the same texts, also after a change of the node's prefix."""
    served.store.rows["orders"] = Row(Sequence(format="{year}-{prefix}-{value:04d}", reset=Reset.YEARLY), 0)
    first = await served.ids.AllocateRange(request(view=pb.RANGE_VIEW_TEXTS, id_count=2))
    assert list(first.texts) == [f"{first.period}-7-0001", f"{first.period}-7-0002"]
    await served.doc_ids.change(prefix=8)
    again = await served.ids.AllocateRange(request(view=pb.RANGE_VIEW_TEXTS, id_count=2))
    assert (again.range, again.texts, again.period) == (first.range, first.texts, first.period)


async def test_date_in_texts_is_not_a_period(served: Served) -> None:
    """A reply with a date in its texts has no period if its sequence has no reset."""
    served.store.rows["orders"] = Row(Sequence(format="{year}-{value:04d}"), 0)
    for _ in range(2):
        reply = await served.ids.AllocateRange(request(view=pb.RANGE_VIEW_TEXTS, id_count=1))
        assert reply.period == ""
        assert reply.texts[0].endswith("-0001")


async def test_retry_gets_the_same_notice(served: Served) -> None:
    """P7: a retry gets the same notice."""
    first = await served.ids.AllocateRange(request(view=pb.RANGE_VIEW_NOTICE))
    again = await served.ids.AllocateRange(request(view=pb.RANGE_VIEW_NOTICE))
    assert first.HasField("notice")
    assert again.notice == first.notice


async def test_retry_after_a_passed_deadline_gets_the_ids(served: Served) -> None:
    """P7: a retry after a passed deadline gets the ids, and none is burned."""
    await served.ids.AllocateRange(request(request_id="", id_count=1))
    gate = served.store.hold("record")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(request(), timeout=0.1)
    assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: served.metrics.in_flight == 0)
    retry = served.ids.AllocateRange(request())
    await until(lambda: served.metrics.in_flight == 1)
    gate.set()
    assert (await retry).range.first_id == 2
    assert served.allocator.burned.by_cause[BurnCause.REPEATED] == 0


async def test_concurrent_calls_share_few_statements(served: Served) -> None:
    """Three hundred concurrent calls are recorded in fewer than ten statements."""
    gate = served.store.hold("record")
    async with AsyncExitStack() as stack:
        # A connection of native has at most 100 open calls.
        options = [("grpc.use_local_subchannel_pool", 1)]
        opened = [grpc.aio.insecure_channel(served.address, options=options) for _ in range(3)]
        channels = [await stack.enter_async_context(channel) for channel in opened]
        stubs: list[Any] = [id_allocator_pb2_grpc.IdAllocatorServiceStub(channel) for channel in channels]
        wishes = [request(request_id=f"{i:08x}-0000-4000-8000-000000000000") for i in range(300)]
        calls = [stubs[i % 3].AllocateRange(wish) for i, wish in enumerate(wishes)]
        await until(lambda: served.metrics.in_flight == 300)
        gate.set()
        replies = [await call for call in calls]
    assert sorted(reply.range.first_id for reply in replies) == list(range(1, 1_501, 5))
    assert len(served.store.calls_of("record")) < 10
