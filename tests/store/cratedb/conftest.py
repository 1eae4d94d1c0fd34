from collections.abc import AsyncIterator, Callable

import pytest

from idalloc_server.domain.store.protocol import Store
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_store import FakeClock

ADD = "UPDATE sequences SET last_value = last_value + ? WHERE name = ? RETURNING last_value"
READ = "SELECT last_value FROM sequences WHERE name = ?"
MakeHttp = Callable[..., CrateHttp]


@pytest.fixture
async def crate(emulator: CrateEmulator) -> CrateEmulator:
    """An emulator with a table of two columns, and the sequence s at 0."""
    emulator.statements.execute("CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value BIGINT)", [])
    emulator.statements.execute("INSERT INTO sequences (name, last_value) VALUES ('s', 0)", [])
    return emulator


@pytest.fixture
async def make_http() -> AsyncIterator[MakeHttp]:
    """Make transports with short timeouts, and close them."""
    made: list[CrateHttp] = []

    def make(*hosts: str, **options: object) -> CrateHttp:
        settings = {"timeout": 0.3, "connect_timeout": 1.0, **options}
        made.append(CrateHttp(hosts, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for http in made:
        await http.close()


@pytest.fixture
async def store(emulator: CrateEmulator, clock: FakeClock) -> AsyncIterator[Store]:
    """A store in the emulator that is not open yet."""
    store = open_store(f"crate://alice@{emulator.host}/?schema=ids", clock)
    yield store
    await store.close()


def last_value(crate: CrateEmulator) -> int:
    """Return the counter of the sequence s."""
    return int(crate.statements.execute(READ, ["s"])["rows"][0][0])
