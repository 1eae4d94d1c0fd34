"""AllocateStream on the wire."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
import structlog
from google.protobuf.duration_pb2 import Duration
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, node_pb2
from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.turns import MAX_STORE_WAITS
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.rpc import request_stream
from tests.rpc.conftest import MAX_IDS_PER_CALL, Served, serving
from tests.rpc.test_batches import fill_lease, info_of
from tests.rpc.test_quotas import ACCESS, call_options
from tests.support.fake_store import FakeClock
from tests.support.identities import bearer, identity_with_token
from tests.support.memory_rows import Row
from tests.support.rpc_errors import details_of
from tests.support.waiting import hold_for_async, settle, until

METHOD = "/idalloc.v1.IdAllocatorService/AllocateStream"
REQUEST_ID = "11111111-aaaa-4111-8111-111111111111"


def range_of(sequence: str, id_count: int = 1, number: int = 0, **fields: Any) -> pb.AllocateStreamRequest:
    wanted = pb.AllocateRangeRequest(sequence=sequence, id_count=id_count, **fields)
    return pb.AllocateStreamRequest(number=number, allocate_range=wanted)


def shown(answer: pb.AllocateStreamResponse) -> object:
    """Return the first and last id of an answer, its document ids, or the reason of its error."""
    match answer.WhichOneof("response"):
        case "allocate_range":
            return answer.allocate_range.range.first_id, answer.allocate_range.range.last_id
        case "generate_doc_id":
            return list(answer.generate_doc_id.doc_ids)
        case _:
            return info_of(answer.error).reason


def impatient(request: pb.AllocateStreamRequest) -> pb.AllocateStreamRequest:
    """Set a timeout that ends before any quota has room."""
    request.timeout.FromMilliseconds(1)
    return request


async def soon(event: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(event, 20)


async def ask(call: Any, *requests: pb.AllocateStreamRequest) -> list[object]:
    """Send requests, and return their answers."""
    for request in requests:
        await call.write(request)
    return [shown(await soon(call.read())) for _ in requests]


async def reason_of_end(call: Any) -> str:
    """Return the reason of the error that ends a stream."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        while await soon(call.read()) is not grpc.aio.EOF:
            pass
    return details_of(failed.value).info.reason


@pytest.mark.parametrize("is_cold", [True, False], ids=["from the store", "from the lease"])
async def test_answers_come_in_the_order_of_requests(served: Served, is_cold: bool) -> None:
    """P1: each request is answered once, under its number; a sequence that is named twice gets two
    disjoint ranges.
    """
    if not is_cold:
        for name in ("orders", "lines"):
            await fill_lease(served, name)
    first = 1 if is_cold else 3
    call = served.ids.AllocateStream()
    wanted = [("orders", 1), ("lines", 20), ("orders", 3), ("lines", 0)]
    for number, (name, count) in enumerate(wanted):
        await call.write(range_of(name, count, 70 - number))
    answers = [await soon(call.read()) for _ in wanted]
    assert [each.number for each in answers] == [70, 69, 68, 67]
    assert list(map(shown, answers)) == [(first, first), (first, first + 19), (first + 1, first + 3), (first + 20,) * 2]
    await call.done_writing()
    assert await soon(call.read()) is grpc.aio.EOF
    assert await call.code() == grpc.StatusCode.OK
    await until(lambda: served.metrics.method(METHOD).handled == {"OK": 1})


async def test_a_range_is_that_of_allocate_range(served: Served) -> None:
    """An answer has the fields of AllocateRange, in each view."""
    served.store.rows["invoices"] = Row(Sequence(format="INV-{value:04d}"), 0)
    call = served.ids.AllocateStream()
    await call.write(range_of("invoices", 2, view=pb.RANGE_VIEW_TEXTS))
    answer = (await soon(call.read())).allocate_range
    single = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="invoices", view=pb.RANGE_VIEW_NOTICE))
    assert list(answer.texts) == ["INV-0001", "INV-0002"]
    assert (answer.generation, answer.node_id, answer.ordering) == (single.generation, single.node_id, single.ordering)
    assert 170 < answer.ttl.seconds < 180
    await call.write(range_of("invoices", view=pb.RANGE_VIEW_NOTICE))
    noticed = (await soon(call.read())).allocate_range
    assert (noticed.range.first_id, noticed.HasField("notice")) == (4, True)


