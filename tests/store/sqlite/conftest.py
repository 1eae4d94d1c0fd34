import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from idalloc_server.store.sqlite.database import Database
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


def execute(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements without idalloc; return the rows of the last one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        *_, rows = [db.execute(statement).fetchall() for statement in statements]
    return rows


async def last_granted(store: SqliteStore, wanted: int = 1) -> int:
    """Grant ids of the sequence s, and return the counter."""
    granted = await store.grant("s", wanted, 1000)
    assert granted is not None
    return granted.last_value


def pragma(store: SqliteStore, name: str) -> object:
    """Return a PRAGMA of the store's connection; to be called on its thread."""
    assert store._database._connection is not None
    return store._database._connection.execute(f"PRAGMA {name}").fetchone()[0]


class HeldDatabase:
    """A database whose thread waits until ``release``, so that writes queue up."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.commits = 0
        self.at_commit: Callable[[], None] = lambda: None  # called when a commit begins
        self._go = threading.Event()
        self._has_begun = threading.Event()

    async def hold(self) -> asyncio.Future[None]:
        """Make the thread wait; return the future of the job that waits."""
        held = asyncio.ensure_future(self.database.read(self._wait))
        await asyncio.to_thread(self._has_begun.wait)
        return held

    def _wait(self, db: sqlite3.Connection) -> None:
        self._has_begun.set()
        self._go.wait()
        db.set_trace_callback(self._trace)

    def _trace(self, statement: str) -> None:
        if statement == "COMMIT":
            self.commits += 1
            self.at_commit()

    def release(self) -> None:
        """Let the thread go on."""
        self._go.set()


def deny_commit(action: int, name: str | None, *_: str | None) -> int:
    """Refuse each COMMIT, as the authorizer of a connection."""
    return sqlite3.SQLITE_DENY if (action, name) == (sqlite3.SQLITE_TRANSACTION, "COMMIT") else sqlite3.SQLITE_OK
