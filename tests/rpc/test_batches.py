"""BatchAllocateRanges on the wire."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.rpc.batches import MAX_BATCH_REQUESTS
from tests.rpc.conftest import MAX_IDS_PER_CALL, Served, serving
from tests.rpc.test_quotas import ACCESS, call_options
from tests.support.fake_store import FakeClock
from tests.support.identities import bearer
from tests.support.memory_rows import Row
from tests.support.rpc_errors import details_of
from tests.support.waiting import until

METHOD = "/idalloc.v1.IdAllocatorService/BatchAllocateRanges"


def batch(*requests: tuple[str, int]) -> pb.BatchAllocateRangesRequest:
    return pb.BatchAllocateRangesRequest(
        requests=[pb.AllocateRangeRequest(sequence=sequence, id_count=count) for sequence, count in requests]
    )


def info_of(error: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    for detail in error.details:
        detail.Unpack(info)
    return info


def shown(reply: pb.BatchAllocateRangesResponse) -> list[object]:
    """Return the first and last id of each result, or the reason of its error."""
    return [
        (each.response.range.first_id, each.response.range.last_id)
        if each.HasField("response")
        else info_of(each.error).reason
        for each in reply.results
    ]


async def fill_lease(served: Served, name: str) -> None:
    """Give the server a lease with more ids than a test uses; the next id is 3."""
    served.store.rows[name] = Row(Sequence(min_lease_size=1_000), 0)
    for _ in range(2):  # a first grant is just what was requested
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence=name))
    assert served.allocator.ids_in_memory(name) > 900


@pytest.mark.parametrize("cold", [True, False], ids=["from the store", "from the lease"])
async def test_each_request_gets_a_range_in_order(served: Served, cold: bool) -> None:
    """P1: results are in the requests' order; a sequence named twice gets two disjoint ranges."""
    first = 1
    if not cold:
        for name in ("orders", "lines"):
            await fill_lease(served, name)
        first = 3
    reply = await served.ids.BatchAllocateRanges(batch(("orders", 1), ("lines", 20), ("orders", 3), ("lines", 0)))
    assert shown(reply) == [(first, first), (first, first + 19), (first + 1, first + 3), (first + 20, first + 20)]
    assert [each.response.created for each in reply.results] == [cold, cold, False, False]
    assert {each.response.node_id for each in reply.results} == {
        (await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))).node_id
    }
    assert all(170 < each.response.ttl.seconds < 180 for each in reply.results)
    assert served.metrics.method(METHOD).handled == {"OK": 1}


@pytest.mark.parametrize(
    "invalid",
    [
        pb.AllocateRangeRequest(sequence=""),
        pb.AllocateRangeRequest(sequence="a\nb"),
        pb.AllocateRangeRequest(sequence="s", id_count=-1),
        pb.AllocateRangeRequest(sequence="s", id_count=MAX_IDS_PER_CALL + 1),
        pb.AllocateRangeRequest(sequence="short", id_count=9),
    ],
    ids=["no name", "control character", "negative", "too many", "exhausted"],
)
async def test_an_error_is_that_of_allocate_range(served: Served, invalid: pb.AllocateRangeRequest) -> None:
    """A failed request has exactly the status of AllocateRange; the others have ranges."""
    served.store.rows["short"] = Row(Sequence(max_value=5), 0)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(invalid)
    expected = details_of(failed.value).trailers["grpc-status-details-bin"]
    request = batch(("orders", 2), ("orders", 3))
    request.requests.insert(1, invalid)
    reply = await served.ids.BatchAllocateRanges(request)
    assert isinstance(expected, bytes)
    assert reply.results[1].error == status_pb2.Status.FromString(expected)
    assert [each.response.range.id_count for each in reply.results] == [2, 0, 3]


@pytest.mark.parametrize("field", ["view", "request_id"])
async def test_view_and_request_id_must_be_unset(served: Served, field: str) -> None:
    """A request with a view or a request id has an error that names the field."""
    request = batch(("orders", 1), ("orders", 1))
    request.requests[0].MergeFrom(
        pb.AllocateRangeRequest(view=pb.RANGE_VIEW_TEXTS)
        if field == "view"
        else pb.AllocateRangeRequest(request_id="11111111-aaaa-4111-8111-111111111111")
    )
    reply = await served.ids.BatchAllocateRanges(request)
    assert info_of(reply.results[0].error).metadata["field"] == field
    assert shown(reply)[1] == (1, 1)


