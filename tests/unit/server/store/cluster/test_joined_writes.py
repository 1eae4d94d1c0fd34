"""``JoinedWrites``: writes that wait share a request, and each has its own outcome."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from idalloc_server.domain.errors import StoreUnreachable
from idalloc_server.store.cluster.joined_writes import MAX_REQUESTS, JoinedWrites
from tests.support.waiting import settle


class Write(NamedTuple):
    name: str
    number: int


async def test_each_write_of_a_request_has_its_own_outcome() -> None:
    """P1, P9: no write gets another one's answer, and no request has two writes of a row."""
    gate = asyncio.Event()
    requests: list[list[Write]] = []

    async def send(write: Write) -> int:
        requests.append([write])
        await gate.wait()
        return write.number

    async def send_many(writes: Sequence[Write]) -> list[int | StoreUnreachable]:
        requests.append([*writes])
        return [StoreUnreachable("b") if each.name == "b" else each.number for each in writes]

    joined = JoinedWrites(send, send_many)
    first = [Write(f"earlier {number}", -number) for number in range(MAX_REQUESTS)]
    waiting = [Write("a", 1), Write("b", 2), Write("a", 3), Write("c", 4)]
    answers = [asyncio.create_task(joined.write(each)) for each in (*first, *waiting)]
    await settle()
    assert requests == [[each] for each in first]
    gate.set()
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert outcomes[:MAX_REQUESTS] == [each.number for each in first]
    one, failed, three, four = outcomes[MAX_REQUESTS:]
    assert (one, type(failed), three, four) == (1, StoreUnreachable, 3, 4)
    assert sorted(requests[MAX_REQUESTS:]) == [[waiting[0], waiting[1], waiting[3]], [waiting[2]]]
