"""TLS to CrateDB: who is trusted, and that nothing is sent to anyone else."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from idalloc_server.domain.errors import StoreUnreachable
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.fake_store import FakeClock

trustme = pytest.importorskip("trustme")


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    return tmp_path / "ca.pem"


@pytest.fixture
async def crate(ca_file: Path) -> AsyncIterator[CrateEmulator]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with CrateEmulator(tls=context) as crate:
        yield crate


async def test_a_server_with_a_certificate_of_the_authority_is_talked_to(
    crate: CrateEmulator, ca_file: Path, clock: FakeClock
) -> None:
    crate.demand("alice", "secret")
    store = open_store(f"crate://alice:secret@{crate.host}/?ca={ca_file}", clock)
    await store.open()
    assert await store.now() is not None
    await store.close()
    assert crate.unknown == []


async def test_one_without_is_not_told_the_password(crate: CrateEmulator, clock: FakeClock) -> None:
    store = open_store(f"crate://alice:secret@{crate.host}/?tls=true", clock)
    with pytest.raises(StoreUnreachable, match=r"(?i)certificate"):
        await store.open()
    await store.close()
    assert crate.requests == []


async def test_nor_one_with_a_certificate_for_another_name(
    crate: CrateEmulator, ca_file: Path, clock: FakeClock
) -> None:
    store = open_store(f"crate://{crate.host.replace('127.0.0.1', 'localhost')}/?ca={ca_file}", clock)
    with pytest.raises(StoreUnreachable, match=r"(?i)certificate"):
        await store.open()
    await store.close()
    assert crate.requests == []


async def test_without_tls_nothing_is_understood(crate: CrateEmulator, clock: FakeClock) -> None:
    store = open_store(f"crate://{crate.host}/", clock)
    with pytest.raises(StoreUnreachable):
        await store.open()
    await store.close()
    assert crate.requests == []
