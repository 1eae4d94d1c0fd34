"""A client for asyncio belongs to the event loop of its first call."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import idalloc.aio
from tests.support.fake_server import FakeServer


async def first(items: Any) -> object:
    async for item in items:
        return item
    return None


CALLS: dict[str, Callable[[idalloc.aio.Client], Coroutine[Any, Any, Any]]] = {
    "allocate_range": lambda client: client.allocate_range("orders"),
    "idempotent": lambda client: client.allocate_range("orders", idempotent=True),
    "ids": lambda client: first(client.ids("orders")),
    "stream_ranges": lambda client: first(client.stream_ranges("orders", 2)),
    "node": lambda client: client.node(),
    "sequences.list": lambda client: first(client.sequences.list()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_event_loop_is_an_error(server: FakeServer, name: str) -> None:
    """Each call in a second ``asyncio.run`` raises an error with a next step; ``close`` works."""
    client = idalloc.aio.Client(server.target)
    asyncio.run(CALLS[name](client))
    sent = sum(map(len, server.requests.values()))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"another event loop.* create a client in each"):
            asyncio.run(CALLS[name](client))
    assert sum(map(len, server.requests.values())) == sent
    asyncio.run(client.close())
    with pytest.raises(RuntimeError, match="the client is closed"):
        asyncio.run(CALLS[name](client))


def test_a_client_may_be_created_before_its_event_loop(server: FakeServer) -> None:
    """A client without a call belongs to no event loop."""
    client = idalloc.aio.Client(server.target)

    async def use() -> int:
        async with client:
            return (await client.allocate_range("orders")).first_id

    assert asyncio.run(use()) == 1
