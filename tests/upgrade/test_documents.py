"""The annex: documents of the last version that had the X Protocol's port inside the id server."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.scenario import Scenario
from tests.upgrade.conftest import STORES
from tests.xproto.support.client import connected

SETTINGS = {
    "xproto_listen": "127.0.0.1:0",
    "xproto_max_connections": 7,
    "xproto_max_message_bytes": 65_536,
    "max_connections_per_address": 7,
}

pytestmark = [
    pytest.mark.test_long,
    pytest.mark.parametrize("first", ["before"], indirect=True),
    pytest.mark.parametrize(
        "store",
        [pytest.param(each, marks=pytest.mark.xdist_group(each)) for each in STORES if "opensearch" not in each],
        indirect=True,
    ),
]


@pytest.fixture
def scenario(store: str, first: str, tmp_path: Path) -> Iterator[Scenario]:
    """Servers on one store."""
    scenario = Scenario(tmp_path, full=False, store=store)
    yield scenario
    scenario.close()


def test_documents_outlive_an_upgrade_and_a_downgrade(scenario: Scenario, python_before_names: Path) -> None:
    """An installation with xproto_listen upgrades without a change: all documents, no id twice."""
    ids: list[str] = []

    async def add_and_find(address: str) -> None:
        async with connected(address) as client:
            if not ids:
                await client.create_collection()
            reply = await client.add(*['{"n": 1}'] * 10)
            assert reply.code == 0, reply.text
            ids.extend(reply.ids)
            assert len((await client.find()).rows) == len(ids)

    for python in (python_before_names, Path(sys.executable), python_before_names, Path(sys.executable)):
        server = scenario.start_node(python=python, **SETTINGS)
        asyncio.run(add_and_find(server.xproto))
        assert server.stop() == 0, server.log.read_text()
        assert '"level": "error"' not in server.log.read_text()
    assert len(set(ids)) == 40
