"""What every store promises of the rows of sequences: settings, revisions, tombstones, periods, lists."""

import asyncio
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from idalloc_server.domain.errors import SequenceDeleted, SequenceInvalid
from idalloc_server.domain.records import Revision, Row
from idalloc_server.domain.sequences.model import (
    MAX_ID,
    MAX_STEP,
    MIN_ID,
    Kind,
    Ordering,
    Reset,
    Sequence,
    name_of_period,
)
from idalloc_server.domain.store import Store
from tests.store.conftest import ALL
from tests.support.store_backends import GUIDE_TABLE, Opener
from tests.support.store_rows import grant, ids_of, made, row_of

EVERYTHING = Sequence(
    start=7,
    step=5,
    min_value=2,
    max_value=900,
    ordering=Ordering.RISING,
    min_lease_size=3,
    max_lease_size=8,
    format='INV-{year}-{value:06d}"\\$1',
    reset=Reset.YEARLY,
    time_zone="Europe/Vienna",
    labels=MappingProxyType({"team": "Büro", "": "'"}),
    description="für\nalle 日本",
)
PERIOD = name_of_period("orders", "2026")
# Points to stand on and to go to, among them those where a double, or a BIGINT, is no longer enough.
EDGES = (0, 1, -1, 2**53 - 1, 2**53, 2**53 + 1, MAX_ID - 1, MAX_ID, MIN_ID, MIN_ID + 1)
values = st.one_of(st.integers(-50, 50), st.sampled_from(EDGES), st.integers(MIN_ID, MAX_ID))
steps = st.one_of(st.integers(1, 20), st.sampled_from((2**53 + 1, MAX_STEP)))