@pytest.mark.parametrize("count", [0, MAX_BATCH_REQUESTS + 1])
async def test_a_batch_has_1_to_1000_requests(served: Served, count: int) -> None:
    """An empty batch and one of more than 1,000 requests are INVALID_ARGUMENT, and take no ids."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.BatchAllocateRanges(batch(*[("orders", 1)] * count))
    details = details_of(failed.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert [each.field for each in details.bad_request.field_violations] == ["requests"]
    assert not served.store.calls_of("grant")


async def test_a_full_batch_gets_a_thousand_ranges(served: Served) -> None:
    """P1: a thousand requests of ten sequences get disjoint ranges in one call."""
    reply = await served.ids.BatchAllocateRanges(batch(*[(f"s{n % 10}", 3) for n in range(MAX_BATCH_REQUESTS)]))
    for name in range(10):
        firsts = [each.response.range.first_id for each in list(reply.results)[name::10]]
        assert sorted(firsts) == list(range(1, 301, 3))


async def test_a_slow_request_does_not_lose_the_others(served: Served) -> None:
    """A request that waits 50 ms before the deadline is UNAVAILABLE; the others have ranges.

    No id is lost.
    """
    await fill_lease(served, "warm")
    gate = served.store.hold("grant")
    reply = await served.ids.BatchAllocateRanges(batch(("slow", 7), ("warm", 2), ("cold", 3)), timeout=2)
    assert shown(reply) == ["STORE_UNAVAILABLE", (3, 4), (1, 3)]
    error = reply.results[0].error
    assert error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert "before the deadline" in error.message
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in error.details)
    assert retry.retry_delay.ToMilliseconds() == 1_000
    gate.set()
    assert shown(await served.ids.BatchAllocateRanges(batch(("slow", 1)))) == [(1, 1)]
    assert not served.allocator.burned.by_cause


async def test_an_unavailable_store_fails_its_requests_only(served: Served) -> None:
    """Without the store, leases serve requests, and the store's failure is recorded."""
    await fill_lease(served, "warm")
    served.store.down = True
    reply = await served.ids.BatchAllocateRanges(batch(("cold", 1), ("warm", 2)))
    assert shown(reply) == ["STORE_UNAVAILABLE", (3, 4)]
    served.allocator.store_health.evaluate()
    assert served.allocator.store_health.error


