"""The health service: no caller may delay other callers or the server's stop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from idalloc_server.rpc import health
from tests.rpc.conftest import Served
from tests.support import http2
from tests.support.waiting import settle

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = {"", "idalloc.v1.IdAllocatorService", "idalloc.v1.NodeService", "idalloc.v1.SequenceService"}


@pytest.fixture
def stub(secured: Served) -> Any:
    return health_pb2_grpc.HealthStub(secured.channel)


def check_request(service: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def test_health_has_every_service_and_no_other(stub: Any, secured: Served) -> None:
    """Health has the status of every service and of the store; others are NOT_FOUND."""
    listed = (await stub.List(health_pb2.HealthListRequest(), timeout=20)).statuses  # type: ignore[attr-defined]
    assert {name: each.status for name, each in listed.items()} == dict.fromkeys(SERVICES | {"store"}, SERVING)
    secured.health.set_serving(serving=False)
    for service in SERVICES:
        assert (await stub.Check(check_request(service), timeout=20)).status == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Check(check_request("none"), timeout=20)
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_store_has_a_health_status_of_its_own(stub: Any, secured: Served) -> None:
    """A failing store has a status of its own, since the server may still serve from its leases."""
    replies = aiter(stub.Watch(check_request("store"), timeout=20))
    assert (await anext(replies)).status == SERVING
    secured.health.set_store_serving(serving=False)
    assert (await anext(replies)).status == NOT_SERVING
    listed = (await stub.List(health_pb2.HealthListRequest(), timeout=20)).statuses  # type: ignore[attr-defined]
    assert {name for name, each in listed.items() if each.status != SERVING} == {"store"}


async def test_watch_sends_each_change_once(stub: Any, secured: Served) -> None:
    """Watch sends the current status and then each change once."""
    replies = aiter(stub.Watch(check_request("idalloc.v1.NodeService"), timeout=20))
    unknown = aiter(stub.Watch(check_request("none"), timeout=20))
    assert (await anext(unknown)).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    assert (await anext(replies)).status == SERVING
    secured.health.set_serving(serving=True)
    secured.health.set_serving(serving=False)
    assert (await anext(replies)).status == NOT_SERVING
    secured.health.set_serving(serving=True)
    assert (await anext(replies)).status == SERVING


async def test_watch_without_reader_does_not_block_others(stub: Any, secured: Served) -> None:
    """A watch whose client never reads does not delay other watches."""

    def open_unread_watch() -> socket.socket:
        connection = http2.connect(secured.address, window=0)
        opening = http2.headers(1, "Watch", service="/grpc.health.v1.Health/")
        connection.sendall(opening + http2.message(1, b""))
        return connection

    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(await asyncio.to_thread(open_unread_watch))
        replies = aiter(stub.Watch(check_request(), timeout=20))
        assert (await anext(replies)).status == SERVING
        secured.health.set_serving(serving=False)
        assert (await anext(replies)).status == NOT_SERVING


@pytest.mark.parametrize("most", ["MAX_WATCHES", "MAX_WATCHES_OF_HOST"])
async def test_number_of_watches_is_bounded(
    stub: Any, secured: Served, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    """The number of open watches is bounded, in all and per host; a closed one frees its place."""
    monkeypatch.setattr(health, most, 3)
    calls = [stub.Watch(check_request(), timeout=20) for _ in range(3)]
    for call in calls:
        await anext(aiter(call))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await anext(aiter(stub.Watch(check_request(), timeout=20)))
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.Check(check_request(), timeout=20)).status == SERVING
    calls[0].cancel()
    async with asyncio.timeout(20):
        while True:
            try:
                await anext(aiter(stub.Watch(check_request(), timeout=20)))
                break
            except grpc.aio.AioRpcError:
                await settle()


async def test_large_watch_request_is_rejected(stub: Any) -> None:
    """A large Watch request is rejected, since it would occupy memory while the watch is open."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await anext(aiter(stub.Watch(check_request("x" * 2_000), timeout=20)))
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
