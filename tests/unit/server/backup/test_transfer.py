"""Export, import and retirement of all sequences of a store."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from idalloc_server.backup.export_file import header_line, read_export
from idalloc_server.backup.exporter import DEFAULT_MOVED_TO, export_lines, retire, unretire
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.errors import SequenceDeleted, StoreRetired
from idalloc_server.domain.sequences.sequence import MAX_ID, Kind, Ordering, Reset, Sequence, name_of_period
from idalloc_server.domain.store.identity import IDENTITY, Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row, RowChange
from idalloc_server.domain.store.retirement import RETIREMENT
from idalloc_server.domain.witness.store import WitnessedStore
from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.fake_witness import MemoryWitness
from tests.support.memory_rows import Row as MemoryRow
from tests.support.store_rows import new_row

YEARLY = Sequence(reset=Reset.YEARLY, format="INV-{year}-{value:06d}", time_zone="Europe/Vienna", max_value=999_999)

NAMES = ["orders", "down", "gone", "ticks", "invoices", "invoices\x1f2026"]
MOVED = ("orders", "down")


async def export_of(store: Store) -> list[bytes]:
    return [line.encode() async for line in export_lines(store)]


async def import_into(store: Store, lines: list[bytes], clock: FakeClock | None = None) -> Importer:
    file = read_export(lines)
    assert file.problems == []
    importer = Importer(store, clock or FakeClock())
    await importer.run(file)
    return importer


async def fill(store: Store) -> None:
    await store.create(Row("orders", 500, Sequence(labels={"team": "a"}, description="all"), 3, 180_000, 1, "x"))
    down = Sequence(start=-1, step=-1, min_value=-(2**61), max_value=-1)
    await store.create(Row("down", -20, down, 1, 0, 1, "x"))
    await store.create(Row("gone", 9, Sequence(), 2, 0, 1, "x", deleted=True))
    timestamps = Sequence(kind=Kind.TIMESTAMP_MS, ordering=Ordering.RISING)
    await store.create(Row("ticks", 1_700_000_000_000, timestamps, 1, 0, 1, "x"))
    await store.create(Row("invoices", 0, YEARLY, 1, 0, 1, "x"))
    await store.open_period(name_of_period("invoices", "2026"), YEARLY, 41, 1)
    await store.raise_start(7, 1_700_000_000)


async def rows_of(store: Store) -> list[tuple[object, ...]]:
    rows = await store.list("", "", 500, with_deleted=True, with_periods=True)
    return [(row.name, row.last_value, row.sequence, row.deleted) for row in rows if row.name != IDENTITY]


async def test_a_transfer_to_another_store_and_back_keeps_all(store: MemoryStore, tmp_path: Path) -> None:
    """P1: a transfer to another kind of store and back keeps all sequences, and continues them."""
    await fill(store)
    sqlite = SqliteStore(tmp_path / "ids.db", FakeClock())
    await sqlite.open()
    there = await import_into(sqlite, await export_of(store))
    assert (there.created, there.raised, there.unchanged, there.claims, there.problems) == (5, 0, 0, 1, [])
    assert await rows_of(sqlite) == await rows_of(store)
    assert await sqlite.claimed_starts() == {7: 1_700_000_000}
    again = await import_into(sqlite, await export_of(store))
    assert (again.created, again.raised, again.unchanged) == (0, 1, 4)  # orders may be leased
    back = MemoryStore()
    await import_into(back, await export_of(sqlite))
    assert await rows_of(back) == await rows_of(store)
    grant = await sqlite.grant("orders", 1, 0)
    assert grant is not None
    assert grant.last_value == 501
    assert grant.generation > 3
    with pytest.raises(SequenceDeleted):
        await sqlite.grant("gone", 1, 0)
    await sqlite.close()


async def test_the_name_moves_with_the_sequences(store: MemoryStore) -> None:
    """P3: an empty store gets the exported name, one in use keeps its own; a witness goes on."""
    witness = MemoryWitness()
    await WitnessedStore(store, witness).open()
    await fill(store)
    file = read_export(await export_of(store))
    assert file.store == store.opened["name"]
    empty, used = MemoryStore(), MemoryStore()
    await used.create(new_row("s"))
    for other in (empty, used):
        await other.open(Opening(name=file.store))
    assert empty.opened["name"] == file.store
    assert used.opened["name"] not in ("", file.store)
    await Importer(empty, FakeClock()).run(file)
    await WitnessedStore(empty, witness).open()


async def test_lowered_counters_are_rejected_and_others_imported(store: MemoryStore) -> None:
    """P2: an import lowers no counter, and imports the other sequences."""
    await fill(store)
    lines = await export_of(store)
    await store.grant("orders", 5, 0)
    await store.grant("down", 5, 0)
    del store.rows["ticks"]
    importer = await import_into(store, lines)
    assert [problem.line for problem in importer.problems] == [2 + i for i, n in enumerate(sorted(NAMES)) if n in MOVED]
    assert "would be lowered from 505 to 500" in importer.problems[-1].message
    assert "would be lowered from -25 to -20" in importer.problems[0].message
    assert importer.created == 1
    assert [store.rows[name].last_value for name in MOVED] == [505, -25]


async def test_a_restored_store_is_raised_and_leases_end(store: MemoryStore, clock: FakeClock) -> None:
    """P5: an import into a restored store advances its counters, and ends its leases."""
    await fill(store)
    lines = await export_of(store)
    restored = MemoryStore(clock)
    await fill(restored)
    restored.rows["orders"].last_value = 100
    restored.rows[name_of_period("invoices", "2026")].last_value = 3
    importer = await import_into(restored, lines, clock)
    assert (importer.raised, importer.unchanged) == (2, 3)
    assert importer.effective_at == clock.wall() + 181
    orders, invoices = await restored.get("orders"), await restored.get("invoices")
    period = await restored.get(name_of_period("invoices", "2026"))
    assert orders is not None
    assert invoices is not None
    assert period is not None
    assert (orders.last_value, period.last_value) == (500, 41)
    assert orders.generation > 3
    assert period.generation < invoices.generation  # a node that opens the period continues after the import


@pytest.mark.parametrize(("here", "line", "ended"), [(0, 0, 0), (5000, 0, 5), (0, 9000, 9), (5000, 9000, 9)])
async def test_equal_counters_end_live_leases(
    store: MemoryStore, clock: FakeClock, here: int, line: int, ended: int
) -> None:
    """P5: leases may live by the store's row or by the imported line; the longer counts."""
    await store.create(Row("orders", 500, Sequence(), 3, line, 1, "x"))
    lines = await export_of(store)
    restored = MemoryStore(clock)
    await restored.create(Row("orders", 500, Sequence(), 3, here, 1, "x"))
    for _ in range(2):  # a repeated import ends the leases again
        before = restored.rows["orders"].generation
        importer = await import_into(restored, lines, clock)
        assert (importer.raised, importer.unchanged) == ((1, 0) if ended else (0, 1))
        assert importer.effective_at == (clock.wall() + ended + 1 if ended else None)
        assert (restored.rows["orders"].generation > before) == bool(ended)
    assert restored.rows["orders"].lease_ms == max(here, line)  # delays a later advance


