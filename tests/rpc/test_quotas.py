"""Quotas on the wire, and the rate limit of hosts with wrong tokens, on a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import grpc
import pytest
import structlog
from grpc_reflection.v1alpha import reflection_pb2

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import sequences_pb2
from idalloc_server.auth import limits
from idalloc_server.auth.access import ROLES, AccessPolicy, Identity, SequenceQuota
from idalloc_server.auth.rejected_callers import BURST
from idalloc_server.domain.sequences.patterns import Patterns
from tests.rpc.conftest import MAX_IDS_PER_CALL, Served, delay_answers, serving, until
from tests.support.fake_store import FakeClock
from tests.support.rpc_errors import Details, details_of
from tests.support.waiting import hold_for_async

SECRET = "planted-secret"


def make_identity(name: str, **quotas: Any) -> Identity:
    everything = dict.fromkeys(ROLES, Patterns(["*"]))
    return Identity(name, (sha256(name.encode()).digest(),), roles=everything, **quotas)


ACCESS = AccessPolicy(
    [
        make_identity("billing", ids_per_second=100, streams=2),
        make_identity("busy", calls_per_second=2),
        make_identity("free"),
        Identity(
            "roleless", (sha256(b"roleless").digest(),), roles=dict.fromkeys(ROLES, Patterns()), calls_per_second=2
        ),
    ],
    [SequenceQuota(Patterns(["shared*"]), ids_per_second=50)],
)


def call_options(name: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {name}"),), "timeout": 20}


class CountingClock(FakeClock):
    """Counts how often it is read."""

    readings = 0

    def boot(self) -> float:
        self.readings += 1
        return super().boot()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def metered(transport: str, clock: FakeClock) -> AsyncIterator[Served]:
    async with serving(transport, ACCESS, auth_clock=clock) as served:
        yield served


async def allocate(served: Served, who: str, count: int = 1, sequence: str = "orders", **fields: Any) -> pb.IdRange:
    request = pb.AllocateRangeRequest(sequence=sequence, id_count=count, **fields)
    return (await served.ids.AllocateRange(request, **call_options(who))).range


async def error_of_allocate(
    served: Served, who: str, count: int = 1, sequence: str = "orders", **fields: Any
) -> Details:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await allocate(served, who, count, sequence, **fields)
    return details_of(failed.value)


async def test_exceeded_quota_has_subject_limit_and_retry_delay(
    metered: Served, clock: FakeClock, transport: str
) -> None:
    """An exceeded quota has QuotaFailure, RetryInfo and the trailer; the retry succeeds."""
    await allocate(metered, "billing", 150)
    details = await error_of_allocate(metered, "billing")
    assert (details.code, details.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert dict(details.info.metadata) == {"subject": "identity:billing", "quota": "ids_per_second", "limit": "100"}
    assert details.retry.retry_delay.ToMilliseconds() == 500
    assert details.trailers.get("grpc-retry-pushback-ms") == ("500" if transport == "grpcio" else None)
    [violation] = details.quota.violations
    assert (violation.subject, violation.description) == ("identity:billing", "ids_per_second = 100")
    await allocate(metered, "free", 150)
    clock.advance(0.501)
    await allocate(metered, "billing")


async def test_quota_is_written_with_all_its_digits(transport: str) -> None:
    """QUOTA_EXCEEDED has the access file's limit, not rounded and without an exponent."""
    policy = AccessPolicy([make_identity("billing", ids_per_second=12_345_678)])
    async with serving(transport, policy, auth_clock=FakeClock(), max_ids=20_000_000) as served:
        await allocate(served, "billing", 20_000_000)
        details = await error_of_allocate(served, "billing")
    assert details.info.metadata["limit"] == "12345678"
    assert "ids_per_second = 12345678;" in details.message
    [violation] = details.quota.violations
    assert violation.description == "ids_per_second = 12345678"


