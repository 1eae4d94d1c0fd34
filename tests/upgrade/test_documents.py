"""The annex: documents of the last version that had the X Protocol's port inside the id server."""

import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.scenario import Scenario
from tests.support.processes import Server, environment
from tests.upgrade.conftest import STORES
from tests.xproto.support.client import connected

# The settings of that version that are gone, and values that it takes.
REMOVED = {"xproto_max_connections": 7, "xproto_max_message_bytes": 65_536, "max_connections_per_address": 7}
THIS = Path(sys.executable)

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


def test_documents_outlive_an_upgrade_and_a_downgrade(
    scenario: Scenario, python_before_names: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    file = scenario.folder / "idalloc.toml"
    file.write_text("".join(f"{name} = {value}\n" for name, value in REMOVED.items()))
    variables = {name: str(value) for name, value in REMOVED.items()}
    places: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "flags": (REMOVED, {}),
        "environment": ({}, variables),
        "file": ({"config": file}, {}),
    }
    for settings, given in places.values():
        monkeypatch.setattr("tests.support.faults.scenario.environment", partial(environment, **given))
        for python in (python_before_names, THIS):
            server = scenario.start_node(python=python, xproto_listen="127.0.0.1:0", **settings)
            asyncio.run(add_and_find(server.xproto))
            assert server.stop() == 0, server.log.read_text()
            assert warned_of(server) == (set(REMOVED) if python == THIS else set())
    assert len(set(ids)) == 60


def warned_of(server: Server) -> set[str]:
    """Return the removed settings that a server warned of; fail on any other warning."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    lines = [line for line in lines if line["level"] not in ("debug", "info")]
    assert {line["event"] for line in lines} <= {"deprecated_setting"}, lines
    assert all(line["next_step"].startswith("remove it: ") for line in lines)
    names = [line["setting"].partition(" in ")[0].removeprefix("--").removeprefix("IDALLOC_") for line in lines]
    return {name.lower().replace("-", "_") for name in names}
