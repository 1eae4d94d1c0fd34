"""Values pass unchanged between supervisor and workers."""

import asyncio
import socket

import pytest

from idalloc_server.workers.pipe import Pipe


async def pair() -> tuple[Pipe, Pipe]:
    one, other = socket.socketpair()
    return await Pipe.over(one), await Pipe.over(other)


async def test_messages_arrive_in_order_until_close() -> None:
    """A pipe delivers messages in order, and None after the other end closed."""
    one, other = await pair()
    one.send(first=[1, 2.5, "ä\n", None])
    one.send(second=2)
    await one.close()
    assert await other.receive() == {"first": [1, 2.5, "ä\n", None]}
    assert await other.receive() == {"second": 2}
    still_open = not other.has_ended
    assert await other.receive() is None
    assert still_open
    assert other.has_ended
    other.send(late=True)
    assert await other.receive() is None
    await other.close()


async def test_values_are_the_newest_by_name() -> None:
    """A pipe has the newest value of each name."""
    one, other = await pair()
    one.send(first=1, second=2)
    one.send(second=3)
    await other.receive()
    await other.receive()
    assert other.values == {"first": 1, "second": 3}
    await one.close()
    await other.close()


@pytest.mark.parametrize("ends", [False, True])
async def test_wait_ends_with_the_condition_or_the_process(ends: bool) -> None:
    """A wait ends when the values meet its condition, or the other process exits."""
    one, other = await pair()
    waiting = asyncio.create_task(other.wait_until(lambda values: values.get("turn", 0) > 1))
    one.send(turn=1)
    await other.receive()
    await asyncio.sleep(0)
    assert not waiting.done()
    if not ends:
        one.send(turn=2)
    await one.close()
    await other.receive()
    async with asyncio.timeout(10):
        await waiting
    assert other.has_ended is ends
    await other.close()


async def test_incomplete_message_is_dropped() -> None:
    """The incomplete message of a killed process is dropped."""
    ours, theirs = socket.socketpair()
    pipe = await Pipe.over(ours)
    with theirs:
        theirs.sendall(b'{"counts": {"cou')
    assert await pipe.receive() is None
    await pipe.close()