async def test_doc_ids_and_uuids_count_as_ids_and_reads_as_calls(metered: Served) -> None:
    """Document ids and UUIDs count as ids, and reads as calls."""
    await metered.ids.GenerateDocId(pb.GenerateDocIdRequest(id_count=99), **call_options("billing"))
    await metered.ids.GenerateUuid(pb.GenerateUuidRequest(id_count=1), **call_options("billing"))
    assert (await error_of_allocate(metered, "billing")).info.metadata["quota"] == "ids_per_second"
    for _ in range(2):
        await metered.sequences.ListSequences(sequences_pb2.ListSequencesRequest(), **call_options("busy"))
    assert (await error_of_allocate(metered, "busy")).info.metadata["quota"] == "calls_per_second"


async def test_callers_of_a_sequence_share_its_quota(metered: Served) -> None:
    """All callers of a sequence share its quota, and each sequence has its own."""
    await allocate(metered, "free", 50, "shared.a")
    assert (await error_of_allocate(metered, "billing", 1, "shared.a")).info.metadata["subject"] == "sequence:shared.a"
    await allocate(metered, "billing", 50, "shared.b")
    await allocate(metered, "billing", 50, "orders")


@pytest.mark.parametrize("count", [-1, -(2**63), MAX_IDS_PER_CALL + 1, 2**63 - 1])
async def test_invalid_call_is_charged_no_ids(metered: Served, count: int) -> None:
    """A call that fails without ids is charged none."""
    for _ in range(3):
        assert (await error_of_allocate(metered, "billing", count, "shared.a")).info.reason == "INVALID_REQUEST"
    assert (
        await error_of_allocate(metered, "billing", MAX_IDS_PER_CALL, "shared.a", view=9)
    ).info.reason == "INVALID_REQUEST"
    await allocate(metered, "billing", 50, "shared.a")


async def test_reused_request_id_is_charged_the_ids_it_burns(metered: Served) -> None:
    """A reused request_id cannot burn more ids than the quota allows."""
    request_id = "c0ffee00-1234-4000-8000-000000000001"
    await allocate(metered, "billing", 1, request_id=request_id)
    assert (
        await error_of_allocate(metered, "billing", 1_000, request_id=request_id)
    ).info.reason == "REQUEST_ID_REUSED"
    for _ in range(3):
        assert (
            await error_of_allocate(metered, "billing", 1_000, request_id=request_id)
        ).info.reason == "QUOTA_EXCEEDED"
    assert sum(metered.allocator.burned.by_cause.values()) == 1_000


async def test_burned_request_id_is_not_refunded(metered: Served) -> None:
    """REQUEST_ID_BURNED does not refund the quota."""
    request_id = "c0ffee00-1234-4000-8000-000000000001"
    await allocate(metered, "billing", 60, request_id=request_id)
    await metered.sequences.AdvanceSequence(
        sequences_pb2.AdvanceSequenceRequest(name="orders", past=60), **call_options("free")
    )
    assert (await error_of_allocate(metered, "billing", 60, request_id=request_id)).info.reason == "REQUEST_ID_BURNED"
    assert (await error_of_allocate(metered, "billing")).info.reason == "QUOTA_EXCEEDED"


async def test_undecodable_requests_count_as_calls(metered: Served) -> None:
    """Undecodable requests count as calls."""
    call: Any = metered.channel.unary_unary("/idalloc.v1.IdAllocatorService/AllocateRange")
    for reason in ("INVALID_REQUEST", "INVALID_REQUEST", "QUOTA_EXCEEDED"):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"\xff", **call_options("busy"))
        assert details_of(failed.value).info.reason == reason