async def test_document_ids_are_those_of_generate_doc_id(served: Served) -> None:
    """Document ids and ranges share a stream; an answer has the view that was asked for."""
    call = served.ids.AllocateStream()
    wanted = pb.GenerateDocIdRequest(id_count=2, view=pb.DOC_ID_VIEW_IDS)
    answers = await ask(call, pb.AllocateStreamRequest(generate_doc_id=wanted), range_of("orders"))
    [following] = (await served.ids.GenerateDocId(pb.GenerateDocIdRequest(view=pb.DOC_ID_VIEW_IDS))).doc_ids
    assert answers == [[f"{int(following, 16) - back:028x}" for back in (2, 1)], (1, 1)]


@pytest.mark.parametrize(
    "invalid",
    [
        range_of(""),
        range_of("a\nb"),
        range_of("s", -1),
        range_of("s", MAX_IDS_PER_CALL + 1),
        range_of("s", view=-1),
        range_of("s", request_id="1"),
        range_of("short", 9),
    ],
    ids=["no name", "control character", "negative", "too many", "view", "request id", "exhausted"],
)
async def test_an_error_is_that_of_allocate_range(served: Served, invalid: pb.AllocateStreamRequest) -> None:
    """A request that fails has exactly the status of AllocateRange, and the stream continues."""
    served.store.rows["short"] = Row(Sequence(max_value=5), 0)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(invalid.allocate_range)
    expected = details_of(failed.value)
    call = served.ids.AllocateStream()
    await call.write(invalid)
    answer = await soon(call.read())
    assert (answer.error.code, answer.error.message) == (expected.code.value[0], expected.message)
    assert info_of(answer.error) == expected.info
    assert await ask(call, range_of("orders", 2)) == [(1, 2)]


@pytest.mark.parametrize(
    "invalid",
    [
        pb.AllocateStreamRequest(number=1),
        pb.AllocateStreamRequest(generate_doc_id=pb.GenerateDocIdRequest(id_count=-1)),
        pb.AllocateStreamRequest(generate_doc_id=pb.GenerateDocIdRequest(view=9)),  # type: ignore[arg-type]
    ],
    ids=["nothing", "negative", "view"],
)
async def test_an_invalid_request_is_answered(served: Served, invalid: pb.AllocateStreamRequest) -> None:
    """A request for nothing or for invalid document ids gets an error; the stream continues."""
    assert await ask(served.ids.AllocateStream(), invalid, range_of("orders")) == ["INVALID_REQUEST", (1, 1)]


async def test_a_request_id_repeats_its_ids(served: Served) -> None:
    """P7: a request with a request id gets the same ids on another stream."""
    request = range_of("orders", 5, request_id=REQUEST_ID)
    first = await ask(served.ids.AllocateStream(), request, range_of("orders"))
    assert await ask(served.ids.AllocateStream(), request) == first[:1] == [(1, 5)]


