"""The layer around every RPC, GetNode, and reflection."""

import asyncio
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from idalloc.v1 import error_reason_pb2, node_pb2
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.domain import errors
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.sequences.sequence import MAX_ID
from idalloc_server.telemetry.metrics import MAX_CAUSES
from tests.rpc.conftest import Served, until
from tests.support.fake_store import rejected
from tests.support.rpc_errors import details_of


def test_every_error_reason_has_a_refusal_and_a_status() -> None:
    """Each ErrorReason has a domain error with a status code, and each such error a reason."""
    declared = {
        name.removeprefix("ERROR_REASON_")
        for name in error_reason_pb2.DESCRIPTOR.enum_types_by_name["ErrorReason"].values_by_name
    }

    def all_below(kind: type[errors.Refusal]) -> list[type[errors.Refusal]]:
        return [each for child in kind.__subclasses__() for each in (child, *all_below(child))]

    found = all_below(errors.Refusal)
    refusals = [each for each in found if hasattr(each, "reason") or not each.__subclasses__()]
    assert len(refusals) >= 9
    assert {refusal.reason for refusal in refusals} == declared - {"UNSPECIFIED"}
    assert all(grpc.StatusCode[refusal.status] for refusal in refusals)


async def test_get_node_describes_the_node(served: Served) -> None:
    """GetNode returns the prefix, start timestamp, version, store and lease count."""
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=5))
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=5))
    node = (await served.node.GetNode(node_pb2.GetNodeRequest())).node
    assert node.prefix == 7
    assert node.start_timestamp == served.doc_ids.start_timestamp
    assert (node.auto_increment_offset, node.auto_increment_increment) == (1, 1)
    assert node.version
    assert node.store == "memory:"
    assert node.lease_count == 1


async def test_calls_are_counted_by_status(served: Served) -> None:
    """Metrics count started calls, and ended calls with their duration by status."""
    await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    with pytest.raises(grpc.aio.AioRpcError):
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence=""))
    calls = served.metrics.method("/idalloc.v1.IdAllocatorService/AllocateRange")
    assert calls.started == 2
    await until(lambda: calls.handled.total() == 2)  # a call is counted after its caller was answered
    assert calls.handled == {"OK": 1, "INVALID_ARGUMENT": 1}
    assert sum(calls.latencies) == 2
    assert calls.seconds > 0


async def test_server_fault_is_internal_without_details(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the server ends the call as INTERNAL, and its message shows no internals."""

    def broken(sequence: str, count: int) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(served.allocator, "issue_now", broken)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    details = details_of(failed.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in details.message


async def test_causes_of_failed_calls_are_logged_as_counts(served: Served) -> None:
    """The log counts each cause, and callers' mistakes do not hide a failure of the store."""
    with structlog.testing.capture_logs() as logs:
        for number in range(20):
            with pytest.raises(grpc.aio.AioRpcError):
                await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=-1 - number))
        served.store.next("grant", *[rejected()] * 3)
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
        served.calls.failed.log()
        served.calls.failed.log()
    failed = [line for line in logs if line["event"] == "calls_failed"]
    *mistakes, others, store = sorted(failed, key=lambda line: (line["reason"], line["why"] == "others"))
    assert len(mistakes) == MAX_CAUSES
    assert (others["why"], others["count"]) == ("others", 20 - MAX_CAUSES)
    assert (store["code"], store["reason"], store["count"]) == ("UNAVAILABLE", "STORE_UNAVAILABLE", 3)
    assert store["method"] == "/idalloc.v1.IdAllocatorService/AllocateRange"
    assert store["why"] == "the store rejected the statement"


