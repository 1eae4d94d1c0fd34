"""Quotas on the wire, and hosts that show wrong tokens, on a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection_pb2

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import sequences_pb2
from idalloc_server.auth.access import ROLES, AccessPolicy, Identity, SequenceQuota
from idalloc_server.auth.rejected_callers import BURST
from idalloc_server.domain.sequences.patterns import Patterns
from tests.rpc.conftest import MAX_IDS_PER_CALL, Served, serving, until
from tests.support.fake_store import FakeClock
from tests.support.rpc_errors import Details, details_of

SECRET = "planted-secret"


def identity(name: str, **quotas: Any) -> Identity:
    everything = dict.fromkeys(ROLES, Patterns(["*"]))
    return Identity(name, (sha256(name.encode()).digest(),), roles=everything, **quotas)


ACCESS = AccessPolicy(
    [
        identity("billing", ids_per_second=100, streams=2),
        identity("busy", calls_per_second=2),
        identity("free"),
        Identity(
            "roleless", (sha256(b"roleless").digest(),), roles=dict.fromkeys(ROLES, Patterns()), calls_per_second=2
        ),
    ],
    [SequenceQuota(Patterns(["shared*"]), ids_per_second=50)],
)


def as_(name: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {name}"),), "timeout": 20}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def metered(transport: str, clock: FakeClock) -> AsyncIterator[Served]:
    async with serving(transport, ACCESS, auth_clock=clock) as served:
        yield served


async def allocate(served: Served, who: str, count: int = 1, sequence: str = "orders", **fields: Any) -> pb.IdRange:
    request = pb.AllocateRangeRequest(sequence=sequence, id_count=count, **fields)
    return (await served.ids.AllocateRange(request, **as_(who))).range


async def refused(served: Served, who: str, count: int = 1, sequence: str = "orders", **fields: Any) -> Details:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await allocate(served, who, count, sequence, **fields)
    return details_of(failed.value)


async def test_a_refusal_names_the_quota_and_when_to_come_again(
    metered: Served, clock: FakeClock, transport: str
) -> None:
    await allocate(metered, "billing", 150)
    details = await refused(metered, "billing")
    assert (details.code, details.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert dict(details.info.metadata) == {"subject": "identity:billing", "quota": "ids_per_second", "limit": "100"}
    assert details.retry.retry_delay.ToMilliseconds() == 500
    assert details.trailers.get("grpc-retry-pushback-ms") == ("500" if transport == "grpcio" else None)
    packed = details.trailers["grpc-status-details-bin"]
    assert isinstance(packed, bytes)
    quota = error_details_pb2.QuotaFailure()
    assert any(detail.Unpack(quota) for detail in status_pb2.Status.FromString(packed).details)
    [violation] = quota.violations
    assert (violation.subject, violation.description) == ("identity:billing", "ids_per_second = 100")
    await allocate(metered, "free", 150)
    clock.advance(0.501)
    await allocate(metered, "billing")


async def test_document_ids_and_uuids_count_as_ids_and_reading_as_calls(metered: Served) -> None:
    await metered.ids.GenerateDocId(pb.GenerateDocIdRequest(id_count=99), **as_("billing"))
    await metered.ids.GenerateUuid(pb.GenerateUuidRequest(id_count=1), **as_("billing"))
    assert (await refused(metered, "billing")).info.metadata["quota"] == "ids_per_second"
    for _ in range(2):
        await metered.sequences.ListSequences(sequences_pb2.ListSequencesRequest(), **as_("busy"))
    assert (await refused(metered, "busy")).info.metadata["quota"] == "calls_per_second"


async def test_all_callers_of_a_sequence_share_its_quota(metered: Served) -> None:
    await allocate(metered, "free", 50, "shared.a")
    assert (await refused(metered, "billing", 1, "shared.a")).info.metadata["subject"] == "sequence:shared.a"
    await allocate(metered, "billing", 50, "shared.b")
    await allocate(metered, "billing", 50, "orders")


@pytest.mark.parametrize("count", [-1, -(2**63), MAX_IDS_PER_CALL + 1, 2**63 - 1])
async def test_a_call_that_gets_no_ids_takes_none_of_the_quota(metered: Served, count: int) -> None:
    for _ in range(3):
        assert (await refused(metered, "billing", count, "shared.a")).info.reason == "INVALID_REQUEST"
    assert (await refused(metered, "billing", MAX_IDS_PER_CALL, "shared.a", view=9)).info.reason == "INVALID_REQUEST"
    await allocate(metered, "billing", 50, "shared.a")


async def test_a_used_request_id_burns_no_ids_beyond_the_quota(metered: Served) -> None:
    request_id = "c0ffee00-1234-4000-8000-000000000001"
    await allocate(metered, "billing", 1, request_id=request_id)
    assert (await refused(metered, "billing", 1_000, request_id=request_id)).info.reason == "REQUEST_ID_REUSED"
    for _ in range(3):
        assert (await refused(metered, "billing", 1_000, request_id=request_id)).info.reason == "QUOTA_EXCEEDED"
    assert sum(metered.allocator.burned.by_cause.values()) == 1_000


async def test_a_burned_request_id_gives_nothing_back_either(metered: Served) -> None:
    request_id = "c0ffee00-1234-4000-8000-000000000001"
    await allocate(metered, "billing", 60, request_id=request_id)
    await metered.sequences.AdvanceSequence(sequences_pb2.AdvanceSequenceRequest(name="orders", past=60), **as_("free"))
    assert (await refused(metered, "billing", 60, request_id=request_id)).info.reason == "REQUEST_ID_BURNED"
    assert (await refused(metered, "billing")).info.reason == "QUOTA_EXCEEDED"


async def test_requests_that_cannot_be_read_count_as_calls(metered: Served) -> None:
    call: Any = metered.channel.unary_unary("/idalloc.v1.IdAllocatorService/AllocateRange")
    for reason in ("INVALID_REQUEST", "INVALID_REQUEST", "QUOTA_EXCEEDED"):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"\xff", **as_("busy"))
        assert details_of(failed.value).info.reason == reason


async def test_no_kind_of_call_has_more_ids_than_are_counted(transport: str, clock: FakeClock) -> None:
    async with serving(transport, ACCESS, auth_clock=clock, max_ids=100) as served:
        call: Any
        for call, request in (
            (served.ids.GenerateDocId, pb.GenerateDocIdRequest(id_count=101)),
            (served.ids.GenerateUuid, pb.GenerateUuidRequest(id_count=101)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call(request, **as_("billing"))
            assert details_of(failed.value).info.reason == "INVALID_REQUEST"
        replies = aiter(served.ids.StreamDocIds(pb.StreamDocIdsRequest(total_id_count=300), **as_("billing")))
        assert len((await anext(replies)).doc_ids) == 100
        assert (await refused(served, "billing")).info.reason == "QUOTA_EXCEEDED"


async def test_calls_that_are_denied_count_too(metered: Served) -> None:
    for _ in range(2):
        assert (await refused(metered, "roleless")).info.reason == "PERMISSION_DENIED"
    assert (await refused(metered, "roleless")).info.reason == "QUOTA_EXCEEDED"


async def test_each_question_to_reflection_counts_and_asks_who_calls(metered: Served, clock: FakeClock) -> None:
    asked: Any = metered.channel.stream_stream(
        f"/{reflection_pb2.DESCRIPTOR.services_by_name['ServerReflection'].full_name}/ServerReflectionInfo"
    )
    question = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
    for who, access, reason in (("busy", ACCESS, "QUOTA_EXCEEDED"), ("free", AccessPolicy(), "UNAUTHENTICATED")):
        call = asked(**as_(who))
        for _ in range(2):
            await call.write(question)
            assert await call.read()
        metered.access_control.use(access)
        await call.write(question)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert details_of(failed.value).info.reason == reason


async def test_a_stream_waits_where_a_call_is_refused(metered: Served, clock: FakeClock) -> None:
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=100)
    replies = aiter(metered.ids.StreamRanges(request, **as_("billing")))
    received = [await anext(replies)]
    waiting = asyncio.ensure_future(anext(replies))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    assert (await refused(metered, "billing")).info.reason == "QUOTA_EXCEEDED"
    while True:
        clock.advance(1.001)
        received.append(await asyncio.wait_for(waiting, 20))
        if len(received) == 10:
            break
        waiting = asyncio.ensure_future(anext(replies))
    assert sum(reply.range.id_count for reply in received) == 1000
    with pytest.raises(StopAsyncIteration):
        await anext(replies)


async def test_a_stream_begins_where_something_is_left_and_its_chunks_may_be_large(
    metered: Served, clock: FakeClock
) -> None:
    await allocate(metered, "billing", 100)
    request = pb.StreamDocIdsRequest(total_id_count=12_000)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async for _ in metered.ids.StreamDocIds(request, **as_("billing")):
            pass
    assert details_of(failed.value).info.reason == "QUOTA_EXCEEDED"
    clock.advance(0.001)
    replies = aiter(metered.ids.StreamDocIds(request, **as_("billing")))
    assert len((await anext(replies)).doc_ids) == 10_000
    clock.advance(100.1)
    assert len((await anext(replies)).doc_ids) == 2_000


async def test_so_many_streams_at_a_time(metered: Served, clock: FakeClock) -> None:
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=1)
    streams = [metered.ids.StreamRanges(request, **as_("billing")) for _ in range(2)]
    for each in streams:
        await anext(aiter(each))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await anext(aiter(metered.ids.StreamRanges(request, **as_("billing"))))
    details = details_of(failed.value)
    assert (details.info.reason, details.info.metadata["quota"]) == ("QUOTA_EXCEEDED", "streams")
    for each in streams:
        each.cancel()
    await until(lambda: not metered.metrics.in_flight)
    clock.advance(2)
    await anext(aiter(metered.ids.StreamRanges(request, **as_("billing"))))


async def test_a_stream_that_waits_ends_when_the_server_stops(metered: Served) -> None:
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=500)
    replies = aiter(metered.ids.StreamRanges(request, **as_("billing")))
    await anext(replies)
    metered.calls.drain()
    metered.calls.end_streams()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await asyncio.wait_for(anext(replies), 20)
    assert details_of(failed.value).info.reason == "SERVER_DRAINING"


async def test_where_another_process_asks_who_calls_running_streams_are_asked_too(transport: str) -> None:
    access = AccessPolicy([], [SequenceQuota(Patterns(["shared*"]), calls_per_second=1)])
    async with serving(transport, access, auth_clock=FakeClock()) as served:
        request = pb.StreamRangesRequest(sequence="orders", total_id_count=10**12, chunk_id_count=1)
        replies = aiter(served.ids.StreamRanges(request, timeout=20))
        await anext(replies)
        served.access_control.require_authentication()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            while True:
                await anext(replies)
        assert details_of(failed.value).info.reason == "UNAUTHENTICATED"


async def test_a_stream_that_waits_is_gone_with_its_client(metered: Served) -> None:
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=500)
    stream = metered.ids.StreamRanges(request, **as_("billing"))
    await anext(aiter(stream))
    stream.cancel()
    await until(lambda: not metered.metrics.in_flight)


async def test_too_many_wrong_tokens_are_limited_and_the_right_one_still_opens(
    metered: Served, clock: FakeClock
) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(BURST):
            assert (await refused(metered, SECRET)).info.reason == "UNAUTHENTICATED"
        for _ in range(20):
            details = await refused(metered, SECRET)
            assert details.info.reason == "QUOTA_EXCEEDED"
            assert details.info.metadata["subject"] == "host:127.0.0.1"
            assert 0 < details.retry.retry_delay.ToMilliseconds() <= 1000
        await allocate(metered, "free")
        metered.access_control.audit.log_totals()
        clock.advance(1)
        assert (await refused(metered, SECRET)).info.reason == "UNAUTHENTICATED"
    audited = [line for line in logs if line["event"] == "audit"]
    assert len(audited) == BURST + 2
    assert [line.get("count") for line in audited if line.get("subject")] == [20]
    assert SECRET not in str(logs)


async def test_quota_refusals_are_told_in_sum(metered: Served) -> None:
    with structlog.testing.capture_logs() as logs:
        await allocate(metered, "billing", 200)
        for _ in range(5):
            await refused(metered, "billing")
        metered.access_control.audit.log_totals()
        metered.access_control.audit.log_totals()
    [line] = [line for line in logs if line["event"] == "audit"]
    assert line["count"] == 5
    assert (line["identity"], line["code"], line["reason"]) == ("billing", "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
    assert (line["subject"], line["method"].rpartition("/")[2]) == ("identity:billing", "AllocateRange")


async def test_quotas_of_sequences_are_kept_where_nobody_is_asked(transport: str) -> None:
    access = AccessPolicy([], [SequenceQuota(Patterns(["shared*"]), calls_per_second=1)])
    async with serving(transport, access, auth_clock=FakeClock()) as served:
        for _ in range(3):
            await allocate(served, "nobody", sequence="orders")
        await allocate(served, "nobody", sequence="shared")
        assert (await refused(served, "nobody", sequence="shared")).info.metadata["quota"] == "calls_per_second"
