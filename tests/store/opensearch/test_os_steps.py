"""Every error of the store on OpenSearch ends with the next step, also for an incomplete answer."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from idalloc_server.domain.errors import SequenceInvalid, StartRefused, StoreFailure, StoreOutcomeUnknown
from idalloc_server.domain.sequences.sequence import Kind, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation, RowChange
from idalloc_server.domain.store.retention import Retention
from idalloc_server.store.urls import open_store
from tests.support.fake_store import FakeClock
from tests.support.opensearch.stand_in import Fault, OpenSearchStandIn
from tests.support.store_rows import requested_row

ERRORS = (StoreFailure, StartRefused, SequenceInvalid)
# What a next step begins with.
STEP = re.compile(
    r"; (add|check|choose|copy|correct|delete|free|grant|give|name|put|raise|reindex|remove|repair|restart|restore|run"
    r"|set|start|stop|try again|upgrade|use|write|or create)\b[^;]*$"
)
ONE = RecordedAllocation("r", "s", 1, 10, 1, 1, "", 0, "node")


@pytest.fixture
async def store(opensearch: OpenSearchStandIn) -> AsyncIterator[Store]:
    store = await opened(opensearch)
    await store.create(requested_row("s"))
    await store.create(requested_row("t", Sequence(kind=Kind.TIMESTAMP_MS)))
    await store.record([ONE])
    yield store
    await store.close()


async def opened(opensearch: OpenSearchStandIn) -> Store:
    """Return one more open store."""
    store = open_store(f"opensearch://{opensearch.host}/", FakeClock())
    await store.open()
    return store


def calls(store: Store) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return a call of each kind."""

    async def forget() -> int:
        newest = await store.newest_recorded()
        return await store.forget_recorded(Retention([(newest, 1e6)], 1.0), 10) if newest else 0

    return {
        "open": store.open,
        "grant": lambda: store.grant("s", 1, 1000),
        "grant_timestamps": lambda: store.grant_timestamps("t", 1, 1000, 1_800_000_000_000, 1000),
        "create": lambda: store.create(requested_row("new")),
        "open_period": lambda: store.open_period("s\x1f2026", Sequence(), 5, 1),
        "get": lambda: store.get("s"),
        "list": lambda: store.list("", "", 9, with_deleted=True, with_periods=True),
        "revise": lambda: store.revise("s", 0, RowChange(Sequence(), 5, "me", 1.5)),
        "record": lambda: store.record([ONE]),
        "recorded": lambda: store.recorded("r"),
        "count": lambda: store.count_recorded(9),
        "forget": forget,
        "give_back": lambda: store.give_back("s", 1, (0, 1, 1)),
        "claim": lambda: store.claim_start(3, 1000, "me", 60.0),
        "keep": lambda: store.keep_prefix(3, "me", 60.0),
        "release": lambda: store.release_prefix(3, "me"),
        "raise": lambda: store.raise_start(3, 1000),
        "starts": store.claimed_starts,
        "now": store.now,
    }


# The others run in make test-long.
SOME = ("grant", "record")
OTHERS = tuple(name for name in calls(open_store("opensearch://h/", FakeClock())) if name not in SOME)
CALLS = [*SOME, *(pytest.param(name, marks=pytest.mark.test_long) for name in OTHERS)]


async def error_of(call: Callable[[], Awaitable[object]]) -> Exception | None:
    """Return a call's typed error, whose message ends with the next step; None if it succeeds."""
    [error] = await asyncio.gather(call(), return_exceptions=True)
    if not isinstance(error, BaseException):
        return None
    assert isinstance(error, ERRORS), repr(error)
    assert STEP.search(str(error)), str(error)
    return error


