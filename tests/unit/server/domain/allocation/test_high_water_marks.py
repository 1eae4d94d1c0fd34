"""High-water marks are limited in number, and none is evicted for another (P3)."""

import asyncio
from dataclasses import replace

import pytest
import structlog

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.high_water_marks import HighWaterMarks
from idalloc_server.domain.errors import (
    Refusal,
    SequenceDeleted,
    SequenceNotFound,
    StoreUnavailable,
    StoreWentBackwards,
    TooManySequences,
)
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Reset, Sequence
from idalloc_server.domain.store.records import Grant
from tests.support.fake_store import FakeClock, MemoryStore, lost_reply, unreachable
from tests.support.sequence_allocators import CONFIG, make, own_counter

DAY = 86_400.0


def limited(store: MemoryStore, clock: FakeClock, most: int, *, creates: bool = True) -> Allocator:
    return Allocator(store, clock, replace(CONFIG, max_sequences=most, auto_create_sequences=creates))


async def close_idle(allocator: Allocator) -> None:
    for _ in range(2):
        await allocator.check_idle_sequences()


async def test_a_name_beyond_the_limit_is_rejected(store: MemoryStore, clock: FakeClock) -> None:
    """A name beyond max_sequences is rejected without a store call, and uses no memory."""
    allocator = limited(store, clock, 2)
    make(store, "existing", Sequence())
    for name in ("a", "b"):
        await allocator.issue(name, 1)
    asked = len(store.calls)
    for name in ("existing", "new"):
        with pytest.raises(TooManySequences, match=f"sequence '{name}'.* max_sequences = 2 ") as refused:
            await allocator.issue(name, 1)
        assert refused.value.metadata == {"sequence": name, "max_sequences": "2"}
    assert len(store.calls) == asked
    assert set(allocator._sequence_allocators) == {"a", "b"}
    assert "new" not in store.rows
    assert (await allocator.issue("a", 1)).first_id == 2


async def test_no_mark_is_evicted_at_the_limit(store: MemoryStore, clock: FakeClock) -> None:
    """P3: at the limit the mark of an idle sequence still detects a store that went backwards."""
    allocator = limited(store, clock, 1)
    await allocator.issue("a", 100)
    await close_idle(allocator)
    assert not allocator._sequence_allocators
    for number in range(10):
        with pytest.raises(TooManySequences):
            await allocator.issue(f"b{number}", 1)
    store.rows["a"].last_value = 5
    with pytest.raises(StoreWentBackwards):
        await allocator.issue("a", 1)


async def test_concurrent_new_names_keep_the_limit(store: MemoryStore, clock: FakeClock) -> None:
    """Concurrent new names do not exceed max_sequences."""
    allocator = limited(store, clock, 3)
    answers = await asyncio.gather(*(allocator.issue(f"n{number}", 1) for number in range(20)), return_exceptions=True)
    assert sum(isinstance(answer, TooManySequences) for answer in answers) == 17
    assert len(store.rows) == 3


@pytest.mark.parametrize("why", ["missing", "deleted", "unreachable", "lost"])
async def test_a_failed_name_does_not_count(store: MemoryStore, clock: FakeClock, why: str) -> None:
    """A name for which the store returned no row does not count, and has no allocator."""
    allocator = limited(store, clock, 2, creates=False)
    expected: type[Refusal] = {"missing": SequenceNotFound, "deleted": SequenceDeleted}.get(why, StoreUnavailable)
    for number in range(10):
        if why == "deleted":
            make(store, f"n{number}", Sequence()).deleted = True
        if why in {"unreachable", "lost"}:
            store.next("grant", unreachable() if why == "unreachable" else lost_reply())
        with pytest.raises(expected):
            await allocator.issue(f"n{number}", 1)
        with pytest.raises(expected):
            store.next("grant", unreachable()) if expected is StoreUnavailable else None
            await allocator.proof(f"n{number}")
        assert not allocator._sequence_allocators
    make(store, "orders", Sequence())
    assert (await allocator.issue("orders", 1)).first_id == 1


