"""Counts the calls of a store by outcome."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

from idalloc_server.domain.errors import Refusal, StoreRefused, StoreUnavailable
from idalloc_server.domain.store.protocol import Store

# The methods of a store that are counted.
CALLS = tuple(name for name, method in vars(Store).items() if asyncio.iscoroutinefunction(method))


def counted(store: Store, calls: Counter[str]) -> Store:
    """Return a store whose calls are counted, by method and outcome such as ``grant ok``.

    An error that only the caller caused, such as a deleted sequence, is ok: the store answered.
    """
    return cast(Store, _CountedStore(store, calls))


class _CountedStore:
    def __init__(self, store: Store, calls: Counter[str]) -> None:
        self._store = store
        for name in CALLS:
            setattr(self, name, _counting(getattr(store, name), name, calls))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _counting(call: Callable[..., Awaitable[Any]], name: str, calls: Counter[str]) -> Callable[..., Awaitable[Any]]:
    async def counting(*args: Any, **kwargs: Any) -> Any:
        outcome = "error"
        try:
            result = await call(*args, **kwargs)
            outcome = "ok"
            return result
        except (StoreUnavailable, asyncio.CancelledError):  # A call that takes too long is cancelled.
            outcome = "unavailable"
            raise
        except StoreRefused:
            outcome = "refused"
            raise
        except Refusal:
            outcome = "ok"
            raise
        finally:
            calls[f"{name} {outcome}"] += 1

    return counting
