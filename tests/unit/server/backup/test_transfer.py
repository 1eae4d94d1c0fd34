"""Export and import of all sequences."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from idalloc_server.backup.export_file import first_line, read
from idalloc_server.backup.exporter import MOVED_TO, export_lines, retire, unretire
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.errors import SequenceDeleted, StoreRetired
from idalloc_server.domain.records import Revision, Row
from idalloc_server.domain.retirement import RETIREMENT
from idalloc_server.domain.sequences.model import MAX_ID, Kind, Ordering, Reset, Sequence, name_of_period
from idalloc_server.domain.store import Store
from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.memory_rows import Row as MemoryRow

YEARLY = Sequence(reset=Reset.YEARLY, format="INV-{year}-{value:06d}", time_zone="Europe/Vienna", max_value=999_999)

NAMES = ["orders", "down", "gone", "ticks", "invoices", "invoices\x1f2026"]
MOVED = ("orders", "down")


async def exported(store: Store) -> list[bytes]:
    return [line.encode() async for line in export_lines(store)]


async def imported(store: Store, lines: list[bytes], clock: FakeClock | None = None) -> Importer:
    file = read(lines)
    assert file.problems == []
    done = Importer(store, clock or FakeClock())
    await done.run(file)
    return done


async def filled(store: Store) -> None:
    await store.create(Row("orders", 500, Sequence(labels={"team": "a"}, description="all"), 3, 180_000, 1, "x"))
    down = Sequence(start=-1, step=-1, min_value=-(2**61), max_value=-1)
    await store.create(Row("down", -20, down, 1, 0, 1, "x"))
    await store.create(Row("gone", 9, Sequence(), 2, 0, 1, "x", deleted=True))
    clocked = Sequence(kind=Kind.TIMESTAMP_MS, ordering=Ordering.RISING)
    await store.create(Row("ticks", 1_700_000_000_000, clocked, 1, 0, 1, "x"))
    await store.create(Row("invoices", 0, YEARLY, 1, 0, 1, "x"))
    await store.open_period(name_of_period("invoices", "2026"), YEARLY, 41, 1)
    await store.raise_start(7, 1_700_000_000)


async def state(store: Store) -> list[tuple[object, ...]]:
    rows = await store.list("", "", 500, deleted=True, periods=True)
    return [(row.name, row.last_value, row.sequence, row.deleted) for row in rows]


async def test_all_of_it_to_another_kind_of_store_and_back(store: MemoryStore, tmp_path: Path) -> None:
    await filled(store)
    sqlite = SqliteStore(tmp_path / "ids.db", FakeClock())
    await sqlite.open()
    there = await imported(sqlite, await exported(store))
    assert (there.created, there.raised, there.unchanged, there.claims, there.problems) == (5, 0, 0, 1, [])
    assert await state(sqlite) == await state(store)
    assert await sqlite.claimed_starts() == {7: 1_700_000_000}
    again = await imported(sqlite, await exported(store))
    assert (again.created, again.raised, again.unchanged) == (0, 1, 4)  # orders may have leases
    back = MemoryStore()
    await imported(back, await exported(sqlite))
    assert await state(back) == await state(store)
    grant = await sqlite.grant("orders", 1, 0)
    assert grant is not None
    assert grant.last_value == 501
    assert grant.generation > 3
    with pytest.raises(SequenceDeleted):
        await sqlite.grant("gone", 1, 0)
    await sqlite.close()


async def test_a_counter_that_would_be_lowered_is_refused_and_the_rest_is_brought(store: MemoryStore) -> None:
    await filled(store)
    lines = await exported(store)
    await store.grant("orders", 5, 0)
    await store.grant("down", 5, 0)
    del store.rows["ticks"]
    done = await imported(store, lines)
    assert [problem.line for problem in done.problems] == [2 + i for i, n in enumerate(sorted(NAMES)) if n in MOVED]
    assert "would be lowered from 505 to 500" in done.problems[-1].why
    assert "would be lowered from -25 to -20" in done.problems[0].why
    assert done.created == 1
    assert [store.rows[name].last_value for name in MOVED] == [505, -25]


async def test_a_restored_store_is_raised_and_its_leases_end(store: MemoryStore, clock: FakeClock) -> None:
    await filled(store)
    lines = await exported(store)
    restored = MemoryStore(clock)
    await filled(restored)
    restored.rows["orders"].last_value = 100
    restored.rows[name_of_period("invoices", "2026")].last_value = 3
    done = await imported(restored, lines, clock)
    assert (done.raised, done.unchanged) == (2, 3)
    assert done.effective_at == clock.wall() + 181
    orders, invoices = await restored.get("orders"), await restored.get("invoices")
    period = await restored.get(name_of_period("invoices", "2026"))
    assert orders is not None
    assert invoices is not None
    assert period is not None
    assert (orders.last_value, period.last_value) == (500, 41)
    assert orders.generation > 3
    assert period.generation < invoices.generation  # so that whoever opens it next does so behind what was brought


@pytest.mark.parametrize(("here", "line", "ended"), [(0, 0, 0), (5000, 0, 5), (0, 9000, 9), (5000, 9000, 9)])
async def test_equal_counters_end_the_leases_that_may_live(
    store: MemoryStore, clock: FakeClock, here: int, line: int, ended: int
) -> None:
    """P5: leases may live by the row in the store or by the imported line; the longer of both counts."""
    await store.create(Row("orders", 500, Sequence(), 3, line, 1, "x"))
    lines = await exported(store)
    restored = MemoryStore(clock)
    await restored.create(Row("orders", 500, Sequence(), 3, here, 1, "x"))
    for _ in range(2):  # the same file again ends the leases again
        before = restored.rows["orders"].generation
        done = await imported(restored, lines, clock)
        assert (done.raised, done.unchanged) == ((1, 0) if ended else (0, 1))
        assert done.effective_at == (clock.wall() + ended + 1 if ended else None)
        assert (restored.rows["orders"].generation > before) == bool(ended)
    assert restored.rows["orders"].lease_ms == max(here, line)  # a later advance is effective after that


async def test_retired_sequences_end_here_and_live_there(store: MemoryStore, clock: FakeClock) -> None:
    await filled(store)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            store.rows["late"] = MemoryRow(Sequence(), 0)  # by a node that saw no mark yet

    assert await retire(store, clock, "elsewhere", sleep) == 5
    assert waited == [181.0, 181.0]
    assert all(deleted for name, _, _, deleted in await state(store) if "\x1f" not in str(name))
    there = MemoryStore(clock)
    await imported(there, await exported(store))
    assert [name for name, *_, deleted in await state(there) if deleted] == ["gone"]
    await there.grant("orders", 1, 0)
    with pytest.raises(StoreRetired, match="use instead: elsewhere"):
        await imported(store, await exported(there))
    await unretire(store, clock)
    back = await imported(store, await exported(there))
    assert back.problems == []
    assert [row for row in await state(store) if row[0] != RETIREMENT] == await state(there)


async def no_sleep(_: float) -> None:
    pass


async def test_a_repeated_retirement_keeps_the_place(store: MemoryStore, clock: FakeClock) -> None:
    """P1: a retirement may be repeated and undone; the place to go on stays unless another one is given."""
    await filled(store)
    places, ended = [], []
    for moved_to in ("", "here", "", "there"):
        ended.append(await retire(store, clock, moved_to, no_sleep))
        with pytest.raises(StoreRetired) as refused:
            await store.create(Row("others", 0, Sequence()))
        places.append(str(refused.value).partition(" use instead: ")[2])
    assert (places, ended) == ([MOVED_TO, "here", "here", "there"], [4, 0, 0, 0])
    for _ in range(2):
        await unretire(store, clock)
    await store.create(Row("others", 0, Sequence()))
    assert await retire(store, clock, "", no_sleep) == 1
    with pytest.raises(StoreRetired, match=MOVED_TO):
        await store.claim_start(7, 0, "me", 60)


async def test_a_retired_sequence_with_a_reset_has_a_generation_that_no_advance_of_a_period_has(
    store: MemoryStore, clock: FakeClock
) -> None:
    await filled(store)
    assert store.rows["invoices"].generation == 1
    await retire(store, clock, sleep=no_sleep)
    assert store.rows["invoices"].generation > 1
    assert store.rows["invoices"].generation % 2


async def test_what_was_deleted_since_stays_so(store: MemoryStore) -> None:
    await filled(store)
    lines = await exported(store)
    store.rows["orders"].generation = 4
    store.rows["orders"].deleted = True
    store.rows["gone"].deleted = False
    whys = [problem.why for problem in (await imported(store, lines)).problems]
    assert len(whys) == 2
    assert "deleted in the file" in whys[0]
    assert "deleted here since" in whys[1]


@pytest.mark.parametrize(
    ("settings", "last_value", "following"),
    [
        ({"start": "10", "step": "10"}, 37, 50),
        ({"start": "100", "max_value": "100", "step": "-10"}, 37, 20),
        ({}, 41, 42),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
async def test_ids_go_on_on_the_lattice_in_a_new_row_as_in_one_that_is_there(
    store: MemoryStore, settings: dict[str, str], last_value: int, following: int, exists: bool
) -> None:
    line = {"sequence": "a", "last_value": str(last_value), "generation": "1", "settings": settings}
    lines = [first_line().encode(), json.dumps(line).encode()]
    if exists:
        sequence = read(lines).items[0].row.sequence
        await store.create(Row("a", sequence.before_start, sequence, 1, 0, 1, "x"))
    await imported(store, lines)
    again = await imported(store, lines)
    assert (again.unchanged, again.problems) == (1, [])
    grant = await store.grant("a", 1, 0)
    assert grant is not None
    assert grant.last_value == following


async def test_a_raised_start_lowers_no_counter_of_a_sequence_with_a_reset(store: MemoryStore) -> None:
    await filled(store)
    lines = await exported(store)
    raised = replace(YEARLY, start=100)
    await store.revise("invoices", 1, Revision(raised, raised.before_start, "y", 0.0))
    done = await imported(store, lines)
    assert (done.problems, done.raised, done.unchanged) == ([], 2, 3)  # invoices, and the leases of orders
    assert store.rows["invoices"].sequence == YEARLY
    assert (await imported(store, lines)).unchanged == 4
    assert store.rows[name_of_period("invoices", "2026")].last_value == 41


async def test_a_period_at_the_end_of_what_a_store_holds_is_brought(store: MemoryStore) -> None:
    tens = Sequence(start=10, step=10, reset=Reset.YEARLY, format="{year}-{value}")
    await store.create(Row("bills", 0, tens, 1, 0, 1, "x"))
    await store.open_period(name_of_period("bills", "2026"), tens, MAX_ID, 1)
    there = MemoryStore()
    assert (await imported(there, await exported(store))).problems == []
    assert there.rows[name_of_period("bills", "2026")].last_value == MAX_ID


async def test_a_bound_of_a_sequence_with_a_reset_is_not_held_against_its_own_counter(store: MemoryStore) -> None:
    yearly = Sequence(reset=Reset.YEARLY, format="{year}-{value:06d}", max_value=50)
    await store.create(Row("bills", 0, yearly))
    lines = await exported(store)
    there = MemoryStore()
    await there.create(Row("bills", 0, replace(yearly, max_value=999_999)))
    await there.revise("bills", 0, Revision(replace(yearly, start=100, max_value=999_999), 99, "me", 0.0))
    done = await imported(there, lines)
    assert (done.problems, done.raised) == ([], 1)
