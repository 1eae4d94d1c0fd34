"""A port of the X Protocol in this process, with identities, TLS, and documents in SQLite."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast

from idalloc_server.auth.access import ROLES, AccessPolicy, Identity, Role
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.listen.connections import ConnectionLimits
from idalloc_server.node.change import NodeChanges
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents.cost import MAX_SIZE
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.listener import Services, XListener
from idalloc_xproto.logins import Logins
from idalloc_xproto.stores.sqlite import SqliteDocuments
from tests.support.certificates import Certificates
from tests.support.fake_store import MemoryStore
from tests.xproto.support.client import XClient


@dataclass
class Served:
    """The port, and its clients."""

    listener: XListener
    documents: Documents
    tls: ssl.SSLContext  # of clients

    async def stranger(self) -> XClient:
        """Return a connection with TLS, before its login."""
        client = await XClient.connect(self.listener.address)
        await client.read()
        await client.start_tls(self.tls)
        return client

    async def client(self, name: str) -> XClient:
        """Return a session of an identity, whose token is its name."""
        client = await self.stranger()
        assert (await client.log_in_plain(name, name)).code == 0
        return client


def identity(name: str, **roles: list[str]) -> Identity:
    """Return an identity whose token is its name."""
    patterns = {role: Patterns(roles.get(role, ())) for role in ROLES}
    return Identity(name, (sha256(name.encode()).digest(),), roles=cast(Mapping[Role, Patterns], patterns))


@asynccontextmanager
async def served(folder: Path, *identities: Identity) -> AsyncIterator[Served]:
    """Serve the identities, and one with all roles: ``root``."""
    root = identity("root", allocate=["*"], read=["*"], admin=["*"])
    certificates = Certificates(folder)
    shown = certificates.client("127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(shown.cert, shown.key)
    clock = SystemClock()
    access = AccessControl(clock, 1000, AccessPolicy([root, *identities]))
    access.authenticator.require_authentication()
    starts = StartTimestamps(MemoryStore(clock), clock, prefix=0, holder="here:1", max_clock_skew=60.0)
    doc_ids = DocIdGenerator(starts, await starts.start())
    documents, thread = SqliteDocuments(folder / "documents.db"), SideThread("statements")
    await documents.open()
    services = Services(
        statements=Collections(documents, MAX_SIZE, thread),
        documents=documents,
        thread=thread,
        doc_ids=doc_ids,
        change_node=NodeChanges(doc_ids).change,
        logins=Logins(access),
        audit=access.audit,
        burn=lambda count: None,
    )
    listener = XListener(
        "127.0.0.1:0",
        services,
        tls=server,
        requires_tls=True,
        max_message_bytes=MAX_SIZE,
        limits=ConnectionLimits(50, 50),
    )
    await listener.start()
    try:
        yield Served(listener, documents, ssl.create_default_context(cafile=certificates.ca))
    finally:
        await listener.close()
        thread.close()
        await documents.close()
