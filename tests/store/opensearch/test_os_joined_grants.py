"""Grants that wait share a request; each has its own outcome."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from idalloc_server.domain.errors import (
    SequenceInvalid,
    StoreAnsweredError,
    StoreExchanged,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)
from idalloc_server.domain.store.records import Grant
from idalloc_server.store.cluster import joined_writes
from idalloc_server.store.cluster.joined_writes import MAX_JOINED, MAX_REQUESTS
from idalloc_server.store.opensearch.http import AliasMissing, OpenSearchHttp
from idalloc_server.store.opensearch.store import OpenSearchStore
from tests.store.conftest import OPENSEARCH
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.opensearch.stand_in import Fault, OpenSearchStandIn
from tests.support.store_backends import Opener
from tests.support.store_rows import grant, requested_row
from tests.support.waiting import settle, until

NAMES = "abc"
Outcome = Grant | BaseException | None


class Held:
    """A store whose first requests are held, so that later grants wait."""

    def __init__(self, opensearch: OpenSearchStandIn, store: OpenSearchStore) -> None:
        self.opensearch = opensearch
        self.store = store
        self._held = Fault("hold", match="GRANT", times=MAX_REQUESTS)
        self._first: list[asyncio.Task[Grant | None]] = []

    async def hold(self) -> None:
        """Begin as many grants as are sent alone; their rows do not exist."""
        self.opensearch.inject(self._held)
        self._first = [self.begin(f"missing {number}") for number in range(MAX_REQUESTS)]
        await until(lambda: len(self.sent()) == MAX_REQUESTS, "the first requests are sent")

    def begin(self, name: str, wanted: int = 5) -> asyncio.Task[Grant | None]:
        return asyncio.get_running_loop().create_task(self.store.grant(name, wanted, 1000))

    async def release(self, *faults: Fault) -> None:
        """Release the first requests; the next one has the faults."""
        self.opensearch.inject(*faults)
        self._held.until.set()
        assert await asyncio.gather(*self._first) == [None] * MAX_REQUESTS

    async def joined(self, *names: str, faults: Sequence[Fault] = ()) -> list[Outcome]:
        """Return the outcomes of grants that wait together."""
        await self.hold()
        waiting = [self.begin(name) for name in names]
        await settle()
        await self.release(*faults)
        return await asyncio.gather(*waiting, return_exceptions=True)

    def sent(self) -> list[str]:
        """Return the texts of the requests of grants."""
        return [text for text in self.opensearch.texts() if text.endswith("GRANT")]

    def after(self) -> list[tuple[str, int]]:
        """Return the forms of the later requests of grants, and how many rows each has."""
        texts = self.sent()[MAX_REQUESTS:]
        return [("bulk" if "/_bulk?" in text else "update", text.count(" GRANT")) for text in texts]


@pytest.fixture
async def held(opensearch: OpenSearchStandIn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    monkeypatch.setattr(joined_writes, "STALL_SECONDS", 600.0)
    store = OpenSearchStore("", OpenSearchHttp([opensearch.host], timeout=60.0), "idalloc", 60.0)
    await store.open()
    for name in NAMES:
        await store.create(requested_row(name))
        await grant(store, name, 0)  # checks the retirement once
    opensearch.requests.clear()
    yield Held(opensearch, store)
    await store.close()


def last_values(outcomes: list[Outcome]) -> list[int | None]:
    return [outcome.last_value if isinstance(outcome, Grant) else None for outcome in outcomes]


async def test_a_lone_grant_is_an_update(held: Held) -> None:
    """A grant beside which few others run is a request of its own, at once."""
    assert (await grant(held.store, "a", 5)).last_value == 5
    (text,) = held.sent()
    assert text.startswith("POST /idalloc-sequences/_update/a?require_alias=true&timeout=54000ms&_source=last_value,")


async def test_waiting_grants_share_a_request(held: Held) -> None:
    """Grants that wait are one request, each with its own ids and a version to give back."""
    outcomes = await held.joined(*NAMES)
    assert (last_values(outcomes), held.after()) == ([5, 5, 5], [("bulk", 3)])
    for name, outcome in zip(NAMES, outcomes, strict=True):
        assert isinstance(outcome, Grant)
        assert await held.store.give_back(name, 2, outcome.version)
        assert (await grant(held.store, name, 1)).last_value == 4


async def test_a_grant_that_waits_alone_is_an_update(held: Held) -> None:
    """Only one that waits is the request that it is without others."""
    assert last_values(await held.joined("a")) == [5]
    assert held.after() == [("update", 1)]


async def test_more_grants_than_fit_take_more_requests(held: Held) -> None:
    """A request has at most MAX_JOINED rows."""
    outcomes = await held.joined(*(f"other {number}" for number in range(MAX_JOINED + 7)))
    assert outcomes == [None] * (MAX_JOINED + 7)
    assert sorted(held.after()) == [("bulk", 7), ("bulk", MAX_JOINED)]


async def test_a_name_is_once_in_a_request(held: Held) -> None:
    """P1: a second grant of a row is in a later request; neither gets ids of the other."""
    outcomes = await held.joined("a", "b", "a", "b", "c")
    assert sorted(held.after()) == [("bulk", 2), ("bulk", 3)]
    assert sorted(last_values(outcomes), key=str) == [10, 10, 5, 5, 5]


async def test_a_missing_row_is_none_alone(held: Held) -> None:
    """A row that does not exist leaves the others their ids."""
    outcomes = await held.joined("a", "missing", "c")
    assert outcomes[1] is None
    assert (last_values(outcomes), held.after()) == ([5, None, 5], [("bulk", 3)])


async def test_an_edited_row_is_refused_alone(held: Held) -> None:
    """SEQUENCE_INVALID: only the sequence with the edited row is refused."""
    held.opensearch.cluster.indices["idalloc-sequences-data"].documents["b"].source["last_value"] = "41"
    outcomes = await held.joined(*NAMES)
    assert isinstance(outcomes[1], SequenceInvalid)
    assert "'b'" in str(outcomes[1])
    assert (last_values(outcomes), held.after()) == ([5, None, 5], [("bulk", 3)])


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (409, "version_conflict_engine_exception", StoreOutcomeUnknown),
        (429, "rejected_execution_exception", StoreOutcomeUnknown),
        (429, "cluster_block_exception", StoreAnsweredError),
        (500, "any", StoreOutcomeUnknown),
        (503, "unavailable_shards_exception", StoreOutcomeUnknown),
        (403, "security_exception", StoreRefused),
    ],
)
async def test_an_item_fails_alone(held: Held, status: int, kind: str, error: type[StoreFailure]) -> None:
    """P1: the error of an item has the meaning that it has for a lone request."""
    faults = [Fault("error", match="_bulk", status=status, type=kind, items=(1,))]
    outcomes = await held.joined(*NAMES, faults=faults)
    assert type(outcomes[1]) is error
    assert isinstance(outcomes[1], StoreFailure)
    assert outcomes[1].http_status == status
    assert (last_values(outcomes), held.after()) == ([5, None, 5], [("bulk", 3)])


async def test_an_item_with_another_nonce_is_unknown_alone(held: Held) -> None:
    """P1: ids are taken only from an item that repeats the nonce; its connection is closed."""
    nonce = Fault("cut", match="_bulk", path=("items", 1, "update", "get", "_source", "nonce"))
    outcomes = await held.joined(*NAMES, faults=[nonce])
    assert type(outcomes[1]) is StoreOutcomeUnknown
    assert "to another write of the key 'b'; check the proxy" in str(outcomes[1])
    assert last_values(outcomes) == [5, None, 5]
    (host,) = held.store.http._hosts.order
    assert not host.idle


@pytest.mark.parametrize(
    ("fault", "moved"),
    [
        (Fault("drop"), 5),
        (Fault("reset", applied=False), 0),
        (Fault("garbage"), 5),
        (Fault("error", status=503, applied=True), 5),
        (Fault("cut", path=("items", 2)), 5),
        (Fault("cut", path=("items", 1, "update", "_seq_no")), 5),
    ],
    ids=lambda value: f"{value.kind} {len(value.path)}" if isinstance(value, Fault) else "",
)
async def test_a_failed_request_is_the_failure_of_all(held: Held, fault: Fault, moved: int) -> None:
    """P1: a joined write without a clear answer is sent once; the ids of all are burned."""
    outcomes = await held.joined(*NAMES, faults=[Fault(**{**vars(fault), "match": "_bulk"})])
    assert all(isinstance(outcome, StoreOutcomeUnknown) for outcome in outcomes)
    await settle()
    assert held.after() == [("bulk", 3)]
    assert [(await grant(held.store, name, 1)).last_value for name in NAMES] == [moved + 1] * 3


async def test_a_missing_alias_refuses_all(held: Held) -> None:
    """STORE_REFUSED: a missing alias is repeated once, as no item was applied, and refused."""
    await held.hold()
    waiting = [held.begin(name) for name in NAMES]
    await settle()
    (index,) = (each for each in held.opensearch.cluster.indices.values() if "idalloc-sequences" in each.aliases)
    index.aliases.clear()
    held._held.until.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AliasMissing] * 3
    assert held.after().count(("bulk", 3)) == 2
    await asyncio.gather(*held._first, return_exceptions=True)


async def test_an_answer_of_an_unavailable_host_demotes_it(
    opensearch: OpenSearchStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: if all items failed with 503, the next request goes to the next host, as after one."""
    monkeypatch.setattr(joined_writes, "STALL_SECONDS", 600.0)
    other = await opensearch.listen()
    hosts = [opensearch.host, f"127.0.0.1:{other}"]
    store = OpenSearchStore("", OpenSearchHttp(hosts, timeout=60.0), "idalloc", 60.0)
    await store.open()
    both = Held(opensearch, store)
    faults = [Fault("error", match="GRANT GRANT", status=503, items=(0, 1))]
    outcomes = await both.joined("a", "b", faults=faults)
    assert [type(outcome) for outcome in outcomes] == [StoreOutcomeUnknown] * 2
    assert await store.grant("a", 1, 1000) is None
    ports = [port for port, text in opensearch.requests if text.endswith("GRANT")]
    assert ports[-2:] == [int(opensearch.host.rpartition(":")[2]), other]
    await store.close()


