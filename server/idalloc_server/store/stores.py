"""The stores of a serving process, opened together. Commands open theirs without a proxy."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import structlog

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.store.identity import Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.store_calls import proxied
from idalloc_server.domain.witness.marks import Witness
from idalloc_server.domain.witness.store import WitnessedStore
from idalloc_server.store.urls import open_store, open_witness
from idalloc_server.telemetry.traces import Traces

# The pause between attempts to open an unavailable store at startup.
OPEN_RETRY_SECONDS = 1.0

_log = structlog.get_logger("idalloc")


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
            confirming = proxied(open_witness(witness, url, timeout / 2), Witness, timeout / 2, counts=self.calls)
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