async def test_a_fault_fails_its_request_only(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the server is INTERNAL for its request alone, and is logged."""
    issue = served.allocator.issue

    async def fail(sequence: str, count: int) -> IdRange:
        if sequence == "faulty":
            raise RuntimeError("planted")
        return await issue(sequence, count)

    monkeypatch.setattr(served.allocator, "issue", fail)
    with structlog.testing.capture_logs() as logs:
        reply = await served.ids.BatchAllocateRanges(batch(("faulty", 1), ("orders", 1)))
    assert shown(reply) == ["INTERNAL", (1, 1)]
    assert "planted" not in str(reply)
    assert [line["method"] for line in logs if line["event"] == "call_failed"] == [METHOD]


async def test_a_cancelled_batch_burns_what_it_took(served: Served) -> None:
    """P9: ids that a cancelled call took are burned and counted; a waiting request takes none."""
    await fill_lease(served, "warm")
    gate = served.store.hold("grant")
    call = served.ids.BatchAllocateRanges(batch(("held", 7), ("warm", 2), ("cold", 3)))
    await until(lambda: "cold" in served.store.rows)
    await until(lambda: served.store.rows["cold"].last_value == 3)
    await until(lambda: not served.allocator._sequence_allocators["cold"].counters[-1]._active)
    call.cancel()
    await until(lambda: served.metrics.in_flight == 0)
    assert served.metrics.method(METHOD).handled == {"CANCELLED": 1}
    assert served.allocator.burned.by_cause == {BurnCause.CANCELLED: 5}
    gate.set()
    request = batch(("held", 1), ("warm", 1), ("cold", 1))
    assert shown(await served.ids.BatchAllocateRanges(request)) == [(1, 1), (5, 5), (4, 4)]


async def test_ids_taken_before_a_pause_are_not_sent_after_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: ids of a process paused past the lease while others wait are burned, also held ones."""
    await fill_lease(served, "warm")
    boot, issue, paused = SystemClock.boot, served.allocator.issue, 0.0

    async def issue_and_pause(sequence: str, count: int) -> IdRange:
        nonlocal paused
        taken = await issue(sequence, count)
        paused = 200.0
        return taken

    monkeypatch.setattr(SystemClock, "boot", lambda clock: boot() + paused)
    monkeypatch.setattr(served.allocator, "issue", issue_and_pause)
    reply = await served.ids.BatchAllocateRanges(batch(("warm", 2), ("cold", 3)))
    assert shown(reply) == ["STORE_UNAVAILABLE"] * 2
    assert all("expired before the reply" in each.error.message for each in reply.results)
    assert served.allocator.burned.by_cause[BurnCause.EXPIRED] == 5


async def test_a_running_batch_ends_in_a_drain(served: Served) -> None:
    """A draining server answers running batches, and rejects new ones."""
    gate = served.store.hold("grant")
    call = served.ids.BatchAllocateRanges(batch(("held", 7), ("other", 1)))
    await until(lambda: len(served.store.calls_of("grant")) == 2)
    served.draining.reject_calls()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.BatchAllocateRanges(batch(("orders", 1)))
    assert details_of(failed.value).info.reason == "SERVER_DRAINING"
    gate.set()
    assert shown(await call) == [(1, 7), (1, 1)]
    assert await served.draining.wait_for_calls(timeout=1)


async def test_the_role_is_required_on_each_sequence(secured: Served) -> None:
    """A request without the role is PERMISSION_DENIED and audited; the others have ranges."""
    with structlog.testing.capture_logs() as logs:
        request = batch(("mine", 1), ("yours", 1), ("more", 1))
        reply = await secured.ids.BatchAllocateRanges(request, metadata=bearer("narrow"))
    assert shown(reply) == [(1, 1), "PERMISSION_DENIED", (1, 1)]
    [record] = [line for line in logs if line["event"] == "audit"]
    assert (record["identity"], record["method"], record["sequence"]) == ("narrow", METHOD, "yours")
    assert "yours" not in secured.store.rows


class TestQuotas:
    @pytest.fixture
    async def metered(self, transport: str) -> AsyncIterator[Served]:
        async with serving(transport, ACCESS, auth_clock=FakeClock()) as served:
            yield served

    async def test_each_request_is_charged_its_ids(self, metered: Served) -> None:
        """Each request is charged to the quota of ids, and one that got no ids is refunded."""
        served = metered
        served.store.rows["short"] = Row(Sequence(max_value=5), 0)
        request = batch(("short", 90), ("a", 60), ("b", 60), ("c", 1))
        reply = await served.ids.BatchAllocateRanges(request, **call_options("billing"))
        # The requests are charged at once: 90 are refunded only after the store's answer.
        assert shown(reply) == ["SEQUENCE_EXHAUSTED", (1, 60), "QUOTA_EXCEEDED", "QUOTA_EXCEEDED"]
        reply = await served.ids.BatchAllocateRanges(batch(("b", 40), ("c", 1)), **call_options("billing"))
        assert shown(reply) == [(1, 40), "QUOTA_EXCEEDED"]

    async def test_each_request_counts_as_a_call(self, metered: Served) -> None:
        """Each request is charged to the quota of calls."""
        reply = await metered.ids.BatchAllocateRanges(batch(*[("a", 1)] * 3), **call_options("busy"))
        assert shown(reply) == [(1, 1), (2, 2), "QUOTA_EXCEEDED"]

    async def test_an_invalid_batch_counts_as_a_call(self, metered: Served) -> None:
        """A call without requests is charged to the quota of calls."""
        reasons = []
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await metered.ids.BatchAllocateRanges(batch(), **call_options("busy"))
            reasons.append(details_of(failed.value).info.reason)
        assert reasons == ["INVALID_REQUEST", "INVALID_REQUEST", "QUOTA_EXCEEDED"]

    async def test_a_sequence_quota_is_shared(self, metered: Served) -> None:
        """Requests for a sequence with a quota share it with all other callers."""
        reply = await metered.ids.BatchAllocateRanges(
            batch(("shared.a", 50), ("shared.a", 1), ("shared.b", 1)), **call_options("free")
        )
        assert shown(reply) == [(1, 50), "QUOTA_EXCEEDED", (1, 1)]


async def test_batches_and_single_calls_share_sequences(served: Served) -> None:
    """P1: concurrent batches and single calls get disjoint ranges."""
    calls = [served.ids.BatchAllocateRanges(batch(*[("orders", 2)] * 50)) for _ in range(20)]
    single = [served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=2)) for _ in range(200)]
    ranges = [each.response.range for reply in await asyncio.gather(*calls) for each in reply.results]
    ranges += [reply.range for reply in await asyncio.gather(*single)]
    assert sorted(each.first_id for each in ranges) == list(range(1, 2_401, 2))