async def test_repeated_server_fault_is_logged_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in every call is logged once a second, with places and count, without its request."""

    def broken(sequence: str, count: int) -> None:
        raise ZeroDivisionError(f"bytes of the request: {sequence}")

    monkeypatch.setattr(served.allocator, "issue_now", broken)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
        served.calls.failed.log()
    assert [line["event"] for line in logs if line["event"] != "call"] == ["call_failed", "calls_failed"]
    assert (logs[-1]["count"], logs[-1]["reason"], logs[-1]["why"]) == (3, "INTERNAL", "ZeroDivisionError")
    assert (logs[0]["error"], "bytes of the request" in str(logs)) == ("ZeroDivisionError", False)


async def test_draining_server_rejects_calls_and_ends_streams(served: Served) -> None:
    """P9: a drain rejects new calls, then ends streams before they take ids for a message."""
    request = pb.StreamRangesRequest(sequence="orders", total_id_count=MAX_ID, chunk_id_count=10)
    stream = served.ids.StreamRanges(request)
    received = (await anext(aiter(stream))).range.last_id
    served.draining.reject_calls()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders"))
    details = details_of(failed.value)
    assert (details.code, details.info.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")
    assert details.retry.retry_delay.ToMilliseconds() > 0
    assert not await served.draining.wait_for_calls(timeout=0.05)
    served.draining.end_streams()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async for reply in stream:
            assert reply.range.first_id > received
            received = reply.range.last_id
    assert details_of(failed.value).info.reason == "SERVER_DRAINING"
    assert await served.draining.wait_for_calls(timeout=1)
    assert served.metrics.in_flight == 0
    assert BurnCause.CANCELLED not in served.allocator.burned.by_cause


async def test_held_call_is_neither_served_nor_rejected_early(served: Served) -> None:
    """A call held at a stop is rejected only after the drain, and takes no ids."""
    served.draining.hold_new_calls()
    call = asyncio.ensure_future(served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="orders")))
    await until(lambda: served.metrics.started == 1)
    assert await served.draining.wait_for_calls(timeout=0)  # of those that run
    assert not call.done()
    served.draining.reject_calls()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    assert details_of(failed.value).info.reason == "SERVER_DRAINING"
    assert served.store.calls_of("grant") == []


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_finds_services_methods_and_files(served: Served, version: str) -> None:
    """Both reflections find the file of a service, a method, a message, and of themselves."""
    service = f"grpc.reflection.{version}.ServerReflection"
    call: Any = served.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    symbols = ["idalloc.v1.NodeService", "idalloc.v1.NodeService.GetNode", "idalloc.v1.Node", service]
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    asked += [reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols]
    asked += [reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing")]
    listed, *replies, missing = [reply async for reply in call(iter(asked), timeout=30)]
    names = {each.name for each in listed.list_services_response.service}
    assert {"idalloc.v1.IdAllocatorService", "idalloc.v1.NodeService", service} <= names
    files = [reply.file_descriptor_response.file_descriptor_proto[0] for reply in replies]
    found = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
    assert [file.package for file in found] == ["idalloc.v1"] * 3 + [f"grpc.reflection.{version}"]
    assert [each.name for each in found[3].service] == ["ServerReflection"]
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def camel_case(name: str) -> str:
    """Return the JSON name that protoc gives a field."""
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)


async def test_reflection_sends_the_json_names_of_fields(served: Served) -> None:
    """JSON names by reflection are those that the command prints, also of nested messages."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(served.channel)  # type: ignore[arg-type]
    asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol="idalloc.v1.Sequence")]
    [reply] = [reply async for reply in stub.ServerReflectionInfo(iter(asked), timeout=30)]
    packed = reply.file_descriptor_response.file_descriptor_proto
    messages = [each for file in packed for each in descriptor_pb2.FileDescriptorProto.FromString(file).message_type]
    names: dict[tuple[str, str], str] = {}
    while messages:
        message = messages.pop()
        messages += message.nested_type
        names |= {(message.name, field.name): field.json_name for field in message.field}
    assert names["Sequence", "exhaust_time"] == "exhaustTime"
    assert names["LabelsEntry", "key"] == "key"
    assert {field: name for (_, field), name in names.items() if name != camel_case(field)} == {}


async def test_cancelled_calls_leave_nothing_in_flight(served: Served) -> None:
    """Cancelled calls end, so that a drain completes."""
    served.store.hold("grant")
    calls = [served.ids.AllocateRange(pb.AllocateRangeRequest(sequence="slow")) for _ in range(50)]
    await until(lambda: served.metrics.in_flight == 50)
    for call in calls:
        call.cancel()
    served.draining.reject_calls()
    assert await served.draining.wait_for_calls(timeout=2)
