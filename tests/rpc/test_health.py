"""Health is open to all: none of those who ask may keep the others, or the server's stop, waiting."""

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

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = {"", "idalloc.v1.IdAllocatorService", "idalloc.v1.NodeService", "idalloc.v1.SequenceService"}


@pytest.fixture
def stub(guarded: Served) -> Any:
    return health_pb2_grpc.HealthStub(guarded.channel)


def asked(service: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def test_each_service_is_told_and_no_other(stub: Any, guarded: Served) -> None:
    listed = (await stub.List(health_pb2.HealthListRequest(), timeout=20)).statuses  # type: ignore[attr-defined]
    assert {name: each.status for name, each in listed.items()} == dict.fromkeys(SERVICES | {"store"}, SERVING)
    guarded.health.set_serving(serving=False)
    for service in SERVICES:
        assert (await stub.Check(asked(service), timeout=20)).status == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Check(asked("none"), timeout=20)
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_names_the_check_that_fails(stub: Any, guarded: Served) -> None:
    """A store that fails is a check of its own: the server may still serve from its leases."""
    replies = aiter(stub.Watch(asked("store"), timeout=20))
    assert (await anext(replies)).status == SERVING
    guarded.health.set_store_serving(serving=False)
    assert (await anext(replies)).status == NOT_SERVING
    listed = (await stub.List(health_pb2.HealthListRequest(), timeout=20)).statuses  # type: ignore[attr-defined]
    assert {name for name, each in listed.items() if each.status != SERVING} == {"store"}


async def test_who_watches_learns_each_change_once(stub: Any, guarded: Served) -> None:
    replies = aiter(stub.Watch(asked("idalloc.v1.NodeService"), timeout=20))
    unknown = aiter(stub.Watch(asked("none"), timeout=20))
    assert (await anext(unknown)).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    assert (await anext(replies)).status == SERVING
    guarded.health.set_serving(serving=True)
    guarded.health.set_serving(serving=False)
    assert (await anext(replies)).status == NOT_SERVING
    guarded.health.set_serving(serving=True)
    assert (await anext(replies)).status == SERVING


async def test_who_reads_nothing_keeps_no_other_waiting(stub: Any, guarded: Served) -> None:
    def watch_and_read_nothing() -> socket.socket:
        connection = http2.connect(guarded.address, window=0)
        opening = http2.headers(1, "Watch", service="/grpc.health.v1.Health/")
        connection.sendall(opening + http2.message(1, b""))
        return connection

    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(await asyncio.to_thread(watch_and_read_nothing))
        replies = aiter(stub.Watch(asked(), timeout=20))
        assert (await anext(replies)).status == SERVING
        guarded.health.set_serving(serving=False)
        assert (await anext(replies)).status == NOT_SERVING


@pytest.mark.parametrize("most", ["MAX_WATCHES", "MAX_WATCHES_OF_HOST"])
async def test_so_many_may_watch_and_one_that_leaves_makes_room(
    stub: Any, guarded: Served, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    monkeypatch.setattr(health, most, 3)
    calls = [stub.Watch(asked(), timeout=20) for _ in range(3)]
    for call in calls:
        await anext(aiter(call))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await anext(aiter(stub.Watch(asked(), timeout=20)))
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.Check(asked(), timeout=20)).status == SERVING
    calls[0].cancel()
    async with asyncio.timeout(20):
        while True:
            try:
                await anext(aiter(stub.Watch(asked(), timeout=20)))
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)


async def test_a_large_request_is_not_kept(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await anext(aiter(stub.Watch(asked("x" * 2_000), timeout=20)))
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
