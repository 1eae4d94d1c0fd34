"""What this process remembers by name: it is bounded, and no mark is ever given up for another one (P3)."""

import asyncio
from dataclasses import replace

import pytest
import structlog

from idalloc_server.domain.allocation import usage
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.usage import UsageRates
from idalloc_server.domain.errors import (
    Refusal,
    SequenceDeleted,
    SequenceNotFound,
    StoreUnavailable,
    StoreWentBackwards,
    TooManySequences,
)
from idalloc_server.domain.sequences.model import PERIOD_MARK, Reset, Sequence
from tests.support.fake_store import FakeClock, MemoryStore, lost_reply, unreachable
from tests.support.sequence_allocators import TERMS, make

DAY = 86_400.0


def limited(store: MemoryStore, clock: FakeClock, most: int, *, creates: bool = True) -> Allocator:
    return Allocator(store, clock, replace(TERMS, max_sequences=most, auto_create_sequences=creates))


async def drop_lanes(allocator: Allocator) -> None:
    for _ in range(2):
        await allocator.drop_idle_sequences()


async def test_a_name_beyond_the_limit_is_refused(store: MemoryStore, clock: FakeClock) -> None:
    """A new name and an existing one are refused before the store is asked, and leave nothing behind."""
    allocator = limited(store, clock, 2)
    make(store, "existing", Sequence())
    for name in ("a", "b"):
        await allocator.allocate(name, 1)
    asked = len(store.calls)
    for name in ("existing", "new"):
        with pytest.raises(TooManySequences, match=f"sequence '{name}'.* max_sequences = 2 ") as refused:
            await allocator.allocate(name, 1)
        assert refused.value.metadata == {"sequence": name, "max_sequences": "2"}
    assert len(store.calls) == asked
    assert set(allocator._sequence_allocators) == {"a", "b"}
    assert "new" not in store.rows
    assert (await allocator.allocate("a", 1)).first_id == 2


async def test_no_mark_is_given_up_at_the_limit(store: MemoryStore, clock: FakeClock) -> None:
    """P3: at the limit, a sequence that was not used for long still shows that its store went backwards."""
    allocator = limited(store, clock, 1)
    await allocator.allocate("a", 100)
    await drop_lanes(allocator)
    assert not allocator._sequence_allocators
    for number in range(10):
        with pytest.raises(TooManySequences):
            await allocator.allocate(f"b{number}", 1)
    store.rows["a"].last_value = 5
    with pytest.raises(StoreWentBackwards):
        await allocator.allocate("a", 1)


async def test_names_that_come_at_once_keep_the_limit(store: MemoryStore, clock: FakeClock) -> None:
    """Of many new names at the same time no more than the limit are served."""
    allocator = limited(store, clock, 3)
    answers = await asyncio.gather(
        *(allocator.allocate(f"n{number}", 1) for number in range(20)), return_exceptions=True
    )
    assert sum(isinstance(answer, TooManySequences) for answer in answers) == 17
    assert len(store.rows) == 3


@pytest.mark.parametrize("why", ["missing", "deleted", "unreachable", "lost"])
async def test_a_name_that_is_refused_is_not_kept(store: MemoryStore, clock: FakeClock, why: str) -> None:
    """A name of which the store returned nothing takes no place, and leaves no lane behind."""
    allocator = limited(store, clock, 2, creates=False)
    expected: type[Refusal] = {"missing": SequenceNotFound, "deleted": SequenceDeleted}.get(why, StoreUnavailable)
    for number in range(10):
        if why == "deleted":
            make(store, f"n{number}", Sequence()).deleted = True
        if why in {"unreachable", "lost"}:
            store.next("grant", unreachable() if why == "unreachable" else lost_reply())
        with pytest.raises(expected):
            await allocator.allocate(f"n{number}", 1)
        with pytest.raises(expected):
            store.next("grant", unreachable()) if expected is StoreUnavailable else None
            await allocator.proof(f"n{number}")
        assert not allocator._sequence_allocators
    make(store, "orders", Sequence())
    assert (await allocator.allocate("orders", 1)).first_id == 1


