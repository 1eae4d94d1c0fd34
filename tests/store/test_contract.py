"""What every store promises of counters, on each of them."""

import asyncio

import pytest

from idalloc_server.domain.errors import SequenceInvalid, StoreUnavailable
from idalloc_server.domain.records import GrantFloor
from idalloc_server.domain.sequences.model import MAX_ID, Sequence
from idalloc_server.domain.store import Store
from tests.support.store_backends import COLUMNS, GUIDE_TABLE, Opener
from tests.support.store_rows import LOWEST, grant, ids_of, made


class TestGrant:
    async def test_the_first_ids_are_the_start_and_those_after_it(self, store: Store) -> None:
        await store.create(made("orders"))
        first = await grant(store, "orders", 3)
        second = await grant(store, "orders", 2)
        assert list(ids_of(first)) == [1, 2, 3]
        assert list(ids_of(second)) == [4, 5]
        assert (first.granted, first.step, first.generation) == (3, 1, 1)
        assert second.remaining == MAX_ID - 5

    async def test_a_sequence_that_is_not_there_grants_none(self, store: Store) -> None:
        assert await store.grant("missing", 1, 1000) is None

    async def test_names_are_told_apart_to_the_last_character(self, store: Store) -> None:
        names = ["a", "A", "a ", "ä", "a" * 255, "a" * 254 + "b", "'; DROP TABLE sequences", '"', "$1 ?", "日本"]
        for name in names:
            await store.create(made(name))
        for count, name in enumerate(names, start=1):
            assert (await grant(store, name, count)).last_value == count

    @pytest.mark.parametrize(
        ("sequence", "ids"),
        [
            (Sequence(max_value=5), [1, 2, 3, 4, 5]),
            (Sequence(step=3, max_value=12), [1, 4, 7, 10]),
            (Sequence(start=10, step=-1, max_value=10), [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
            (Sequence(start=10, step=-4, max_value=10), [10, 6, 2]),
            (Sequence(start=-3, min_value=-3, max_value=2), [-3, -2, -1, 0, 1, 2]),
            (Sequence(start=2, step=-1, min_value=-2, max_value=2), [2, 1, 0, -1, -2]),
            (Sequence(start=MAX_ID - 2), [MAX_ID - 2, MAX_ID - 1, MAX_ID]),
            (Sequence(start=MAX_ID), [MAX_ID]),
            (Sequence(start=LOWEST + 3, step=-2, min_value=LOWEST, max_value=0), [LOWEST + 3, LOWEST + 1]),
            (Sequence(start=1, step=2**62, max_value=MAX_ID), [1, 2**62 + 1]),
        ],
        ids=str,
    )
    async def test_the_last_ids_before_the_bound_can_be_had_exactly(
        self, store: Store, sequence: Sequence, ids: list[int]
    ) -> None:
        await store.create(made("s", sequence))
        some = await grant(store, "s", len(ids) - 1)
        assert (list(ids_of(some)), some.remaining) == (ids[:-1], 1)
        too_many = await grant(store, "s", 2)
        assert (too_many.granted, too_many.remaining, too_many.last_value) == (0, 1, some.last_value)
        rest = await grant(store, "s", 1)
        assert (list(ids_of(rest)), rest.granted, rest.remaining) == (ids[-1:], 1, 0)
        none = await grant(store, "s", 1)
        assert (none.granted, none.remaining, none.last_value) == (0, 0, ids[-1])

    async def test_all_ids_that_there_are_can_be_had_at_once(self, store: Store) -> None:
        await store.create(made("s"))
        too_many = await grant(store, "s", 2**70)
        assert (too_many.last_value, too_many.granted, too_many.remaining) == (0, 0, MAX_ID)
        everything = await grant(store, "s", MAX_ID)
        assert (everything.last_value, everything.granted, everything.remaining) == (MAX_ID, MAX_ID, 0)

    @pytest.mark.parametrize(
        ("row", "seen"),
        [
            ({"last_value": 10}, GrantFloor(least=11)),
            ({"last_value": 10, "generation": 3}, GrantFloor(3, least=11)),
            ({"last_value": 10, "generation": 2}, GrantFloor(3, least=10)),
            ({"last_value": 10}, GrantFloor(2, least=5)),
            ({"last_value": 10, "step": -1}, GrantFloor(most=9)),
            ({"last_value": LOWEST}, GrantFloor(least=LOWEST + 1)),
            ({"last_value": MAX_ID, "step": -1}, GrantFloor(most=MAX_ID - 1)),
        ],
        ids=str,
    )
    async def test_a_counter_behind_what_was_seen_stays_where_it_is(
        self, store: Store, opener: Opener, row: dict[str, int], seen: GrantFloor
    ) -> None:
        await opener.put("s", **row)
        for wanted in (0, 1, 1_000):
            none = await store.grant("s", wanted, 1000, seen)
            assert none is not None
            assert (none.last_value, none.granted) == (row["last_value"], 0)

    @pytest.mark.parametrize(
        ("row", "seen"),
        [
            ({"last_value": 10}, GrantFloor(0, least=10)),
            ({"last_value": 10, "generation": 3}, GrantFloor(3, least=9)),
            ({"last_value": 10, "generation": 4}, GrantFloor(3, least=LOWEST)),
            ({"last_value": 10, "step": -1}, GrantFloor(most=10)),
        ],
        ids=str,
    )
    async def test_a_counter_at_or_past_what_was_seen_goes_on(
        self, store: Store, opener: Opener, row: dict[str, int], seen: GrantFloor
    ) -> None:
        await opener.put("s", **row)
        some = await store.grant("s", 2, 1000, seen)
        assert some is not None
        assert some.granted == 2

    @pytest.mark.parametrize(
        "row",
        [
            {"last_value": 100, "max_value": 10},
            {"last_value": 11, "max_value": 10},
            {"last_value": MAX_ID, "max_value": LOWEST},
            {"last_value": -5, "step": -1, "min_value": 1},
            {"last_value": LOWEST, "step": -1, "min_value": MAX_ID},
            {"last_value": 0, "step": -1},
            {"last_value": 8, "max_value": 10, "step": 3},
            {"last_value": 3, "min_value": 1, "step": -3},
            {"last_value": MAX_ID},
            {"last_value": LOWEST, "step": -1, "min_value": LOWEST},
        ],
        ids=str,
    )
    async def test_a_counter_at_or_past_its_bound_stays_where_it_is(
        self, store: Store, opener: Opener, row: dict[str, int]
    ) -> None:
        await opener.put("s", **row)
        for wanted in (0, 1, MAX_ID):
            none = await grant(store, "s", wanted)
            assert (none.last_value, none.granted, none.remaining) == (row["last_value"], 0, 0)

    @pytest.mark.parametrize(
        ("row", "wanted", "last_value"),
        [
            ({"last_value": 0}, 7, 7),
            ({"last_value": -1}, 7, 6),
            ({"last_value": -1}, MAX_ID, MAX_ID - 1),
            ({"last_value": LOWEST}, 7, LOWEST + 7),
            ({"last_value": LOWEST}, MAX_ID, -1),
            ({"last_value": LOWEST, "max_value": LOWEST + 3}, 3, LOWEST + 3),
            ({"last_value": LOWEST, "max_value": 100, "step": MAX_ID}, 1, -1),
            ({"last_value": 5, "max_value": 2**53 + 11, "step": 1}, 2**53 + 6, 2**53 + 11),
            ({"last_value": 100, "step": -1}, 99, 1),
            ({"last_value": MAX_ID, "step": -1}, MAX_ID - 1, 1),
            ({"last_value": MAX_ID, "step": -1, "min_value": LOWEST}, 7, MAX_ID - 7),
            ({"last_value": MAX_ID, "step": -1, "min_value": LOWEST}, MAX_ID, 0),
            ({"last_value": -1, "step": -1, "min_value": LOWEST}, MAX_ID, LOWEST),
            ({"last_value": 0, "step": LOWEST, "min_value": LOWEST}, 1, LOWEST),
            ({"last_value": 3, "step": -(2**53) - 1, "min_value": LOWEST}, 1023, 3 - 1023 * (2**53 + 1)),
        ],
        ids=str,
    )
    async def test_settings_that_are_null_and_values_at_the_edges_are_exact(
        self, store: Store, opener: Opener, row: dict[str, int], wanted: int, last_value: int
    ) -> None:
        await opener.put("s", **row)
        step = row.get("step", 1)
        granted = await grant(store, "s", wanted)
        assert (granted.last_value, granted.step, granted.generation) == (last_value, step, 1)
        assert granted.granted == (last_value - row["last_value"]) // step
        end = row.get("max_value", MAX_ID) if step > 0 else row.get("min_value", 1)
        assert granted.remaining == (end - last_value) // step
        if granted.remaining < MAX_ID:
            more = await grant(store, "s", granted.remaining + 1)
            assert (more.granted, more.last_value, more.remaining) == (0, last_value, granted.remaining)

    @pytest.mark.parametrize("row", [{"last_value": None}, {"last_value": 5, "step": 0}], ids=str)
    async def test_a_row_that_cannot_be_counted_on_is_refused_and_left_as_it_is(
        self, store: Store, opener: Opener, row: dict[str, int | None]
    ) -> None:
        await opener.put("s", **row)
        with pytest.raises(SequenceInvalid, match="'s' cannot be used"):
            await store.grant("s", 5, 1000)
        found = await opener.row("s")
        assert found is not None
        assert found["last_value"] == row["last_value"]

    async def test_concurrent_grants_never_overlap(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        await store.create(made("s", Sequence(step=7)))
        grants = await asyncio.gather(*((store, other)[n % 2].grant("s", n + 1, 1000) for n in range(50)))
        ids = [each for granted in grants for each in ids_of(granted)]
        assert len(ids) == sum(range(51))
        assert sorted(ids) == list(range(1, 1 + 7 * len(ids), 7))

    async def test_concurrent_grants_at_the_bound_share_what_is_left(self, store: Store) -> None:
        await store.create(made("s", Sequence(max_value=100)))
        grants = await asyncio.gather(*(store.grant("s", 7, 1000) for _ in range(30)))
        assert sorted(each for granted in grants for each in ids_of(granted)) == list(range(1, 99))
        assert list(ids_of(await grant(store, "s", 2))) == [99, 100]

    async def test_a_renewal_moves_nothing_and_tells_the_generation(self, store: Store, opener: Opener) -> None:
        await opener.put("s", last_value=41, generation=7)
        renewed = await grant(store, "s", 0)
        assert (renewed.last_value, renewed.granted, renewed.generation) == (41, 0, 7)
        assert renewed.remaining == MAX_ID - 41
        assert list(ids_of(await store.grant("s", 1, 1000))) == [42]

    async def test_the_row_remembers_the_longest_lease(self, store: Store, opener: Opener) -> None:
        await store.create(made("s"))
        for lease_ms, longest in ((5000, 5000), (180_000, 180_000), (60_000, 180_000)):
            await store.grant("s", 0, lease_ms)
            found = await opener.row("s")
            assert found is not None
            assert found["lease_ms"] == longest


class TestCreate:
    async def test_it_writes_the_settings(self, store: Store, opener: Opener) -> None:
        await store.create(made("s", Sequence(start=-10, step=5, min_value=-10, max_value=1000)))
        assert await opener.row("s") == dict(zip(COLUMNS, (-15, 5, -10, 1000, 1, 0), strict=True))

    async def test_a_sequence_that_exists_stays_as_it_is(self, store: Store) -> None:
        await store.create(made("s"))
        await store.grant("s", 10, 1000)
        await store.create(made("s", Sequence(start=1000, step=-1)))
        assert list(ids_of(await store.grant("s", 2, 1000))) == [11, 12]

    async def test_many_at_once_make_one(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        await asyncio.gather(*((store, other)[n % 2].create(made("s")) for n in range(20)))
        grants = await asyncio.gather(*(store.grant("s", 1, 1000) for _ in range(20)))
        assert sorted(each for granted in grants for each in ids_of(granted)) == list(range(1, 21))


class TestGiveBack:
    async def test_an_unused_tail_is_granted_again(self, store: Store) -> None:
        await store.create(made("s", Sequence(start=100, step=10)))
        first = await grant(store, "s", 5)
        assert await store.give_back("s", 3, first.version)
        assert list(ids_of(await store.grant("s", 2, 1000))) == [120, 130]

    async def test_a_descending_tail_too(self, store: Store) -> None:
        await store.create(made("s", Sequence(start=100, step=-1, max_value=100)))
        first = await grant(store, "s", 5)
        assert await store.give_back("s", 4, first.version)
        assert list(ids_of(await store.grant("s", 2, 1000))) == [99, 98]

    async def test_only_once(self, store: Store, opener: Opener) -> None:
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        answers = await asyncio.gather(*(store.give_back("s", 2, first.version) for _ in range(5)))
        assert sorted(answers) == [False, False, False, False, True]
        found = await opener.row("s")
        assert found is not None
        assert found["last_value"] == 8

    async def test_not_after_another_grant(self, store: Store, opener: Opener) -> None:
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        await (await opener.open()).grant("s", 1, 1000)
        assert not await store.give_back("s", 5, first.version)
        assert list(ids_of(await store.grant("s", 1, 1000))) == [12]

    async def test_not_after_another_grant_that_was_given_back(self, store: Store, opener: Opener) -> None:
        """The other process remembers its tail's start, and must never see a lower value."""
        other = await opener.open()
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        second = await grant(other, "s", 5)
        assert await other.give_back("s", 5, second.version)
        assert not await store.give_back("s", 5, first.version)
        assert list(ids_of(await other.grant("s", 1, 1000))) == [11]

    async def test_not_after_another_saw_the_value_in_a_renewal(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        assert (await grant(other, "s", 0)).last_value == 10
        assert not await store.give_back("s", 5, first.version)
        assert (await grant(other, "s", 0)).last_value == 10

    async def test_ones_own_renewal_moves_the_version(self, store: Store) -> None:
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        renewed = await grant(store, "s", 0)
        assert renewed.version != first.version
        assert not await store.give_back("s", 5, first.version)
        assert await store.give_back("s", 5, renewed.version)
        assert list(ids_of(await store.grant("s", 1, 1000))) == [6]

    async def test_not_after_an_old_client_took_a_value(self, store: Store, opener: Opener) -> None:
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        assert await opener.backend.old_client("s") == 11
        assert not await store.give_back("s", 5, first.version)

    async def test_not_for_a_row_made_anew(self, store: Store, opener: Opener) -> None:
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        await opener.put("s", last_value=10, generation=1)
        assert not await store.give_back("s", 5, first.version)

    async def test_not_in_another_generation(self, store: Store, opener: Opener) -> None:
        """A restored store may come to the same state once more, but to no generation that it had lost."""
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        count, other, generation = first.version
        assert generation == first.generation
        assert not await store.give_back("s", 5, (count, other, generation - 1))
        found = await opener.row("s")
        assert found is not None
        assert found["last_value"] == 10

    async def test_not_for_a_row_that_is_gone(self, store: Store) -> None:
        assert not await store.give_back("missing", 5, (0, 1, 1))

    async def test_racing_with_grants_nothing_is_granted_twice(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        await store.create(made("s"))
        used: list[int] = []

        async def use_half(of: Store) -> None:
            for _ in range(10):
                granted = await grant(of, "s", 10)
                ids = list(ids_of(granted))
                await of.give_back("s", 5, granted.version)
                used.extend(ids[:5])

        await asyncio.gather(*(use_half(of) for of in (store, other, store, other)))
        assert len(set(used)) == len(used) == 200


class TestOpen:
    async def test_what_was_granted_is_there_for_the_next_process(self, opener: Opener) -> None:
        first = await opener.open()
        await first.create(made("s"))
        await first.grant("s", 10, 1000)
        await first.claim_start(3, 1000, "me", 60)
        await first.close()
        second = await opener.open()
        assert list(ids_of(await second.grant("s", 1, 1000))) == [11]
        assert (await second.claim_start(3, 1000, "me", 60)).start_timestamp == 1001

    async def test_many_processes_may_start_at_once(self, opener: Opener) -> None:
        stores = [opener.new() for _ in range(8)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.create(made("s")) for store in stores))
        grants = await asyncio.gather(*(store.grant("s", 1, 1000) for store in stores))
        assert sorted(each for granted in grants for each in ids_of(granted)) == list(range(1, 9))

    async def test_a_two_column_table_is_adopted_with_its_rows(self, opener: Opener) -> None:
        await opener.backend.sql(f"CREATE TABLE {{}}sequences {GUIDE_TABLE}")
        await opener.put("orders", last_value=41)
        store = await opener.open()
        assert list(ids_of(await store.grant("orders", 2, 1000))) == [42, 43]
        await store.create(made("orders"))
        await store.create(made("invoices", Sequence(start=100)))
        assert list(ids_of(await store.grant("invoices", 1, 1000))) == [100]
        assert await opener.row("orders") == dict(zip(COLUMNS, (43, None, None, None, None, 1000), strict=True))

    async def test_many_may_adopt_at_once_while_old_clients_go_on(self, opener: Opener) -> None:
        await opener.backend.sql(f"CREATE TABLE {{}}sequences {GUIDE_TABLE}")
        await opener.put("orders", last_value=0)
        taken: list[int] = []

        async def old() -> None:
            taken.extend([await opener.backend.old_client("orders") for _ in range(15)])

        async def new(store: Store) -> None:
            await store.open()
            for _ in range(15):
                granted = await grant(store, "orders", 4)
                ids = list(ids_of(granted))
                if await store.give_back("orders", 1, granted.version):
                    ids.pop()
                taken.extend(ids)

        stores = [opener.new() for _ in range(4)]
        await asyncio.gather(old(), old(), *(new(store) for store in stores))
        assert len(taken) == len(set(taken))
        assert len(taken) >= 30 + 4 * 15 * 3

    async def test_closing_twice_is_no_error_and_calls_then_fail(self, store: Store) -> None:
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.grant("s", 1, 1000)

    async def test_the_clock_is_the_stores_own_if_it_has_one(self, store: Store, opener: Opener) -> None:
        seen_at = (await store.claim_start(3, 1000, "me", 60)).seen_at
        now = await store.now()
        assert now is None or 0 <= now - seen_at < 30
