"""Messages pass unchanged between supervisor and workers."""

import asyncio
import socket

import pytest

from idalloc_server.workers.messages import Answered, Applied, Closed, Exit
from idalloc_server.workers.pipe import Pipe


async def pair() -> tuple[Pipe, Pipe]:
    one, other = socket.socketpair()
    return await Pipe.over(one), await Pipe.over(other)


async def test_messages_arrive_in_order_until_close() -> None:
    """A pipe delivers messages in order, and None after the other end closed."""
    one, other = await pair()
    answered = Answered(1, "", [1, 2.5, "ä\n", None])
    one.send(answered)
    one.send(Closed())
    await one.close()
    assert await other.receive() == answered
    assert await other.receive() == Closed()
    still_open = not other.has_ended
    assert await other.receive() is None
    assert still_open
    assert other.has_ended
    other.send(Closed())
    assert await other.receive() is None
    await other.close()


async def test_pipe_has_the_newest_message_of_each_type() -> None:
    """A pipe has the newest message of each type."""
    one, other = await pair()
    for message in (Exit(with_all=True), Applied(2), Applied(3)):
        one.send(message)
        await other.receive()
    assert (other.newest(Exit), other.newest(Applied), other.newest(Closed)) == (Exit(with_all=True), Applied(3), None)
    assert other.has(Closed, Applied)
    assert not other.has(Closed)
    await one.close()
    await other.close()


@pytest.mark.parametrize("ends", [False, True])
async def test_wait_ends_with_the_condition_or_the_process(ends: bool) -> None:
    """A wait ends when a message makes its condition true, or the other process exits."""
    one, other = await pair()
    waiting = asyncio.create_task(other.wait_until(lambda: other.newest(Applied) == Applied(2)))
    one.send(Applied(1))
    await other.receive()
    await asyncio.sleep(0)
    assert not waiting.done()
    if not ends:
        one.send(Applied(2))
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
        theirs.sendall(b'["Report", {"cou')
    assert await pipe.receive() is None
    await pipe.close()
