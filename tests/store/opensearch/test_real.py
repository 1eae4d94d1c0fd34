"""The stand-in for OpenSearch beside a real one: recorded exchanges, arithmetic at the edges."""

import random
import uuid
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from idalloc_server.store.opensearch import scripts
from idalloc_server.store.urls import open_store
from tests.store.conftest import REAL_OPENSEARCH
from tests.support.fake_store import FakeClock
from tests.support.opensearch.recording import Exchange, comparable, one_node, send
from tests.support.opensearch.stand_in import OpenSearchStandIn

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
    """The recording holds on this release: the status, the type and the shape of each answer."""
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


def near(rng: random.Random) -> int:
    """Return a value near an edge, of 64 bits."""
    return max(-(2**63) + 1, min(rng.choice(EDGES) + rng.randint(-9, 9), 2**63 - 1))


def row(rng: random.Random) -> dict[str, Any]:
    numbers = {"last_value": near(rng), "step": rng.choice([1, -1, 3, -7, near(rng)]), "min_value": near(rng)}
    numbers |= {"max_value": near(rng), "generation": rng.randint(1, 3), "rev": rng.randint(0, 1), "lease_ms": 500}
    return {name: value for name, value in numbers.items() if rng.random() < 0.85}


def parameters(rng: random.Random) -> tuple[str, dict[str, Any]]:
    floor = {"generation": rng.randint(0, 2), "least": -(2**63) + 1, "most": 2**63 - 2}
    if rng.random() < 0.6:
        wanted = rng.choice([0, 1, 5, abs(near(rng)) % (2**63 - 1)])
        demand = {"demand": "12.5 10 1700000000"} if rng.random() < 0.5 else {}
        return scripts.GRANT, {"wanted": wanted, "lease_ms": 1000, **floor, **demand}
    size = rng.choice([1, 10, 2**31, 2**62])
    lattice = {"at_least": near(rng), "size": size, "offset": size + rng.randrange(size)}
    new = {"step": size if rng.random() < 0.5 else -size, "min_value": 1, "max_value": 9}
    if rng.random() < 0.5:
        return scripts.PERIOD, {"row": new, "generation": 3, **lattice}
    limits = {"rev": rng.randint(0, 1), "limit": near(rng), "grows": 1, "generation": 2}
    return scripts.REVISE, {"row": {**new, "mode": None}, **limits, **lattice}


@pytest.mark.parametrize("version", REAL_OPENSEARCH[1:])
async def test_the_compatibility_mode_is_no_old_version(version: str, opensearch_host: Callable[[str], str]) -> None:
    """An OpenSearch 2 that reports 7.10.2 is used as what it is; OpenSearch 3 has no such mode."""
    host, prefix = opensearch_host(version), f"idalloc-test-{uuid.uuid4().hex[:12]}"
    store = open_store(f"opensearch://{host}/?prefix={prefix}", FakeClock())
    mode: dict[str, object] = {"compatibility.override_main_response_version": True}
    async with aiohttp.ClientSession() as session:
        try:
            await send(session, host, Exchange("", "PUT", "/_cluster/settings", {"persistent": mode}, 0, None))
            _, answer = await send(session, host, Exchange("", "GET", "/", None, 0, None))
            assert answer["version"]["number"] == "7.10.2"
            await store.open()
        finally:
            off = {"persistent": dict.fromkeys(mode)}
            await send(session, host, Exchange("", "PUT", "/_cluster/settings", off, 0, None))
            await store.close()


@pytest.mark.parametrize("version", REAL_OPENSEARCH)
async def test_arithmetic_is_equal_at_the_edges(version: str, opensearch_host: Callable[[str], str]) -> None:
    """P1: the stand-in computes as a real OpenSearch does, near 2^31, 2^53, 2^62 and 2^63."""
    host, rng = opensearch_host(version), random.Random(20261123)
    index = f"idalloc-test-{uuid.uuid4().hex[:12]}"
    lines: list[dict[str, Any]] = []
    for key in map(str, range(600)):
        source, params = parameters(rng)
        lines += [{"index": {"_id": key}}, row(rng), {"update": {"_id": key, "_source": True}}]
        lines.append({"script": {"source": source, "lang": "painless", "params": params}})
    numbers = ("last_value", "step", "min_value", "max_value", "generation", "rev", "lease_ms", "granted", "writes")
    properties = {name: {"type": "long", "coerce": False} for name in numbers}
    make = {"settings": {"index": {"number_of_replicas": 0}}, "mappings": {"properties": properties}}
    answers = []
    async with OpenSearchStandIn() as opensearch, aiohttp.ClientSession() as session:
        for each in (host, opensearch.host):
            await send(session, each, Exchange("", "PUT", f"/{index}", make, 0, None))
            answers.append(await send(session, each, Exchange("", "POST", f"/{index}/_bulk", lines, 0, None)))
            await send(session, each, Exchange("", "DELETE", f"/{index}", None, 0, None))
    assert opensearch.unknown == []
    for at, (theirs, ours) in enumerate(zip(answers[0][1]["items"], answers[1][1]["items"], strict=True)):
        assert comparable(ours) == comparable(theirs), (lines[at // 2 * 4 + 1], lines[at // 2 * 4 + 3])
    rows = [each["update"].get("get", {}).get("_source", {}) for each in answers[0][1]["items"] if "update" in each]
    assert sum(each.get("granted", 0) > 0 for each in rows) > 50
