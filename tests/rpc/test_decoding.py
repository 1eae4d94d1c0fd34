"""Undecodable requests."""

import logging
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from idalloc.v1 import id_allocator_pb2 as pb
from tests.rpc.conftest import Served
from tests.support.rpc_errors import details_of


@pytest.mark.parametrize("content", [b"\xff\xff\xff", b"\x0a\x02\xff\xff", b"\x0a\x05x", b"\x0b" * 1000])
@pytest.mark.parametrize(
    "method",
    [
        "idalloc.v1.IdAllocatorService/AllocateRange",
        "idalloc.v1.IdAllocatorService/StreamRanges",
        "idalloc.v1.SequenceService/CreateSequence",
        "idalloc.v1.NodeService/UpdateNode",
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_undecodable_request_is_invalid_argument(
    served: Served, method: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """An undecodable request is INVALID_ARGUMENT on every service, without a log line."""
    call: Any = served.channel.stream_stream(f"/{method}")
    replies = call(iter([content]), timeout=30)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in replies:
            pass
    found = details_of(caught.value)
    assert found.code is grpc.StatusCode.INVALID_ARGUMENT
    assert found.info.reason == "INVALID_REQUEST"
    assert [each.field for each in found.bad_request.field_violations] == ["request"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and not _is_of_grpcio(record)]


def _is_of_grpcio(record: logging.LogRecord) -> bool:
    """Return whether grpcio's poller met the closed loop of an earlier test; that may be late."""
    return record.name == "asyncio" and "PollerCompletionQueue._handle_events" in record.getMessage()


async def test_reflection_and_health_answer_decodable_requests(served: Served) -> None:
    """The wrappers of reflection and health pass decodable requests on."""
    check: Any = served.channel.unary_unary(
        "/grpc.health.v1.Health/Check", response_deserializer=health_pb2.HealthCheckResponse.FromString
    )
    assert (await check(b"", timeout=30)).status == health_pb2.HealthCheckResponse.SERVING
    question = reflection_pb2.ServerReflectionRequest(list_services="*")
    info: Any = served.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    replies = [each async for each in info(iter([question.SerializeToString(), b""]), timeout=30)]
    assert b"IdAllocatorService" in replies[0]
    assert len(replies) == 2


async def test_unknown_field_is_ignored(served: Served) -> None:
    """A request with an unknown field is served."""
    request = pb.AllocateRangeRequest(sequence="orders").SerializeToString() + b"\xf8\x3f\x01"
    call: Any = served.channel.unary_unary("/idalloc.v1.IdAllocatorService/AllocateRange")
    assert await call(request, timeout=30)