async def test_a_grant_whose_caller_left_is_not_sent(held: Held) -> None:
    """P9: a grant that still waits when its caller leaves takes no ids."""
    await held.hold()
    waiting = [held.begin(name) for name in NAMES]
    await settle()
    waiting[1].cancel()
    await settle()
    await held.release()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert (last_values(outcomes), held.after()) == ([5, None, 5], [("bulk", 2)])
    assert (await grant(held.store, "b", 1)).last_value == 1


async def test_a_caller_that_leaves_ends_no_other(held: Held) -> None:
    """A cancelled caller of a joined request leaves the others their answers."""
    await held.hold()
    waiting = [held.begin(name) for name in NAMES]
    await settle()
    sent = Fault("hold", match="_bulk")
    await held.release(sent)
    await until(held.after, "the joined request is sent")
    waiting[0].cancel()
    await settle()
    sent.until.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert last_values(outcomes) == [None, 5, 5]
    assert (await grant(held.store, "a", 1)).last_value == 6  # burned


async def test_a_request_ends_when_all_callers_have_left(held: Held) -> None:
    """A joined request without callers makes room for the next one."""
    await held.hold()
    waiting = [held.begin(name) for name in NAMES]
    await settle()
    await held.release(Fault("hang", match="_bulk"))
    await until(held.after, "the joined request is sent")
    for task in waiting:
        task.cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    await until(lambda: held.store._updates._running == 0, "the request ends")


