"""Export and import of all sequences."""

import json
from pathlib import Path

import pytest

from idalloc_server.domain.errors import SequenceDeleted
from idalloc_server.domain.sequence import Kind, Ordering, Reset, Sequence, name_of_period
from idalloc_server.domain.store import Row, Store
from idalloc_server.domain.transfer import Import, export_lines, retire
from idalloc_server.domain.transfer_file import read
from idalloc_server.store.sqlite import SqliteStore
from tests.fakes import FakeClock, MemoryStore

YEARLY = Sequence(reset=Reset.YEARLY, format="INV-{year}-{value:06d}", time_zone="Europe/Vienna", max_value=999_999)

NAMES = ["orders", "down", "gone", "ticks", "invoices", "invoices\x1f2026"]
MOVED = ("orders", "down")


async def exported(store: Store) -> list[bytes]:
    return [line.encode() async for line in export_lines(store)]


async def imported(store: Store, lines: list[bytes], clock: FakeClock | None = None) -> Import:
    file = read(lines)
    assert file.problems == []
    done = Import(store, clock or FakeClock())
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
    assert (again.created, again.raised, again.unchanged, again.effective_at) == (0, 0, 5, None)
    back = MemoryStore()
    await imported(back, await exported(sqlite))
    assert await state(back) == await state(store)
    grant = await sqlite.grant("orders", 1, 0)
    assert grant is not None
    assert (grant.last_value, grant.generation) == (501, 4)
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
    assert (orders.last_value, orders.generation, period.last_value) == (500, 4, 41)
    assert period.generation < invoices.generation  # so that whoever opens it next does so behind what was brought


async def test_retired_sequences_end_here_and_live_there(store: MemoryStore, clock: FakeClock) -> None:
    await filled(store)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            await store.create(Row("late", 0, Sequence(), 1, 0, 1, "x"))

    assert await retire(store, clock, sleep) == 5
    assert waited == [181.0, 181.0]
    assert all(deleted for name, _, _, deleted in await state(store) if "\x1f" not in str(name))
    there = MemoryStore(clock)
    await imported(there, await exported(store))
    assert [name for name, *_, deleted in await state(there) if deleted] == ["gone"]
    await there.grant("orders", 1, 0)
    back = await imported(store, await exported(there))
    assert back.problems == []
    assert await state(store) == await state(there)


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
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b"\xff", ""),
        (b'{"sequence": "a", "last_value": "1", "generation": "1", "settings": {"step": "0"}}', "step"),
        (b'{"sequence": "a", "last_value": "1", "generation": "1", "settings": {"stp": "1"}}', "stp"),
        (b'{"sequence": "a", "last_value": "1", "generation": "1", "settings": {"kind": "X"}}', "kind"),
        (b'{"sequence": "a", "last_value": 1.5, "generation": "1", "settings": {}}', "last_value"),
        (b'{"sequence": "a", "last_value": "9223372036854775807", "generation": "1", "settings": {}}', "last_value"),
        (b'{"sequence": "", "last_value": "1", "generation": "1", "settings": {}}', "sequence"),
        (b'{"sequence": "b", "period": "2026", "last_value": "1", "generation": "1"}', "not in the file"),
        (b'{"prefix": 65536, "last_start": "1"}', "prefix"),
    ],
)
def test_a_broken_line_is_named(line: bytes, why: str) -> None:
    (problem,) = read([b'{"idalloc_export": 1}', b"", line]).problems
    assert problem.line == 3
    assert why in problem.why


def test_only_what_was_exported_is_read() -> None:
    assert read([]).problems
    assert read([json.dumps({"idalloc_export": 2}).encode()]).problems