async def test_an_unknown_name_of_a_cancelled_caller_does_not_count(store: MemoryStore, clock: FakeClock) -> None:
    """An unknown name whose caller was cancelled counts only until its refill ends."""
    allocator = limited(store, clock, 1, creates=False)
    gate = store.hold("grant")
    call = asyncio.create_task(allocator.issue("unknown", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(TooManySequences):
        await allocator.issue("orders", 1)  # while the refill of the first name is in progress
    refill = own_counter(allocator, "unknown")._refill_task
    gate.set()
    assert refill is not None
    await refill
    assert not allocator._sequence_allocators


async def test_eighty_percent_of_the_limit_is_logged_once(store: MemoryStore, clock: FakeClock) -> None:
    """The warning many_sequences is logged once, at 80 % of max_sequences."""
    allocator = limited(store, clock, 10)
    with structlog.testing.capture_logs() as logged:
        for number in range(7):
            await allocator.issue(f"n{number}", 1)
        assert not logged
        for number in range(10):
            await allocator.issue(f"n{number}", 1)
        await close_idle(allocator)
        for number in range(10):
            await allocator.issue(f"n{number}", 1)
    assert logged == [
        {"event": "many_sequences", "log_level": "warning", "sequences": 8, "max_sequences": 10},
    ]


@pytest.mark.parametrize("pause", [0.0, 3_600.0])
async def test_marks_of_ended_periods_are_removed(store: MemoryStore, clock: FakeClock, pause: float) -> None:
    """A sequence with a reset counts once, and has marks of at most two periods."""
    allocator = limited(store, clock, 1)
    make(store, "s", Sequence(reset=Reset.DAILY))
    for _ in range(30):
        await allocator.issue("s", 1)
        clock.advance(pause)
        await close_idle(allocator)  # the period has not ended yet
        clock.advance(DAY - pause)
        assert sum(PERIOD_SEPARATOR in name for name in allocator._high_water_marks) <= 2


async def test_the_mark_of_the_current_period_is_kept(store: MemoryStore, clock: FakeClock) -> None:
    """P3: the mark of a period lasts as long as the period, without an allocator."""
    allocator = limited(store, clock, 1)
    make(store, "s", Sequence(reset=Reset.YEARLY))
    await allocator.issue("s", 100)
    await close_idle(allocator)
    [counter] = [name for name in store.rows if PERIOD_SEPARATOR in name]
    store.rows[counter].last_value = 5
    with pytest.raises(StoreWentBackwards):
        await allocator.issue("s", 1)


@pytest.mark.parametrize("idle", [False, True])
async def test_a_clock_set_forward_removes_no_mark(store: MemoryStore, clock: FakeClock, idle: bool) -> None:
    """P3: a period ends by the boot clock, not by a wall clock that was set forward."""
    allocator = limited(store, clock, 1)
    make(store, "s", Sequence(reset=Reset.DAILY))
    await allocator.issue("s", 100)
    [counter] = [name for name in store.rows if PERIOD_SEPARATOR in name]
    if idle:
        await close_idle(allocator)
    clock.wall_seconds += 700 * DAY
    await allocator.issue("s", 1)
    await close_idle(allocator)
    clock.wall_seconds -= 700 * DAY
    store.rows[counter].last_value = 5
    with pytest.raises(StoreWentBackwards):
        await allocator.issue("s", 1)


@pytest.mark.parametrize("step", [1, -1])
def test_a_grant_across_the_mark_is_refused(step: int) -> None:
    """P3: the mark is compared with the counter before the write, also without a floor."""
    marks, sequence = HighWaterMarks(10), Sequence(step=step, min_value=-1_000, start=0)
    marks.update("s", Grant(100 * step, 1, sequence, 1_000, 1, (1, 1, 1), 1))
    with pytest.raises(StoreWentBackwards):
        marks.update("s", Grant(150 * step, 60, sequence, 1_000, 1, (2, 1, 1), 2))
    marks.update("s", Grant(150 * step, 50, sequence, 1_000, 1, (2, 1, 1), 2))


def test_a_mark_that_has_changed_stays_for_an_older_tail() -> None:
    """P3: a tail moves the mark back to its start, unless the counter was used after it."""
    marks = HighWaterMarks(10)
    marks.update("s", Grant(20, 20, Sequence(), 80, 1, version=(1, 1, 1), writes=1))
    marks.move_back("s", 1, 10, 5)
    assert marks.floor("s").value == 20
    marks.move_back("s", 1, 20, 15)
    assert marks.floor("s").value == 15
