"""Quotas of calls apply to sessions of the X Protocol."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import Message

from idalloc.xprotocol.v1 import connection_pb2
from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents import cost
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.stores.sqlite import SqliteDocuments
from tests.support.fake_store import FakeClock
from tests.support.identities import TOKENS, identity_with_token
from tests.xproto.support.client import XClient, connected, insert
from tests.xproto.unit.conftest import Tls
from tests.xproto.unit.test_listener import listening

CALLS = 10  # a second, and at once


@asynccontextmanager
async def session(tls: Tls, clock: FakeClock, folder: Path) -> AsyncIterator[XClient]:
    """Log in as an identity with a quota of calls, which may add to all collections of ``s``."""
    documents = SqliteDocuments(folder / "documents.db")
    await documents.open()
    await documents.create_schema("s")
    await documents.create_collection("s", "c")
    thread = SideThread("statements")
    identity = replace(identity_with_token("allocate", allocate=["s.*"]), calls_per_second=CALLS)
    async with (
        listening(
            access=AccessControl(clock, 1000, AccessPolicy([identity])),
            tls=tls.server,
            statements=Collections(documents, cost.MAX_SIZE, thread),
        ) as listener,
        connected(listener.address, logs_in=False) as client,
    ):
        await client.start_tls(tls.client)
        assert (await client.log_in_plain("allocate", TOKENS["allocate"])).code == 0
        yield client
    thread.close()
    await documents.close()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (insert("[]"), 5115),
        (insert("{"), 3140),
        (insert("{}", schema="t"), 1142),
        (connection_pb2.SessionReset(keep_open=True), 0),
    ],
    ids=["no object", "no JSON", "no role", "reset"],
)
async def test_failing_adds_and_resets_are_calls(tls: Tls, tmp_path: Path, message: Message, code: int) -> None:
    """A failed add and a reset count as calls; the session continues after 1226."""
    clock = FakeClock()
    async with session(tls, clock, tmp_path) as client:
        assert [(await client.ask(message)).code for _ in range(CALLS + 1)] == [code] * CALLS + [1226]
        clock.advance(1)
        assert (await client.add('{"_id": 1}')).code == 0


async def test_a_session_that_ends_is_a_call(tls: Tls, tmp_path: Path) -> None:
    """Ending a session and logging in again does not get around the quota."""
    clock = FakeClock()
    async with session(tls, clock, tmp_path) as client:
        for _ in range(CALLS):
            assert (await client.ask(connection_pb2.SessionClose())).code == 0
            assert (await client.log_in_plain("allocate", TOKENS["allocate"])).code == 0
        assert (await client.add('{"_id": 1}')).code == 1226


async def test_each_document_with_its_own_id_is_a_call(tls: Tls, tmp_path: Path) -> None:
    """Each document with its own `_id` counts as a call; an add is admitted as a whole."""
    clock = FakeClock()
    async with session(tls, clock, tmp_path) as client:
        assert (await client.add(*(f'{{"_id": {number}}}' for number in range(25)))).code == 0
        clock.advance(1.4)
        assert (await client.add('{"_id": "a"}')).code == 1226
        clock.advance(0.2)
        assert (await client.add('{"_id": "b"}')).code == 0
