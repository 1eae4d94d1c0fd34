"""The contract of every store: grants of ids."""

import asyncio

import pytest

from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.domain.sequences.sequence import MAX_ID, Kind, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Demand, Grant, Mark, RowChange
from tests.store.conftest import ALL
from tests.support.store_backends import COLUMNS, Opener
from tests.support.store_rows import MIN_BIGINT, PERIOD, YEARLY, grant, ids_of, new_row

# Settings, and all ids of the sequence.
BOUNDS: list[tuple[Sequence, list[int]]] = [
    (Sequence(max_value=5), [1, 2, 3, 4, 5]),
    (Sequence(step=3, max_value=12), [1, 4, 7, 10]),
    (Sequence(start=10, step=-1, max_value=10), [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
    (Sequence(start=10, step=-4, max_value=10), [10, 6, 2]),
    (Sequence(start=-3, min_value=-3, max_value=2), [-3, -2, -1, 0, 1, 2]),
    (Sequence(start=2, step=-1, min_value=-2, max_value=2), [2, 1, 0, -1, -2]),
    (Sequence(start=MAX_ID - 2), [MAX_ID - 2, MAX_ID - 1, MAX_ID]),
    (Sequence(start=MAX_ID), [MAX_ID]),
    (
        Sequence(start=MIN_BIGINT + 3, step=-2, min_value=MIN_BIGINT, max_value=0),
        [MIN_BIGINT + 3, MIN_BIGINT + 1],
    ),
    (Sequence(start=1, step=2**62, max_value=MAX_ID), [1, 2**62 + 1]),
]
# The columns of rows, and floors that they are behind.
BEHIND: list[tuple[dict[str, int], Mark]] = [
    ({"last_value": 10}, Mark(value=11)),
    ({"last_value": 10, "generation": 3}, Mark(3, 11)),
    ({"last_value": 10, "generation": 2}, Mark(3, 10)),
    ({"last_value": 10}, Mark(2, 5)),
    ({"last_value": 10, "step": -1}, Mark(0, 9, -1)),
    ({"last_value": MIN_BIGINT}, Mark(value=MIN_BIGINT + 1)),
    ({"last_value": MAX_ID, "step": -1}, Mark(0, MAX_ID - 1, -1)),
]
NOT_BEHIND: list[tuple[dict[str, int], Mark]] = [
    ({"last_value": 10}, Mark(0, 10)),
    ({"last_value": 10, "generation": 3}, Mark(3, 9)),
    ({"last_value": 10, "generation": 4}, Mark(3, MIN_BIGINT)),
    ({"last_value": 10, "step": -1}, Mark(0, 10, -1)),
]
AT_BOUND: list[dict[str, int]] = [
    {"last_value": 100, "max_value": 10},
    {"last_value": 11, "max_value": 10},
    {"last_value": MAX_ID, "max_value": MIN_BIGINT},
    {"last_value": -5, "step": -1, "min_value": 1},
    {"last_value": MIN_BIGINT, "step": -1, "min_value": MAX_ID},
    {"last_value": 0, "step": -1},
    {"last_value": 8, "max_value": 10, "step": 3},
    {"last_value": 3, "min_value": 1, "step": -3},
    {"last_value": MAX_ID},
    {"last_value": MIN_BIGINT, "step": -1, "min_value": MIN_BIGINT},
]
# The columns of rows, how many ids are wanted, and the last of them.
EDGES: list[tuple[dict[str, int], int, int]] = [
    ({"last_value": 0}, 7, 7),
    ({"last_value": -1}, 7, 6),
    ({"last_value": -1}, MAX_ID, MAX_ID - 1),
    ({"last_value": MIN_BIGINT}, 7, MIN_BIGINT + 7),
    ({"last_value": MIN_BIGINT}, MAX_ID, -1),
    ({"last_value": MIN_BIGINT, "max_value": MIN_BIGINT + 3}, 3, MIN_BIGINT + 3),
    ({"last_value": MIN_BIGINT, "max_value": 100, "step": MAX_ID}, 1, -1),
    ({"last_value": 5, "max_value": 2**53 + 11, "step": 1}, 2**53 + 6, 2**53 + 11),
    ({"last_value": 100, "step": -1}, 99, 1),
    ({"last_value": MAX_ID, "step": -1}, MAX_ID - 1, 1),
    ({"last_value": MAX_ID, "step": -1, "min_value": MIN_BIGINT}, 7, MAX_ID - 7),
    ({"last_value": MAX_ID, "step": -1, "min_value": MIN_BIGINT}, MAX_ID, 0),
    ({"last_value": -1, "step": -1, "min_value": MIN_BIGINT}, MAX_ID, MIN_BIGINT),
    ({"last_value": 0, "step": MIN_BIGINT, "min_value": MIN_BIGINT}, 1, MIN_BIGINT),
    ({"last_value": 3, "step": -(2**53) - 1, "min_value": MIN_BIGINT}, 1023, 3 - 1023 * (2**53 + 1)),
]


class TestGrant:
    async def test_the_first_id_is_the_start(self, store: Store) -> None:
        """The first grant begins at ``start``, and the next grant continues after it."""
        await store.create(new_row("orders"))
        first = await grant(store, "orders", 3)
        second = await grant(store, "orders", 2)
        assert list(ids_of(first)) == [1, 2, 3]
        assert list(ids_of(second)) == [4, 5]
        assert (first.granted, first.step, first.generation) == (3, 1, 1)
        assert second.remaining == MAX_ID - 5

    async def test_a_grant_of_a_missing_sequence_is_none(self, store: Store) -> None:
        """The store never creates a sequence by a grant."""
        assert await store.grant("missing", 1, 1000) is None

    async def test_names_that_differ_in_one_character_are_different(self, store: Store) -> None:
        """Names are compared byte by byte, up to 255 characters, and never interpreted as SQL."""
        names = ["a", "A", "a ", "ä", "a" * 255, "a" * 254 + "b", "'; DROP TABLE sequences", '"', "$1 ?", "日本"]
        for name in names:
            await store.create(new_row(name))
        for count, name in enumerate(names, start=1):
            assert (await grant(store, name, count)).last_value == count

    async def test_the_last_ids_before_the_bound_are_granted_exactly(self, store: Store) -> None:
        """P1: a sequence grants all ids up to its bound, and none past it."""
        for number, (sequence, ids) in enumerate(BOUNDS):
            await store.create(new_row(name := f"s{number}", sequence))
            some = await grant(store, name, len(ids) - 1)
            assert (list(ids_of(some)), some.remaining) == (ids[:-1], 1), sequence
            too_many = await grant(store, name, 2)
            assert (too_many.granted, too_many.remaining, too_many.last_value) == (0, 1, some.last_value), sequence
            rest = await grant(store, name, 1)
            assert (list(ids_of(rest)), rest.granted, rest.remaining) == (ids[-1:], 1, 0), sequence
            none = await grant(store, name, 1)
            assert (none.granted, none.remaining, none.last_value) == (0, 0, ids[-1]), sequence

    async def test_one_grant_can_take_all_ids(self, store: Store) -> None:
        """One grant may take all 2^63 - 2 ids; a larger one grants nothing and moves nothing."""
        await store.create(new_row("s"))
        too_many = await grant(store, "s", 2**70)
        assert (too_many.last_value, too_many.granted, too_many.remaining) == (0, 0, MAX_ID)
        everything = await grant(store, "s", MAX_ID)
        assert (everything.last_value, everything.granted, everything.remaining) == (MAX_ID, MAX_ID, 0)

    async def test_a_counter_below_the_floor_grants_nothing(self, store: Store, opener: Opener) -> None:
        """P3: a counter or generation behind what the node saw grants nothing and is not moved."""
        for number, (row, floor) in enumerate(BEHIND):
            await opener.put(name := f"s{number}", **row)
            for wanted in (0, 1, 1_000):
                none = await store.grant(name, wanted, 1000, floor)
                assert none is not None
                assert (none.last_value, none.granted) == (row["last_value"], 0), (row, floor)

    async def test_a_counter_at_or_past_the_floor_is_granted(self, store: Store, opener: Opener) -> None:
        """P3: a counter at or past what the node saw, in its generation or later, is granted."""
        for number, (row, floor) in enumerate(NOT_BEHIND):
            await opener.put(name := f"s{number}", **row)
            some = await store.grant(name, 2, 1000, floor)
            assert some is not None
            assert some.granted == 2, (row, floor)

    async def test_a_counter_at_or_past_its_bound_is_not_moved(self, store: Store, opener: Opener) -> None:
        """P2: a grant past the bound is empty and moves nothing, also in an adopted row past it."""
        for number, row in enumerate(AT_BOUND):
            await opener.put(name := f"s{number}", **row)
            for wanted in (0, 1, MAX_ID):
                none = await grant(store, name, wanted)
                assert (none.last_value, none.granted, none.remaining) == (row["last_value"], 0, 0), row

    async def test_null_settings_and_edge_values_are_exact(self, store: Store, opener: Opener) -> None:
        """P1: NULL settings have their defaults, and arithmetic at the ends of 64 bits is exact."""
        for number, (row, wanted, last_value) in enumerate(EDGES):
            await opener.put(name := f"s{number}", **row)
            step = row.get("step", 1)
            granted = await grant(store, name, wanted)
            assert (granted.last_value, granted.step, granted.generation) == (last_value, step, 1), row
            assert granted.granted == (last_value - row["last_value"]) // step, row
            end = row.get("max_value", MAX_ID) if step > 0 else row.get("min_value", 1)
            assert granted.remaining == (end - last_value) // step, row
            if granted.remaining < MAX_ID:
                more = await grant(store, name, granted.remaining + 1)
                assert (more.granted, more.last_value, more.remaining) == (0, last_value, granted.remaining), row

    async def test_a_corrupt_row_is_refused_and_not_changed(self, store: Store, opener: Opener) -> None:
        """A row without last_value, or with step 0, raises SequenceInvalid and stays as it is."""
        rows: dict[str, dict[str, int | None]] = {"empty": {"last_value": None}, "step": {"last_value": 5, "step": 0}}
        for name, row in rows.items():
            await opener.put(name, **row)
            with pytest.raises(SequenceInvalid, match=f"'{name}' cannot be used"):
                await store.grant(name, 5, 1000)
            found = await opener.row(name)
            assert found is not None
            assert found["last_value"] == row["last_value"]

    async def test_concurrent_grants_never_overlap(self, store: Store, opener: Opener) -> None:
        """P1: concurrent grants of two processes have no id in common, and leave none out."""
        other = await opener.open()
        await store.create(new_row("s", Sequence(step=7)))
        grants = await asyncio.gather(*((store, other)[n % 2].grant("s", n + 1, 1000) for n in range(50)))
        ids = [each for granted in grants for each in ids_of(granted)]
        assert len(ids) == sum(range(51))
        assert sorted(ids) == list(range(1, 1 + 7 * len(ids), 7))

    async def test_concurrent_grants_at_the_bound_share_the_rest(self, store: Store) -> None:
        """P1: concurrent grants near the bound never exceed it."""
        await store.create(new_row("s", Sequence(max_value=100)))
        grants = await asyncio.gather(*(store.grant("s", 7, 1000) for _ in range(30)))
        assert sorted(each for granted in grants for each in ids_of(granted)) == list(range(1, 99))
        assert list(ids_of(await grant(store, "s", 2))) == [99, 100]

    async def test_a_renewal_returns_the_generation(self, store: Store, opener: Opener) -> None:
        """P4: a grant of 0 ids returns the generation and moves nothing."""
        await opener.put("s", last_value=41, generation=7)
        renewed = await grant(store, "s", 0)
        assert (renewed.last_value, renewed.granted, renewed.generation) == (41, 0, 7)
        assert renewed.remaining == MAX_ID - 41
        assert list(ids_of(await store.grant("s", 1, 1000))) == [42]

    async def test_the_row_keeps_the_longest_lease_time(self, store: Store, opener: Opener) -> None:
        """P5: lease_ms is the longest lease time of all grants."""
        await store.create(new_row("s"))
        for lease_ms, longest in ((5000, 5000), (180_000, 180_000), (60_000, 180_000)):
            await store.grant("s", 0, lease_ms)
            found = await opener.row("s")
            assert found is not None
            assert found["lease_ms"] == longest


class TestCreate:
    async def test_a_new_row_has_the_settings(self, store: Store, opener: Opener) -> None:
        """A new row has its settings in columns, and its counter one step before the start."""
        await store.create(new_row("s", Sequence(start=-10, step=5, min_value=-10, max_value=1000)))
        assert await opener.row("s") == dict(zip(COLUMNS, (-15, 5, -10, 1000, 1, 0), strict=True))

    async def test_an_existing_sequence_is_not_changed(self, store: Store) -> None:
        """P2: create leaves the counter and the settings of an existing sequence alone."""
        await store.create(new_row("s"))
        await store.grant("s", 10, 1000)
        await store.create(new_row("s", Sequence(start=1000, step=-1)))
        assert list(ids_of(await store.grant("s", 2, 1000))) == [11, 12]

    async def test_concurrent_creates_make_one_row(self, store: Store, opener: Opener) -> None:
        """P1: concurrent creates by several processes make one counter."""
        other = await opener.open()
        await asyncio.gather(*((store, other)[n % 2].create(new_row("s")) for n in range(20)))
        grants = await asyncio.gather(*(store.grant("s", 1, 1000) for _ in range(20)))
        assert sorted(each for granted in grants for each in ids_of(granted)) == list(range(1, 21))


DEMAND = Demand(1234.5, 1_000, 1_700_000_000)
LATER = Demand(0.25, 7, 1_700_000_060)


async def with_demand(store: Store, demand: Demand | None = DEMAND, wanted: int = 5, name: str = "s") -> Grant:
    """Grant ids of a sequence with a demand."""
    granted = await store.grant(name, wanted, 1000, demand=demand)
    assert granted is not None
    return granted


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestDemand:
    """P10: the demand of a counter travels with its grants."""

    async def test_a_new_row_has_none(self, store: Store) -> None:
        """A row has no demand until a grant writes one; a renewal without one writes none."""
        await store.create(new_row("s"))
        assert (await grant(store, "s", 5)).demand is None
        assert (await with_demand(store, None, wanted=0)).demand is None

    async def test_a_grant_replaces_it(self, store: Store, opener: Opener) -> None:
        """A grant or a renewal returns the demand that it writes; without one it keeps the last."""
        await store.create(new_row("s"))
        assert (await with_demand(store)).demand == DEMAND
        other = await opener.open()
        assert (await grant(other, "s", 1)).demand == DEMAND
        assert (await grant(other, "s", 0)).demand == DEMAND
        assert (await with_demand(other, LATER, wanted=0)).demand == LATER
        assert (await grant(store, "s", 0)).demand == LATER

    async def test_other_writes_keep_it(self, store: Store) -> None:
        """A revision, a create, a returned tail, a deletion and a revival keep the demand."""
        await store.create(new_row("s"))
        granted = await with_demand(store)
        assert await store.give_back("s", 2, granted.version)
        await store.create(new_row("s"))
        for revision, deleted in enumerate((False, True, False)):
            change = RowChange(Sequence(step=3), 100, "me", 5.0, deleted=deleted)
            assert await store.revise("s", revision, change)
        renewed = await grant(store, "s", 0)
        assert (renewed.last_value, renewed.step, renewed.demand) == (100, 3, DEMAND)

    async def test_a_new_generation_of_a_period_keeps_it(self, store: Store) -> None:
        """The counter of a period has a demand of its own, which a new generation keeps."""
        await store.open_period(PERIOD, YEARLY, YEARLY.before_start, 1)
        await store.grant(PERIOD, 1, 1000, demand=DEMAND)
        await store.open_period(PERIOD, YEARLY, YEARLY.before_start, 2)
        renewed = await grant(store, PERIOD, 0)
        assert (renewed.generation, renewed.demand) == (2, DEMAND)

    async def test_an_empty_grant_writes_it(self, store: Store) -> None:
        """A grant of more than is left, or behind the floor, is empty and writes the demand."""
        await store.create(new_row("s", Sequence(max_value=10)))
        refused = await with_demand(store, wanted=11)
        assert (refused.granted, refused.demand) == (0, DEMAND)
        behind = await store.grant("s", 1, 1000, Mark(value=99), LATER)
        assert behind is not None
        assert (behind.granted, behind.demand) == (0, LATER)
        assert (await grant(store, "s", 1)).demand == LATER

    async def test_timestamps_have_none(self, store: Store) -> None:
        """A grant of timestamps neither returns a demand nor changes it."""
        await store.create(new_row("s", Sequence(kind=Kind.TIMESTAMP_MS)))
        await with_demand(store)
        stamps = await store.grant_timestamps("s", 1, 1000, 10, 10)
        assert stamps is not None
        assert (stamps.granted, stamps.demand) == (1, None)
        assert (await grant(store, "s", 0)).demand == DEMAND


async def test_an_edited_demand_is_none(store: Store, opener: Opener) -> None:
    """P10: an invalid demand is None, fails no grant, and is replaced by the next one."""
    # A person or another program wrote these.
    for edited in ("", "5", "fast 1 2", "1e999 1 2", "-1 1 2", "0 1 2", "1 -1 2", "1 1 -2", "nan 1 2"):
        await opener.put(name := f"s{edited}", last_value=3, demand=edited)
        granted = await grant(store, name, 2)
        assert (granted.last_value, granted.demand) == (5, None), edited
        assert (await with_demand(store, name=name)).demand == DEMAND


async def test_an_adopted_table_keeps_a_demand(opener: Opener) -> None:
    """P10: the row of an adopted two-column table has no demand, and keeps one from then on."""
    await opener.backend.make_guide_table()
    await opener.put("s", last_value=41)
    store = await opener.open()
    granted = await grant(store, "s", 1)
    assert (granted.last_value, granted.demand) == (42, None)
    await with_demand(store)
    assert (await grant(await opener.open(), "s", 0)).demand == DEMAND
