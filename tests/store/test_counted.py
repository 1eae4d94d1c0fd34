"""Calls of a store are counted by outcome."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from idalloc_server.domain.errors import SequenceDeleted, StoreRefused, StoreUnreachable
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.store_calls import calls_of, counted


class Failing:
    """A store whose calls of ``get`` raise what it is given."""

    address = "failing://"

    def __getattr__(self, name: str) -> Any:
        async def call(error: BaseException | None = None) -> str:
            if error:
                raise error
            return name

        if name not in calls_of(Store):
            raise AttributeError(name)
        return call


async def test_outcomes_of_calls_are_counted() -> None:
    """ok, also for an error of the caller; unavailable, also for a timeout; refused; error."""
    calls: Counter[str] = Counter()
    store: Any = Failing()
    store = counted(store, Store, calls)
    assert await store.get() == "get"
    assert store.address == "failing://"
    for error in (SequenceDeleted("x"), StoreUnreachable("x"), StoreRefused("x"), ValueError("x")):
        with pytest.raises(type(error)):
            await store.get(error)
    with pytest.raises(asyncio.CancelledError):
        await store.grant(asyncio.CancelledError())
    assert calls == {"get ok": 2, "get unavailable": 1, "get refused": 1, "get error": 1, "grant unavailable": 1}


def test_all_calls_of_a_store_are_counted() -> None:
    """The names are those of the protocol."""
    assert {"open", "grant", "create", "keep_prefix", "close"} <= calls_of(Store)
    assert "address" not in calls_of(Store)
