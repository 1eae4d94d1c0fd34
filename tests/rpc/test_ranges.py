"""AllocateRange and StreamRanges on the wire."""

import asyncio
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import grpc
import pytest
from google.protobuf.message import Message

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import StoreUnreachable
from idalloc_server.domain.sequences.model import MAX_ID, Ordering, Reset, Sequence
from tests.rpc.conftest import MAX_IDS_PER_CALL, Served
from tests.support.fake_store import Fault
from tests.support.memory_rows import Row
from tests.support.rpc_errors import details_of


def create(served: Served, name: str, sequence: Sequence) -> None:
    served.store.rows[name] = Row(sequence, sequence.before_start)


async def test_a_range_says_all_that_the_contract_promises(served: Served) -> None:
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=5))
    assert reply.range == pb.IdRange(first_id=1, last_id=5, step=1, id_count=5)
    assert reply.generation == served.store.rows["orders"].generation
    assert 170 < reply.ttl.ToTimedelta().total_seconds() <= 180
    assert reply.ordering == pb.ORDERING_RISING_PER_NODE
    assert not reply.HasField("notice")
    assert (list(reply.texts), reply.period) == ([], "")


async def test_every_reply_names_the_process_that_took_its_range(served: Served) -> None:
    started = (await served.node.GetNode(node_pb2.GetNodeRequest())).node
    node = started.prefix * 2**32 + started.start_timestamp
    assert started.prefix == 7
    # Another prefix and another timestamp for document ids: it is the same process all the same.
    change = node_pb2.UpdateNodeRequest(node=node_pb2.Node(prefix=8))
    assert (await served.node.UpdateNode(change)).node.prefix == 8
    create(served, "invoices", Sequence(reset=Reset.YEARLY))
    requests = [
        pb.AllocateRangeRequest(sequence="orders"),
        pb.AllocateRangeRequest(sequence="orders", view=pb.RANGE_VIEW_TEXTS),
        pb.AllocateRangeRequest(sequence="invoices"),
        pb.AllocateRangeRequest(sequence="orders", request_id="11111111-aaaa-4111-8111-111111111111"),
        pb.AllocateRangeRequest(sequence="orders", request_id="11111111-aaaa-4111-8111-111111111111"),
    ]
    assert [(await served.ids.AllocateRange(request)).node_id for request in requests] == [node] * 5
    stream = served.ids.StreamRanges(pb.StreamRangesRequest(sequence="orders", total_id_count=30, chunk_id_count=10))
    assert [reply.node_id async for reply in stream] == [node] * 3


async def test_no_count_means_one(served: Served) -> None:
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    assert reply.range.id_count == 1


async def test_a_notice_tells_the_first_id_as_mysql_tells_an_insert_id(served: Served) -> None:
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=41))
    request = pb.AllocateRangeRequest(sequence="orders", id_count=2, view=pb.RANGE_VIEW_NOTICE)
    reply = await served.ids.AllocateRange(request)
    assert reply.notice.SerializeToString().hex() == "0803120408021 82a".replace(" ", "")


async def test_a_range_of_a_sequence_that_counts_down(served: Served) -> None:
    create(served, "down", Sequence(start=-10, step=-5, min_value=-1_000, max_value=-1))
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="down", id_count=3))
    assert reply.range == pb.IdRange(first_id=-10, last_id=-20, step=-5, id_count=3)


async def test_the_order_is_the_one_that_the_range_was_given_under(served: Served) -> None:
    create(served, "rising", Sequence(ordering=Ordering.RISING))
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="rising"))
    assert reply.ordering == pb.ORDERING_RISING
    stream = served.ids.StreamRanges(pb.StreamRangesRequest(sequence="rising", total_id_count=3))
    assert [reply.ordering async for reply in stream] == [pb.ORDERING_RISING]


async def test_texts_of_a_sequence_without_a_format_are_its_numbers(served: Served) -> None:
    request = pb.AllocateRangeRequest(sequence="orders", id_count=3, view=pb.RANGE_VIEW_TEXTS)
    assert (await served.ids.AllocateRange(request)).texts == ["1", "2", "3"]


async def test_texts_are_in_the_sequences_format_with_the_nodes_prefix(served: Served) -> None:
    create(served, "invoices", Sequence(start=9, step=-2, max_value=9, format="N{prefix}-{value:04d}"))
    request = pb.AllocateRangeRequest(sequence="invoices", id_count=3, view=pb.RANGE_VIEW_TEXTS)
    reply = await served.ids.AllocateRange(request)
    assert reply.texts == ["N7-0009", "N7-0007", "N7-0005"]
    assert reply.range.first_id == 9
    assert reply.period == ""


