"""The delay of answers to hosts whose calls are rejected too often, in virtual time."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from idalloc_server.auth import rejected_callers
from idalloc_server.auth.rejected_callers import MAX_DELAY_SECONDS, MIN_DELAY_SECONDS, DelayedAnswers


async def seconds_of(delayed: DelayedAnswers, seconds_left: float | None = None) -> float:
    """Return how long an answer is delayed."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await delayed.wait(seconds_left)
    return loop.time() - begun


async def test_answers_wait_for_different_times() -> None:
    """Answers are delayed by 1 to 3 s, and not all equally long."""
    delayed = DelayedAnswers(Random(7).uniform)
    waits = await asyncio.gather(*(seconds_of(delayed) for _ in range(50)))
    assert MIN_DELAY_SECONDS <= min(waits) < max(waits) <= MAX_DELAY_SECONDS
    assert max(waits) - min(waits) > 1


async def test_the_delay_is_that_of_the_random_source() -> None:
    """The source decides the delay within its limits."""
    shortest, longest = (DelayedAnswers(lambda *limits, pick=pick: pick(limits)) for pick in (min, max))
    assert await seconds_of(shortest) == pytest.approx(MIN_DELAY_SECONDS, abs=0.01)
    assert await seconds_of(longest) == pytest.approx(MAX_DELAY_SECONDS, abs=0.01)


async def test_half_of_the_deadline_is_the_longest_wait() -> None:
    """A caller whose deadline is near gets the answer before it."""
    assert await seconds_of(DelayedAnswers(), 0.5) == pytest.approx(0.25, abs=0.01)


async def test_number_of_waiting_answers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers beyond the limit are not delayed, also after others were cancelled."""
    monkeypatch.setattr(rejected_callers, "MAX_DELAYED", 2)
    delayed = DelayedAnswers()
    waits = await asyncio.gather(*(seconds_of(delayed) for _ in range(3)))
    assert waits[2] < 0.01
    assert min(waits[:2]) >= MIN_DELAY_SECONDS
    left = asyncio.create_task(delayed.wait(None))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left})
    assert min(await asyncio.gather(seconds_of(delayed), seconds_of(delayed))) >= MIN_DELAY_SECONDS
