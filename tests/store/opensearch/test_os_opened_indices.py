"""An index that a policy or a person exchanges under its alias: nothing of its answers is used."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from idalloc_server.domain.errors import StartRefused, StoreExchanged, StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Demand, RecordedAllocation
from idalloc_server.store.opensearch.store import OpenSearchStore
from tests.store.conftest import OPENSEARCH
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.opensearch.stand_in import Fault, OpenSearchStandIn
from tests.support.store_backends import Opener
from tests.support.store_rows import grant, requested_row

DEMAND = Demand(12.5, 10, 1_700_000_000)
EVERYWHERE = pytest.mark.parametrize("opener", OPENSEARCH, indirect=True)
STAND_IN = pytest.mark.parametrize("opener", OPENSEARCH[:1], indirect=True)


@pytest.fixture
def lines() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


async def forget_connections(store: Store) -> None:
    """Close the idle connections, as a load balancer does."""
    assert isinstance(store, OpenSearchStore)
    for host in store.http._hosts.order:
        while host.idle:
            await host.idle.pop().session.close()


async def in_use(opener: Opener) -> Store:
    store = await opener.open()
    for name in ("used", "unused"):
        await store.create(requested_row(name))
    await grant(store, "used", 10)
    return store


@EVERYWHERE
@pytest.mark.parametrize("reconnects", [False, True])
async def test_a_rollover_is_not_followed(opener: Opener, backend: OpenSearchBackend, reconnects: bool) -> None:
    """P3: after a rollover no sequence begins at 1 again, not even one that was never used here."""
    await backend.make_older_indices()
    store = await in_use(opener)
    status, answer = await backend.send("POST", f"/{backend.alias}/_rollover")
    assert (status, answer["new_index"]) == (200, f"{backend.alias}-000002")
    if reconnects:
        await forget_connections(store)
    for name in ("used", "unused", "new"):
        with pytest.raises((StoreWentBackwards, StoreUnavailable)):
            await store.create(requested_row(name))
        with pytest.raises(StoreWentBackwards, match=rf"opened the index {backend.alias}-1 .*{backend.alias}-000002"):
            await store.grant(name, 1, 1000)
    with pytest.raises(StartRefused, match="an alias of 2 indices"):
        await opener.open()


@EVERYWHERE
async def test_answers_of_a_moved_alias_are_refused(opener: Opener, backend: OpenSearchBackend) -> None:
    """P6, P7: an alias of another index repeats no request id and claims no start timestamp."""
    store = await in_use(opener)
    allocation = RecordedAllocation("r", "used", 1, 10, 1, 1, "", 0, "node")
    await store.record([allocation])
    for suffix in ("allocations", "starts"):
        alias = backend.alias.replace("sequences", suffix)
        _, found = await backend.send("GET", f"/{alias}")
        ((name, index),) = found.items()
        await backend.send("PUT", f"/{alias}-other", {"mappings": index["mappings"]})
        moves = [{"remove": {"index": name, "alias": alias}}, {"add": {"index": f"{alias}-other", "alias": alias}}]
        assert (await backend.send("POST", "/_aliases", {"actions": moves}))[0] == 200
    with pytest.raises(StoreExchanged):
        await store.record([allocation._replace(first_id=11)])
    with pytest.raises(StoreExchanged):
        await store.claim_start(3, 5, "me", 60)


@EVERYWHERE
async def test_an_index_made_again_is_refused(opener: Opener, backend: OpenSearchBackend) -> None:
    """P3: an index with the same name, but another UUID, is noticed on the next connection."""
    store = await in_use(opener)
    _, found = await backend.send("GET", f"/{backend.alias}")
    ((name, index),) = found.items()
    await backend.send("DELETE", f"/{name}")
    again = {"mappings": index["mappings"], "aliases": {backend.alias: {}}}
    assert (await backend.send("PUT", f"/{name}", again))[0] == 200
    await forget_connections(store)
    with pytest.raises(StoreWentBackwards, match=rf"the index {name} \(.+\) behind the alias .*found the index {name}"):
        await store.grant("unused", 1, 1000)


@EVERYWHERE
@pytest.mark.parametrize("option", [{"filter": {"term": {"_id": "used"}}}, {"search_routing": "a"}], ids=str)
async def test_an_alias_that_hides_rows_is_refused(
    opener: Opener, backend: OpenSearchBackend, option: dict[str, Any]
) -> None:
    """P3: lists and exports would lack rows; the error has the request that replaces the alias."""
    await in_use(opener)
    _, found = await backend.send("GET", f"/{backend.alias}")
    add = {"index": next(iter(found)), "alias": backend.alias}
    assert (await backend.send("POST", "/_aliases", {"actions": [{"add": add | option}]}))[0] == 200
    with pytest.raises(StartRefused, match=f"has a {next(iter(option))}, which hides rows; replace") as caught:
        await opener.open()
    repaired = json.loads(str(caught.value).partition("POST /_aliases ")[2])
    assert (await backend.send("POST", "/_aliases", repaired))[0] == 200
    await opener.open()


@EVERYWHERE
async def test_new_indices_cannot_be_rolled_over(opener: Opener, backend: OpenSearchBackend) -> None:
    """P3: OpenSearch refuses to roll a new index over, as its name has no number at the end."""
    store = await in_use(opener)
    status, answer = await backend.send("POST", f"/{backend.alias}/_rollover")
    assert (status, answer["error"]["type"]) == (400, "illegal_argument_exception")
    assert (await grant(store, "used", 1)).last_value == 11


@EVERYWHERE
async def test_older_indices_are_served_and_moved(
    opener: Opener, backend: OpenSearchBackend, lines: list[structlog.typing.EventDict]
) -> None:
    """P1: a start warns of an index that can roll over; the named requests move it safely."""
    await backend.make_older_indices()
    await (await in_use(opener)).close()
    warnings = [line for line in lines if line["event"] == "index_can_roll_over"]
    assert len(warnings) == 3
    for line in warnings:
        requests = re.findall(r"(PUT|POST) (\S+) (\{.+?\})(?=, POST| and POST|$)", line["next_step"])
        assert len(requests) == 3
        for method, path, body in requests:
            status, answer = await backend.send(method, path, json.loads(body))
            assert status == 200, (path, answer)
    lines.clear()
    store = await opener.open()
    assert not [line for line in lines if line["event"] == "index_can_roll_over"]
    assert (await grant(store, "used", 1)).last_value == 11
    assert (await backend.send("POST", f"/{backend.alias}/_rollover"))[0] == 400


@STAND_IN
async def test_without_the_right_to_add_a_field_it_serves(
    opener: Opener, backend: OpenSearchBackend, lines: list[structlog.typing.EventDict], request: pytest.FixtureRequest
) -> None:
    """P1, P10: a user who may not add fields starts without nonce and demand, as the log shows."""
    await backend.make_older_indices()
    stand_in(request).inject(Fault("error", times=-1, match="/_mapping", status=403, type="security_exception"))
    store = await in_use(opener)
    granted = await store.grant("used", 1, 1000, demand=DEMAND)
    assert granted is not None
    assert (granted.last_value, granted.demand) == (11, None)
    assert not {"nonce", "demand"} & (await backend.row("used") or {}).keys()
    steps = [line["next_step"] for line in lines if line["event"] in ("nonces_are_off", "demand_not_kept")]
    added = [
        re.match(r'send (PUT) (/\S+/_mapping) (\{"properties": \{"(nonce|demand)": .+?\}\}) once', step)
        for step in steps
    ]
    assert [step and step[4] for step in added] == ["nonce", "demand", "nonce", "nonce"]
    stand_in(request).clear_faults()
    for step in filter(None, added):
        assert (await backend.send(step[1], step[2], json.loads(step[3])))[0] == 200
    lines.clear()
    restarted = await opener.open()
    assert not [line for line in lines if line["event"] in ("nonces_are_off", "demand_not_kept")]
    granted = await restarted.grant("used", 1, 1000, demand=DEMAND)
    assert granted is not None
    assert (granted.last_value, granted.demand) == (12, DEMAND)
    assert {"nonce", "demand"} <= (await backend.row("used") or {}).keys()
    assert (await grant(store, "used", 1)).demand == DEMAND  # the first server reads what it may not write


@STAND_IN
async def test_a_field_of_another_type_is_left_alone(
    opener: Opener, backend: OpenSearchBackend, lines: list[structlog.typing.EventDict]
) -> None:
    """A field demand of another type keeps its values, and its index serves."""
    await backend.make_older_indices()
    mapping = {"properties": {"demand": {"type": "long", "coerce": False}}}
    assert (await backend.send("PUT", f"/{backend.alias}/_mapping", mapping))[0] == 200
    await opener.put("s", last_value=41, demand=7)
    store = await opener.open()
    assert [line["log_level"] for line in lines if line["event"] == "demand_not_kept"] == ["warning"]
    granted = await store.grant("s", 1, 1000, demand=DEMAND)
    assert granted is not None
    assert (granted.last_value, granted.demand) == (42, None)
    assert (await backend.row("s") or {})["demand"] == 7


@STAND_IN
@pytest.mark.parametrize(
    ("setting", "remove"),
    [
        ("index.lifecycle.name", "POST /{}/_ilm/remove"),
        ("index.plugins.index_state_management.policy_id", "POST /_plugins/_ism/remove/{}"),
        ("explained", "POST /_plugins/_ism/remove/{}"),
    ],
)
async def test_a_lifecycle_policy_stops_the_start(
    opener: Opener, backend: OpenSearchBackend, setting: str, remove: str, request: pytest.FixtureRequest
) -> None:
    """P3: a policy may replace or delete an index; the start names it and how to remove it."""
    await (await opener.open()).close()
    cluster, index = stand_in(request).cluster, f"{backend.alias}-data"
    if setting == "explained":
        cluster.policies[index] = "logs-30d"
    else:
        cluster.indices[index].settings[setting] = "logs-30d"
    with pytest.raises(StartRefused, match=re.escape("lifecycle policy 'logs-30d'")) as caught:
        await opener.open()
    assert str(caught.value).endswith(f"run {remove.format(index)}")


def stand_in(request: pytest.FixtureRequest) -> OpenSearchStandIn:
    found = request.getfixturevalue("opener").stand_in
    assert isinstance(found, OpenSearchStandIn)
    return found
