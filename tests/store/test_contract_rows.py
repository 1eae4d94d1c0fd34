"""The contract of every store: rows of sequences, revisions, tombstones and periods."""

import asyncio
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from idalloc_server.domain.errors import SequenceDeleted, SequenceInvalid
from idalloc_server.domain.sequences.sequence import MAX_ID, MAX_STEP, MIN_ID, Reset, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row, RowChange
from tests.store.conftest import ALL, BACKENDS
from tests.support.store_backends import Opener
from tests.support.store_rows import ALL_SETTINGS, PERIOD, YEARLY, grant, ids_of, new_row, read_row

# Counters at the limits of a double and of a BIGINT.
EDGES = (0, 1, -1, 2**53 - 1, 2**53, 2**53 + 1, MAX_ID - 1, MAX_ID, MIN_ID, MIN_ID + 1)
values = st.one_of(st.integers(-50, 50), st.sampled_from(EDGES), st.integers(MIN_ID, MAX_ID))
steps = st.one_of(st.integers(1, 20), st.sampled_from((2**53 + 1, MAX_STEP)))


def change(sequence: Sequence | None = None, at_least: int = 0, by: str = "me", **more: Any) -> RowChange:
    return RowChange(sequence or Sequence(), at_least, by, 1_700_000_100.5)._replace(**more)


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestCreate:
    async def test_a_created_row_has_all_its_values(self, store: Store) -> None:
        """A created row is returned and read with every value, also a deleted one."""
        row = Row("s", 17, ALL_SETTINGS, 4, 5000, 3, "a change", 1_700_000_000.25, 1_700_000_001.75, deleted=True)
        assert await store.create(row) == row
        assert await store.get("s") == row

    async def test_a_row_with_defaults_is_created(self, store: Store) -> None:
        """A row with default settings is returned and read unchanged."""
        assert await store.create(new_row("s")) == new_row("s")
        assert await store.get("s") == new_row("s")

    async def test_an_existing_row_is_returned(self, store: Store) -> None:
        """A create of an existing name returns the existing row with its present counter."""
        await store.create(new_row("s", revised_by="first"))
        await store.grant("s", 3, 1000)
        existing = await store.create(new_row("s", ALL_SETTINGS, revised_by="second"))
        assert (existing.revised_by, existing.sequence, existing.last_value) == ("first", Sequence(), 3)

    async def test_concurrent_creates_return_one_creator(self, store: Store, opener: Opener) -> None:
        """P1: concurrent creates of one name by two processes return the same row."""
        other = await opener.open()
        rows = await asyncio.gather(
            *((store, other)[n % 2].create(new_row("s", revised_by=f"maker {n}")) for n in range(12))
        )
        assert len({row.revised_by for row in rows}) == 1

    async def test_a_missing_row_is_none(self, store: Store) -> None:
        """A name that was never created has no row."""
        assert await store.get("missing") is None


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestRevise:
    async def test_a_revision_replaces_the_settings(self, store: Store) -> None:
        """A revision changes all settings, and keeps the counter, lease_ms and created_at."""
        await store.create(new_row("s", created_at=1_700_000_000.0, lease_ms=4000))
        await store.grant("s", 7, 1000)
        revised = await store.revise("s", 0, change(ALL_SETTINGS, by="me:1"))
        assert revised == Row("s", 7, ALL_SETTINGS, 2, 4000, 1, "me:1", 1_700_000_000.0, 1_700_000_100.5, deleted=False)
        assert await store.get("s") == revised

    async def test_another_revision_number_changes_nothing(self, store: Store) -> None:
        """P5: a change of an outdated revision is refused and returns the row."""
        await store.create(new_row("s"))
        first = await store.revise("s", 0, change(at_least=50, by="first"))
        for revision in (0, 2):
            assert await store.revise("s", revision, change(at_least=99, by="second")) == first
        assert await store.get("s") == first

    async def test_a_repeated_revision_changes_nothing(self, store: Store) -> None:
        """P5: a revision that is applied twice has the effect of one."""
        await store.create(new_row("s"))
        once = await store.revise("s", 0, change(at_least=50))
        assert await store.revise("s", 0, change(at_least=50)) == once

    async def test_one_of_concurrent_revisions_is_applied(self, store: Store, opener: Opener) -> None:
        """P5: of concurrent changes of one revision, exactly one is applied."""
        other = await opener.open()
        await store.create(new_row("s"))
        rows = await asyncio.gather(*((store, other)[n % 2].revise("s", 0, change(by=f"maker {n}")) for n in range(12)))
        assert {row.revised_by if row else "" for row in rows} == {(await read_row(store, "s")).revised_by}
        assert (await read_row(store, "s")).revision == 1

    async def test_grants_and_revisions_do_not_disturb_each_other(self, store: Store, opener: Opener) -> None:
        """P5: revisions succeed under concurrent grants, and the grants stay unique."""
        other = await opener.open()
        await store.create(new_row("s"))

        async def revise() -> None:
            for revision in range(10):
                row = await other.revise("s", revision, change(by=f"r{revision}"))
                assert row is not None
                assert row.revised_by == f"r{revision}"

        grants, _ = await asyncio.gather(asyncio.gather(*(store.grant("s", 3, 1000) for _ in range(20))), revise())
        ids = [each for granted in grants for each in ids_of(granted)]
        assert sorted(ids) == list(range(1, 61))

    async def test_a_missing_row_cannot_be_revised(self, store: Store) -> None:
        """A revision of a missing row returns None and creates nothing."""
        assert await store.revise("missing", 0, change()) is None
        assert await store.get("missing") is None

    async def test_the_generation_never_falls(self, store: Store) -> None:
        """P5: the generation grows if leases end, reaches the requested one, and never falls."""
        cases: list[tuple[dict[str, Any], int]] = [
            ({}, 4),
            ({"ends_leases": False}, 3),
            ({"generation": 3}, 4),
            ({"generation": 9}, 9),
            ({"generation": 9, "ends_leases": False}, 9),
            ({"generation": 2, "ends_leases": False}, 3),
        ]
        for number, (more, generation) in enumerate(cases):
            await store.create(new_row(name := f"s{number}", generation=3))
            revised = await store.revise(name, 0, change(**more))
            assert revised is not None
            assert revised.generation == generation, more
            assert (await grant(store, name, 0)).generation == generation, more

    async def test_a_counter_past_the_limit_is_not_revised(self, store: Store) -> None:
        """P2: a revision with a limit is refused if the counter is past it."""
        rising, falling = Sequence(), Sequence(start=19, step=-1, max_value=100)
        cases: list[tuple[Sequence, int, dict[int | None, int]]] = [
            (rising, 50, {9: 10, 10: 50, 11: 50, None: 50}),
            (falling, 3, {11: 10, 10: 3, 9: 3}),
        ]
        for sequence, advanced, last_values in cases:
            for limit, last_value in last_values.items():
                await store.create(new_row(name := f"s{sequence.step} {limit}", sequence, last_value=10))
                revised = await store.revise(name, 0, change(sequence, advanced, limit=limit))
                assert revised is not None
                assert revised.last_value == last_value, (sequence, limit)
                changed = ("", 0, 1) if last_value == 10 else ("me", 1, 2)
                assert (revised.revised_by, revised.revision, revised.generation) == changed, (sequence, limit)

    async def test_the_next_grant_uses_the_new_settings(self, store: Store) -> None:
        """P5: a grant after a revision uses the new step and bound."""
        await store.create(new_row("s"))
        await store.grant("s", 4, 1000)
        await store.revise("s", 0, change(Sequence(start=3, step=10, max_value=40)))
        assert (await grant(store, "s", 3)).granted == 0
        granted = await grant(store, "s", 2)
        assert list(ids_of(granted)) == [23, 33]
        assert granted.sequence == Sequence(start=3, step=10, max_value=40)

    async def test_no_tail_is_given_back_after_a_revision(self, store: Store) -> None:
        """P5: a tail from before a revision cannot be given back."""
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        await store.revise("s", 0, change())
        assert not await store.give_back("s", 5, first.version)
        assert (await read_row(store, "s")).last_value == 10

    async def test_equal_settings_are_the_same_object(self, store: Store) -> None:
        """Grants of an unchanged row return the same settings object, without parsing."""
        await store.create(new_row("s"))
        await store.revise("s", 0, change(Sequence(format="{value:d}")))
        assert (await grant(store, "s", 1)).sequence is (await grant(store, "s", 1)).sequence


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestLattice:
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
    async def test_a_counter_is_advanced_to_the_lattice(
        self, store: Store, start: int, size: int, sign: int, last_value: int, at_least: int, period: bool
    ) -> None:
        """P2: a revision or a new period moves a counter to the next lattice point, never back."""
        sequence = Sequence(start=start, step=sign * size, min_value=MIN_ID, max_value=MAX_ID)
        name = f"{PERIOD if period else 's'} {start} {sequence.step} {last_value} {at_least}"
        await store.create(new_row(name, sequence, last_value=last_value))
        if period:
            await store.open_period(name, sequence, at_least, 2)
        else:
            await store.revise(name, (await read_row(store, name)).revision, change(sequence, at_least))
        found = (await read_row(store, name)).last_value
        assert found is not None
        for least in (last_value, at_least, sequence.before_start):
            assert found in (least, MAX_ID) or sequence.is_past(found, least)
        expected = sequence.align(max((last_value, at_least), key=lambda value: value * sign))
        assert found == max(-(2**63) + 1, min(MAX_ID, expected))
        assert (found - start) % size == 0 or found in (MAX_ID, -(2**63) + 1)


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestTombstones:
    async def test_a_tombstone_grants_nothing(self, store: Store) -> None:
        """P5: a deleted sequence grants nothing, and keeps its counter."""
        await store.create(new_row("s"))
        first = await grant(store, "s", 4)
        await store.revise("s", 0, change(deleted=True))
        for wanted in (0, 1):
            with pytest.raises(SequenceDeleted):
                await store.grant("s", wanted, 1000)
            with pytest.raises(SequenceDeleted):
                await store.grant_timestamps("s", wanted, 1000, 1000, 1000)
        assert not await store.give_back("s", 1, first.version)
        row = await read_row(store, "s")
        assert (row.deleted, row.last_value, row.generation) == (True, 4, 2)
        assert (await store.create(new_row("s", revised_by="again"))).deleted

    async def test_a_revived_name_continues_its_counter(self, store: Store) -> None:
        """P5: a sequence that is created again continues after its last id."""
        await store.create(new_row("s"))
        await store.grant("s", 4, 1000)
        await store.revise("s", 0, change(by="deleting", deleted=True))
        again = await store.revise("s", 1, change(by="again"))
        assert again is not None
        assert (again.deleted, again.generation, again.revision) == (False, 3, 2)
        assert list(ids_of(await store.grant("s", 2, 1000))) == [5, 6]


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestPeriods:
    async def test_only_the_periods_of_a_sequence_grant_ids(self, store: Store) -> None:
        """A sequence with a reset grants ids only from the counters of its periods."""
        await store.create(new_row("orders", YEARLY, generation=3))
        none = await grant(store, "orders", 5)
        assert (none.granted, none.last_value, none.generation) == (0, 5, 3)
        assert await store.grant(PERIOD, 1, 1000) is None
        await store.open_period(PERIOD, YEARLY, YEARLY.before_start, 3)
        granted = await grant(store, PERIOD, 2)
        assert (list(ids_of(granted)), granted.generation, granted.sequence) == ([10, 15], 3, YEARLY)

    async def test_a_new_period_starts_at_the_requested_value(self, store: Store) -> None:
        """P5: a new period starts at the first point of the lattice at or past ``at_least``."""
        await store.open_period(PERIOD, YEARLY, 31, 1)
        assert list(ids_of(await store.grant(PERIOD, 2, 1000))) == [40, 45]

    async def test_a_period_of_this_generation_or_newer_is_not_changed(self, store: Store) -> None:
        """P5: open_period of the same or an older generation changes nothing."""
        await store.open_period(PERIOD, YEARLY, 5, 3)
        await store.grant(PERIOD, 2, 1000)
        for generation in (1, 2, 3):
            await store.open_period(PERIOD, Sequence(start=1, reset=Reset.YEARLY), 1000, generation)
            row = await read_row(store, PERIOD)
            assert (row.last_value, row.sequence, row.generation) == (15, YEARLY, 3)

    async def test_an_older_period_gets_the_new_settings(self, store: Store) -> None:
        """P5: open_period of a newer generation changes the settings, and moves no counter back."""
        await store.open_period(PERIOD, YEARLY, 5, 1)
        first = await grant(store, PERIOD, 3)
        wider = Sequence(start=10, step=10, reset=Reset.YEARLY)
        await store.open_period(PERIOD, wider, 0, 2)
        assert not await store.give_back(PERIOD, 1, first.version)
        granted = await grant(store, PERIOD, 2)
        assert (list(ids_of(granted)), granted.sequence, granted.generation) == ([30, 40], wider, 2)
        await store.open_period(PERIOD, wider, 101, 3)
        assert list(ids_of(await store.grant(PERIOD, 1, 1000))) == [120]

    async def test_concurrent_opens_of_one_period_share_it(self, store: Store, opener: Opener) -> None:
        """P1: concurrent opens of one period by two processes make one counter."""
        other = await opener.open()

        async def use(of: Store) -> list[int]:
            await of.open_period(PERIOD, YEARLY, 5, 1)
            return list(ids_of(await of.grant(PERIOD, 2, 1000)))

        taken = await asyncio.gather(*(use((store, other)[n % 2]) for n in range(10)))
        assert sorted(each for ids in taken for each in ids) == list(range(10, 110, 5))