def change(sequence: Sequence | None = None, at_least: int = 0, by: str = "me", **more: Any) -> Revision:
    return Revision(sequence or Sequence(), at_least, by, 1_700_000_100.5)._replace(**more)


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestCreate:
    async def test_all_that_it_says_is_there(self, store: Store) -> None:
        row = Row("s", 17, EVERYTHING, 4, 5000, 3, "somebody", 1_700_000_000.25, 1_700_000_001.75, deleted=True)
        assert await store.create(row) == row
        assert await store.get("s") == row

    async def test_the_plainest_row_is_there_too(self, store: Store) -> None:
        assert await store.create(made("s")) == made("s")
        assert await store.get("s") == made("s")

    async def test_the_row_that_stands_is_the_answer(self, store: Store) -> None:
        await store.create(made("s", revised_by="first"))
        await store.grant("s", 3, 1000)
        standing = await store.create(made("s", EVERYTHING, revised_by="second"))
        assert (standing.revised_by, standing.sequence, standing.last_value) == ("first", Sequence(), 3)

    async def test_of_many_at_once_one_is_the_maker(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        rows = await asyncio.gather(
            *((store, other)[n % 2].create(made("s", revised_by=f"maker {n}")) for n in range(12))
        )
        assert len({row.revised_by for row in rows}) == 1

    async def test_there_is_none_that_was_not_made(self, store: Store) -> None:
        assert await store.get("missing") is None


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestRevise:
    async def test_it_takes_all_over(self, store: Store) -> None:
        await store.create(made("s", created_at=1_700_000_000.0, lease_ms=4000))
        await store.grant("s", 7, 1000)
        revised = await store.revise("s", 0, change(EVERYTHING, by="me:1"))
        assert revised == Row("s", 7, EVERYTHING, 2, 4000, 1, "me:1", 1_700_000_000.0, 1_700_000_100.5, deleted=False)
        assert await store.get("s") == revised

    async def test_of_another_revision_it_leaves_the_row(self, store: Store) -> None:
        await store.create(made("s"))
        first = await store.revise("s", 0, change(at_least=50, by="first"))
        for revision in (0, 2):
            assert await store.revise("s", revision, change(at_least=99, by="second")) == first
        assert await store.get("s") == first

    async def test_applied_again_it_changes_nothing(self, store: Store) -> None:
        await store.create(made("s"))
        once = await store.revise("s", 0, change(at_least=50))
        assert await store.revise("s", 0, change(at_least=50)) == once

    async def test_of_many_at_once_one_is_made(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        await store.create(made("s"))
        rows = await asyncio.gather(*((store, other)[n % 2].revise("s", 0, change(by=f"maker {n}")) for n in range(12)))
        assert {row.revised_by if row else "" for row in rows} == {(await row_of(store, "s")).revised_by}
        assert (await row_of(store, "s")).revision == 1

    async def test_grants_do_not_move_the_revision_and_it_moves_no_grant(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        await store.create(made("s"))

        async def revise() -> None:
            for revision in range(10):
                row = await other.revise("s", revision, change(by=f"r{revision}"))
                assert row is not None
                assert row.revised_by == f"r{revision}"

        grants, _ = await asyncio.gather(asyncio.gather(*(store.grant("s", 3, 1000) for _ in range(20))), revise())
        ids = [each for granted in grants for each in ids_of(granted)]
        assert sorted(ids) == list(range(1, 61))

    async def test_there_is_none_of_a_row_that_is_missing(self, store: Store) -> None:
        assert await store.revise("missing", 0, change()) is None
        assert await store.get("missing") is None

    @pytest.mark.parametrize(
        ("more", "generation"),
        [
            ({}, 4),
            ({"ends_leases": False}, 3),
            ({"generation": 3}, 4),
            ({"generation": 9}, 9),
            ({"generation": 9, "ends_leases": False}, 9),
            ({"generation": 2, "ends_leases": False}, 3),
        ],
        ids=str,
    )
    async def test_the_generation_grows_where_leases_end_and_never_falls(
        self, store: Store, more: dict[str, Any], generation: int
    ) -> None:
        await store.create(made("s", generation=3))
        revised = await store.revise("s", 0, change(**more))
        assert revised is not None
        assert revised.generation == generation
        assert (await grant(store, "s", 0)).generation == generation

    @pytest.mark.parametrize(
        ("sequence", "limit", "last_value"),
        [
            (Sequence(), 9, 10),
            (Sequence(), 10, 50),
            (Sequence(), 11, 50),
            (Sequence(), None, 50),
            (Sequence(start=19, step=-1, max_value=100), 11, 10),
            (Sequence(start=19, step=-1, max_value=100), 10, 3),
            (Sequence(start=19, step=-1, max_value=100), 9, 3),
        ],
        ids=str,
    )
    async def test_a_counter_past_the_limit_refuses_it(
        self, store: Store, sequence: Sequence, limit: int | None, last_value: int
    ) -> None:
        await store.create(made("s", sequence, last_value=10))
        revised = await store.revise("s", 0, change(sequence, 50 if sequence.step > 0 else 3, limit=limit))
        assert revised is not None
        assert revised.last_value == last_value
        refused = last_value == 10
        assert (revised.revised_by, revised.revision, revised.generation) == (("", 0, 1) if refused else ("me", 1, 2))

    async def test_the_next_grant_goes_by_the_new_settings(self, store: Store) -> None:
        await store.create(made("s"))
        await store.grant("s", 4, 1000)
        await store.revise("s", 0, change(Sequence(start=3, step=10, max_value=40)))
        assert (await grant(store, "s", 3)).granted == 0
        granted = await grant(store, "s", 2)
        assert list(ids_of(granted)) == [23, 33]
        assert granted.sequence == Sequence(start=3, step=10, max_value=40)

    async def test_no_tail_comes_back_after_it(self, store: Store) -> None:
        await store.create(made("s"))
        first = await grant(store, "s", 10)
        await store.revise("s", 0, change())
        assert not await store.give_back("s", 5, first.version)
        assert (await row_of(store, "s")).last_value == 10

    async def test_equal_settings_are_one_object(self, store: Store) -> None:
        await store.create(made("s"))
        await store.revise("s", 0, change(Sequence(format="{value:d}")))
        assert (await grant(store, "s", 1)).sequence is (await grant(store, "s", 1)).sequence


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestTheLattice:
    """Wherever a counter goes on to, it goes to a point that an id may lie one step behind, and never back."""

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @example(start=1, size=10, sign=1, last_value=MAX_ID - 1, at_least=0, period=False)
    @example(start=1, size=10, sign=-1, last_value=MIN_ID, at_least=0, period=True)
    @example(start=1, size=3, sign=1, last_value=0, at_least=2**53 + 1, period=False)
    @given(
        start=st.one_of(st.integers(-50, 50), st.sampled_from((2**53 + 1, MIN_ID // 2))),
        size=steps,
        sign=st.sampled_from((1, -1)),
        last_value=values,
        at_least=values,
        period=st.booleans(),
    )
    async def test_a_counter_goes_on_to_it(
        self, store: Store, start: int, size: int, sign: int, last_value: int, at_least: int, period: bool
    ) -> None:
        sequence = Sequence(start=start, step=sign * size, min_value=MIN_ID, max_value=MAX_ID)
        name = f"{PERIOD if period else 's'} {start} {sequence.step} {last_value} {at_least}"
        await store.create(made(name, sequence, last_value=last_value))
        if period:
            await store.open_period(name, sequence, at_least, 2)
        else:
            await store.revise(name, (await row_of(store, name)).revision, change(sequence, at_least))
        found = (await row_of(store, name)).last_value
        assert found is not None
        for least in (last_value, at_least, sequence.before_start):
            assert found in (least, MAX_ID) or sequence.is_past(found, least)
        expected = sequence.align(max((last_value, at_least), key=lambda value: value * sign))
        assert found == max(-(2**63) + 1, min(MAX_ID, expected))
        assert (found - start) % size == 0 or found in (MAX_ID, -(2**63) + 1)


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestTombstones:
    async def test_they_grant_nothing_and_stay(self, store: Store) -> None:
        await store.create(made("s"))
        first = await grant(store, "s", 4)
        await store.revise("s", 0, change(deleted=True))
        for wanted in (0, 1):
            with pytest.raises(SequenceDeleted):
                await store.grant("s", wanted, 1000)
            with pytest.raises(SequenceDeleted):
                await store.grant_timestamps("s", wanted, 1000, 1000, 1000)
        assert not await store.give_back("s", 1, first.version)
        row = await row_of(store, "s")
        assert (row.deleted, row.last_value, row.generation) == (True, 4, 2)
        assert (await store.create(made("s", revised_by="anew"))).deleted

    async def test_a_name_that_is_taken_up_again_goes_on(self, store: Store) -> None:
        await store.create(made("s"))
        await store.grant("s", 4, 1000)
        await store.revise("s", 0, change(by="deleting", deleted=True))
        again = await store.revise("s", 1, change(by="again"))
        assert again is not None
        assert (again.deleted, again.generation, again.revision) == (False, 3, 2)
        assert list(ids_of(await store.grant("s", 2, 1000))) == [5, 6]


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestPeriods:
    YEARLY = Sequence(start=10, step=5, reset=Reset.YEARLY)

    async def test_the_sequence_itself_grants_none_and_its_periods_do(self, store: Store) -> None:
        await store.create(made("orders", self.YEARLY, generation=3))
        none = await grant(store, "orders", 5)
        assert (none.granted, none.last_value, none.generation) == (0, 5, 3)
        assert await store.grant(PERIOD, 1, 1000) is None
        await store.open_period(PERIOD, self.YEARLY, self.YEARLY.before_start, 3)
        granted = await grant(store, PERIOD, 2)
        assert (list(ids_of(granted)), granted.generation, granted.sequence) == ([10, 15], 3, self.YEARLY)

    async def test_a_new_one_starts_where_it_is_told(self, store: Store) -> None:
        await store.open_period(PERIOD, self.YEARLY, 31, 1)
        assert list(ids_of(await store.grant(PERIOD, 2, 1000))) == [40, 45]

    @pytest.mark.parametrize("generation", [1, 2, 3])
    async def test_one_that_is_new_enough_stays_as_it_is(self, store: Store, generation: int) -> None:
        await store.open_period(PERIOD, self.YEARLY, 5, 3)
        await store.grant(PERIOD, 2, 1000)
        await store.open_period(PERIOD, Sequence(start=1, reset=Reset.YEARLY), 1000, generation)
        row = await row_of(store, PERIOD)
        assert (row.last_value, row.sequence, row.generation) == (15, self.YEARLY, 3)

    async def test_an_older_one_takes_the_settings_over_and_goes_on(self, store: Store) -> None:
        await store.open_period(PERIOD, self.YEARLY, 5, 1)
        first = await grant(store, PERIOD, 3)
        wider = Sequence(start=10, step=10, reset=Reset.YEARLY)
        await store.open_period(PERIOD, wider, 0, 2)
        assert not await store.give_back(PERIOD, 1, first.version)
        granted = await grant(store, PERIOD, 2)
        assert (list(ids_of(granted)), granted.sequence, granted.generation) == ([30, 40], wider, 2)
        await store.open_period(PERIOD, wider, 101, 3)
        assert list(ids_of(await store.grant(PERIOD, 1, 1000))) == [120]

    async def test_many_may_open_one_at_once(self, store: Store, opener: Opener) -> None:
        other = await opener.open()

        async def use(of: Store) -> list[int]:
            await of.open_period(PERIOD, self.YEARLY, 5, 1)
            return list(ids_of(await of.grant(PERIOD, 2, 1000)))

        taken = await asyncio.gather(*(use((store, other)[n % 2]) for n in range(10)))
        assert sorted(each for ids in taken for each in ids) == list(range(10, 110, 5))


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestList:
    async def names(self, store: Store, prefix: str = "", after: str = "", most: int = 100, **more: bool) -> list[str]:
        rows = await store.list(prefix, after, most, **({"deleted": False, "periods": False} | more))
        return [row.name for row in rows]

    async def test_rows_are_whole_and_just_written(self, store: Store) -> None:
        await store.create(made("a", EVERYTHING, generation=3, created_at=1_700_000_000.5))
        await store.create(made("b"))
        await store.grant("b", 5, 2000)
        rows = await store.list("", "", 10, deleted=False, periods=False)
        assert rows == [await store.get("a"), await store.get("b")]

    async def test_they_come_in_the_order_of_their_bytes_page_by_page(self, store: Store) -> None:
        names = ["B", "a", "aa", "ab", "b", "ä", "\uff5a", "日本", "😀", "a b", "a%", "a_", "a\\", "*", "'"]
        for name in names:
            await store.create(made(name))
        names.sort(key=str.encode)
        assert await self.names(store) == names
        pages, after = [], ""
        while page := await self.names(store, after=after, most=4):
            pages += page
            after = page[-1]
        assert pages == names

    async def test_a_prefix_is_taken_to_the_letter(self, store: Store) -> None:
        names = ["a%b", "a_b", "aXb", "A%b", "a\\%", "ab", "a", "ä", "😀a", "😀b", "a*c"]
        for name in names:
            await store.create(made(name))
        for prefix in ("a", "A", "a%", "a_", "a\\", "ä", "😀", "a*", "zz", "a%b"):
            expected = sorted((name for name in names if name.startswith(prefix)), key=str.encode)
            assert await self.names(store, prefix) == expected
        assert await self.names(store, "a", after="a%b") == ["a*c", "aXb", "a\\%", "a_b", "ab"]

    async def test_tombstones_and_periods_are_there_where_they_are_asked_for(self, store: Store) -> None:
        await store.create(made("orders", TestPeriods.YEARLY))
        await store.open_period(PERIOD, TestPeriods.YEARLY, 5, 1)
        await store.create(made("gone", deleted=True))
        await store.create(made(name_of_period("gone", "2026"), deleted=True))
        await store.create(made("times", Sequence(kind=Kind.TIMESTAMP_US)))
        gone = name_of_period("gone", "2026")
        assert await self.names(store) == ["orders", "times"]
        assert await self.names(store, deleted=True) == ["gone", "orders", "times"]
        assert await self.names(store, periods=True) == ["orders", PERIOD, "times"]
        assert await self.names(store, deleted=True, periods=True) == ["gone", gone, "orders", PERIOD, "times"]

    async def test_there_are_none_where_there_is_nothing(self, store: Store) -> None:
        assert await self.names(store) == []


class TestAdoptedRows:
    """Rows that someone else wrote."""

    async def test_they_are_shown_as_they_count_and_can_be_revised(self, opener: Opener) -> None:
        await opener.backend.sql(f"CREATE TABLE {{}}sequences {GUIDE_TABLE}")
        await opener.put("orders", last_value=41)
        store = await opener.open()
        adopted = Row("orders", 41, Sequence())
        assert await store.get("orders") == adopted
        assert await store.list("", "", 10, deleted=False, periods=False) == [adopted]
        revised = await store.revise("orders", 0, change(Sequence(step=10)))
        assert revised is not None
        assert (revised.last_value, revised.revision, revised.generation) == (41, 1, 2)
        assert list(ids_of(await store.grant("orders", 1, 1000))) == [51]

    async def test_one_without_a_value_is_shown_and_not_changed(self, store: Store, opener: Opener) -> None:
        await opener.put("s", last_value=None)
        assert await store.get("s") == Row("s", None, Sequence())
        with pytest.raises(SequenceInvalid):
            await store.revise("s", 0, change(at_least=5))
        row = await row_of(store, "s")
        assert (row.last_value, row.deleted) == (None, False)

    @pytest.mark.parametrize("packed", ["{", "[1]", '{"colour": 1}', '{"kind": 99}', '{"start": "x"}', '{"labels": 1}'])
    async def test_settings_that_cannot_be_read_are_refused(self, store: Store, opener: Opener, packed: str) -> None:
        await store.create(made("s"))
        await opener.backend.sql("UPDATE {}sequences SET settings = ? WHERE name = ?", packed, "s")
        for asked in (store.get("s"), store.grant("s", 1, 1000), store.list("", "", 9, deleted=True, periods=True)):
            with pytest.raises(SequenceInvalid, match="its settings cannot be read"):
                await asked
