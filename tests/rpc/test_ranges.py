"""AllocateRange and StreamRanges on the wire."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import grpc
import pytest
from google.protobuf.message import Message

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2
from idalloc_server.auth.turns import MAX_TURNS
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StoreUnreachable
from idalloc_server.domain.sequences.sequence import MAX_ID, Ordering, Reset, Sequence
from tests.rpc.conftest import MAX_IDS_PER_CALL, Served
from tests.rpc.test_batches import fill_lease
from tests.support.fake_store import Fault
from tests.support.memory_rows import Row
from tests.support.rpc_errors import details_of
from tests.support.waiting import until


def create(served: Served, name: str, sequence: Sequence) -> None:
    served.store.rows[name] = Row(sequence, sequence.before_start)


async def test_range_has_all_promised_fields(served: Served) -> None:
    """A reply has the range, generation, ttl and ordering, and no other view's fields."""
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=5))
    assert reply.range == pb.IdRange(first_id=1, last_id=5, step=1, id_count=5)
    assert reply.generation == served.store.rows["orders"].generation
    assert 170 < reply.ttl.ToTimedelta().total_seconds() <= 180
    assert reply.ordering == pb.ORDERING_RISING_PER_NODE
    assert not reply.HasField("notice")
    assert (list(reply.texts), reply.period) == ([], "")


async def test_a_reply_has_no_field_of_an_earlier_one(served: Served) -> None:
    """Replies are filled one after another: created, period, texts and notice are not repeated."""
    create(served, "days", Sequence(reset=Reset.DAILY))
    request = pb.AllocateRangeRequest(sequence="orders")
    assert (await served.ids.AllocateRange(request)).created
    plain = await served.ids.AllocateRange(request)
    for view in (pb.RANGE_VIEW_TEXTS, pb.RANGE_VIEW_NOTICE):
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", view=view))
    for _ in range(2):
        assert (await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="days"))).period
    again = await served.ids.AllocateRange(request)
    plain.range.first_id = plain.range.last_id = 5
    plain.ttl.CopyFrom(again.ttl)
    assert again == plain


@pytest.mark.parametrize("streams", [False, True])
async def test_ids_taken_before_a_pause_are_not_sent_after_it(
    served: Served, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    """P4: ids are burned if the process is paused past the lease before the reply is filled."""
    boot, allocate, paused = SystemClock.boot, served.allocator.issue, 0.0

    async def allocate_and_pause(sequence: str, count: int) -> IdRange:
        nonlocal paused
        taken = await allocate(sequence, count)
        paused = 200.0
        return taken

    monkeypatch.setattr(SystemClock, "boot", lambda clock: boot() + paused)
    monkeypatch.setattr(served.allocator, "issue", allocate_and_pause)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        if streams:
            await served.ids.StreamRanges(pb.StreamRangesRequest(sequence="orders", total_id_count=5)).read()
        else:
            await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=5))
    assert details_of(failed.value).info.reason == "STORE_UNAVAILABLE"
    assert served.allocator.burned.by_cause[BurnCause.EXPIRED] == 5


async def test_every_reply_has_the_node_id(served: Served) -> None:
    """Every reply has the node_id of the process, also after a change of its prefix."""
    started = (await served.node.GetNode(node_pb2.GetNodeRequest())).node
    node = started.prefix * 2**32 + started.start_timestamp
    assert started.prefix == 7
    # A new prefix and start timestamp for document ids do not change the node_id of the process.
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


async def test_id_count_0_means_1(served: Served) -> None:
    """id_count 0 means 1."""
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    assert reply.range.id_count == 1


async def test_notice_has_the_first_id_as_mysql_insert_id(served: Served) -> None:
    """RANGE_VIEW_NOTICE has the first id as MySQL's GENERATED_INSERT_ID."""
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=41))
    request = pb.AllocateRangeRequest(sequence="orders", id_count=2, view=pb.RANGE_VIEW_NOTICE)
    reply = await served.ids.AllocateRange(request)
    assert reply.notice.SerializeToString().hex() == "0803120408021 82a".replace(" ", "")


async def test_range_of_a_descending_sequence(served: Served) -> None:
    """A sequence with a negative step returns descending ranges."""
    create(served, "down", Sequence(start=-10, step=-5, min_value=-1_000, max_value=-1))
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="down", id_count=3))
    assert reply.range == pb.IdRange(first_id=-10, last_id=-20, step=-5, id_count=3)