async def test_nor_is_one_whose_caller_went_away(store: MemoryStore, clock: FakeClock) -> None:
    """A caller who leaves before the store answers leaves no lane of an unknown name behind."""
    allocator = limited(store, clock, 1, creates=False)
    gate = store.hold("grant")
    call = asyncio.create_task(allocator.allocate("unknown", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(TooManySequences):
        await allocator.allocate("orders", 1)  # as long as the store may still return something of the first one
    refill = allocator._sequence_allocators["unknown"]._refill  # type: ignore[union-attr]
    gate.set()
    assert refill is not None
    await refill
    assert not allocator._sequence_allocators


async def test_four_fifths_of_the_limit_are_logged_once(store: MemoryStore, clock: FakeClock) -> None:
    """The warning comes with the name that makes it 80 %, and never again."""
    allocator = limited(store, clock, 10)
    with structlog.testing.capture_logs() as logged:
        for number in range(7):
            await allocator.allocate(f"n{number}", 1)
        assert not logged
        for number in range(10):
            await allocator.allocate(f"n{number}", 1)
        await drop_lanes(allocator)
        for number in range(10):
            await allocator.allocate(f"n{number}", 1)
    assert logged == [
        {"event": "many_sequences", "log_level": "warning", "sequences": 8, "max_sequences": 10},
    ]


@pytest.mark.parametrize("pause", [0.0, 3_600.0])
async def test_periods_that_are_over_are_forgotten(store: MemoryStore, clock: FakeClock, pause: float) -> None:
    """A sequence with a reset counts once towards the limit, and keeps high-water marks of at most two periods."""
    allocator = limited(store, clock, 1)
    make(store, "s", Sequence(reset=Reset.DAILY))
    for _ in range(30):
        await allocator.allocate("s", 1)
        clock.advance(pause)
        await drop_lanes(allocator)  # the period is not over yet
        clock.advance(DAY - pause)
        assert sum(PERIOD_MARK in name for name in allocator._high_water_marks) <= 2


async def test_the_present_period_is_not_forgotten(store: MemoryStore, clock: FakeClock) -> None:
    """P3: the mark of a period lasts as long as the period, though its lane was dropped."""
    allocator = limited(store, clock, 1)
    make(store, "s", Sequence(reset=Reset.YEARLY))
    await allocator.allocate("s", 100)
    await drop_lanes(allocator)
    [counter] = [name for name in store.rows if PERIOD_MARK in name]
    store.rows[counter].last_value = 5
    with pytest.raises(StoreWentBackwards):
        await allocator.allocate("s", 1)


@pytest.mark.parametrize("idle", [False, True])
async def test_a_clock_set_forward_makes_no_mark_forgotten(store: MemoryStore, clock: FakeClock, idle: bool) -> None:
    """P3: a period is over when its time has passed, and not when the wall clock says so for a while."""
    allocator = limited(store, clock, 1)
    make(store, "s", Sequence(reset=Reset.DAILY))
    await allocator.allocate("s", 100)
    [counter] = [name for name in store.rows if PERIOD_MARK in name]
    if idle:
        await drop_lanes(allocator)
    clock.wall_seconds += 700 * DAY
    await allocator.allocate("s", 1)
    await drop_lanes(allocator)
    clock.wall_seconds -= 700 * DAY
    store.rows[counter].last_value = 5
    with pytest.raises(StoreWentBackwards):
        await allocator.allocate("s", 1)


def test_rates_are_kept_of_so_many_names(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that, the rate of the name that was used least lately is given up."""
    monkeypatch.setattr(usage, "MAX_RATES", 3)
    rates = UsageRates(clock)
    for name in ("a", "b", "c", "a", "d", "e"):
        rates.record(name, 1, 1)
    clock.advance(20.0)
    known = [name for name in "abcde" if rates.per_second(name) is not None]
    assert known == ["a", "d", "e"]
