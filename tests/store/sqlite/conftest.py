import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.fake_store import FakeClock
from tests.support.store_rows import new_row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "idalloc.db"


@pytest.fixture
async def store(path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    """An open store with the sequence s."""
    store = SqliteStore(path, clock, busy_timeout=0.2)
    await store.open()
    await store.create(new_row("s"))
    yield store
    await store.close()


def execute(path: Path, *statements: str) -> None:
    """Run statements without idalloc."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


async def last_granted(store: SqliteStore, wanted: int = 1) -> int:
    """Grant ids of the sequence s, and return the counter."""
    granted = await store.grant("s", wanted, 1000)
    assert granted is not None
    return granted.last_value


def pragma(store: SqliteStore, name: str) -> object:
    """Return a PRAGMA of the store's connection; to be called on its thread."""
    assert store._database._connection is not None
    return store._database._connection.execute(f"PRAGMA {name}").fetchone()[0]