async def test_reply_has_the_ordering_of_its_sequence(served: Served) -> None:
    """A reply has the ordering that its range was issued under."""
    create(served, "rising", Sequence(ordering=Ordering.RISING))
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="rising"))
    assert reply.ordering == pb.ORDERING_RISING
    stream = served.ids.StreamRanges(pb.StreamRangesRequest(sequence="rising", total_id_count=3))
    assert [reply.ordering async for reply in stream] == [pb.ORDERING_RISING]


async def test_texts_without_format_are_decimal_numbers(served: Served) -> None:
    """Texts of a sequence without a format are decimal numbers."""
    request = pb.AllocateRangeRequest(sequence="orders", id_count=3, view=pb.RANGE_VIEW_TEXTS)
    assert (await served.ids.AllocateRange(request)).texts == ["1", "2", "3"]


async def test_texts_have_the_sequence_format_and_node_prefix(served: Served) -> None:
    """Texts have the sequence's format with the node's prefix."""
    create(served, "invoices", Sequence(start=9, step=-2, max_value=9, format="N{prefix}-{value:04d}"))
    request = pb.AllocateRangeRequest(sequence="invoices", id_count=3, view=pb.RANGE_VIEW_TEXTS)
    reply = await served.ids.AllocateRange(request)
    assert reply.texts == ["N7-0009", "N7-0007", "N7-0005"]
    assert reply.range.first_id == 9
    assert reply.period == ""


async def test_stream_returns_texts(served: Served) -> None:
    """StreamRanges returns texts of each chunk."""
    create(served, "invoices", Sequence(format="A{value:04d}"))
    request = pb.StreamRangesRequest(sequence="invoices", total_id_count=5, chunk_id_count=3, view=pb.RANGE_VIEW_TEXTS)
    replies = [reply async for reply in served.ids.StreamRanges(request)]
    assert [list(reply.texts) for reply in replies] == [["A0001", "A0002", "A0003"], ["A0004", "A0005"]]


async def test_texts_have_the_period_of_the_reply(served: Served) -> None:
    """Texts show the period of their reply."""
    create(served, "invoices", Sequence(format="{year}/{value:04d}", reset=Reset.YEARLY))
    year = datetime.now(UTC).strftime("%Y")
    request = pb.AllocateRangeRequest(sequence="invoices", view=pb.RANGE_VIEW_TEXTS)
    reply = await served.ids.AllocateRange(request)
    assert (list(reply.texts), reply.period) == ([f"{year}/0001"], year)
    stream = served.ids.StreamRanges(
        pb.StreamRangesRequest(sequence="invoices", total_id_count=1, view=pb.RANGE_VIEW_TEXTS)
    )
    assert [(list(reply.texts), reply.period) async for reply in stream] == [([f"{year}/0002"], year)]


async def test_texts_without_reset_have_the_date_of_the_reply(served: Served) -> None:
    """Texts of a sequence without a reset have the date of the reply."""
    create(served, "dated", Sequence(format="{year}{month}{day}-{value:04d}", time_zone="Pacific/Kiritimati"))
    zone = ZoneInfo("Pacific/Kiritimati")
    before = datetime.now(zone).strftime("%Y%m%d")
    request = pb.AllocateRangeRequest(sequence="dated", view=pb.RANGE_VIEW_TEXTS)
    reply = await served.ids.AllocateRange(request)
    assert reply.texts[0] in (f"{before}-0001", f"{datetime.now(zone):%Y%m%d}-0001")
    assert reply.period == ""


async def test_concurrent_callers_get_disjoint_ranges(served: Served) -> None:
    """P1: a thousand concurrent calls get disjoint ranges and no error."""
    request = pb.AllocateRangeRequest(sequence="orders", id_count=3)
    replies = await asyncio.gather(*(served.ids.AllocateRange(request) for _ in range(1_000)))
    firsts = sorted(reply.range.first_id for reply in replies)
    assert firsts == list(range(1, 3_001, 3))


async def test_stream_returns_the_total_in_rising_chunks(served: Served) -> None:
    """StreamRanges returns total_id_count ids in rising chunks of chunk_id_count."""
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=25, chunk_id_count=10)
    replies = [reply async for reply in served.ids.StreamRanges(request)]
    assert [reply.range.id_count for reply in replies] == [10, 10, 5]
    assert [reply.range.first_id for reply in replies] == [1, 11, 21]
    generation = served.store.rows["orders"].generation
    assert all(reply.generation == generation and reply.ttl.seconds for reply in replies)


