"""The backends of the stores under test, with access to their rows without idalloc."""

import asyncio
import os
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest
from crate import client as crate_client

from idalloc_server.domain.store.identity import ANY_STORE, IDENTITY, NAME_COLUMN, Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.witness.marks import Witness
from idalloc_server.store.cratedb.tables import SEQUENCES
from idalloc_server.store.urls import open_store, open_witness
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.fake_witness import MemoryWitness
from tests.support.waiting import hold_for_async

REAL_CRATEDB = os.environ.get("IDALLOC_TEST_CRATEDB_URL", "")
# The kinds of stores that keep documents, for parameters of tests; OpenSearch keeps none.
WITH_DOCUMENTS = ["sqlite", "emulator", *([pytest.param("cratedb", marks=pytest.mark.cratedb)] if REAL_CRATEDB else [])]

GUIDE_TABLE = "(name TEXT PRIMARY KEY, last_value BIGINT)"
COLUMNS = ("last_value", "step", "min_value", "max_value", "generation", "lease_ms")


class Backend(Protocol):
    """A database that stores are opened on."""

    url: str  # the URL for ``open_store``

    async def make_guide_table(self) -> None:
        """Make a table of sequences with only name and last_value, as in CrateDB's guide."""
        ...

    async def put(self, name: str, columns: Mapping[str, int | str | None]) -> None:
        """Insert a row with these columns only, in place of one with its name."""
        ...

    async def change_settings(self, name: str, packed: str) -> None:
        """Change the packed settings of a row by hand."""
        ...

    async def row(self, name: str) -> Mapping[str, Any] | None:
        """Read the columns ``COLUMNS`` of a row."""
        ...

    async def advance(self, seconds: float) -> None:
        """Advance the store's clock."""
        ...

    async def set_back(self, seconds: float) -> None:
        """Set the store's clock back, if it can be set."""
        ...

    async def take_as_recipe_client(self, name: str) -> int:
        """Take one value as a client of CrateDB's guide, which knows only the two-column table."""
        ...

    async def exchange(self) -> None:
        """Put another, empty table of sequences under the name of this one."""
        ...

    async def lose(self, part: str) -> None:
        """Remove a table or an index of a store."""
        ...

    async def empty(self, part: str) -> None:
        """Remove all rows of a table, or make an index again without them."""
        ...

    async def forget_name(self) -> None:
        """Remove the name of the store from all parts, as in a store of an older version."""
        ...

    def beside(self) -> "Backend":
        """Return a backend of another name on the same server, or in the same folder."""
        ...

    async def close(self) -> None:
        """Remove the tables."""
        ...


class Opener:
    """Opens stores on a backend, and closes them."""

    # The stand-in for the database behind it, if a test may change or break it.
    stand_in: object = None
    # What opens a store of a URL.
    open_url: Callable[[str, FakeClock], Store] = staticmethod(open_store)

    def __init__(self, backend: Backend, clock: FakeClock) -> None:
        self.backend = backend
        self._clock = clock
        self._stores: list[Store] = []

    def new(self) -> Store:
        """Return one more store, as of another process; it is not open."""
        self._stores.append(self.open_url(self.backend.url, self._clock))
        return self._stores[-1]

    async def open(self, opening: Opening = ANY_STORE) -> Store:
        """Return one more open store."""
        store = self.new()
        await store.open(opening)
        return store

    async def sql(self, statement: str, *args: object) -> None:
        """Run a statement without idalloc, on a backend that speaks SQL."""
        assert isinstance(self.backend, SqlBackend)
        await self.backend.sql(statement, *args)

    async def put(self, name: str, **columns: int | str | None) -> None:
        """Insert a row with these columns only, as in an adopted table."""
        await self.backend.put(name, columns)

    async def row(self, name: str) -> dict[str, int | None] | None:
        """Read the columns of a row; one that is missing in it is None."""
        found = await self.backend.row(name)
        return None if found is None else {column: found.get(column) for column in COLUMNS}

    async def close(self) -> None:
        """Close the stores and remove the tables."""
        for store in self._stores:
            await store.close()
        await self.backend.close()


