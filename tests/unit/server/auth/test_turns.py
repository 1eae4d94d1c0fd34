"""What the streams of a process share: turns, waits for the store, unanswered requests."""

import asyncio

import pytest

from idalloc_server.auth.turns import MAX_TURN_SECONDS, MAX_TURNS, FairShare, Shares, StreamShare
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import settle


async def holders(share: FairShare, caller: str, number: int) -> list[asyncio.Task[None]]:
    """Try to take places; return the tasks, of which those are done that have one."""
    tasks = [asyncio.create_task(share.take(caller)) for _ in range(number)]
    await settle()
    return tasks


def count(tasks: list[asyncio.Task[None]]) -> int:
    return sum(task.done() and not task.cancelled() for task in tasks)


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_caller_gets_half_of_the_places() -> None:
    """One caller, with any number of streams, leaves as many places free as it has."""
    share = FairShare(16)
    greedy = await holders(share, "greedy", 500)
    assert count(greedy) == 8
    other = await holders(share, "other", 4)
    assert count(other) == 4, "a second caller waits for the first"
    await end(greedy)
    await end(other)


async def test_a_free_place_goes_to_who_has_fewest() -> None:
    """A caller's own waits are served in order; between callers, the one with fewer places is."""
    share = FairShare(6)
    first = await holders(share, "first", 10)
    second = await holders(share, "second", 10)
    assert (count(first), count(second)) == (3, 2)
    share.give_back("first")
    share.give_back("second")
    await settle()
    assert [task.done() for task in first] == [True] * 3 + [False] * 7
    assert [task.done() for task in second] == [True] * 3 + [False] * 7
    await end(first)
    await end(second)


async def test_a_caller_that_leaves_holds_no_place() -> None:
    """A cancelled wait takes no place, also if the place was granted in the same moment."""
    share = FairShare(2)
    await share.take("a")
    cancelled = await holders(share, "a", 2)
    share.give_back("a")
    cancelled[0].cancel()  # has its place, and does not know it yet
    cancelled[1].cancel()
    await settle()
    assert count(cancelled) == 0
    await asyncio.wait_for(share.take("a"), 1)


async def test_a_cancelled_wait_is_forgotten() -> None:
    """Waits that are cancelled while no place is given back take no memory."""
    share = FairShare(2)
    await share.take("a")
    await end(await holders(share, "a", 100))
    assert not any(share._waiting.values())


def test_a_blocked_write_ends_its_turn() -> None:
    """A stream whose client does not read keeps its turn for a short time only."""

    async def wait_behind_blocked_streams() -> float:
        shares = Shares()
        blocked = [StreamShare(shares, lambda: "greedy") for _ in range(MAX_TURNS)]
        tasks = [asyncio.create_task(each.begin_turn()) for each in blocked]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await StreamShare(shares, lambda: "greedy").begin_turn()
        waited = asyncio.get_running_loop().time() - began
        await asyncio.gather(*tasks)
        return waited

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        waited = runner.run(wait_behind_blocked_streams())
    assert waited == pytest.approx(2 * MAX_TURN_SECONDS, abs=0.02)


async def test_a_turn_ends_once() -> None:
    """A turn that has ended by itself gives no second place back."""
    shares = Shares()
    stream = StreamShare(shares, lambda: "a")
    await stream.begin_turn()
    stream.end_turn()
    stream.end_turn()
    assert count(await holders(shares.turns, "a", MAX_TURNS)) == MAX_TURNS // 2


async def test_places_are_in_the_order_of_the_calls() -> None:
    """A later call does not overtake one that was granted a place and has not run yet."""
    share = FairShare(4)
    order: list[int] = []

    async def take(number: int) -> None:
        await share.take("a")
        order.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(4)]
    await settle()
    share.give_back("a")
    share.give_back("a")
    tasks.append(asyncio.create_task(take(4)))
    share.give_back("a")
    await settle()
    assert order == [0, 1, 2, 3, 4]
    await asyncio.gather(*tasks)
