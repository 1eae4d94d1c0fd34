"""The stores of a serving process, opened together: each call has a timeout, a count and a span.

Commands call their stores without these: a scan of theirs may take long.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import structlog

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import Refusal, StoreOutcomeUnknown, StoreRefused, StoreUnavailable
from idalloc_server.domain.store.identity import Opening
from idalloc_server.domain.store.protocol import WRITES, Store
from idalloc_server.domain.witness.marks import Witness
from idalloc_server.domain.witness.store import WitnessedStore
from idalloc_server.store.urls import open_store, open_witness
from idalloc_server.telemetry.traces import Traces

# The pause between attempts to open an unavailable store at startup.
OPEN_RETRY_SECONDS = 1.0

_Target = TypeVar("_Target")
_Method = Callable[..., Awaitable[Any]]
_log = structlog.get_logger("idalloc")


def proxied(
    target: _Target,
    protocol: type,
    timeout: float,
    *,
    counts: Counter[str] | None = None,
    traces: Traces | None = None,
) -> _Target:
    """Return a store, or a witness, as a serving process calls it.

    A call but ``open`` and ``close`` that takes more than ``timeout`` seconds raises
    StoreOutcomeUnknown: it may have been applied, or may be later. Calls are counted by method and
    outcome, such as ``grant ok``. An error that only the caller caused, such as a deleted sequence,
    is ok: the store answered. Writes of a store have spans if ``traces`` is not None.
    """
    proxy = _Proxy(target, protocol.__name__.lower(), timeout, Counter() if counts is None else counts)
    for name, method in vars(protocol).items():
        if inspect.iscoroutinefunction(method):
            call = getattr(target, name)
            if traces is not None and name in WRITES:
                call = traces.trace_write(call, name, proxy.address)
            setattr(proxy, name, proxy.surround(call, name))
    return cast(_Target, proxy)


@dataclass(eq=False)
class _Proxy:
    _target: object
    _kind: str  # store or witness
    _timeout: float
    _counts: Counter[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def surround(self, call: _Method, name: str) -> _Method:
        # An opening store may create tables, and ``Stores.open`` repeats it.
        timeout = None if name in ("open", "close") else self._timeout
        counted = f"witness_{name}" if self._kind == "witness" else name

        async def surrounded(*args: Any, **kwargs: Any) -> Any:
            outcome = "error"
            try:
                async with asyncio.timeout(timeout):
                    answer = await call(*args, **kwargs)
                outcome = "ok"
                return answer
            except TimeoutError:
                outcome = "unavailable"
                raise StoreOutcomeUnknown(f"the {self._kind} did not answer within {self._timeout:g} s") from None
            except (StoreUnavailable, asyncio.CancelledError):
                outcome = "unavailable"
                raise
            except StoreRefused:
                outcome = "refused"
                raise
            except Refusal:
                outcome = "ok"
                raise
            finally:
                self._counts[f"{counted} {outcome}"] += 1

        return surrounded


class Stores:
    """The store of the counters, and its witness.

    Args:
        url: The URL of the store.
        witness: The URL of the witness; empty without one.
        clock: See ``open_store``.
        timeout: The timeout of a call, and of the attempts to open an unavailable store, in
            seconds.
        traces: Traces the writes; None if traces are off.
    """

    def __init__(self, url: str, witness: str, clock: Clock, timeout: float, traces: Traces | None) -> None:
        self.calls: Counter[str] = Counter()  # of the store and its witness, by method and outcome
        self.witnessed: WitnessedStore | None = None  # the counters, if they have a witness
        self._timeout = timeout
        self.counters = proxied(open_store(url, clock, timeout), Store, timeout, counts=self.calls, traces=traces)
        if witness:
            opened = open_witness(witness, url, timeout / 2)
            confirming = proxied(opened, Witness, timeout / 2, counts=self.calls)
            self.witnessed = WitnessedStore(self.counters, confirming)
            # A call of the store and those of the witness around it have one timeout together.
            self.counters = proxied(cast(Store, self.witnessed), Store, timeout)

    async def open(self, opening: Opening, others: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Open them; retry while one is unavailable.

        Args:
            opening: How the counters are opened.
            others: Open what ports keep in stores, after the counters.

        Raises:
            StartRefused: One cannot be used.
            StoreFailure: One was not reached in time, or rejected a statement.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while True:
            try:
                await self.counters.open(opening)
                for open_other in others:
                    await open_other()
                return
            except StoreUnavailable as error:
                if loop.time() + OPEN_RETRY_SECONDS > deadline:
                    raise
                _log.warning("waiting_for_store", store=self.counters.address, error=str(error))
            await asyncio.sleep(OPEN_RETRY_SECONDS)

    async def close(self) -> None:
        """Close them."""
        await self.counters.close()