class WitnessOpener:
    """Opens witnesses on the backend of an opener, and closes them. Those of the fake share one."""

    def __init__(self, opener: Opener) -> None:
        self._url = opener.backend.url
        self._fake = MemoryWitness()
        self._witnesses: list[Witness] = []

    def new(self) -> Witness:
        """Return one more witness, as of another process; it is not open."""
        if self._url == MemoryBackend.url:
            return self._fake
        self._witnesses.append(open_witness(self._url, "sqlite:///elsewhere/ids.db"))
        return self._witnesses[-1]

    async def open(self) -> Witness:
        """Return one more open witness."""
        witness = self.new()
        await witness.open()
        return witness

    async def close(self) -> None:
        """Close the witnesses."""
        for witness in self._witnesses:
            await witness.close()


class SqlBackend:
    """The rows of a database that speaks SQL."""

    async def sql(self, statement: str, *args: object) -> list[Sequence[Any]]:
        """Run a statement without idalloc; ``{}`` is the prefix of the names of tables."""
        raise NotImplementedError

    async def make_guide_table(self) -> None:
        await self.sql(f"CREATE TABLE {{}}sequences {GUIDE_TABLE}")

    async def lose(self, part: str) -> None:
        await self.sql(f"DROP TABLE {{}}{part}")

    async def empty(self, part: str) -> None:
        await self.sql(f"DELETE FROM {{}}{part}")

    async def forget_name(self) -> None:
        name = "SELECT sequence FROM {}allocations WHERE request_id = ?"
        ((store,),) = await self.sql(name, IDENTITY)
        await self.sql("DELETE FROM {}sequences WHERE name = ?", IDENTITY)
        await self.sql("DELETE FROM {}allocations WHERE request_id = ?", IDENTITY)
        await self.sql(f"ALTER TABLE {{}}start_timestamps DROP COLUMN {NAME_COLUMN}{store}")

    async def put(self, name: str, columns: Mapping[str, int | str | None]) -> None:
        names = ["name", *columns]
        placeholders = ", ".join("?" for _ in names)
        await self.sql("DELETE FROM {}sequences WHERE name = ?", name)
        statement = f"INSERT INTO {{}}sequences ({', '.join(names)}) VALUES ({placeholders})"
        await self.sql(statement, name, *columns.values())

    async def change_settings(self, name: str, packed: str) -> None:
        await self.sql("UPDATE {}sequences SET settings = ? WHERE name = ?", packed, name)

    async def row(self, name: str) -> Mapping[str, Any] | None:
        rows = await self.sql(f"SELECT {', '.join(COLUMNS)} FROM {{}}sequences WHERE name = ?", name)
        return dict(zip(COLUMNS, rows[0], strict=True)) if rows else None