def paths(answer: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each field of an answer, but for those that idalloc only compares."""
    inner = answer.items() if isinstance(answer, dict) else enumerate(answer) if isinstance(answer, list) else ()
    for key, value in inner:
        if key not in ("aliases", "defaults", "properties"):
            yield (*path, key)
            yield from paths(value, (*path, key))


@pytest.mark.parametrize("name", CALLS)
async def test_an_answer_without_a_field_is_typed(opensearch: OpenSearchStandIn, store: Store, name: str) -> None:
    """A 200 answer without a field is an error of the store with a next step, never INTERNAL."""
    opensearch.requests.clear()
    opensearch.answers.clear()
    assert await error_of(calls(store)[name]) is None
    exchanges = {text: answer for (_, text), answer in zip(opensearch.requests, opensearch.answers, strict=True)}
    for text, answer in exchanges.items():
        for path in paths(answer):
            opensearch.inject(fault := Fault("cut", match=text, path=path))
            try:
                await error_of(calls(store)[name])
            finally:
                if fault.times:
                    opensearch.clear_faults()


ANSWERS = [
    Fault("drop"),
    Fault("garbage"),
    *(Fault("error", status=status, type="any") for status in (307, 400, 403, 404, 408, 409, 429, 500, 503)),
    *(Fault("error", status=403, type=kind) for kind in ("security_exception", "cluster_block_exception")),
    *(Fault("error", status=429, type=kind) for kind in ("cluster_block_exception", "rejected_execution_exception")),
    Fault("error", status=404, type="index_not_found_exception"),
    Fault("error", status=400, type="mapper_parsing_exception"),
    Fault("error", status=400, type="index_closed_exception"),
    Fault("error", status=400, type="search_phase_execution_exception"),
]


@pytest.mark.usefixtures("store")  # which made the rows
@pytest.mark.parametrize("fault", ANSWERS, ids=lambda fault: f"{fault.kind} {fault.status} {fault.type}")
@pytest.mark.parametrize("names", [SOME, pytest.param(OTHERS, marks=pytest.mark.test_long)], ids=["some", "others"])
async def test_each_error_ends_with_the_next_step(
    opensearch: OpenSearchStandIn, names: tuple[str, ...], fault: Fault
) -> None:
    """Whatever the cluster answers, the error of each call names the next step."""
    for name in names:
        store = await opened(opensearch)  # for each call: a store remembers errors
        opensearch.inject(Fault(**{**vars(fault), "times": -1}))
        error = await error_of(calls(store)[name])
        # A tail whose row is gone or invalid is not given back.
        assert error is not None or name == "give_back", name
        opensearch.clear_faults()
        await store.close()


async def test_errors_of_no_answer_end_with_the_next_step(opensearch: OpenSearchStandIn, store: Store) -> None:
    """The errors for a wrong host, a wrong password and a closed store name the next step."""
    for url in ("opensearch://127.0.0.1:1/", "opensearch://127.0.0.1:1,127.0.0.1:2/"):
        nowhere = open_store(url, FakeClock(), timeout=0.5)
        assert await error_of(nowhere.open)
        assert await error_of(calls(nowhere)["grant"])
        await nowhere.close()
    hasty = open_store(f"opensearch://{opensearch.host}/", FakeClock(), timeout=0.5)
    while await error_of(hasty.open):  # a busy machine may need more tries
        pass
    opensearch.inject(Fault("hang", match="GRANT"))
    assert await error_of(calls(hasty)["grant"])
    await hasty.close()
    opensearch.require_password("alice", "right")
    assert await error_of(store.open)
    assert await error_of(lambda: store.grant("s", 1, 1000))
    await store.close()
    assert await error_of(lambda: store.grant("s", 1, 1000))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("last_value", "5"),
        ("last_value", None),
        ("step", 0),
        ("step", "1"),
        ("settings", "{"),
        ("created_at", 2**62),
        ("created_at", "now"),
        ("name", "other"),
    ],
)
async def test_an_edited_row_ends_with_the_next_step(
    opensearch: OpenSearchStandIn, store: Store, field: str, value: object
) -> None:
    """SEQUENCE_INVALID: each error of a row names what to write."""
    opensearch.cluster.indices["idalloc-sequences-data"].documents["s"].source[field] = value
    errors = [await error_of(calls(store)[name]) for name in ("grant", "get", "list", "revise")]
    assert any(isinstance(error, SequenceInvalid) for error in errors)
    assert not any(isinstance(error, StoreOutcomeUnknown) for error in errors)


async def test_a_start_timestamp_without_its_prefix_is_named(opensearch: OpenSearchStandIn, store: Store) -> None:
    """P6: an export leaves out no start timestamp; the error names the row and its repair."""
    await store.claim_start(3, 1000, "me", 60.0)
    documents = opensearch.cluster.indices["idalloc-starts-data"].documents
    del documents["3"].source["prefix"]
    with pytest.raises(StoreFailure, match=r"the row '3' .*; run POST /idalloc-starts/_update/3 .*\"prefix\": 3"):
        await store.claimed_starts()