async def test_no_call_gets_more_ids_than_it_is_charged(transport: str, clock: FakeClock) -> None:
    """No kind of call returns more ids than it was charged."""
    async with serving(transport, ACCESS, auth_clock=clock, max_ids=100) as served:
        call: Any
        for call, request in (
            (served.ids.GenerateDocId, pb.GenerateDocIdRequest(id_count=101)),
            (served.ids.GenerateUuid, pb.GenerateUuidRequest(id_count=101)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call(request, **call_options("billing"))
            assert details_of(failed.value).info.reason == "INVALID_REQUEST"
        replies = aiter(served.ids.StreamDocIds(pb.StreamDocIdsRequest(total_id_count=300), **call_options("billing")))
        assert len((await anext(replies)).doc_ids) == 100
        assert (await error_of_allocate(served, "billing")).info.reason == "QUOTA_EXCEEDED"


async def test_denied_calls_count_as_calls(metered: Served) -> None:
    """Denied calls count as calls."""
    for _ in range(2):
        assert (await error_of_allocate(metered, "roleless")).info.reason == "PERMISSION_DENIED"
    assert (await error_of_allocate(metered, "roleless")).info.reason == "QUOTA_EXCEEDED"


async def test_each_reflection_request_is_authenticated_and_charged(metered: Served, clock: FakeClock) -> None:
    """Each request on a reflection stream is authenticated and counts as a call."""
    reflection_call: Any = metered.channel.stream_stream(
        f"/{reflection_pb2.DESCRIPTOR.services_by_name['ServerReflection'].full_name}/ServerReflectionInfo"
    )
    question = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
    for who, policy, reason in (("busy", ACCESS, "QUOTA_EXCEEDED"), ("free", AccessPolicy(), "UNAUTHENTICATED")):
        call = reflection_call(**call_options(who))
        for _ in range(2):
            await call.write(question)
            assert await call.read()
        metered.access_control.apply_policy(policy)
        await call.write(question)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert details_of(failed.value).info.reason == reason


async def test_stream_waits_for_its_quota(metered: Served, clock: FakeClock) -> None:
    """A stream beyond its quota waits, while a unary call is rejected."""
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=100)
    replies = aiter(metered.ids.StreamRanges(request, **call_options("billing")))
    received = [await anext(replies)]
    waiting = asyncio.ensure_future(anext(replies))
    await hold_for_async(0.2, "a stream that does not wait sends its next message")
    assert not waiting.done()
    assert (await error_of_allocate(metered, "billing")).info.reason == "QUOTA_EXCEEDED"
    while True:
        clock.advance(1.001)
        received.append(await asyncio.wait_for(waiting, 20))
        if len(received) == 10:
            break
        waiting = asyncio.ensure_future(anext(replies))
    assert sum(reply.range.id_count for reply in received) == 1000
    with pytest.raises(StopAsyncIteration):
        await anext(replies)


async def test_stream_starts_with_any_quota_left(metered: Served, clock: FakeClock) -> None:
    """A stream starts if its quota is not empty; its first chunk may leave a debt."""
    await allocate(metered, "billing", 100)
    request = pb.StreamDocIdsRequest(total_id_count=12_000)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async for _ in metered.ids.StreamDocIds(request, **call_options("billing")):
            pass
    assert details_of(failed.value).info.reason == "QUOTA_EXCEEDED"
    clock.advance(0.001)
    replies = aiter(metered.ids.StreamDocIds(request, **call_options("billing")))
    assert len((await anext(replies)).doc_ids) == 10_000
    clock.advance(100.1)
    assert len((await anext(replies)).doc_ids) == 2_000


async def test_number_of_open_streams_is_limited(metered: Served, clock: FakeClock) -> None:
    """The quota of streams limits open streams; a closed one frees its place."""
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=1)
    streams = [metered.ids.StreamRanges(request, **call_options("billing")) for _ in range(2)]
    for each in streams:
        await anext(aiter(each))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await anext(aiter(metered.ids.StreamRanges(request, **call_options("billing"))))
    details = details_of(failed.value)
    assert (details.info.reason, details.info.metadata["quota"]) == ("QUOTA_EXCEEDED", "streams")
    for each in streams:
        each.cancel()
    await until(lambda: not metered.metrics.in_flight)
    clock.advance(2)
    await anext(aiter(metered.ids.StreamRanges(request, **call_options("billing"))))


async def test_waiting_stream_ends_when_the_server_stops(metered: Served) -> None:
    """A stream that waits for its quota ends with SERVER_DRAINING when the server stops."""
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=500)
    replies = aiter(metered.ids.StreamRanges(request, **call_options("billing")))
    await anext(replies)
    metered.draining.reject_calls()
    metered.draining.end_streams()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await asyncio.wait_for(anext(replies), 20)
    assert details_of(failed.value).info.reason == "SERVER_DRAINING"


