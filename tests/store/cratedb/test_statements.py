"""The arithmetic in CrateDB's SQL, against Python's."""

import itertools

import pytest

from idalloc_server.domain.errors import SequenceDeleted
from idalloc_server.domain.sequences.sequence import MAX_ID, MAX_STEP, MIN_ID, Kind, Sequence, name_of_period
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RowChange
from tests.store.conftest import CRATEDB
from tests.support.store_backends import Opener
from tests.support.store_rows import requested_row

MIN_BIGINT = -(2**63) + 1  # of a BIGINT


@pytest.fixture
async def cluster(opener: Opener) -> Store:
    return await opener.open()


@pytest.mark.parametrize("opener", CRATEDB, indirect=True)
class TestArithmetic:
    """CrateDB computes the same as Python, up to the ends of a BIGINT."""

    @pytest.mark.parametrize("rising", [True, False])
    async def test_a_revision_advances_to_the_lattice(self, cluster: Store, rising: bool) -> None:
        """P2: the SQL of a revision advances a counter exactly as Python does."""
        steps = (1, 7, 10, 2**53 + 1, MAX_STEP - 1, MAX_STEP)
        values = (MIN_ID, -(2**53) - 1, -1, 0, 1, 99, 2**53 + 1, MAX_ID - 5, MAX_ID, MIN_BIGINT, MIN_BIGINT + 5)
        for number, (size, last_value) in enumerate(itertools.product(steps, values)):
            for start in (1, MIN_ID if rising else MIN_ID + size, 2**61 + 3):
                at_least = values[number % len(values)]
                sequence = Sequence(start=start, step=size if rising else -size, min_value=MIN_ID, max_value=MAX_ID)
                name = f"s{size},{last_value},{start}"
                await cluster.create(requested_row(name, sequence, last_value))
                revised = await cluster.revise(name, 0, RowChange(sequence, at_least, "me", 5.0))
                choose = max if rising else min
                expected = sequence.align(choose(last_value, at_least, sequence.before_start))
                assert revised is not None
                assert revised.revised_by == "me"
                assert revised.last_value == max(MIN_BIGINT, min(expected, MAX_ID)), sequence

    async def test_a_new_period_advances_to_the_lattice(self, cluster: Store) -> None:
        """P2: the SQL of a new period advances its counter exactly as Python does."""
        name = name_of_period("s", "2026")
        for number, (step, at_least) in enumerate(
            itertools.product((1, -1, MAX_STEP, -MAX_STEP, 10), (5, MAX_ID, MIN_ID))
        ):
            sequence = Sequence(start=3, step=step, min_value=MIN_ID, max_value=MAX_ID)
            await cluster.open_period(f"{name}{number}", sequence, sequence.before_start, 1)
            await cluster.open_period(f"{name}{number}", sequence, at_least, 2)
            found = await cluster.get(f"{name}{number}")
            assert found is not None
            assert found.generation == 2
            choose = max if step > 0 else min
            expected = sequence.align(choose(sequence.before_start, at_least))
            assert found.last_value == max(MIN_BIGINT, min(expected, MAX_ID))

    @pytest.mark.parametrize("unit", [1_000, 1_000_000])
    async def test_a_wrong_node_clock_is_replaced_by_the_stores(self, cluster: Store, unit: int) -> None:
        # The description and the labels contain the JSON of the other kind.
        """A node's clock that is far ahead moves no timestamp; settings' texts are not misread."""
        kind = Kind.TIMESTAMP_MS if unit == 1_000 else Kind.TIMESTAMP_US
        sequence = Sequence(kind=kind, description='"kind": 3, \\"kind\\": 3', labels={"kind": "3"})
        await cluster.create(requested_row("s", sequence))
        stores_clock = await cluster.now()
        assert stores_clock is not None
        granted = await cluster.grant_timestamps("s", 5, 1000, MAX_ID, 60 * unit)
        assert granted is not None
        assert granted.granted == 5
        assert 0 <= (granted.value_before + 1) / unit - stores_clock < 30
        assert granted.remaining == MAX_ID - granted.last_value

    async def test_timestamps_end_at_the_clock_and_at_the_bound(self, cluster: Store) -> None:
        """P1: a grant of timestamps ends at the clock and at max_value."""
        now = 1_700_000_000_000
        await cluster.create(requested_row("s", Sequence(kind=Kind.TIMESTAMP_MS)))
        first = await cluster.grant_timestamps("s", 30, 1000, now, 100)
        assert first is not None
        assert (first.granted, first.value_before) == (30, now - 1)
        second = await cluster.grant_timestamps("s", 1000, 1000, now - 50, 100)
        assert second is not None
        assert (second.value_before, second.last_value) == (now + 29, now + 50)
        third = await cluster.grant_timestamps("s", 1, 1000, now - 5000, 100)
        assert third is not None
        assert (third.granted, third.last_value) == (0, now + 50)
        await cluster.create(requested_row("bound", Sequence(kind=Kind.TIMESTAMP_MS, max_value=now + 2)))
        last = await cluster.grant_timestamps("bound", 10, 1000, now, 100)
        assert last is not None
        assert (last.granted, last.last_value, last.remaining) == (3, now + 2, 0)
        past = await cluster.grant_timestamps("bound", 10, 1000, now + 500, 1000)
        assert past is not None
        assert (past.granted, past.last_value, past.remaining) == (0, now + 2, 0)
        await cluster.create(requested_row("late", Sequence(kind=Kind.TIMESTAMP_MS, max_value=now + 2)))
        late = await cluster.grant_timestamps("late", 1, 1000, now + 500, 1000)
        assert late is not None
        assert (late.granted, late.last_value, late.remaining) == (0, 0, 0)

    async def test_a_grant_of_the_other_kind_is_empty(self, cluster: Store) -> None:
        """A counter grants no timestamps, and a sequence of timestamps grants no ids."""
        await cluster.create(requested_row("timestamps", Sequence(kind=Kind.TIMESTAMP_MS)))
        await cluster.create(requested_row("counter"))
        found = await cluster.grant("timestamps", 5, 1000)
        other = await cluster.grant_timestamps("counter", 5, 1000, 10, 10)
        assert found is not None
        assert other is not None
        assert (found.granted, found.last_value, other.granted, other.last_value) == (0, 0, 0, 0)

    async def test_a_tombstone_grants_nothing(self, cluster: Store) -> None:
        """P5: a deleted sequence grants nothing, and keeps its counter."""
        await cluster.create(requested_row("s"))
        await cluster.revise("s", 0, RowChange(Sequence(), 0, "me", 5.0, deleted=True))
        with pytest.raises(SequenceDeleted):
            await cluster.grant("s", 5, 1000)
        with pytest.raises(SequenceDeleted):
            await cluster.grant_timestamps("s", 5, 1000, 10, 10)
        found = await cluster.get("s")
        assert found is not None
        assert (found.last_value, found.deleted) == (0, True)

    async def test_names_are_listed_in_byte_order(self, cluster: Store) -> None:
        """Names are listed in the order of their bytes, and a prefix has no wildcards."""
        names = ["a%b", "aXb", "a\\b", "a_b", "z", "é", "\ufffd", "\U0001f600"]
        for name in reversed(names):
            await cluster.create(requested_row(name))
        assert [found.name for found in await cluster.list("", "", 9, with_deleted=True, with_periods=False)] == names
        for name in ("a%", "a_", "a\\", "\U0001f600"):
            assert [
                found.name[: len(name)]
                for found in await cluster.list(name, "", 9, with_deleted=True, with_periods=True)
            ] == [name]
