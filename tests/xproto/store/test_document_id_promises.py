"""The requirements on generated ids of MySQL's WL#10955, by its names: listeners on every store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import pytest

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.listen.connections import ConnectionLimits
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents.cost import MAX_SIZE
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.listener import Services, XListener
from idalloc_xproto.logins import Logins
from idalloc_xproto.stores.urls import open_documents
from tests.support.fake_store import FakeClock
from tests.support.store_backends import WITH_DOCUMENTS, Opener
from tests.xproto.store.test_contract_documents import documents
from tests.xproto.support.client import XClient, connected

__all__ = ["documents"]

pytestmark = [
    pytest.mark.usefixtures("documents"),
    pytest.mark.parametrize("opener", WITH_DOCUMENTS, indirect=True),
]


class Nodes:
    """Starts listeners on one backend, each as a node of its own."""

    def __init__(self, opener: Opener, clock: FakeClock, stack: AsyncExitStack) -> None:
        self._opener, self._clock, self._stack = opener, clock, stack
        self.burned = 0

    async def client(self, prefix: int = 0) -> XClient:
        """Start a node, and return a session on it."""
        listener = await self._stack.enter_async_context(self._listening(prefix))
        return await self._stack.enter_async_context(connected(listener.address))

    @asynccontextmanager
    async def _listening(self, prefix: int) -> AsyncIterator[XListener]:
        store = await self._opener.open()
        claims = StartTimestamps(store, self._clock, prefix=prefix, holder=f"node-{prefix}", max_clock_skew=10**10)
        doc_ids = DocIdGenerator(claims, await claims.start())
        stored = open_documents(self._opener.backend.url)
        await stored.open()
        listener = XListener(
            "127.0.0.1:0", self._services(doc_ids, stored),
            tls=None, requires_tls=False, max_message_bytes=2**24, limits=ConnectionLimits(10, 10),
        )  # fmt: skip
        await listener.start()
        try:
            yield listener
        finally:
            await listener.close()
            await stored.close()

    def _services(self, doc_ids: DocIdGenerator, stored: Documents) -> Services:
        async def change(given: Mapping[str, int], persist: bool) -> None:
            await doc_ids.change(save=None, **given)

        def burn(count: int) -> None:
            self.burned += count

        access = AccessControl(SystemClock(), 1000)
        return Services(
            statements=Collections(stored, MAX_SIZE, SideThread("statements")),
            documents=stored,
            thread=SideThread("messages"),
            doc_ids=doc_ids,
            change_node=change,
            logins=Logins(access),
            audit=access.audit,
            burn=cast(Callable[[int], None], burn),
        )


@pytest.fixture
async def nodes(opener: Opener, clock: FakeClock) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(opener, clock, stack)


async def test_f4_the_server_makes_the_ids_it_returns(nodes: Nodes) -> None:
    """F4: a document without _id is stored with an id of the server, in MySQL's form."""
    client = await nodes.client(prefix=0xAB)
    (doc_id,) = (await client.add('{"n": 1}')).ids
    assert doc_id.startswith("00ab")
    assert doc_id.endswith(f"{1:016x}")
    assert (await client.find()).rows == [f'{{"n": 1, "_id": "{doc_id}"}}'.encode()]


async def test_f5_ids_are_returned_in_a_notice(nodes: Nodes) -> None:
    """F5: the reply names the generated ids alone, in the order of their documents."""
    client = await nodes.client()
    reply = await client.add('{"n": 0}', '{"_id": "own"}', '{"n": 1}', '{"n": 2}')
    assert reply.affected == 4
    assert len(reply.ids) == 3
    stored = [row.decode() for row in (await client.find()).rows]
    assert stored == [*(f'{{"n": {n}, "_id": "{doc_id}"}}' for n, doc_id in enumerate(reply.ids)), '{"_id": "own"}']


async def test_f6_the_prefix_can_be_set(nodes: Nodes) -> None:
    """F6: SET GLOBAL mysqlx_document_id_unique_prefix changes the prefix of later generated ids."""
    client = await nodes.client()
    (before,) = (await client.add("{}")).ids
    assert (await client.sql("SET GLOBAL mysqlx_document_id_unique_prefix = 258")).code == 0
    (after,) = (await client.add("{}")).ids
    assert (before[:4], after[:4]) == ("0000", "0102")
    assert (await client.sql("SELECT @@mysqlx_document_id_unique_prefix")).rows == [b"\x82\x02"]


async def test_f7_a_refused_batch_leaves_nothing(nodes: Nodes) -> None:
    """F7: of two nodes that add one _id at once one wins; the other gets 5116 and adds nothing."""
    clients = [await nodes.client(prefix) for prefix in (1, 2)]
    for number in range(5):
        replies = await asyncio.gather(*(client.add("{}", f'{{"_id": "own{number}"}}') for client in clients))
        assert sorted(reply.code for reply in replies) == [0, 5116]
    assert len((await clients[0].find()).rows) == 10
    assert nodes.burned == 5


async def test_nf1_ids_rise(nodes: Nodes) -> None:
    """NF1: the ids of a node rise within a message and from message to message."""
    client = await nodes.client()
    ids = [doc_id for _ in range(5) for doc_id in (await client.add(*["{}"] * 20)).ids]
    assert ids == sorted(set(ids))
    assert len(ids) == 100


async def test_nf3_ids_rise_over_restarts(nodes: Nodes, clock: FakeClock) -> None:
    """NF3: a node that starts again with the same clock makes other and larger ids."""
    ids = []
    for _ in range(3):
        client = await nodes.client(prefix=7)
        ids += (await client.add("{}", "{}")).ids
    clock.advance(10)
    ids += (await (await nodes.client(prefix=7)).add("{}")).ids
    assert ids == sorted(set(ids))
    assert len(ids) == 7


async def test_nf4_ids_are_unique_among_nodes(nodes: Nodes) -> None:
    """NF4: nodes with different prefixes, and sessions with different offsets, make no id twice."""
    clients = [await nodes.client(prefix) for prefix in (1, 2)]
    for offset, client in enumerate(clients, start=1):
        await client.sql(f"SET auto_increment_increment = 2, auto_increment_offset = {offset}")
    replies = await asyncio.gather(*(client.add(*["{}"] * 50) for client in clients for _ in range(1)))
    serials = [{int(doc_id[12:], 16) % 2 for doc_id in reply.ids} for reply in replies]
    assert serials == [{1}, {0}]
    assert len({doc_id for reply in replies for doc_id in reply.ids}) == 100


async def test_nf5_a_client_may_expect_made_ids(nodes: Nodes) -> None:
    """NF5: EXPECT_DOCID_GENERATED holds, so a client knows that it may leave out the _id."""
    client = await nodes.client()
    assert (await client.expect_docid_generated()).code == 0
    assert len((await client.add("{}")).ids) == 1
