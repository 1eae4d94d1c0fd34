"""TLS to CrateDB."""

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


async def test_a_certificate_of_the_ca_is_trusted(crate: CrateEmulator, ca_file: Path, clock: FakeClock) -> None:
    """A server with a certificate of the CA in ``ca`` gets the credentials."""
    crate.require_password("alice", "secret")
    store = open_store(f"crate://alice:secret@{crate.host}/?ca={ca_file}", clock)
    await store.open()
    assert await store.now() is not None
    await store.close()
    assert crate.unknown == []


async def test_an_untrusted_certificate_gets_no_password(crate: CrateEmulator, clock: FakeClock) -> None:
    """No request, and so no password, is sent to a server with a certificate of another CA."""
    store = open_store(f"crate://alice:secret@{crate.host}/?tls=true", clock)
    with pytest.raises(
        StoreUnreachable, match=r"its certificate is refused: .*; set ca in the URL to the file of the CA"
    ):
        await store.open()
    await store.close()
    assert crate.requests == []


async def test_a_certificate_for_another_name_gets_no_request(
    crate: CrateEmulator, ca_file: Path, clock: FakeClock
) -> None:
    """No request is sent to a server whose certificate has another host name."""
    store = open_store(f"crate://{crate.host.replace('127.0.0.1', 'localhost')}/?ca={ca_file}", clock)
    with pytest.raises(StoreUnreachable, match=r"its certificate is refused: .*not valid for 'localhost'\.$"):
        await store.open()
    await store.close()
    assert crate.requests == []


async def test_plain_http_to_a_tls_port_is_unreachable(crate: CrateEmulator, clock: FakeClock) -> None:
    """Plain HTTP to a TLS port raises StoreUnreachable."""
    store = open_store(f"crate://{crate.host}/", clock)
    with pytest.raises(StoreUnreachable):
        await store.open()
    await store.close()
    assert crate.requests == []
