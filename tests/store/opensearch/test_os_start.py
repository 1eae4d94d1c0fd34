"""A cluster that starts: until it has recovered its state, nothing may be concluded or created."""

from collections.abc import Awaitable, Callable

import pytest

from idalloc_server.domain.errors import StartRefused, StoreRefused, StoreUnavailable
from idalloc_server.domain.store.records import RecordedAllocation
from idalloc_server.store.urls import open_store
from tests.support.fake_store import FakeClock
from tests.support.opensearch.stand_in import Fault, OpenSearchStandIn
from tests.support.store_rows import grant, requested_row

NOT_RECOVERED = "has not recovered the state of its cluster"
NO_MANAGER = "has no elected cluster manager"
ONE = RecordedAllocation("r", "s", 1, 10, 1, 1, "", 0, "node")


async def start(opensearch: OpenSearchStandIn) -> None:
    """Open a store, and close it."""
    store = open_store(f"opensearch://{opensearch.host}/", FakeClock())
    try:
        await store.open()
    finally:
        await store.close()


async def test_a_call_before_the_recovery_is_unavailable(opensearch: OpenSearchStandIn) -> None:
    """STORE_UNAVAILABLE: no error asks to restore an existing alias; ids continue afterwards."""
    store = open_store(f"opensearch://{opensearch.host}/", FakeClock())
    await store.open()
    await store.create(requested_row("s"))
    assert (await grant(store, "s", 10)).last_value == 10
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.grant("s", 1, 1000),
        lambda: store.create(requested_row("s")),
        lambda: store.get("s"),
        lambda: store.list("", "", 9, with_deleted=True, with_periods=True),
        lambda: store.record([ONE]),
        lambda: store.newest_recorded(),
        lambda: store.claim_start(3, 1000, "me", 60.0),
    ]
    opensearch.cluster.is_recovered = False
    for call in calls:
        with pytest.raises(StoreUnavailable) as caught:
            await call()
        assert "snapshot" not in str(caught.value)
    with pytest.raises(StoreUnavailable, match=NOT_RECOVERED):
        await store.grant("s", 1, 1000)
    opensearch.cluster.is_recovered = True
    assert (await grant(store, "s", 10)).last_value == 20
    await store.close()


async def test_a_start_before_the_recovery_can_be_repeated(opensearch: OpenSearchStandIn) -> None:
    """P1: until the recovery a start creates no index, and is neither refused nor successful."""
    await start(opensearch)
    known = dict(opensearch.cluster.indices)
    opensearch.cluster.is_recovered = False
    opensearch.requests.clear()
    with pytest.raises(StoreUnavailable, match=NOT_RECOVERED):
        await start(opensearch)
    assert not [text for text in opensearch.texts() if text.startswith("PUT")]
    opensearch.cluster.is_recovered = True
    await start(opensearch)
    assert opensearch.cluster.indices == known


async def test_a_recovery_during_a_start_makes_no_index(opensearch: OpenSearchStandIn) -> None:
    """P1: an alias that is unknown to one early answer is read again before it is created."""
    store = open_store(f"opensearch://{opensearch.host}/", FakeClock())
    await store.open()
    await store.claim_start(3, 1000, "me", 60.0)
    await store.close()
    opensearch.requests.clear()
    early = Fault("error", match="GET /idalloc-sequences", status=404, type="index_not_found_exception")
    opensearch.inject(early)
    await start(opensearch)
    assert not [text for text in opensearch.texts() if text.startswith("PUT")]


async def test_a_start_without_a_manager_can_be_repeated(opensearch: OpenSearchStandIn) -> None:
    """P10: a node without an elected cluster manager is away, not refused; the next one serves."""
    await start(opensearch)
    opensearch.cluster.has_manager = False
    with pytest.raises(StoreUnavailable, match=NO_MANAGER):
        await start(opensearch)
    opensearch.cluster.has_manager = True
    await start(opensearch)


async def test_a_lost_alias_is_confirmed_before_it_is_named(opensearch: OpenSearchStandIn) -> None:
    """STORE_REFUSED: only a recovered cluster that twice knows no alias asks to restore it."""
    store = open_store(f"opensearch://{opensearch.host}/", FakeClock())
    await store.open()
    await store.create(requested_row("s"))
    opensearch.cluster.indices.pop("idalloc-sequences-data")
    opensearch.requests.clear()
    with pytest.raises(StoreRefused, match="restore the alias idalloc-sequences from a snapshot"):
        await store.grant("s", 1, 1000)
    # Without the look at the indices that a new connection begins with.
    texts = [text.partition("?")[0] for text in opensearch.texts() if not text.startswith("GET /idalloc-")]
    assert texts == [
        "POST /idalloc-sequences/_update/s",
        "GET /_cluster/state/master_node,blocks",
        "POST /idalloc-sequences/_update/s",
    ]
    await store.close()


async def test_a_hidden_state_refuses_the_start(opensearch: OpenSearchStandIn) -> None:
    """P10: a user who may not see the cluster manager cannot start; the error has the grant."""
    fault = Fault("error", match="/_cluster/state", times=-1, status=403, type="security_exception")
    opensearch.inject(fault)
    with pytest.raises(StartRefused, match=r"the state of the cluster cannot be read: .*; grant the user"):
        await start(opensearch)