async def test_texts_of_a_stream(served: Served) -> None:
    create(served, "invoices", Sequence(format="A{value:04d}"))
    request = pb.StreamRangesRequest(sequence="invoices", total_id_count=5, chunk_id_count=3, view=pb.RANGE_VIEW_TEXTS)
    replies = [reply async for reply in served.ids.StreamRanges(request)]
    assert [list(reply.texts) for reply in replies] == [["A0001", "A0002", "A0003"], ["A0004", "A0005"]]


async def test_texts_come_with_the_period_that_they_are_of(served: Served) -> None:
    create(served, "invoices", Sequence(format="{year}/{value:04d}", reset=Reset.YEARLY))
    year = datetime.now(UTC).strftime("%Y")
    request = pb.AllocateRangeRequest(sequence="invoices", view=pb.RANGE_VIEW_TEXTS)
    reply = await served.ids.AllocateRange(request)
    assert (list(reply.texts), reply.period) == ([f"{year}/0001"], year)
    stream = served.ids.StreamRanges(
        pb.StreamRangesRequest(sequence="invoices", total_id_count=1, view=pb.RANGE_VIEW_TEXTS)
    )
    assert [(list(reply.texts), reply.period) async for reply in stream] == [([f"{year}/0002"], year)]


async def test_texts_of_a_sequence_without_a_reset_have_the_date_of_the_answer(served: Served) -> None:
    create(served, "dated", Sequence(format="{year}{month}{day}-{value:04d}", time_zone="Pacific/Kiritimati"))
    zone = ZoneInfo("Pacific/Kiritimati")
    before = datetime.now(zone).strftime("%Y%m%d")
    request = pb.AllocateRangeRequest(sequence="dated", view=pb.RANGE_VIEW_TEXTS)
    reply = await served.ids.AllocateRange(request)
    assert reply.texts[0] in (f"{before}-0001", f"{datetime.now(zone):%Y%m%d}-0001")
    assert reply.period == ""


async def test_a_thousand_concurrent_callers_get_no_error_and_no_id_twice(served: Served) -> None:
    request = pb.AllocateRangeRequest(sequence="orders", id_count=3)
    replies = await asyncio.gather(*(served.ids.AllocateRange(request) for _ in range(1_000)))
    firsts = sorted(reply.range.first_id for reply in replies)
    assert firsts == list(range(1, 3_001, 3))


async def test_a_stream_gives_the_total_in_chunks_that_rise(served: Served) -> None:
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=25, chunk_id_count=10)
    replies = [reply async for reply in served.ids.StreamRanges(request)]
    assert [reply.range.id_count for reply in replies] == [10, 10, 5]
    assert [reply.range.first_id for reply in replies] == [1, 11, 21]
    generation = served.store.rows["orders"].generation
    assert all(reply.generation == generation and reply.ttl.seconds for reply in replies)


async def test_a_cancelled_stream_burns_one_chunk_at_most(served: Served) -> None:
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=MAX_ID, chunk_id_count=1_000)
    stream = served.ids.StreamRanges(request)
    received = 0
    async for reply in stream:
        received += reply.range.id_count
        if received == 5_000:
            stream.cancel()
            break
    method = served.metrics.method("/idalloc.v1.IdAllocatorService/StreamRanges")
    for _ in range(500):
        if method.handled.total():
            break
        await asyncio.sleep(0.01)
    assert method.handled == {"CANCELLED": 1}
    assert served.allocator.burned.by_cause[BurnCause.CANCELLED] in (0, 1_000)
    burned = list(served.allocator.burned.pop_new())
    assert burned in ([], [("orders", "", BurnCause.CANCELLED, 1_000)])
    assert sum(burn.id_count for burn in burned) == served.allocator.burned.by_cause.total()


