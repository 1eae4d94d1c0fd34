"""The contract of every store: sequences of timestamps."""

import asyncio

import pytest

from idalloc_server.domain.sequences.sequence import Kind, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Grant, Mark
from tests.store.conftest import ALL
from tests.support.store_backends import Opener
from tests.support.store_rows import grant, ids_of, new_row, read_row

# Behind the clock of every store.
NOW = 1_690_000_000_000
MS = Sequence(kind=Kind.TIMESTAMP_MS)
pytestmark = pytest.mark.parametrize("opener", ALL, indirect=True)


async def take(store: Store, wanted: int, now: int = NOW, ahead: int = 100, name: str = "s") -> Grant:
    granted = await store.grant_timestamps(name, wanted, 1000, now, ahead)
    assert granted is not None
    return granted


async def test_the_first_timestamp_is_now(store: Store) -> None:
    """A grant begins at the clock, or after the last granted timestamp."""
    await store.create(new_row("s", MS))
    assert list(ids_of(await take(store, 3))) == [NOW, NOW + 1, NOW + 2]
    assert list(ids_of(await take(store, 2))) == [NOW + 3, NOW + 4]
    assert list(ids_of(await take(store, 2, NOW + 50))) == [NOW + 50, NOW + 51]


async def test_timestamps_rise_after_a_clock_step_back(store: Store) -> None:
    """P1: timestamps rise although the clock was set back."""
    await store.create(new_row("s", MS))
    await take(store, 1)
    assert list(ids_of(await take(store, 1, NOW - 60))) == [NOW + 1]


async def test_no_timestamp_is_too_far_ahead_of_the_clock(store: Store) -> None:
    """A grant ends at ``ahead`` past the clock."""
    await store.create(new_row("s", MS))
    most = await take(store, 1000)
    assert list(ids_of(most)) == list(range(NOW, NOW + 101))
    none = await take(store, 1)
    assert (none.granted, none.last_value) == (0, NOW + 100)
    further = await take(store, 5, NOW - 10_000)
    assert (further.granted, further.last_value) == (0, NOW + 100)
    assert list(ids_of(await take(store, 5, NOW + 2))) == [NOW + 101, NOW + 102]


async def test_the_last_timestamp_is_max_value(store: Store) -> None:
    """P1: a sequence grants all timestamps up to max_value, and none past it."""
    await store.create(new_row("s", Sequence(kind=Kind.TIMESTAMP_MS, max_value=NOW + 9)))
    some = await take(store, 4)
    assert (some.last_value, some.remaining) == (NOW + 3, 6)
    rest = await take(store, 50)
    assert (list(ids_of(rest)), rest.remaining) == (list(range(NOW + 4, NOW + 10)), 0)
    none = await take(store, 1, NOW + 500)
    assert (none.granted, none.last_value, none.remaining) == (0, NOW + 9, 0)


async def test_a_clock_past_max_value_moves_nothing(store: Store) -> None:
    """P2: a clock past max_value grants nothing and moves nothing."""
    await store.create(new_row("s", Sequence(kind=Kind.TIMESTAMP_MS, max_value=NOW)))
    none = await take(store, 1, NOW + 1)
    assert (none.granted, none.last_value) == (0, 0)


async def test_a_renewal_returns_the_generation(store: Store) -> None:
    """P4: a grant of 0 timestamps returns the generation and moves nothing."""
    await store.create(new_row("s", MS, generation=7))
    renewed = await take(store, 0)
    assert (renewed.granted, renewed.last_value, renewed.generation, renewed.sequence) == (0, 0, 7, MS)
    assert (await read_row(store, "s")).lease_ms == 1000


async def test_the_stores_clock_limits_a_node_clock(store: Store) -> None:
    """A node's clock that is too far ahead of the store's clock is not used."""
    own = await store.now()
    for kind in (Kind.TIMESTAMP_MS, Kind.TIMESTAMP_US):
        name, unit = f"s{kind}", kind.per_second
        await store.create(new_row(name, Sequence(kind=kind)))
        now = int((own or NOW / 1000) * unit)
        granted = await take(store, 5, now + 500_000 * unit, 100 * unit, name)
        assert granted.granted == 5
        ahead = 500 if own is None else 0  # a clock that is too far off does not count at all
        assert abs(granted.last_value - now - ahead * unit) < 60 * unit or own is None


async def test_concurrent_grants_never_overlap(store: Store, opener: Opener) -> None:
    """P1: concurrent grants of timestamps by two processes have none in common."""
    other = await opener.open()
    await store.create(new_row("s", MS))
    grants = await asyncio.gather(*(take((store, other)[n % 2], n % 4 + 1, NOW + n % 3, 1000) for n in range(30)))
    ids = [each for granted in grants for each in ids_of(granted)]
    assert len(ids) == len(set(ids)) == sum(n % 4 + 1 for n in range(30))


async def test_a_grant_of_the_other_kind_is_empty(store: Store) -> None:
    """A counter grants no timestamps, and a sequence of timestamps grants no ids."""
    await store.create(new_row("s", MS))
    await store.create(new_row("counter"))
    none = await grant(store, "s", 5)
    assert (none.granted, none.last_value) == (0, 0)
    none = await take(store, 5, name="counter")
    assert (none.granted, none.last_value) == (0, 0)


async def test_a_grant_of_a_missing_sequence_is_none(store: Store) -> None:
    """The store never creates a sequence by a grant."""
    assert await store.grant_timestamps("missing", 1, 1000, NOW, 100) is None


async def test_a_counter_below_the_floor_grants_nothing(store: Store) -> None:
    """P3: a counter or generation behind what the node saw grants nothing and is not moved."""
    await store.create(new_row("s", MS))
    last = (await take(store, 1)).last_value
    for floor in (Mark(value=last + 1), Mark(2, last)):
        none = await store.grant_timestamps("s", 1, 1000, NOW + 50, 100, floor)
        assert none is not None
        assert (none.granted, none.last_value) == (0, last)
    some = await store.grant_timestamps("s", 1, 1000, NOW + 50, 100, Mark(1, last))
    assert some is not None
    assert some.last_value == NOW + 50
