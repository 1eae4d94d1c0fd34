"""What every store promises of sequences of timestamps."""

import asyncio

import pytest

from idalloc_server.domain.records import Grant, GrantFloor
from idalloc_server.domain.sequences.model import Kind, Sequence
from idalloc_server.domain.store import Store
from tests.store.conftest import ALL
from tests.support.store_backends import Opener
from tests.support.store_rows import grant, ids_of, made, row_of

# Behind the clock of every store.
NOW = 1_690_000_000_000
MS = Sequence(kind=Kind.TIMESTAMP_MS)

pytestmark = pytest.mark.parametrize("opener", ALL, indirect=True)


async def take(store: Store, wanted: int, now: int = NOW, ahead: int = 100, name: str = "s") -> Grant:
    granted = await store.grant_timestamps(name, wanted, 1000, now, ahead)
    assert granted is not None
    return granted


async def test_the_first_is_now_and_those_after_it_follow(store: Store) -> None:
    await store.create(made("s", MS))
    assert list(ids_of(await take(store, 3))) == [NOW, NOW + 1, NOW + 2]
    assert list(ids_of(await take(store, 2))) == [NOW + 3, NOW + 4]
    assert list(ids_of(await take(store, 2, NOW + 50))) == [NOW + 50, NOW + 51]


async def test_they_rise_where_the_clock_steps_back(store: Store) -> None:
    await store.create(made("s", MS))
    await take(store, 1)
    assert list(ids_of(await take(store, 1, NOW - 60))) == [NOW + 1]


async def test_none_is_further_ahead_of_the_clock_than_allowed(store: Store) -> None:
    await store.create(made("s", MS))
    most = await take(store, 1000)
    assert list(ids_of(most)) == list(range(NOW, NOW + 101))
    none = await take(store, 1)
    assert (none.granted, none.last_value) == (0, NOW + 100)
    further = await take(store, 5, NOW - 10_000)
    assert (further.granted, further.last_value) == (0, NOW + 100)
    assert list(ids_of(await take(store, 5, NOW + 2))) == [NOW + 101, NOW + 102]


async def test_the_last_one_is_max_value(store: Store) -> None:
    await store.create(made("s", Sequence(kind=Kind.TIMESTAMP_MS, max_value=NOW + 9)))
    some = await take(store, 4)
    assert (some.last_value, some.remaining) == (NOW + 3, 6)
    rest = await take(store, 50)
    assert (list(ids_of(rest)), rest.remaining) == (list(range(NOW + 4, NOW + 10)), 0)
    none = await take(store, 1, NOW + 500)
    assert (none.granted, none.last_value, none.remaining) == (0, NOW + 9, 0)


async def test_a_clock_past_max_value_moves_nothing(store: Store) -> None:
    await store.create(made("s", Sequence(kind=Kind.TIMESTAMP_MS, max_value=NOW)))
    none = await take(store, 1, NOW + 1)
    assert (none.granted, none.last_value) == (0, 0)


async def test_a_renewal_moves_nothing_and_tells_the_generation(store: Store) -> None:
    await store.create(made("s", MS, generation=7))
    renewed = await take(store, 0)
    assert (renewed.granted, renewed.last_value, renewed.generation, renewed.sequence) == (0, 0, 7, MS)
    assert (await row_of(store, "s")).lease_ms == 1000


async def test_the_store_corrects_a_clock_that_is_too_far_ahead(store: Store) -> None:
    own = await store.now()
    for kind in (Kind.TIMESTAMP_MS, Kind.TIMESTAMP_US):
        name, unit = f"s{kind}", kind.per_second
        await store.create(made(name, Sequence(kind=kind)))
        now = int((own or NOW / 1000) * unit)
        granted = await take(store, 5, now + 500_000 * unit, 100 * unit, name)
        assert granted.granted == 5
        ahead = 500 if own is None else 0  # a clock that is too far off does not count at all
        assert abs(granted.last_value - now - ahead * unit) < 60 * unit or own is None


async def test_concurrent_ones_are_all_different(store: Store, opener: Opener) -> None:
    other = await opener.open()
    await store.create(made("s", MS))
    grants = await asyncio.gather(*(take((store, other)[n % 2], n % 4 + 1, NOW + n % 3, 1000) for n in range(30)))
    ids = [each for granted in grants for each in ids_of(granted)]
    assert len(ids) == len(set(ids)) == sum(n % 4 + 1 for n in range(30))


async def test_a_grant_of_the_one_kind_is_none_of_the_other(store: Store) -> None:
    await store.create(made("s", MS))
    await store.create(made("counter"))
    none = await grant(store, "s", 5)
    assert (none.granted, none.last_value) == (0, 0)
    none = await take(store, 5, name="counter")
    assert (none.granted, none.last_value) == (0, 0)


async def test_a_sequence_that_is_not_there_grants_none(store: Store) -> None:
    assert await store.grant_timestamps("missing", 1, 1000, NOW, 100) is None


async def test_a_counter_behind_what_was_seen_stays_where_it_is(store: Store) -> None:
    await store.create(made("s", MS))
    last = (await take(store, 1)).last_value
    for seen in (GrantFloor(least=last + 1), GrantFloor(2, least=last)):
        none = await store.grant_timestamps("s", 1, 1000, NOW + 50, 100, seen)
        assert none is not None
        assert (none.granted, none.last_value) == (0, last)
    some = await store.grant_timestamps("s", 1, 1000, NOW + 50, 100, GrantFloor(1, least=last))
    assert some is not None
    assert some.last_value == NOW + 50