async def test_what_a_stream_gave_before_an_error_stays_valid(served: Served) -> None:
    create(served, "short", Sequence(max_value=25))
    stream = served.ids.StreamRanges(pb.StreamRangesRequest(sequence="short", total_id_count=30, chunk_id_count=10))
    received: list[int] = []
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async for reply in stream:
            received += [reply.range.last_id]
    assert received == [10, 20]
    assert details_of(failed.value).info.metadata["remaining"] == "5"
    last = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="short", id_count=5))
    assert last.range.last_id == 25


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.AllocateRangeRequest(sequence=""), "sequence"),
        (pb.AllocateRangeRequest(sequence="x" * 256), "sequence"),
        (pb.AllocateRangeRequest(sequence="a\nb"), "sequence"),
        (pb.AllocateRangeRequest(sequence="s", id_count=-1), "id_count"),
        (pb.AllocateRangeRequest(sequence="s", id_count=MAX_IDS_PER_CALL + 1), "id_count"),
        (pb.AllocateRangeRequest(sequence="s", view=99), "view"),  # type: ignore[arg-type]
        (pb.AllocateRangeRequest(sequence="s", id_count=10_001, view=pb.RANGE_VIEW_TEXTS), "id_count"),
        (pb.StreamRangesRequest(sequence="s", total_id_count=1, view=pb.RANGE_VIEW_NOTICE), "view"),
        (pb.StreamRangesRequest(sequence="s", total_id_count=1, view=99), "view"),  # type: ignore[arg-type]
        (
            pb.StreamRangesRequest(sequence="s", total_id_count=1, chunk_id_count=10_001, view=pb.RANGE_VIEW_TEXTS),
            "chunk_id_count",
        ),
        (pb.StreamRangesRequest(sequence="s"), "total_id_count"),
        (pb.StreamRangesRequest(sequence="s", total_id_count=-1), "total_id_count"),
        (pb.StreamRangesRequest(sequence="s", total_id_count=1, chunk_id_count=-1), "chunk_id_count"),
        (pb.StreamRangesRequest(sequence="", total_id_count=1), "sequence"),
        (
            pb.StreamRangesRequest(sequence="s", total_id_count=1, chunk_id_count=MAX_IDS_PER_CALL + 1),
            "chunk_id_count",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__name__}({value!s:.60})",
)
async def test_bad_input_names_the_field_and_takes_nothing(served: Served, request_: Message, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        if isinstance(request_, pb.AllocateRangeRequest):
            await served.ids.AllocateRange(request_)
        else:
            assert isinstance(request_, pb.StreamRangesRequest)
            async for _ in served.ids.StreamRanges(request_):
                pass
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.INVALID_ARGUMENT
    assert (details.info.reason, details.info.domain) == ("INVALID_REQUEST", "idalloc")
    [violation] = details.bad_request.field_violations
    assert violation.field == field
    assert violation.description
    assert not served.store.calls_of("grant")


async def test_an_exhausted_sequence_says_how_many_are_left(served: Served) -> None:
    create(served, "end", Sequence(start=MAX_ID - 4))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="end", id_count=6))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.OUT_OF_RANGE
    assert details.info.reason == "SEQUENCE_EXHAUSTED"
    assert dict(details.info.metadata) == {"sequence": "end", "remaining": "5", "largest_range": "5"}
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="end", id_count=5))
    assert reply.range.last_id == MAX_ID


async def test_a_store_that_is_away_is_unavailable_and_says_when_to_retry(served: Served, transport: str) -> None:
    served.store.down = True
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.UNAVAILABLE
    assert details.info.reason == "STORE_UNAVAILABLE"
    assert details.retry.retry_delay.ToMilliseconds() == 1_000
    # Native sends no trailer whose name begins with grpc-, but for the details.
    assert details.trailers.get("grpc-retry-pushback-ms") == {"grpcio": "1000", "native": None}[transport]
    served.store.down = False
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    assert reply.range.first_id == 1


async def test_the_stores_own_error_code_reaches_the_caller(served: Served) -> None:
    served.store.next("grant", Fault(applied=0, error=StoreUnreachable("blocked", code=5031, http_status=503)))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    metadata = details_of(failed.value).info.metadata
    assert (metadata["code"], metadata["http_status"]) == ("5031", "503")


async def test_a_store_that_went_backwards_stops_that_sequence_alone(served: Served) -> None:
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=10))
    served.store.rows["orders"].last_value = 5
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=1_000))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.FAILED_PRECONDITION
    assert details.info.reason == "STORE_WENT_BACKWARDS"
    assert details.info.metadata["sequence"] == "orders"
    assert (await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="others"))).range.first_id == 1


async def test_a_call_past_its_deadline_takes_nothing(served: Served) -> None:
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    gate = served.store.hold("grant")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=50), timeout=0.1)
    assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.sleep(0.1)
    gate.set()
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    assert reply.range.first_id == 2
    assert not served.allocator.burned.by_cause