async def test_cancelled_stream_burns_at_most_one_chunk(served: Served) -> None:
    """P9: a cancelled stream burns at most one chunk, and counts it."""
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=MAX_ID, chunk_id_count=1_000)
    stream = served.ids.StreamRanges(request)
    received = 0
    async for reply in stream:
        received += reply.range.id_count
        if received == 5_000:
            stream.cancel()
            break
    method = served.metrics.method("/idalloc.v1.IdAllocatorService/StreamRanges")
    await until(lambda: method.handled.total())
    assert method.handled == {"CANCELLED": 1}
    assert served.allocator.burned.by_cause[BurnCause.CANCELLED] in (0, 1_000)
    burned = list(served.allocator.burned.pop_new())
    assert burned in ([], [("orders", "", BurnCause.CANCELLED, 1_000)])
    assert sum(burn.id_count for burn in burned) == served.allocator.burned.by_cause.total()


async def test_chunks_before_an_error_stay_valid(served: Served) -> None:
    """P1: chunks that a stream returned before an error are not issued again."""
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
async def test_invalid_request_names_the_field_and_takes_no_ids(served: Served, request_: Message, field: str) -> None:
    """An invalid field is named in BadRequest, and no id is taken."""
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


async def test_exhausted_sequence_returns_the_remaining_count(served: Served) -> None:
    """SEQUENCE_EXHAUSTED has the remaining count, and that many ids can be allocated."""
    create(served, "end", Sequence(start=MAX_ID - 4))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="end", id_count=6))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.OUT_OF_RANGE
    assert details.info.reason == "SEQUENCE_EXHAUSTED"
    assert dict(details.info.metadata) == {"sequence": "end", "remaining": "5", "largest_range": "5"}
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="end", id_count=5))
    assert reply.range.last_id == MAX_ID


async def test_unavailable_store_has_a_retry_delay(served: Served, transport: str) -> None:
    """An unavailable store is UNAVAILABLE with RetryInfo and pushback, and the retry succeeds."""
    served.store.down = True
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.UNAVAILABLE
    assert details.info.reason == "STORE_UNAVAILABLE"
    assert details.retry.retry_delay.ToMilliseconds() == 1_000
    # native sends no trailer named grpc-*, except the details.
    assert details.trailers.get("grpc-retry-pushback-ms") == {"grpcio": "1000", "native": None}[transport]
    served.store.down = False
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    assert reply.range.first_id == 1


async def test_store_error_code_reaches_the_caller(served: Served) -> None:
    """The metadata has the store's own error code and HTTP status."""
    served.store.next("grant", Fault(applied=0, error=StoreUnreachable("blocked", code=5031, http_status=503)))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    metadata = details_of(failed.value).info.metadata
    assert (metadata["code"], metadata["http_status"]) == ("5031", "503")


async def test_store_went_backwards_stops_that_sequence_only(served: Served) -> None:
    """P3: a sequence whose row went backwards issues no more ids; others do."""
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=10))
    served.store.rows["orders"].last_value = 5
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=1_000))
    details = details_of(failed.value)
    assert details.code == grpc.StatusCode.FAILED_PRECONDITION
    assert details.info.reason == "STORE_WENT_BACKWARDS"
    assert details.info.metadata["sequence"] == "orders"
    assert (await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="others"))).range.first_id == 1


async def test_call_past_its_deadline_takes_no_ids(served: Served) -> None:
    """A call past its deadline takes no ids."""
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    gate = served.store.hold("grant")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=50), timeout=0.1)
    assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: served.metrics.in_flight == 0)
    gate.set()
    reply = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    assert reply.range.first_id == 2
    assert not served.allocator.burned.by_cause


async def test_streams_that_wait_for_the_store_hold_no_turn(served: Served) -> None:
    """More streams of one caller than have turns wait for the store: another one is served."""
    await fill_lease(served, "warm")
    served.store.gate = asyncio.Event()
    cold = [pb.StreamRangesRequest(sequence=f"cold{number}", total_id_count=1) for number in range(2 * MAX_TURNS)]
    waiting = [asyncio.ensure_future(served.ids.StreamRanges(each).read()) for each in cold]
    await until(lambda: len(served.store.calls_of("grant")) == len(cold) + 2)
    warm: Any = served.ids.StreamRanges(pb.StreamRangesRequest(sequence="warm", total_id_count=20, chunk_id_count=1))
    assert len([reply.range.first_id async for reply in warm]) == 20
    assert not any(each.done() for each in waiting)
    served.store.gate.set()
    replies: list[Any] = await asyncio.gather(*waiting)
    assert [reply.range.first_id for reply in replies] == [1] * len(cold)
