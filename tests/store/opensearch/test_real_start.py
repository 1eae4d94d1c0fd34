"""Real OpenSearch nodes that start, and the recorded answers of one before its recovery."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.store.protocol import Store
from idalloc_server.store.urls import open_store
from tests.store.conftest import REAL_OPENSEARCH
from tests.support.fake_store import FakeClock
from tests.support.opensearch.real import RELEASES, OpenSearchNode, missing
from tests.support.opensearch.recording import comparable, send, starting
from tests.support.store_rows import grant, requested_row
from tests.support.waiting import hold_for_async

pytestmark = pytest.mark.parametrize("version", REAL_OPENSEARCH)
NOBODY = {"discovery.seed_hosts": "127.0.0.1:1", "cluster.initial_cluster_manager_nodes": "nobody"}


@pytest.fixture
async def node(version: str, tmp_path: Path) -> AsyncIterator[OpenSearchNode]:
    """A node that is not started yet."""
    if reason := missing(RELEASES[version]):
        pytest.skip(reason)
    node = OpenSearchNode(RELEASES[version], tmp_path, **{"node.name": "node"})
    yield node
    node.stop()


def start(node: OpenSearchNode) -> None:
    node.start()
    node.wait_for_ports()


def new_store(node: OpenSearchNode) -> Store:
    return open_store(f"opensearch://{node.host}/", FakeClock(), timeout=5.0)


async def open_and_close(node: OpenSearchNode) -> None:
    store = new_store(node)
    try:
        await store.open()
    finally:
        await store.close()


async def until_recovered(node: OpenSearchNode) -> None:
    """Wait until a start succeeds: a node accepts requests before it has recovered."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await open_and_close(node)
            except StoreUnavailable:
                await hold_for_async(0.1, "OpenSearch does not report its recovery")


async def assert_recorded(node: OpenSearchNode, state: str) -> None:
    """Assert that a node gives the recorded answers of one that is in this state."""
    async with aiohttp.ClientSession() as session:
        for exchange in starting(state):
            status, answer = await send(session, node.host, exchange)
            assert (status, comparable(answer)) == (exchange.status, comparable(exchange.response)), exchange


async def test_ids_continue_after_a_restart_of_all_nodes(node: OpenSearchNode) -> None:
    """P1: until the recovery no server serves, and a new one creates nothing; then ids continue."""
    node.settings["cluster.initial_cluster_manager_nodes"] = "node"
    start(node)
    store = new_store(node)
    await store.open()
    await store.create(requested_row("s"))
    assert (await grant(store, "s", 10)).last_value == 10
    node.stop()
    node.settings["gateway.recover_after_data_nodes"] = "2"
    start(node)
    await assert_recorded(node, "not recovered")
    for call in (store.grant("s", 1, 1000), open_and_close(node)):
        with pytest.raises(StoreUnavailable, match="has not recovered the state of its cluster"):
            await call
    node.stop()
    node.settings["gateway.recover_after_data_nodes"] = "1"
    start(node)
    await until_recovered(node)
    assert (await grant(store, "s", 10)).last_value == 20
    await store.close()


async def test_a_node_without_a_manager_is_away(node: OpenSearchNode) -> None:
    """P10: a start on a node without a cluster manager can be repeated, and creates nothing."""
    node.settings |= NOBODY
    start(node)
    await assert_recorded(node, "no manager")
    with pytest.raises(StoreUnavailable, match="has no elected cluster manager"):
        await open_and_close(node)