async def test_requests_that_wait_share_a_refill(served: Served) -> None:
    """While a request waits for the store, those after it are read, and wait together."""
    call = served.ids.AllocateStream()
    gate = served.store.hold("grant")
    for _ in range(101):
        await call.write(range_of("orders", 2))
    await until_waiting(served, "orders", MAX_STORE_WAITS // 2)  # one caller has half of the places
    gate.set()
    answers: list[Any] = [shown(await soon(call.read())) for _ in range(101)]
    assert sorted(answers) == [(first, first + 1) for first in range(1, 203, 2)]
    assert len(served.store.calls) < 10


async def until_waiting(served: Served, sequence: str, callers: int) -> None:
    """Wait until so many requests wait for the store."""
    allocators = served.allocator._sequence_allocators
    await until(lambda: sequence in allocators)
    await until(lambda: len(allocators[sequence].counters[-1]._active) == callers)


async def test_a_slow_sequence_delays_answers_only(served: Served) -> None:
    """Requests behind one that waits take their ids from the lease meanwhile."""
    await fill_lease(served, "warm")
    gate = served.store.hold("grant")
    before = served.allocator.ids_in_memory("warm")
    call = served.ids.AllocateStream()
    await call.write(range_of("slow"))
    await call.write(range_of("warm", 2))
    await until(lambda: served.allocator.ids_in_memory("warm") == before - 2)
    assert await ask(served.ids.AllocateStream(), range_of("warm")) == [(5, 5)]
    gate.set()
    assert [shown(await soon(call.read())) for _ in range(2)] == [(1, 1), (3, 4)]


async def test_a_request_has_a_timeout(served: Served) -> None:
    """A request that waits longer than its timeout is UNAVAILABLE; no id is lost."""
    gate = served.store.hold("grant")
    call = served.ids.AllocateStream()
    late = range_of("slow", 7)
    late.timeout.CopyFrom(Duration(nanos=50_000_000))
    await call.write(late)
    answer = await soon(call.read())
    assert shown(answer) == "STORE_UNAVAILABLE"
    assert "timeout of 0.05 s" in answer.error.message
    gate.set()
    assert await ask(call, range_of("slow")) == [(1, 1)]
    assert not served.allocator.burned.by_cause


@pytest.mark.parametrize(
    "timeout",
    [Duration(seconds=2**62), Duration(seconds=-(2**62)), Duration(seconds=1, nanos=-1), Duration(nanos=2**31 - 1)],
    ids=["too large", "too small", "two signs", "nanoseconds"],
)
async def test_an_invalid_timeout_is_answered(served: Served, timeout: Duration) -> None:
    """A timeout that is no valid duration is INVALID_REQUEST, and takes no id."""
    late = range_of("orders", 7)
    late.timeout.CopyFrom(timeout)
    assert await ask(served.ids.AllocateStream(), late, range_of("orders")) == ["INVALID_REQUEST", (1, 1)]


async def test_an_unavailable_store_fails_its_requests_only(served: Served) -> None:
    """Without the store, requests that the lease serves have ranges."""
    await fill_lease(served, "warm")
    served.store.down = True
    call = served.ids.AllocateStream()
    assert await ask(call, range_of("cold"), range_of("warm", 2)) == ["STORE_UNAVAILABLE", (3, 4)]
    served.allocator.store_health.evaluate()
    assert served.allocator.store_health.error


async def test_a_fault_fails_its_request_only(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the server is INTERNAL for its request alone, and is logged."""
    allocate = served.allocator.issue_now

    def fail(sequence: str, count: int) -> Any:
        if sequence == "faulty":
            raise RuntimeError("planted")
        return allocate(sequence, count)

    monkeypatch.setattr(served.allocator, "issue_now", fail)
    with structlog.testing.capture_logs() as logs:
        answers = await ask(served.ids.AllocateStream(), range_of("faulty"), range_of("orders"))
    assert answers == ["INTERNAL", (1, 1)]
    await until(lambda: served.metrics.stream_answers == {"INTERNAL": 1, "OK": 1})
    assert [line["method"] for line in logs if line["event"] == "call_failed"] == [METHOD]


async def test_a_broken_stream_burns_what_it_took(served: Served) -> None:
    """P9: ids of answers that could not be written are burned and counted; requests that wait take
    none.
    """
    await fill_lease(served, "warm")
    gate = served.store.hold("grant")
    call = served.ids.AllocateStream()
    for request in (range_of("held", 7), range_of("warm", 2), range_of("warm", 3, request_id=REQUEST_ID)):
        await call.write(request)
    await until(lambda: REQUEST_ID in served.store.allocations)
    call.cancel()
    await until(lambda: served.metrics.in_flight == 0)
    assert served.metrics.method(METHOD).handled == {"CANCELLED": 1}
    assert served.allocator.burned.by_cause == {BurnCause.CANCELLED: 2}
    gate.set()
    assert await ask(served.ids.AllocateStream(), range_of("held"), range_of("warm")) == [(1, 1), (8, 8)]


async def test_a_client_that_does_not_read_gets_no_more(served: Served) -> None:
    """A stream whose answers are not read takes the ids of few requests, however many were sent."""
    one = range_of("warm", 10_000, view=pb.RANGE_VIEW_TEXTS)
    while served.allocator.ids_in_memory("warm") < 401 * 10_000:  # else requests wait for the store
        await served.ids.AllocateRange(one.allocate_range)
    before = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="warm"))
    unmeasured = [("grpc.http2.bdp_probe", 0)]  # else gRPC grows the client's buffer on a fast connection
    async with grpc.aio.insecure_channel(served.address, options=unmeasured) as channel:
        call = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel).AllocateStream()
        for _ in range(400):
            await call.write(one)
        await hold_for_async(0.3, "the server reads and answers until the buffers are full")
        following = await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="warm"))
        assert 0 < (following.range.first_id - before.range.last_id) // 10_000 < 100
        call.cancel()


async def test_queued_answers_have_no_texts(served: Served) -> None:
    """Behind a request that waits, the ids of others take little memory: texts are made when they
    are written.
    """
    await fill_lease(served, "warm")
    held = served.allocator.ids_in_memory("warm")
    gate = served.store.hold("grant")
    call = served.ids.AllocateStream()
    await call.write(range_of("cold"))
    tracemalloc.start()
    try:
        wanted = pb.GenerateDocIdRequest(id_count=10_000, view=pb.DOC_ID_VIEW_IDS)
        for _ in range(30):
            await call.write(pb.AllocateStreamRequest(generate_doc_id=wanted))
        await call.write(range_of("warm"))
        await until(lambda: served.allocator.ids_in_memory("warm") < held)  # all before it have their ids
        assert tracemalloc.get_traced_memory()[0] < 4e6  # as texts they would take 20 MB and more
    finally:
        tracemalloc.stop()
    gate.set()
    answers = [await soon(call.read()) for _ in range(32)]
    assert [len(each.generate_doc_id.doc_ids) for each in answers] == [0, *[10_000] * 30, 0]


async def test_a_stream_ends_beyond_its_requests(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with too many requests ends with INVALID_REQUEST, after its answers."""
    monkeypatch.setattr(request_stream, "MAX_REQUESTS", 3)
    gate = served.store.hold("grant")
    call = served.ids.AllocateStream()
    for _ in range(4):
        await call.write(range_of("orders"))
    await until_waiting(served, "orders", 4)
    gate.set()
    assert [shown(await soon(call.read())) for _ in range(4)] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert await reason_of_end(call) == "INVALID_REQUEST"


async def test_a_stream_ends_beyond_its_bytes(served: Served) -> None:
    """A stream with too many bytes of requests without an answer ends with INVALID_REQUEST."""
    gate = served.store.hold("grant")
    call = served.ids.AllocateStream()
    await call.write(range_of("orders"))
    for _ in range(5):
        await call.write(range_of("x" * 250_000))
    await until_waiting(served, "orders", 1)
    unanswered = served.access_control.limits.shares.unanswered
    await until(lambda: unanswered._held.total() == 6)
    gate.set()
    answers = [shown(await soon(call.read())) for _ in range(6)]
    assert answers == [(1, 1), *["INVALID_REQUEST"] * 5]
    assert await reason_of_end(call) == "INVALID_REQUEST"


async def test_too_many_ids_without_an_answer_fail_alone(served: Served) -> None:
    """A request beyond the ids that may wait gets QUOTA_EXCEEDED and none; the next has its own."""
    gate = served.store.hold("grant")
    call = served.ids.AllocateStream()
    for id_count in (*[MAX_IDS_PER_CALL] * 10, 1):
        await call.write(range_of("orders", id_count))
    await until_waiting(served, "orders", 10)
    await served.node.GetNode(node_pb2.GetNodeRequest())  # the connection delivers in order: all were read
    gate.set()
    most = MAX_IDS_PER_CALL
    answers = [await soon(call.read()) for _ in range(11)]
    assert list(map(shown, answers)) == [*((1 + n * most, (n + 1) * most) for n in range(10)), "QUOTA_EXCEEDED"]
    assert "ids_without_answer = 1000000" in answers[-1].error.message
    assert await ask(call, range_of("orders")) == [(10 * most + 1,) * 2]


async def test_a_failed_request_does_not_count_to_the_limit(served: Served) -> None:
    """A request that asks for too many ids fails alone, also while another one waits."""
    gate = served.store.hold("grant")
    call = served.ids.AllocateStream()
    for id_count in (1, 2**62, -(2**62), 2):
        await call.write(range_of("orders", id_count))
    await until_waiting(served, "orders", 2)
    gate.set()
    answers = [shown(await soon(call.read())) for _ in range(4)]
    assert answers == [(1, 1), "INVALID_REQUEST", "INVALID_REQUEST", (2, 3)]


async def test_ids_that_wait_past_their_lease_are_not_sent(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: ids that wait behind a slow answer, in a process paused past their lease, are burned."""
    await fill_lease(served, "warm")
    held = served.allocator.ids_in_memory("warm")
    boot, paused = SystemClock.boot, 0.0
    monkeypatch.setattr(SystemClock, "boot", lambda clock: boot() + paused)
    gate = served.store.hold("grant")
    call = served.ids.AllocateStream()
    recorded = range_of("recorded", 2, request_id=REQUEST_ID)
    for request in (range_of("slow"), range_of("warm", 5), range_of("late", 3), recorded):
        await call.write(request)
    await until(lambda: served.allocator.ids_in_memory("warm") == held - 5)
    await until(lambda: served.store.rows.get("late", Row(Sequence(), 0)).last_value == 3)
    await until(lambda: REQUEST_ID in served.store.allocations)
    await settle()  # its ids are taken
    paused = 200.0
    gate.set()
    _, *answers = [await soon(call.read()) for _ in range(4)]
    assert all("expired before the reply" in each.error.message for each in answers)
    assert served.allocator.burned.by_sequence["warm"][BurnCause.EXPIRED] == 5
    assert served.allocator.burned.by_sequence["late"][BurnCause.EXPIRED] == 3
    assert await ask(call, range_of("orders")) == [(1, 1)]


async def test_a_client_that_leaves_an_idle_stream_is_no_failure(served: Served) -> None:
    """A client ends a stream by a cancel. If no request waits, the server logs no warning."""
    handler = served.id_service.handlers["AllocateStream"]

    async def leave(*requests: pb.AllocateStreamRequest) -> list[str]:
        """Return the codes of the failed calls, after a transport has cancelled a call."""

        async def sent() -> AsyncIterator[pb.AllocateStreamRequest]:
            for each in requests:
                yield each
            await asyncio.Event().wait()

        without = {"time_remaining": lambda: None, "peer": lambda: "", "invocation_metadata": lambda: ()}
        context: Any = AsyncMock(**without)
        call = asyncio.ensure_future(handler(sent(), context))
        await settle()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with structlog.testing.capture_logs() as logs:
            served.calls.failed.log()
        return [line["code"] for line in logs if line["event"] == "calls_failed"]

    served.store.hold("grant")
    assert await leave() == []
    assert await leave(range_of("slow")) == ["CANCELLED"]


async def test_a_drain_does_not_wait_for_idle_streams(served: Served) -> None:
    """Before a drain ends streams it waits for calls, but not for streams without a request."""
    call = served.ids.AllocateStream()
    assert await ask(call, range_of("orders")) == [(1, 1)]
    served.draining.hold_new_calls()
    await soon(served.draining.wait_until_quiet(0.01, timeout=600))
    assert await ask(call, range_of("orders")) == [(2, 2)]


async def test_an_idle_stream_of_reflection_hides_no_call(served: Served) -> None:
    """Reflection does not count as a call, so its idle streams do not count as ended ones."""
    stub: Any = ServerReflectionStub(served.channel)  # type: ignore[arg-type]
    reflection = stub.ServerReflectionInfo()
    await reflection.write(ServerReflectionRequest(list_services=""))
    await soon(reflection.read())
    gate = served.store.hold("grant")
    running = asyncio.ensure_future(served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders")))
    await until_waiting(served, "orders", 1)
    quiet = asyncio.ensure_future(served.draining.wait_until_quiet(0.01, timeout=600))
    await hold_for_async(0.2, "it waits for the call")
    assert not quiet.done()
    gate.set()
    await soon(running)
    await soon(quiet)


async def test_a_drain_ends_streams_after_their_answers(served: Served) -> None:
    """A draining server answers what it has read, then ends the stream with SERVER_DRAINING."""
    idle, busy = served.ids.AllocateStream(), served.ids.AllocateStream()
    assert await ask(idle, range_of("orders")) == [(1, 1)]
    gate = served.store.hold("grant")
    await busy.write(range_of("held", 7))
    await until(lambda: served.store.calls_of("grant")[-1].arguments[0] == "held")
    served.draining.reject_calls()
    assert await reason_of_end(idle) == "SERVER_DRAINING"
    gate.set()
    assert shown(await soon(busy.read())) == (1, 7)
    assert await reason_of_end(busy) == "SERVER_DRAINING"
    assert await reason_of_end(served.ids.AllocateStream()) == "SERVER_DRAINING"
    assert await served.draining.wait_for_calls(timeout=5)


async def test_the_role_is_required_on_each_sequence(secured: Served) -> None:
    """A request for a sequence without the role is PERMISSION_DENIED and audited."""
    call = secured.ids.AllocateStream(metadata=bearer("narrow"))
    with structlog.testing.capture_logs() as logs:
        answers = await ask(call, range_of("mine"), range_of("yours"), range_of("more"))
    assert answers == [(1, 1), "PERMISSION_DENIED", (1, 1)]
    [record] = [line for line in logs if line["event"] == "audit"]
    assert (record["identity"], record["method"], record["sequence"]) == ("narrow", METHOD, "yours")
    assert "yours" not in secured.store.rows


async def test_callers_authenticate(secured: Served) -> None:
    """A stream without a token, or of an identity without the role, does not begin."""
    assert await reason_of_end(secured.ids.AllocateStream()) == "UNAUTHENTICATED"
    assert await reason_of_end(secured.ids.AllocateStream(metadata=bearer("read"))) == "PERMISSION_DENIED"


async def test_a_new_policy_applies_to_open_streams(secured: Served) -> None:
    """The next request of a removed identity ends its stream; a kept one has its new roles."""
    removed, kept = (secured.ids.AllocateStream(metadata=bearer(name)) for name in ("allocate", "narrow"))
    for call in (removed, kept):
        assert len(await ask(call, range_of("mine"))) == 1
    secured.access_control.apply_policy(AccessPolicy([identity_with_token("narrow", allocate=["more"])]))
    await removed.write(range_of("mine"))
    assert await reason_of_end(removed) == "UNAUTHENTICATED"
    assert await ask(kept, range_of("mine"), range_of("more")) == ["PERMISSION_DENIED", (1, 1)]


async def test_a_removed_identity_gets_no_queued_answer(secured: Served) -> None:
    """P9: requests that wait for the store when their identity is removed burn their ids."""
    gate = secured.store.hold("grant")
    call = secured.ids.AllocateStream(metadata=bearer("allocate"))
    for _ in range(3):
        await call.write(range_of("mine", 2))
    await until_waiting(secured, "mine", 3)
    secured.access_control.apply_policy(AccessPolicy([identity_with_token("narrow", allocate=["mine"])]))
    gate.set()
    assert await reason_of_end(call) == "UNAUTHENTICATED"
    await until(lambda: secured.metrics.in_flight == 0)
    assert secured.allocator.burned.by_cause == {BurnCause.CANCELLED: 6}
    assert await ask(secured.ids.AllocateStream(metadata=bearer("narrow")), range_of("mine")) == [(7, 7)]


async def test_a_stream_has_its_headers_before_its_requests(served: Served) -> None:
    """The reply's headers arrive before the first request, so that a proxy keeps the stream."""
    call = served.ids.AllocateStream()
    assert list(await soon(call.initial_metadata())) == []
    assert await ask(call, range_of("orders")) == [(1, 1)]


async def test_an_undecodable_request_ends_the_stream(served: Served) -> None:
    """Bytes that are no request end the stream with INVALID_REQUEST."""
    call: Any = served.channel.stream_stream(METHOD)()
    await call.write(b"\xff")
    assert await reason_of_end(call) == "INVALID_REQUEST"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestQuotas:
    @pytest.fixture
    async def metered(self, transport: str, clock: FakeClock) -> AsyncIterator[Served]:
        async with serving(transport, ACCESS, auth_clock=clock) as served:
            yield served

    async def test_each_request_is_charged_its_ids(self, metered: Served) -> None:
        """Each request is charged to the quota of ids, and one that got no ids is refunded."""
        metered.store.rows["short"] = Row(Sequence(max_value=5), 0)
        call = metered.ids.AllocateStream(**call_options("billing"))
        assert await ask(call, range_of("short", 90)) == ["SEQUENCE_EXHAUSTED"]
        answers = await ask(call, range_of("a", 60), range_of("b", 60), impatient(range_of("c")))
        assert answers == [(1, 60), (1, 60), "QUOTA_EXCEEDED"]

    async def test_each_request_counts_as_a_call(self, metered: Served) -> None:
        """Each request is charged to the quota of calls, and so is the stream."""
        call = metered.ids.AllocateStream(**call_options("busy"))
        assert await ask(call, range_of("a"), impatient(range_of("a"))) == [(1, 1), "QUOTA_EXCEEDED"]
        assert await reason_of_end(metered.ids.AllocateStream(**call_options("busy"))) == "QUOTA_EXCEEDED"

    async def test_a_request_waits_for_its_callers_quota(self, metered: Served, clock: FakeClock) -> None:
        """A request beyond the quota of its identity waits; the server reads no further one."""
        call = metered.ids.AllocateStream(**call_options("busy"))
        assert await ask(call, range_of("a")) == [(1, 1)]
        await call.write(range_of("a"))
        late = asyncio.ensure_future(call.read())
        await hold_for_async(0.3, "the request waits")
        assert not late.done()
        clock.advance(5)
        assert shown(await soon(late)) == (2, 2)

    async def test_a_request_does_not_wait_for_a_sequence(self, metered: Served) -> None:
        """A request beyond the quota of a sequence is refused at once: others wait behind it."""
        call = metered.ids.AllocateStream(**call_options("free"))
        answers = await ask(call, *[range_of("shared", 100)] * 2, range_of("a"))
        assert answers == [(1, 100), "QUOTA_EXCEEDED", (1, 1)]

    async def test_a_drain_ends_requests_that_wait_for_quota(self, metered: Served) -> None:
        """A server that drains does not wait until a quota admits the requests of a stream."""
        call = metered.ids.AllocateStream(**call_options("busy"))
        assert await ask(call, range_of("a")) == [(1, 1)]
        await call.write(range_of("a"))
        await hold_for_async(0.1, "the request waits")
        metered.draining.reject_calls()
        assert shown(await soon(call.read())) == "SERVER_DRAINING"
        assert await reason_of_end(call) == "SERVER_DRAINING"

    async def test_the_number_of_open_streams_is_limited(self, metered: Served) -> None:
        """The quota of streams counts AllocateStream; a closed one frees its place."""
        streams = [metered.ids.AllocateStream(**call_options("billing")) for _ in range(2)]
        for each in streams:
            assert len(await ask(each, range_of("a"))) == 1
        assert await reason_of_end(metered.ids.AllocateStream(**call_options("billing"))) == "QUOTA_EXCEEDED"
        for each in streams:
            await each.done_writing()
            assert await soon(each.read()) is grpc.aio.EOF
        await until(lambda: not metered.metrics.in_flight)
        assert len(await ask(metered.ids.AllocateStream(**call_options("billing")), range_of("a"))) == 1


async def test_streams_and_single_calls_share_sequences(served: Served) -> None:
    """P1: concurrent streams and single calls get disjoint ranges."""

    async def stream() -> list[Any]:
        return await ask(served.ids.AllocateStream(), *[range_of("orders", 2)] * 50)

    single = [served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=2)) for _ in range(200)]
    answers = [first for each in await asyncio.gather(*[stream() for _ in range(20)]) for first, _ in each]
    answers += [reply.range.first_id for reply in await asyncio.gather(*single)]
    assert sorted(answers) == list(range(1, 2_401, 2))
