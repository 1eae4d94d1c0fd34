"""Rows of a SQLite database: types, other programs' columns, older versions."""

# ruff: noqa: ASYNC240 - a test may wait for a file

import asyncio
import sqlite3
from pathlib import Path

import pytest

from idalloc_server.domain.errors import SequenceInvalid, StoreRefused, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import RecordedAllocation, RowChange
from idalloc_server.store.sqlite.store import SqliteStore
from tests.store.sqlite.conftest import execute, last_granted
from tests.support.fake_store import FakeClock
from tests.support.store_rows import new_row


class TestRows:
    async def test_a_value_of_another_type_is_refused(self, store: SqliteStore, path: Path) -> None:
        """A REAL in an integer column raises SequenceInvalid."""
        execute(path, "UPDATE sequences SET last_value = 1.5 WHERE name = 's'")
        with pytest.raises(SequenceInvalid, match="a column that must be an integer has another type"):
            await store.grant("s", 1, 1000)

    async def test_64_bit_integers_are_exact(self, store: SqliteStore, path: Path) -> None:
        """P1: counters at the ends of 64 bits stay integers in the file."""
        execute(
            path, f"UPDATE sequences SET last_value = -9223372036854775808, max_value = {2**63 - 1} WHERE name = 's'"
        )
        assert await last_granted(store, 2**63 - 1) == -1
        assert await last_granted(store, 2**63 - 1) == 2**63 - 2
        assert await last_granted(store, 5) == 2**63 - 2
        rows = execute(path, "SELECT last_value, typeof(last_value) FROM sequences WHERE name = 's'")
        assert rows == [(2**63 - 2, "integer")]

    @pytest.mark.usefixtures("store")
    async def test_concurrent_stores_share_one_file(self, path: Path) -> None:
        """P1, P6: grants and claims of four stores on one file never overlap."""
        stores = [SqliteStore(path, FakeClock()) for _ in range(4)]
        await asyncio.gather(*(each.open() for each in stores))
        lasts = await asyncio.gather(*(last_granted(each, 3) for each in stores * 5))
        claims = await asyncio.gather(*(each.claim_start(1, 1000, "me", 60) for each in stores * 5))
        for each in stores:
            await each.close()
        assert sorted(lasts) == list(range(3, 61, 3))
        assert sorted(claim.start_timestamp for claim in claims) == list(range(1000, 1020))

    async def test_columns_of_other_programs_keep_their_values(self, store: SqliteStore, path: Path) -> None:
        """A write keeps the values of columns that another program added."""
        execute(path, "ALTER TABLE sequences ADD COLUMN owner TEXT", "UPDATE sequences SET owner = 'sales'")
        await store.revise("s", 0, RowChange(Sequence(), 5, "me", 1.5))
        rows = execute(path, "SELECT owner, last_value, changed_at FROM sequences WHERE name = 's'")
        assert rows == [("sales", 5, 1.5)]

    async def test_reads_do_not_wait_for_a_writer(self, store: SqliteStore, path: Path) -> None:
        """P10: reads return the last commit while another process writes."""
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE sequences SET last_value = 99")
        assert await store.get("s") == new_row("s")
        assert await store.list("", "", 9, with_deleted=True, with_periods=False) == [new_row("s")]
        assert await store.recorded("r") is None
        assert await store.claimed_starts() == {}
        other.execute("COMMIT")
        other.close()
        assert await store.get("s") == new_row("s", last_value=99)

    async def test_an_older_table_of_sequences_is_upgraded(self, path: Path, clock: FakeClock) -> None:
        """P1: a table of an older version gets the missing columns, and its counters continue."""
        execute(
            path,
            "PRAGMA application_id = 0x69646C63",
            "CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value INTEGER, step INTEGER, generation INTEGER)",
            "INSERT INTO sequences VALUES ('s', 41, 1, 3)",
        )
        store = SqliteStore(path, clock)
        await store.open()
        assert await store.get("s") == new_row("s", last_value=41, generation=3)
        await store.record([RecordedAllocation("r", "s", 1, 1, 1, 3, "", 0, "node")])
        assert await store.newest_recorded() is not None
        await store.close()

    async def test_an_older_table_of_allocations_gets_a_window(self, path: Path, clock: FakeClock) -> None:
        """P7: an older table of allocations gets the missing column and keeps its rows."""
        execute(
            path,
            "PRAGMA application_id = 0x69646C63",
            "CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value INTEGER)",
            "INSERT INTO sequences VALUES ('s', 1)",
            "CREATE TABLE allocations (request_id TEXT PRIMARY KEY, sequence TEXT NOT NULL, first_id INTEGER NOT NULL,"
            " id_count INTEGER NOT NULL, step INTEGER NOT NULL, generation INTEGER NOT NULL, period TEXT NOT NULL,"
            " prefix INTEGER NOT NULL, node TEXT NOT NULL, written_at REAL NOT NULL)",
            "INSERT INTO allocations VALUES ('r', 's', 1, 1, 1, 3, '', 0, 'node', 5.0)",
        )
        store = SqliteStore(path, clock)
        await store.open()
        assert await store.recorded("r") == RecordedAllocation("r", "s", 1, 1, 1, 3, "", 0, "node")
        new = RecordedAllocation("q", "s", 2, 1, 1, 3, "", 0, "node", 1000)
        assert await store.record([new]) == {"q": new}
        await store.close()

    async def test_a_removed_file_is_not_read(self, store: SqliteStore, path: Path) -> None:
        """P3: a store whose file was removed refuses reads, too."""
        path.unlink()
        for asked in (store.get("s"), store.recorded("r"), store.claimed_starts()):
            with pytest.raises(StoreRefused, match="was replaced"):
                await asked
        with pytest.raises(StoreWentBackwards):
            await store.grant_timestamps("s", 1, 1000, 1, 1)
