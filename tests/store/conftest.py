import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from idalloc_server.domain.store.protocol import Store
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_store import FakeClock
from tests.support.store_backends import (
    BACKENDS,
    REAL_CRATEDB,
    CrateBackend,
    MemoryBackend,
    MemoryOpener,
    Opener,
    SqliteBackend,
)

CRATEDB = BACKENDS[1:]
# With the fake store of the unit tests, which keeps the same promises.
ALL = [*BACKENDS, "memory"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def emulator(clock: FakeClock) -> AsyncIterator[CrateEmulator]:
    async with CrateEmulator() as crate:
        crate.statements.now_ms = lambda: round(clock.wall() * 1000)
        yield crate
    assert crate.unknown == []


@pytest.fixture(params=BACKENDS)
async def opener(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens stores on a backend of each kind."""
    if request.param == "sqlite":
        opener = Opener(SqliteBackend(tmp_path / "idalloc.db", clock), clock)
        yield opener
        await opener.close()
    elif request.param == "memory":
        yield MemoryOpener(MemoryBackend(clock), clock)
    elif request.param == "emulator":
        async with CrateEmulator() as crate:
            crate.statements.now_ms = lambda: round(clock.wall() * 1000)
            opener = Opener(CrateBackend(f"crate://{crate.host}/?schema=idalloc_test", clock.advance), clock)
            yield opener
            await opener.close()
        assert crate.unknown == []
    else:
        schema = f"idalloc_test_{uuid.uuid4().hex[:12]}"
        opener = Opener(CrateBackend(f"{REAL_CRATEDB.partition('?')[0]}?schema={schema}"), clock)
        yield opener
        await opener.close()


@pytest.fixture
async def store(opener: Opener) -> Store:
    """An open store."""
    return await opener.open()
