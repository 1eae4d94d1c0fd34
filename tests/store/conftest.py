import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.witness.marks import Witness
from idalloc_server.store.cluster import base
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_store import FakeClock
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.opensearch.real import RELEASES
from tests.support.opensearch.stand_in import OpenSearchStandIn
from tests.support.store_backends import (
    REAL_CRATEDB,
    WITH_DOCUMENTS,
    CrateBackend,
    MemoryBackend,
    MemoryOpener,
    Opener,
    SqliteBackend,
    WitnessOpener,
)

CRATEDB = WITH_DOCUMENTS[1:]
# Its first start fetches the jars. One process runs all tests of a release, so that it starts once.
REAL_OPENSEARCH = [
    pytest.param(
        version,
        marks=[pytest.mark.test_long, pytest.mark.timeout(900), pytest.mark.xdist_group(f"opensearch-{version}")],
        id=f"opensearch-{version}",
    )
    for version in RELEASES
]
OPENSEARCH = [pytest.param("opensearch", id="opensearch-stand-in"), *REAL_OPENSEARCH]
BACKENDS = ["sqlite", *CRATEDB, *OPENSEARCH]
# With the fake store of the unit tests, which keeps the same promises.
ALL = [*BACKENDS, "memory"]


@pytest.fixture(autouse=True)
def second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that seems to have lost a part is looked at again at once."""
    monkeypatch.setattr(base, "SECOND_LOOK_SECONDS", 0.0)


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
    """Open stores on a backend of each kind."""
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
            opener.stand_in = crate
            yield opener
            await opener.close()
        assert crate.unknown == []
    elif request.param == "opensearch":
        async with OpenSearchStandIn() as stand_in:
            stand_in.cluster.now_ms = lambda: round(clock.wall() * 1000)
            opener = Opener(OpenSearchBackend(stand_in.host, "idalloc-test", clock.advance), clock)
            opener.stand_in = stand_in
            yield opener
            await opener.close()
        assert stand_in.unknown == []
    elif request.param in RELEASES:
        host = request.getfixturevalue("opensearch_host")(request.param)
        opener = Opener(OpenSearchBackend(host, f"idalloc-test-{uuid.uuid4().hex[:12]}"), clock)
        yield opener
        await opener.close()
    else:
        schema = f"idalloc_test_{uuid.uuid4().hex[:12]}"
        opener = Opener(CrateBackend(f"{REAL_CRATEDB.partition('?')[0]}?schema={schema}"), clock)
        yield opener
        await opener.close()


@pytest.fixture
async def store(opener: Opener) -> Store:
    """An open store."""
    return await opener.open()


@pytest.fixture
async def witnesses(opener: Opener) -> AsyncIterator[WitnessOpener]:
    """Open witnesses on a backend of each kind."""
    witnesses = WitnessOpener(opener)
    yield witnesses
    await witnesses.close()


@pytest.fixture
async def witness(witnesses: WitnessOpener) -> Witness:
    """An open witness."""
    return await witnesses.open()