class TestAdoptedRows:
    """Rows that another program wrote."""

    async def test_an_adopted_row_has_defaults_and_can_be_revised(self, opener: Opener) -> None:
        """A two-column row is read with default settings, and revised like any other row."""
        await opener.backend.make_guide_table()
        await opener.put("orders", last_value=41)
        store = await opener.open()
        adopted = Row("orders", 41, Sequence())
        assert await store.get("orders") == adopted
        assert await store.list("", "", 10, with_deleted=False, with_periods=False) == [adopted]
        revised = await store.revise("orders", 0, change(Sequence(step=10)))
        assert revised is not None
        assert (revised.last_value, revised.revision, revised.generation) == (41, 1, 2)
        assert list(ids_of(await store.grant("orders", 1, 1000))) == [51]

    async def test_a_row_without_last_value_is_read_and_not_revised(self, store: Store, opener: Opener) -> None:
        """A row without last_value can be read; a revision raises SequenceInvalid."""
        await opener.put("s", last_value=None)
        assert await store.get("s") == Row("s", None, Sequence())
        with pytest.raises(SequenceInvalid):
            await store.revise("s", 0, change(at_least=5))
        row = await read_row(store, "s")
        assert (row.last_value, row.deleted) == (None, False)

    async def test_malformed_settings_are_refused(self, store: Store, opener: Opener) -> None:
        """Settings that cannot be decoded raise SequenceInvalid in get, grant and list."""
        await store.create(new_row("s"))
        for packed in ("{", "[1]", '{"colour": 1}', '{"kind": 99}', '{"start": "x"}', '{"labels": 1}'):
            await opener.backend.change_settings("s", packed)
            for asked in (
                store.get("s"),
                store.grant("s", 1, 1000),
                store.list("", "", 9, with_deleted=True, with_periods=True),
            ):
                with pytest.raises(SequenceInvalid, match="its settings cannot be read"):
                    await asked


@pytest.mark.parametrize("opener", BACKENDS, indirect=True)
async def test_a_time_out_of_range_is_refused(store: Store, opener: Opener) -> None:
    """SEQUENCE_INVALID: a time that no date can show is named with its value, and stops no ids."""
    for field, value in product(("created_at", "changed_at"), (2**62, -(2**62))):
        await opener.put("s", last_value=41, **{field: value})
        assert (await grant(store, "s", 1)).last_value == 42
        named = f"'s' cannot be used: its {field} is {value}[^;]*; set it to null"
        with pytest.raises(SequenceInvalid, match=named):
            await store.get("s")
        with pytest.raises(SequenceInvalid, match=named):
            await store.list("", "", 10, with_deleted=True, with_periods=True)
