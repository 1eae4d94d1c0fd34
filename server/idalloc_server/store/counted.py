"""Counts the calls of a store, and of its witness, by outcome."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from idalloc_server.domain.errors import Refusal, StoreRefused, StoreUnavailable
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.witness.marks import Witness


def _calls_of(protocol: type) -> tuple[str, ...]:
    return tuple(name for name, method in vars(protocol).items() if inspect.iscoroutinefunction(method))


# The methods that are counted.
CALLS, WITNESS_CALLS = _calls_of(Store), _calls_of(Witness)


def counted(store: Store, calls: Counter[str]) -> Store:
    """Return a store whose calls are counted, by method and outcome such as ``grant ok``.

    An error that only the caller caused, such as a deleted sequence, is ok: the store answered.
    """
    return cast(Store, _Counted(store, calls, CALLS, ""))


def counted_witness(witness: Witness, calls: Counter[str]) -> Witness:
    """Return a witness whose calls are counted, such as ``witness_read ok``."""
    return cast(Witness, _Counted(witness, calls, WITNESS_CALLS, "witness_"))


class _Counted:
    def __init__(self, target: object, calls: Counter[str], names: Iterable[str], prefix: str) -> None:
        self._target = target
        for name in names:
            setattr(self, name, _counting(getattr(target, name), f"{prefix}{name}", calls))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


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