class SqliteBackend(SqlBackend):
    """A SQLite file."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        self.url = f"sqlite://{path}"
        self._path = path
        self._clock = clock

    def files(self) -> list[Path]:
        """Return the files of the database that exist."""
        return [*self._path.parent.glob(f"{self._path.name}*")]

    async def sql(self, statement: str, *args: object) -> list[Sequence[Any]]:
        db = sqlite3.connect(self._path, isolation_level=None)
        try:
            return db.execute(statement.format(""), args).fetchall()
        finally:
            db.close()

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def set_back(self, seconds: float) -> None:
        self._clock.wall_seconds -= seconds

    async def take_as_recipe_client(self, name: str) -> int:
        def take() -> int:
            db = sqlite3.connect(self._path, isolation_level=None)
            try:
                db.execute("BEGIN IMMEDIATE")
                (value,) = db.execute("SELECT last_value FROM sequences WHERE name = ?", (name,)).fetchone()
                db.execute("UPDATE sequences SET last_value = ? WHERE name = ?", (value + 1, name))
                db.execute("COMMIT")
            finally:
                db.close()
            return int(value) + 1

        return await asyncio.to_thread(take)

    async def exchange(self) -> None:
        other = self._path.with_suffix(".other")
        store = open_store(f"sqlite://{other}", self._clock)
        await store.open()
        await store.close()
        other.replace(self._path)

    def beside(self) -> "SqliteBackend":
        return SqliteBackend(self._path.with_suffix(".beside"), self._clock)

    async def close(self) -> None:
        pass


class CrateBackend(SqlBackend):
    """A schema of a cluster or of the emulator, read by the package ``crate``, which idalloc does
    not use.

    Args:
        url: With a schema of its own.
        advance: Advances the clock of the emulator; by default ``advance`` waits.
    """

    def __init__(self, url: str, advance: Callable[[float], None] | None = None) -> None:
        self.url = url
        parts = urlsplit(url)
        self.user, _, hosts = parts.netloc.rpartition("@")
        self._servers = [f"http://{host}" for host in hosts.split(",")]
        self.schema = parts.query.removeprefix("schema=")
        self._advance = advance

    async def sql(self, statement: str, *args: object) -> list[Sequence[Any]]:
        def run() -> list[Sequence[Any]]:
            connection = crate_client.connect(self._servers, username=self.user or None)
            try:
                cursor = connection.cursor()
                cursor.execute(statement.replace("{}", f'"{self.schema}".'), args)
                return list(cursor.fetchall()) if cursor.description else []
            finally:
                connection.close()

        return await asyncio.to_thread(run)

    async def advance(self, seconds: float) -> None:
        if self._advance is None:
            await hold_for_async(seconds, "the clock of a real CrateDB")
        else:
            self._advance(seconds)

    async def set_back(self, seconds: float) -> None:
        if self._advance is not None:
            self._advance(-seconds)

    async def take_as_recipe_client(self, name: str) -> int:
        while True:
            ((value, seq_no, term),) = await self.sql(
                "SELECT last_value, _seq_no, _primary_term FROM {}sequences WHERE name = ?", name
            )
            rows = await self.sql(
                "UPDATE {}sequences SET last_value = ? WHERE name = ? AND _seq_no = ? AND _primary_term = ?"
                " RETURNING last_value",
                value + 1,
                name,
                seq_no,
                term,
            )
            if rows:
                return int(rows[0][0])
            await hold_for_async(0.001, "before the client's retry")

    async def empty(self, part: str) -> None:
        await self.sql(f"REFRESH TABLE {{}}{part}")  # a deletion of all rows misses newer ones
        await super().empty(part)

    async def make_again(self) -> None:
        """Drop the table of sequences, and create it under its name."""
        await self.lose("sequences")
        await self.sql(SEQUENCES.definition(self.schema))

    async def exchange(self) -> None:
        other = replace(SEQUENCES, name="sequences_other")
        await self.sql(other.definition(self.schema))
        await self.sql("ALTER CLUSTER SWAP TABLE {}sequences TO {}sequences_other")

    def beside(self) -> "CrateBackend":
        return CrateBackend(f"{self.url}_beside", self._advance)

    async def close(self) -> None:
        for table in ("sequences", "sequences_other", "start_timestamps", "allocations", "witness_marks"):
            await self.sql(f"DROP TABLE IF EXISTS {{}}{table}")


async def skip_before_oids(sql: Callable[[str], Awaitable[Sequence[Any]]]) -> None:
    """Skip a test on a CrateDB that cannot tell a table from another one of its name."""
    ((version,), *_) = await sql("SELECT version['number'] FROM sys.nodes")
    if tuple(map(int, version.split(".")[:2])) < (6, 3):
        pytest.skip(f"CrateDB {version} has no OIDs of tables")


class MemoryBackend(SqlBackend):
    """The fake store in memory, which has no SQL."""

    url = "memory:"

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    async def set_back(self, seconds: float) -> None:
        self._clock.wall_seconds -= seconds

    async def take_as_recipe_client(self, name: str) -> int:
        raise NotImplementedError(name)

    async def exchange(self) -> None:
        raise NotImplementedError

    def beside(self) -> "MemoryBackend":
        raise NotImplementedError

    async def close(self) -> None:
        pass


class MemoryOpener(Opener):
    """Shares one fake store between all processes."""

    def __init__(self, backend: MemoryBackend, clock: FakeClock) -> None:
        super().__init__(backend, clock)
        self._store = MemoryStore(clock)

    def new(self) -> Store:
        return self._store


@asynccontextmanager
async def empty_store(kind: str, folder: Path) -> AsyncIterator[str]:
    """Yield the URL of an empty store of one of ``WITH_DOCUMENTS``."""
    if kind == "emulator":
        async with CrateEmulator() as crate:
            yield f"crate://{crate.host}/?schema=idalloc_test"
    elif kind == "cratedb":
        yield f"{REAL_CRATEDB.partition('?')[0]}?schema=idalloc_test_{uuid.uuid4().hex[:12]}"
    else:
        yield f"sqlite://{folder}/ids.db"
