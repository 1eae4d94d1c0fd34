"""Retirement of a SQLite file that has a row that cannot be read."""

from pathlib import Path

import pytest

from idalloc_server.backup.exporter import retire
from idalloc_server.domain.errors import SequenceInvalid
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from idalloc_server.domain.store.records import Row
from idalloc_server.store.sqlite.store import SqliteStore
from tests.store.sqlite.conftest import execute
from tests.support.fake_store import FakeClock

YEARLY = Sequence(reset=Reset.YEARLY)


async def test_no_sequence_ends_if_a_period_cannot_be_read(tmp_path: Path) -> None:
    """A retirement whose export would fail ends no sequence; it can be repeated after a repair."""
    store = SqliteStore(tmp_path / "ids.db", FakeClock())
    await store.open()
    period = name_of_period("a", "2026")
    await store.create(Row("a", 0, YEARLY))
    await store.create(Row("b", 0, Sequence()))
    await store.open_period(period, YEARLY, 0, 1)
    execute(store.path, f"UPDATE sequences SET settings = '{{bad' WHERE name = '{period}'")

    async def no_sleep(seconds: float) -> None:
        pass

    with pytest.raises(SequenceInvalid):
        await retire(store, FakeClock(), sleep=no_sleep)
    rows = [await store.get(name) for name in ("a", "b")]
    assert [row.deleted for row in rows if row] == [False, False]
    execute(store.path, f"UPDATE sequences SET settings = '{{}}' WHERE name = '{period}'")
    assert await retire(store, FakeClock(), sleep=no_sleep) == 2
    await store.close()