async def test_required_authentication_applies_to_open_streams(transport: str) -> None:
    """Once authentication is required, open streams without it end."""
    policy = AccessPolicy([], [SequenceQuota(Patterns(["shared*"]), calls_per_second=1)])
    async with serving(transport, policy, auth_clock=FakeClock()) as served:
        request = pb.StreamRangesRequest(sequence="orders", total_id_count=10**12, chunk_id_count=1)
        replies = aiter(served.ids.StreamRanges(request, timeout=20))
        await anext(replies)
        served.access_control.authenticator.require_authentication()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            while True:
                await anext(replies)
        assert details_of(failed.value).info.reason == "UNAUTHENTICATED"


async def test_stream_cancelled_in_its_wait_burns_nothing(transport: str) -> None:
    """P9: a stream cancelled while it waits for a quota ends; its delivered ids are not burned."""
    clock = CountingClock()
    async with serving(transport, ACCESS, auth_clock=clock) as served:
        request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=500)
        stream = served.ids.StreamRanges(request, **call_options("billing"))
        await anext(aiter(stream))
        checks = clock.readings
        await until(lambda: clock.readings > checks + 1)  # It looks at its quota again and again.
        stream.cancel()
        await until(lambda: not served.metrics.in_flight)
        assert not served.allocator.burned.by_cause.total()


async def test_host_with_wrong_tokens_is_counted(metered: Served, clock: FakeClock) -> None:
    """A wrong or revoked token is UNAUTHENTICATED at any rate; the audit counts a host's excess."""
    with structlog.testing.capture_logs() as logs:
        for _ in range(BURST):
            assert (await error_of_allocate(metered, SECRET)).info.reason == "UNAUTHENTICATED"
        for _ in range(20):
            assert (await error_of_allocate(metered, SECRET)).info.reason == "UNAUTHENTICATED"
        await allocate(metered, "free")
        metered.access_control.audit.log_totals()
        clock.advance(1)
        assert (await error_of_allocate(metered, SECRET)).info.reason == "UNAUTHENTICATED"
    records = [line for line in logs if line["event"] == "audit"]
    assert len(records) == BURST + 2
    assert [(line["subject"], line["count"]) for line in records if line.get("subject")] == [("host:127.0.0.1", 20)]
    assert SECRET not in str(logs)


