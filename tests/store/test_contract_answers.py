"""The contract of every store: an answer belongs to its request, and the store to the name that was
opened.

SQLite answers in this process, so no answer of it can be crossed or repeated. Its file can be
exchanged.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog

from idalloc_server.domain.errors import StoreRefused, StoreUnavailable, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Kind, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation, RowChange
from idalloc_server.store.urls import open_store
from tests.store.conftest import CRATEDB, OPENSEARCH
from tests.support.fake_store import FakeClock
from tests.support.mixing_proxy import MixingProxy
from tests.support.store_backends import CrateBackend, Opener, skip_before_oids
from tests.support.store_rows import grant, ids_of, new_row, requested_row

over_http = pytest.mark.parametrize("opener", [*CRATEDB, *OPENSEARCH], indirect=True)
Call = Callable[[Store, str], Coroutine[Any, Any, Any]]


@pytest.fixture
async def proxy(opener: Opener) -> AsyncIterator[MixingProxy]:
    hosts = urlsplit(opener.backend.url).netloc.rpartition("@")[2]
    async with MixingProxy(hosts.partition(",")[0]) as proxy:
        yield proxy


@pytest.fixture
async def behind(opener: Opener, proxy: MixingProxy, clock: FakeClock) -> AsyncIterator[Store]:
    """A store behind the proxy, with the sequences a and b, and t of timestamps."""
    netloc = urlsplit(opener.backend.url).netloc
    user = netloc.rpartition("@")[0]
    store = open_store(opener.backend.url.replace(netloc, f"{user}@{proxy.host}" if user else proxy.host), clock)
    await store.open()
    for name in "ab":
        await store.create(new_row(name))
    await store.create(new_row("t", Sequence(kind=Kind.TIMESTAMP_MS)))
    await store.record([allocation(name, 1) for name in ("kept a", "kept b")])
    yield store
    await store.close()


def allocation(request_id: str, first_id: int) -> RecordedAllocation:
    return RecordedAllocation(request_id, "a", first_id, 10, 1, 1, "", 0, "node")


async def revise(store: Store, name: str) -> object:
    return await store.revise(name, 0, RowChange(Sequence(description=name), 0, f"by {name}", 1.0))


async def record(store: Store, name: str) -> object:
    made = await store.record([allocation(name, ord(name))])
    if made != {name: allocation(name, ord(name))}:
        raise StoreUnavailable(f"recorded {made}")
    return made


# Each is called for the keys a and b, or twice for a; and what shows that a request is of it.
CALLS: dict[str, tuple[Call, str, str]] = {
    "grant": (lambda store, name: store.grant(name, 10, 1000), "-sequences/_update/", "SET granted"),
    "timestamps": (
        lambda store, name: store.grant_timestamps("t", 10, 1000, 10**12, 1000),
        "-sequences/_update/",
        "SET granted",
    ),
    "create": (lambda store, name: store.create(requested_row(f"new {name}")), "/_update/new", "INSERT INTO"),
    "revise": (revise, "-sequences/_update/", "rev_by ="),
    "open_period": (
        lambda store, name: store.open_period(f"{name}\x1f2026", Sequence(), 0, 1),
        "%1F2026",
        "INSERT INTO",
    ),
    "record": (record, "-allocations/_bulk", "INSERT INTO"),
    "recorded": (lambda store, name: store.recorded(f"kept {name}"), "-allocations/_update/", "WHERE request_id"),
    "claim_start": (lambda store, name: store.claim_start(ord(name), 5, "me", 60), "-starts/_update", "INSERT INTO"),
    "raise_start": (lambda store, name: store.raise_start(ord(name), 9), "-starts/_update", "INSERT INTO"),
    "get": (lambda store, name: store.get(name), "-sequences/_update/", "created_at, changed_at FROM"),
}


# The others run in make test-long.
SOME = ("grant", "record", "claim_start")
OTHERS = tuple(call for call in CALLS if call not in SOME)
each_call = pytest.mark.parametrize(
    "calls", [SOME, pytest.param(OTHERS, marks=pytest.mark.test_long)], ids=["some", "others"]
)


def mix(proxy: MixingProxy, call: str, kind: Any) -> Call:
    """Mix up the answers of one call from now on, and return the call."""
    run, path, statement = CALLS[call]
    proxy.forget()
    proxy.chosen = lambda target, body: path in target or statement.encode() in body
    proxy.mix = kind
    return run


@over_http
@each_call
async def test_crossed_answers_are_refused(behind: Store, proxy: MixingProxy, calls: tuple[str, ...]) -> None:
    """P1, P6, P7: if two requests get each other's answers, neither of them is believed."""
    for call in calls:
        before = proxy.mixed
        run = mix(proxy, call, "crossed")
        results = await asyncio.gather(run(behind, "a"), run(behind, "b"), return_exceptions=True)
        assert proxy.mixed == before + 2, call
        assert [type(result) for result in results if not isinstance(result, StoreUnavailable)] == [], call


@over_http
@each_call
async def test_a_repeated_answer_is_refused(behind: Store, proxy: MixingProxy, calls: tuple[str, ...]) -> None:
    """P1, P6, P7: an earlier answer is not believed again, also if it is about the same row."""
    for call in calls:
        before = proxy.mixed
        run = mix(proxy, call, "repeated")
        await run(behind, "a")
        for name in "ab":
            with pytest.raises(StoreUnavailable):
                await run(behind, name)
        assert proxy.mixed >= before + 2, call


@over_http
async def test_mixed_up_grants_issue_no_id_twice(behind: Store, proxy: MixingProxy) -> None:
    """P1, P3: if a proxy mixes up answers no id is granted twice; one line a second is logged."""
    issued: dict[str, list[int]] = {"a": [], "b": []}

    async def take(name: str, count: int) -> None:
        with contextlib.suppress(StoreUnavailable):
            issued[name] += ids_of(await behind.grant(name, count, 1000))

    with structlog.testing.capture_logs() as lines:
        for kind in ("crossed", "repeated", ""):
            mix(proxy, "grant", kind)
            for _ in range(20):
                await asyncio.gather(take("a", 3), take("b", 5))
    assert all(len(set(ids)) == len(ids) for ids in issued.values())
    assert all(len(ids) >= 60 for ids in issued.values())
    wrong = [line for line in lines if line["event"] == "wrong_answer"]
    assert wrong
    assert proxy.mixed > 2 * len(wrong)


async def test_an_exchanged_store_grants_nothing(opener: Opener) -> None:
    """P3: no answer of another store under the name is used, and the error names both."""
    if isinstance(opener.backend, CrateBackend):
        await skip_before_oids(opener.backend.sql)
    store = await opener.open()
    for name in "ab":
        await store.create(requested_row(name))
    await grant(store, "a", 10)
    await opener.backend.exchange()
    for name in "ab":  # this process has never used b
        with pytest.raises(StoreWentBackwards, match="found") as caught:
            await store.grant(name, 1, 1000)
        assert caught.value.metadata.keys() >= {"seen", "found"}
    with pytest.raises((StoreWentBackwards, StoreRefused)):
        await store.create(requested_row("new"))
