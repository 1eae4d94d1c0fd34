"""The stand-in for OpenSearch, against the recorded answers of a real OpenSearch 3.8.0."""

import dataclasses

import aiohttp
import pytest

from tests.support.opensearch.recording import EXPLORING, Exchange, comparable, one_node, send, starting
from tests.support.opensearch.stand_in import Fault, OpenSearchStandIn

# What is recorded of OpenSearch but no request of idalloc: the stand-in does not answer it. Some
# need a state of the server that it does not have.
NOT_REPLAYED = (
    "clock: script, ms",
    "set-up: settings with defaults",
    "mget",
    "name: empty",
    "arithmetic: Math.addExact",
    "script: does not compile",
    "script: unknown language",
    "script: other language",
    "stored script: put",
    "stored script: gone",
    "stored script: use what is gone",
    "json: broken",
    "json: unknown key",
    "query: unknown parameter",
    "path: unknown",
    "method: not allowed",
    "shards off",
    "shards on",
    "cleanup: the index without a shard",
    "script compilations",
    "script: too many compiled",
)


def replayed() -> list[Exchange]:
    exchanges = []
    for each in one_node():
        if each.what.startswith(NOT_REPLAYED) or "unassigned" in each.path:
            continue
        if each.what == "stored script: use":
            # It writes, so its effect is needed: the same script, by its source.
            each = dataclasses.replace(each, body={"script": {"source": "ctx._source.granted = 1L"}})
        exchanges.append(each)
    return exchanges


async def test_the_stand_in_gives_the_recorded_answers() -> None:
    """The stand-in gives the recorded answers of OpenSearch 3.8.0: status, type and shape."""
    compared = 0
    async with OpenSearchStandIn() as opensearch, aiohttp.ClientSession() as session:
        opensearch.cluster.extra_scripts = EXPLORING
        for exchange in replayed():
            status, answer = await send(session, opensearch.host, exchange)
            where = (exchange.what, exchange.method, exchange.path, answer, exchange.response)
            assert status == exchange.status, where
            about_nodes = exchange.is_about_nodes()
            theirs = comparable(exchange.response, about_nodes=about_nodes)
            assert comparable(answer, about_nodes=about_nodes) == theirs, where
            compared += 1
    assert opensearch.unknown == []
    assert compared > 250


@pytest.mark.parametrize("state", ["not recovered", "no manager"])
async def test_a_starting_stand_in_gives_the_recorded_answers(state: str) -> None:
    """Until its state is recovered the stand-in answers as a real OpenSearch 3.8.0 does."""
    async with OpenSearchStandIn() as opensearch, aiohttp.ClientSession() as session:
        opensearch.cluster.is_recovered = False
        opensearch.cluster.has_manager = state == "not recovered"
        for exchange in starting(state):
            status, answer = await send(session, opensearch.host, exchange)
            assert (status, comparable(answer)) == (exchange.status, comparable(exchange.response)), exchange
    assert opensearch.unknown == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/s/_update/a?require_alias=true", {"script": {"source": "ctx._source.granted = 0"}, "upsert": {}}),
        ("POST", "/s/_update/a", {"doc": {"last_value": 1}, "doc_as_upsert": True}),
        ("POST", "/s/_update/a?refresh=true", {"script": {"source": "ctx._source.granted = 0L"}}),
        ("POST", "/s/_update_by_query", {}),
        ("POST", "/s/_search", {"query": {"wildcard": {"name": "a*"}}}),
        ("POST", "/s/_search?scroll=1m", {"sort": ["_doc"]}),
        ("POST", "/_search/scroll", {"scroll_id": "a"}),
        ("GET", "/_cluster/state", None),
    ],
)
async def test_an_unknown_request_fails_the_test(method: str, path: str, body: object) -> None:
    """The stand-in answers 500 to an unknown form of a request, or script, and notes it."""
    async with OpenSearchStandIn() as opensearch, aiohttp.ClientSession() as session:
        await send(session, opensearch.host, Exchange("", "PUT", "/s-1", {"aliases": {"s": {}}}, 200, {}))
        await send(session, opensearch.host, Exchange("", "PUT", "/s/_doc/a", {"name": "a"}, 200, {}))
        await send(session, opensearch.host, Exchange("", "POST", "/s/_refresh", None, 200, {}))
        assert opensearch.unknown == []
        status, _ = await send(session, opensearch.host, Exchange("", method, path, body, 0, {}))
    assert status == 500
    assert len(opensearch.unknown) == 1


async def test_faults_of_the_stand_in() -> None:
    """A fault applies to ``times`` requests, and a lost answer may have been applied."""
    write = {"script": {"source": "ctx._source.granted = 0L"}, "upsert": {}}
    add = Exchange("", "POST", "/s/_update/a", write, 0, {})  # the client repeats a PUT
    async with OpenSearchStandIn() as opensearch, aiohttp.ClientSession() as session:
        await send(session, opensearch.host, add)
        opensearch.inject(Fault("error", status=429, type="rejected"), Fault("drop"), Fault("duplicate"))
        status, answer = await send(session, opensearch.host, add)
        assert (status, answer["error"]["type"]) == (429, "rejected")
        with pytest.raises(aiohttp.ClientError):
            await send(session, opensearch.host, add)
        status, answer = await send(session, opensearch.host, add)
        assert (status, answer["_version"]) == (200, 4)
        opensearch.inject(Fault("garbage", applied=False))
        _, answer = await send(session, opensearch.host, add)
        assert "<html>" in answer
        assert opensearch.texts() == ["POST /s/_update/a TOUCH"] * 5