async def test_answer_to_a_host_beyond_its_limit_waits(metered: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit a host waits for rejections; its valid token does not wait."""
    delay_answers(monkeypatch, 3600.0)

    request = pb.AllocateRangeRequest(sequence="orders")
    for _ in range(BURST):
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await metered.ids.AllocateRange(request, timeout=20)
    waiting = metered.ids.AllocateRange(request, timeout=20)
    method = metered.metrics.method("/idalloc.v1.IdAllocatorService/AllocateRange")
    await until(lambda: method.started == BURST + 1)
    await allocate(metered, "free")
    assert not waiting.done()
    waiting.cancel()


@pytest.mark.parametrize("opens_streams", [False, True], ids=["calls", "streams"])
async def test_a_caller_that_goes_on_beyond_its_quota_waits(
    metered: Served, monkeypatch: pytest.MonkeyPatch, opens_streams: bool
) -> None:
    """Refused at once, a client would call again at once: after some refusals they come late."""
    delay_answers(monkeypatch, 3600.0)
    request = pb.AllocateRangeRequest(sequence="orders")

    def call() -> Any:
        if opens_streams:
            return metered.ids.AllocateStream(**call_options("busy"))
        return metered.ids.AllocateRange(request, **call_options("busy"))

    for _ in range(2):
        await allocate(metered, "busy")
    for _ in range(1 + BURST):
        refused = call()
        assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    waiting = call()
    name = "AllocateStream" if opens_streams else "AllocateRange"
    method = metered.metrics.method(f"/idalloc.v1.IdAllocatorService/{name}")
    await until(lambda: method.started == BURST + 2 + 2 * (not opens_streams))
    await allocate(metered, "free")
    assert not waiting.done()
    waiting.cancel()


async def test_an_identity_creates_sequences_at_a_limited_rate(
    transport: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First uses by one identity create few sequences a second, in calls, batches and streams."""
    monkeypatch.setattr(limits, "CREATIONS_PER_SECOND", 1)
    monkeypatch.setattr(limits, "CREATIONS_AT_ONCE", 2)
    request = pb.AllocateRangeRequest(sequence="third")
    async with serving(transport, ACCESS, auth_clock=clock) as served:
        await allocate(served, "free", sequence="first")
        await allocate(served, "free", sequence="second")
        details = await error_of_allocate(served, "free", sequence="third")
        assert (details.info.reason, details.info.metadata["quota"]) == ("QUOTA_EXCEEDED", "creations_per_second")
        batch = await served.ids.BatchAllocateRanges(
            pb.BatchAllocateRangesRequest(requests=[request]), **call_options("free")
        )
        assert batch.results[0].error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        stream: Any = served.ids.AllocateStream(**call_options("free"))
        await stream.write(pb.AllocateStreamRequest(allocate_range=request))
        assert (await stream.read()).error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        await allocate(served, "free", sequence="first")
        await allocate(served, "billing", sequence="other")
        assert "third" not in served.store.rows
        clock.advance(1.1)
        await allocate(served, "free", sequence="third")


async def test_callers_without_an_identity_create_freely(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one identity's: without authentication one caller would use up all others'."""
    monkeypatch.setattr(limits, "CREATIONS_AT_ONCE", 1)
    policy = AccessPolicy([], [SequenceQuota(Patterns(["shared*"]), ids_per_second=50)])
    async with serving(transport, policy, auth_clock=FakeClock()) as served:
        for name in ("first", "second", "third"):
            await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence=name))


async def test_a_refused_creation_refuses_no_other_caller(
    transport: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that wait for the same new sequence are refused for their own quotas only."""
    monkeypatch.setattr(limits, "CREATIONS_PER_SECOND", 1)
    monkeypatch.setattr(limits, "CREATIONS_AT_ONCE", 1)
    async with serving(transport, ACCESS, auth_clock=clock) as served:
        await allocate(served, "free", sequence="first")
        gate = served.store.hold("grant")
        refused = asyncio.ensure_future(error_of_allocate(served, "free", sequence="second"))
        await until(lambda: len(served.store.calls_of("grant")) == 2)
        other = asyncio.ensure_future(allocate(served, "billing", sequence="second"))
        method = served.metrics.method("/idalloc.v1.IdAllocatorService/AllocateRange")
        await until(lambda: method.started == 3)
        gate.set()
        assert (await refused).info.metadata["quota"] == "creations_per_second"
        assert (await other).first_id == 1


async def test_a_caller_that_waits_as_it_should_is_not_late(
    metered: Served, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that comes back when RetryInfo says is never answered late, however often."""
    delay_answers(monkeypatch, 3600.0)
    for _ in range(3 * BURST):
        await allocate(metered, "billing", 150)
        details = await error_of_allocate(metered, "billing")
        clock.advance(details.retry.retry_delay.ToTimedelta().total_seconds() + 0.001)


async def test_quota_rejections_are_audited_as_a_count(metered: Served) -> None:
    """Calls beyond a quota have one audit record with their count."""
    with structlog.testing.capture_logs() as logs:
        await allocate(metered, "billing", 200)
        for _ in range(5):
            await error_of_allocate(metered, "billing")
        metered.access_control.audit.log_totals()
        metered.access_control.audit.log_totals()
    [line] = [line for line in logs if line["event"] == "audit"]
    assert line["count"] == 5
    assert (line["identity"], line["code"], line["reason"]) == ("billing", "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
    assert (line["subject"], line["method"].rpartition("/")[2]) == ("identity:billing", "AllocateRange")


async def test_sequence_quota_applies_without_authentication(transport: str) -> None:
    """The quota of a sequence applies to unauthenticated callers."""
    policy = AccessPolicy([], [SequenceQuota(Patterns(["shared*"]), calls_per_second=1)])
    async with serving(transport, policy, auth_clock=FakeClock()) as served:
        for _ in range(3):
            await allocate(served, "nobody", sequence="orders")
        await allocate(served, "nobody", sequence="shared")
        assert (await error_of_allocate(served, "nobody", sequence="shared")).info.metadata[
            "quota"
        ] == "calls_per_second"
