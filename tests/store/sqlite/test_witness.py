"""The file of a witness: only its own, and written to the disk."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from idalloc_server.domain.errors import StartRefused, StoreRefused
from idalloc_server.domain.store.records import Mark
from idalloc_server.domain.witness.marks import Replacement
from idalloc_server.store.sqlite.store import SqliteStore
from idalloc_server.store.sqlite.witness import SqliteWitness
from tests.store.sqlite.conftest import execute
from tests.support.fake_store import FakeClock

MARK = Mark(1, 10, 1, "one")


async def make_store(path: Path) -> None:
    store = SqliteStore(path, FakeClock())
    await store.open()
    await store.close()


async def make_other(path: Path) -> None:
    execute(path, "CREATE TABLE marks (name TEXT PRIMARY KEY)")


async def make_text(path: Path) -> None:
    await asyncio.to_thread(path.write_text, "no database, and as long as the header of one: " + "x" * 100)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_store, "is a store of idalloc; name another file"),
        (make_other, "is a SQLite database of another program; name another file"),
        (make_text, "cannot use .* as a SQLite database"),
    ],
)
async def test_another_file_is_refused(tmp_path: Path, make: Callable[[Path], Awaitable[None]], why: str) -> None:
    """P3: a file that is no witness is refused, and not changed."""
    path = tmp_path / "marks.db"
    await make(path)
    before = path.read_bytes()
    with pytest.raises(StartRefused, match=f"^witness: .*{why}") as caught:
        await SqliteWitness(path).open()
    assert caught.value.setting == "witness"
    assert path.read_bytes() == before


async def test_a_witness_is_no_store(tmp_path: Path) -> None:
    """P3: a witness is refused as a store."""
    witness = SqliteWitness(tmp_path / "marks.db")
    await witness.open()
    await witness.close()
    with pytest.raises(StartRefused, match=r"^store: "):
        await SqliteStore(tmp_path / "marks.db", FakeClock()).open()


async def test_an_edited_mark_is_refused(tmp_path: Path) -> None:
    """P3: a mark whose number was edited to a text is an error, not a number."""
    witness = SqliteWitness(tmp_path / "marks.db")
    await witness.open()
    await witness.replace([Replacement("a", MARK, ""), Replacement("b", MARK, "")])
    db = sqlite3.connect(tmp_path / "marks.db", isolation_level=None)
    db.execute("UPDATE marks SET value = 'ten' WHERE name = 'a'")
    db.close()
    with pytest.raises(
        StoreRefused, match=r"the mark 'a' of the witness was edited: \[1, 'ten', 1, 'one', ''\]; delete"
    ):
        await witness.read(["a"])
    with pytest.raises(StoreRefused, match="the mark 'a'"):
        await witness.list("", 10)
    assert await witness.read(["b"]) == {"b": MARK}
    await witness.close()


async def test_replacements_are_one_commit(tmp_path: Path) -> None:
    """P3: if one of several replacements fails in SQLite, none is applied."""
    witness = SqliteWitness(tmp_path / "marks.db")
    await witness.open()
    db = sqlite3.connect(tmp_path / "marks.db", isolation_level=None)
    db.execute("CREATE TRIGGER no BEFORE INSERT ON marks WHEN NEW.name = 'b' BEGIN SELECT RAISE(ABORT, 'no'); END")
    db.close()
    with pytest.raises(StoreRefused):
        await witness.replace([Replacement("a", MARK, ""), Replacement("b", MARK, "")])
    assert await witness.read(["a", "b"]) == {}
    await witness.close()


async def test_a_replaced_file_is_refused(tmp_path: Path) -> None:
    """P3: a witness whose file is replaced while it is open answers no more, as a store."""
    witness = SqliteWitness(tmp_path / "marks.db")
    await witness.open()
    await witness.replace([Replacement("a", MARK, "")])
    (tmp_path / "marks.db").rename(tmp_path / "old.db")
    with pytest.raises(StoreRefused, match="was replaced: no file there; follow docs"):
        await witness.read(["a"])
    await witness.close()
