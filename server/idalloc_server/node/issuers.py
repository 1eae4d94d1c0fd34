"""What issues ids in a process: the parts of the domain, on an open store."""

import asyncio
from collections.abc import Awaitable

import structlog

from idalloc_server.domain.administration.index import SequenceIndex
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.uuids import UuidGenerator
from idalloc_server.node.change import Workers
from idalloc_server.node.rates import ServerRates
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry.logs import log_burned

# The longest wait at a stop for the store to take unused ids back.
RELEASE_SECONDS = 5.0

_log = structlog.get_logger("idalloc")


class Issuers:
    """Issues ids with the start timestamp of this process, which ``claim`` claims.

    Args:
        store: The open store.
        holder: The holder of the prefix.
        workers: All workers of the server; None for a single process.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        holder: str,
        start_timestamps: StartTimestamps,
        start: StartTimestamp,
        workers: Workers | None,
    ) -> None:
        skew = settings.max_clock_skew
        self.start_timestamps = start_timestamps  # claims those of this process, and keeps the prefix
        self.start = start  # the first one
        config = AllocationConfig(
            settings.lease_ttl,
            settings.store_timeout,
            settings.auto_create_sequences,
            max_clock_skew=skew,
            outage_reserve=settings.outage_reserve,
            max_reserved_ids=settings.max_reserved_ids,
            max_sequences=settings.max_sequences,
        )
        self.allocator = Allocator(store, clock, config)
        self.doc_ids = DocIdGenerator(
            start_timestamps,
            start,
            offset=settings.auto_increment_offset,
            increment=settings.auto_increment_increment,
        )
        self.uuids = UuidGenerator(clock)
        # Issues ranges to calls with a request id.
        self.request_ids = IdempotentAllocator(
            self.allocator, store, clock, node=holder, window=settings.request_id_window
        )
        self.sequences = SequenceService(
            store,
            clock,
            self.allocator,
            max_clock_skew=skew,
            rates=ServerRates(self.allocator, clock, workers),
        )
        self.index = SequenceIndex(self.sequences, clock)  # of all sequences in the store

    @classmethod
    async def claim(
        cls, settings: Settings, clock: Clock, store: Store, holder: str, workers: Workers | None
    ) -> "Issuers":
        """Claim a start timestamp, and return what issues ids with it.

        Args:
            settings: All settings.
            clock: The clock.
            store: The open store.
            holder: The holder of the prefix.
            workers: All workers of the server, which hold the prefix under one name; None if it is
                a single process.

        Raises:
            StartRefused: The prefix is in use, or the clock is wrong.
            StoreFailure: The store was not reached, or rejected a statement.
        """
        start_timestamps = StartTimestamps(
            store,
            clock,
            prefix=settings.node_prefix,
            holder=holder,
            max_clock_skew=settings.max_clock_skew,
            prefix_conflict=settings.prefix_conflict,
            is_shared=workers is not None,
        )
        start = await start_timestamps.start()
        return cls(
            settings, clock, store, holder=holder, workers=workers, start_timestamps=start_timestamps, start=start
        )

    async def close(self) -> bool:
        """Return unused ids to the store, and log burned ids.

        Returns:
            Whether the store answered in time.
        """
        # Concurrently: none delays the others. The first two need no ids from the allocator any
        # more.
        ending = asyncio.gather(
            self.sequences.finish_changes(),
            self.request_ids.finish_recording(),
            self.allocator.return_leases(),
            self.doc_ids.cancel_claims(),
        )
        try:
            in_time = await _in_time(ending, "leases")
        finally:  # after a timeout, burn what is left
            self.request_ids.abandon()
            self.allocator.abandon()
        for burn in self.allocator.burned.pop_new():
            log_burned(*burn)
        return in_time

    async def release_prefix(self) -> None:
        """Release the prefix for other nodes."""
        await _in_time(self.start_timestamps.release(), "prefix")


async def _in_time(work: Awaitable[object], resource: str) -> bool:
    """Await store calls of a stop; return whether they ended within ``RELEASE_SECONDS``."""
    try:
        async with asyncio.timeout(RELEASE_SECONDS):
            await work
    except TimeoutError:
        _log.warning("cleanup_failed", resource=resource, timeout=RELEASE_SECONDS)
        return False
    return True
