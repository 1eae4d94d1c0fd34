"""The fixtures and the virtual time of the server's unit tests, and TLS for those of the port."""

import ssl
from typing import NamedTuple

import pytest
import trustme

from tests.unit.conftest import allocator as allocator
from tests.unit.conftest import clock as clock
from tests.unit.conftest import store as store
from tests.unit.server.conftest import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from tests.unit.server.conftest import watched_threads as watched_threads


class Tls(NamedTuple):
    """A CA, and the contexts of a server and of its clients."""

    authority: trustme.CA
    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="package")
def tls() -> Tls:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return Tls(authority, server, client)