async def test_retired_sequences_continue_in_the_new_store(store: MemoryStore, clock: FakeClock) -> None:
    """P1: sequences of a retired store end there, continue in the new store, and can move back."""
    await fill(store)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            store.rows["late"] = MemoryRow(Sequence(), 0)  # by a node that has not seen the retirement

    assert await retire(store, clock, "elsewhere", sleep) == 5
    assert waited == [181.0, 181.0]
    assert all(deleted for name, _, _, deleted in await rows_of(store) if "\x1f" not in str(name))
    there = MemoryStore(clock)
    await import_into(there, await export_of(store))
    assert [name for name, *_, deleted in await rows_of(there) if deleted] == ["gone"]
    await there.grant("orders", 1, 0)
    with pytest.raises(StoreRetired, match="use instead: elsewhere"):
        await import_into(store, await export_of(there))
    await unretire(store, clock)
    back = await import_into(store, await export_of(there))
    assert back.problems == []
    assert [row for row in await rows_of(store) if row[0] != RETIREMENT] == await rows_of(there)


async def no_sleep(_: float) -> None:
    pass


async def test_a_retirement_repeats_a_lost_change(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: a retirement ends a sequence that a node changed meanwhile, as does its undoing."""
    await fill(store)
    revise = store.revise
    lost = []

    async def lose_once(name: str, revision: int, change: RowChange) -> Row | None:
        if name not in lost:
            lost.append(name)
            store.rows[name].revision += 1
        return await revise(name, revision, change)

    monkeypatch.setattr(store, "revise", lose_once)
    assert await retire(store, clock, sleep=no_sleep) == 4
    assert lost == ["down", "invoices", "orders", "ticks"]
    assert all(store.rows[name].deleted for name in lost)
    await unretire(store, clock)
    assert store.rows[RETIREMENT].deleted
    assert lost[-1] == RETIREMENT


async def test_a_repeated_retirement_keeps_the_place(store: MemoryStore, clock: FakeClock) -> None:
    """A retirement may be repeated and undone; the new place stays unless another one is given."""
    await fill(store)
    places, ended = [], []
    for moved_to in ("", "here", "", "there"):
        ended.append(await retire(store, clock, moved_to, no_sleep))
        with pytest.raises(StoreRetired) as refused:
            await store.create(Row("others", 0, Sequence()))
        places.append(str(refused.value).partition(" use instead: ")[2])
    assert (places, ended) == ([DEFAULT_MOVED_TO, "here", "here", "there"], [4, 0, 0, 0])
    for _ in range(2):
        await unretire(store, clock)
    await store.create(Row("others", 0, Sequence()))
    assert await retire(store, clock, "", no_sleep) == 1
    with pytest.raises(StoreRetired, match=DEFAULT_MOVED_TO):
        await store.claim_start(7, 0, "me", 60)


async def test_a_retired_reset_has_an_odd_generation(store: MemoryStore, clock: FakeClock) -> None:
    """P5: no advance of a period can have the generation of a retired sequence with a reset."""
    await fill(store)
    assert store.rows["invoices"].generation == 1
    await retire(store, clock, sleep=no_sleep)
    assert store.rows["invoices"].generation > 1
    assert store.rows["invoices"].generation % 2


async def test_deleted_sequences_stay_deleted(store: MemoryStore) -> None:
    """An import neither revives nor deletes a sequence."""
    await fill(store)
    lines = await export_of(store)
    store.rows["orders"].generation = 4
    store.rows["orders"].deleted = True
    store.rows["gone"].deleted = False
    messages = [problem.message for problem in (await import_into(store, lines)).problems]
    assert len(messages) == 2
    assert "deleted in the file" in messages[0]
    assert "deleted in the store after the export" in messages[1]


@pytest.mark.parametrize(
    ("settings", "last_value", "following"),
    [
        ({"start": "10", "step": "10"}, 37, 50),
        ({"start": "100", "max_value": "100", "step": "-10"}, 37, 20),
        ({}, 41, 42),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
async def test_imported_sequences_continue_on_the_lattice(
    store: MemoryStore, settings: dict[str, str], last_value: int, following: int, exists: bool
) -> None:
    """P1: a new and an existing sequence both continue on the lattice after an import."""
    line = {"sequence": "a", "last_value": str(last_value), "generation": "1", "settings": settings}
    lines = [header_line().encode(), json.dumps(line).encode()]
    if exists:
        sequence = read_export(lines).items[0].row.sequence
        await store.create(Row("a", sequence.before_start, sequence, 1, 0, 1, "x"))
    await import_into(store, lines)
    again = await import_into(store, lines)
    assert (again.unchanged, again.problems) == (1, [])
    grant = await store.grant("a", 1, 0)
    assert grant is not None
    assert grant.last_value == following


async def test_a_raised_start_does_not_block_a_reset(store: MemoryStore) -> None:
    """P2: periods keep their counters if the store's start was raised after the export."""
    await fill(store)
    lines = await export_of(store)
    raised = replace(YEARLY, start=100)
    await store.revise("invoices", 1, RowChange(raised, raised.before_start, "y", 0.0))
    importer = await import_into(store, lines)
    assert (importer.problems, importer.raised, importer.unchanged) == ([], 2, 3)  # invoices, and the leases of orders
    assert store.rows["invoices"].sequence == YEARLY
    assert (await import_into(store, lines)).unchanged == 4
    assert store.rows[name_of_period("invoices", "2026")].last_value == 41


async def test_a_period_at_the_largest_id_is_imported(store: MemoryStore) -> None:
    """A period whose counter is the largest id is imported."""
    tens = Sequence(start=10, step=10, reset=Reset.YEARLY, format="{year}-{value}")
    await store.create(Row("bills", 0, tens, 1, 0, 1, "x"))
    await store.open_period(name_of_period("bills", "2026"), tens, MAX_ID, 1)
    there = MemoryStore()
    assert (await import_into(there, await export_of(store))).problems == []
    assert there.rows[name_of_period("bills", "2026")].last_value == MAX_ID


async def test_a_bound_with_a_reset_ignores_the_unused_counter(store: MemoryStore) -> None:
    """A bound of a sequence with a reset is compared to its periods only."""
    yearly = Sequence(reset=Reset.YEARLY, format="{year}-{value:06d}", max_value=50)
    await store.create(Row("bills", 0, yearly))
    lines = await export_of(store)
    there = MemoryStore()
    await there.create(Row("bills", 0, replace(yearly, max_value=999_999)))
    await there.revise("bills", 0, RowChange(replace(yearly, start=100, max_value=999_999), 99, "me", 0.0))
    importer = await import_into(there, lines)
    assert (importer.problems, importer.raised) == ([], 1)
