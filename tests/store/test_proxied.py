"""Each call of a serving process to its store and its witness: a timeout, a count and a span."""

import asyncio
import inspect
from collections import Counter
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from idalloc_server.domain.errors import SequenceDeleted, StoreOutcomeUnknown, StoreRefused, StoreUnreachable
from idalloc_server.domain.store.protocol import WRITES, Store
from idalloc_server.domain.store.store_calls import proxied
from idalloc_server.store import stores
from idalloc_server.store.stores import Stores
from idalloc_server.telemetry.traces import Traces
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.fake_witness import MemoryWitness

CALLS = {name for name, method in vars(Store).items() if inspect.iscoroutinefunction(method)}


class Failing:
    """A store whose calls wait for an event, and raise what they are given."""

    address = "failing://"

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        async def call(error: BaseException | None = None) -> str:
            await self.answers.wait()
            if error:
                raise error
            return name

        return call


async def test_outcomes_of_calls_are_counted() -> None:
    """ok, also for an error of the caller; unavailable, also if cancelled; refused; error."""
    calls: Counter[str] = Counter()
    store: Any = proxied(Failing(), Store, 5.0, counts=calls)
    assert await store.get() == "get"
    assert store.address == "failing://"
    for error in (SequenceDeleted("x"), StoreUnreachable("x"), StoreRefused("x"), ValueError("x")):
        with pytest.raises(type(error)):
            await store.get(error)
    with pytest.raises(asyncio.CancelledError):
        await store.grant(asyncio.CancelledError())
    assert calls == {"get ok": 2, "get unavailable": 1, "get refused": 1, "get error": 1, "grant unavailable": 1}


async def test_all_calls_but_open_and_close_time_out() -> None:
    """An open may create tables, and a close ends a process: they take as long as they need."""
    calls: Counter[str] = Counter()
    failing = Failing()
    failing.answers.clear()
    store: Any = proxied(failing, Store, 0.001, counts=calls)
    for name in CALLS - {"open", "close"}:
        with pytest.raises(StoreOutcomeUnknown, match=r"^the store did not answer within 0\.001 s$"):
            await getattr(store, name)()
    asyncio.get_running_loop().call_later(0.02, failing.answers.set)
    assert (await store.open(), await store.close()) == ("open", "close")
    assert calls.keys() == {f"{name} unavailable" for name in CALLS - {"open", "close"}} | {"open ok", "close ok"}


async def test_the_witness_has_half_of_the_stores_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two are counted apart, and a call of the store that waits for the witness once."""
    store = MemoryStore()
    witness = MemoryWitness()
    monkeypatch.setattr(stores, "open_store", lambda *_: store)
    monkeypatch.setattr(stores, "open_witness", lambda *_: witness)
    opened = Stores("", "witness", FakeClock(), timeout=0.1, traces=None)
    assert await opened.counters.grant("s", 1, 0) is None
    witness.hold("read")
    with pytest.raises(StoreUnreachable, match=r"^witness: the witness did not answer within 0\.05 s$"):
        await opened.counters.grant("s", 1, 0)
    store.hold("grant")
    with pytest.raises(StoreOutcomeUnknown, match=r"^the store did not answer within 0\.1 s$"):
        await opened.counters.grant("s", 1, 0)
    of_store = {"grant ok": 1, "grant unavailable": 1}
    assert opened.calls == {**of_store, "witness_read ok": 2, "witness_read unavailable": 1}


async def test_each_write_is_traced() -> None:
    """Each write of a store has a span; reads have none."""
    exporter = InMemorySpanExporter()
    traces = Traces(exporter)
    store: Any = proxied(Failing(), Store, 5.0, traces=traces)
    for name in CALLS:
        await getattr(store, name)()
    await traces.close()
    assert sorted(span.name for span in exporter.get_finished_spans()) == sorted(WRITES)