async def test_requests_that_hang_hold_no_other_sequence(opensearch: OpenSearchStandIn) -> None:
    """P10: while all requests hang, those that wait are sent all the same."""
    store = OpenSearchStore("", OpenSearchHttp([opensearch.host], timeout=60.0), "idalloc", 60.0)
    await store.open()
    for name in NAMES:
        await store.create(requested_row(name))
        await grant(store, name, 0)
    opensearch.requests.clear()
    hanging = Held(opensearch, store)
    await hanging.hold()
    outcomes = await asyncio.gather(*(hanging.begin(name) for name in NAMES))
    assert last_values([*outcomes]) == [5, 5, 5]
    assert hanging.after() == [("bulk", 3)]
    await hanging.release()
    await store.close()


async def test_a_closed_store_refuses_waiting_grants(held: Held) -> None:
    """A grant that waits when the store is closed is unavailable, and not sent."""
    await held.hold()
    waiting = [held.begin(name) for name in NAMES]
    await settle()
    await held.store.close()
    await held.release()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert "the store is closed" in str(outcomes[0])
    assert held.after() == []


@pytest.mark.parametrize("opener", OPENSEARCH, indirect=True)
async def test_joined_grants_of_an_exchanged_index_are_refused(opener: Opener) -> None:
    """P3: ids of another index behind the alias are not used, in any form of request."""
    store = await opener.open()
    names = [f"s{number}" for number in range(3 * MAX_REQUESTS)]
    for name in names:
        await store.create(requested_row(name))
    assert isinstance(opener.backend, OpenSearchBackend)
    await opener.backend.exchange()
    for name in names:
        await opener.put(name, last_value=0)
    asked, rounds = names, []
    while asked:  # a busy node may fail a grant before it finds the exchange
        grants: list[Coroutine[Any, Any, Grant | None]] = [store.grant(name, 5, 1000) for name in asked]
        outcomes = await asyncio.gather(*grants, return_exceptions=True)
        assert all(isinstance(outcome, StoreFailure) for outcome in outcomes), outcomes
        asked = [name for name, each in zip(asked, outcomes, strict=True) if not isinstance(each, StoreExchanged)]
        rounds.append(len(asked))
    assert len(names) - rounds[0] > MAX_REQUESTS  # so also in a joined request
