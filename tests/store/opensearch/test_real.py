"""The stand-in for OpenSearch beside a real one: the recorded exchanges, and random arithmetic at the edges."""

from collections.abc import Callable

import aiohttp
import pytest

from tests.store.conftest import REAL_OPENSEARCH
from tests.support.opensearch.recording import Exchange, comparable, one_node, send

INDICES = ("idalloc-sequences-1", "idalloc-starts-1", "idalloc-allocations-1", "danger", "danger2", "plain")
CLUSTER_SETTINGS = ("action.auto_create_index", "cluster.blocks.read_only", "script.max_compilations_rate")
ALLOCATION = "cluster.routing.allocation.enable"
# Their types differ between 3.8.0, which is recorded, and 2.19.1.
OTHER_TYPES = ("json: broken", "set-up: an unknown setting")
# A clock; and up to five other scripts may be compiled before the limit applies.
UNCERTAIN = ("script: too many compiled", "clock: script, ms")
EDGES = [0, 2**31, -(2**31), 2**53, 2**62, -(2**62), 2**63 - 2, -(2**63) + 2]


@pytest.mark.parametrize("version", REAL_OPENSEARCH)
async def test_a_real_one_gives_the_recorded_answers(version: str, opensearch_host: Callable[[str], str]) -> None:
    """What the stand-in is compared with holds on this release: the status, the type and the shape of each answer."""
    host, compared = opensearch_host(version), 0
    async with aiohttp.ClientSession() as session:
        try:
            for exchange in one_node():
                status, answer = await send(session, host, exchange)
                if exchange.what in UNCERTAIN:
                    continue
                where = (exchange.what, exchange.method, exchange.path, answer, exchange.response)
                assert status == exchange.status, where
                if exchange.what in OTHER_TYPES:
                    continue
                about_nodes = exchange.is_about_nodes()
                theirs = comparable(exchange.response, about_nodes=about_nodes)
                assert comparable(answer, about_nodes=about_nodes) == theirs, where
                compared += 1
        finally:
            off = {"persistent": dict.fromkeys((*CLUSTER_SETTINGS, ALLOCATION))}
            await send(session, host, Exchange("", "PUT", "/_cluster/settings", off, 0, None))
            for index in (*INDICES, "unassigned-1"):
                await send(session, host, Exchange("", "DELETE", f"/{index}", None, 0, None))
    assert compared > 280
