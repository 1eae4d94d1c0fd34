"""A simulated server process: the real objects of the domain, without a network."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.store_calls import proxied
from tests.support.fake_process import FakeProcess
from tests.support.promises.ledger import RecordedConnection
from tests.support.simulation.loop import SimulatedLoop

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
REQUEST_ID_WINDOW = 600.0
EPOCH_WALL = 1_700_000_000.0
# How long a stopping server waits for the calls that it cancelled, and for the store; in seconds.
TURN = 0.001
RELEASE_SECONDS = 5.0


class MachineClock:
    """The clocks of one machine; only the wall clock can be set."""

    def __init__(self, time: Callable[[], float], booted: float = 0.0) -> None:
        self._time = time
        self._booted = booted
        self._offset = self.highest = 0.0  # the present and the highest offset

    @property
    def offset(self) -> float:
        """How far the wall clock is ahead of the true time, in seconds."""
        return self._offset

    @offset.setter
    def offset(self, offset: float) -> None:
        self._offset, self.highest = offset, max(self.highest, offset)

    def boot(self) -> float:
        return self._time() + self._booted

    def wall(self) -> float:
        return EPOCH_WALL + self._time() + self._offset


class Node:
    """A server process without its network.

    Args:
        number: Its number in names and clocks.
        prefix: Its node prefix.
        loop: Its event loop.
        connection: Its connection to the store.
        config: Its settings.
        window: How long it keeps the answers of request ids, in seconds.
    """

    def __init__(
        self,
        number: int,
        prefix: int,
        loop: SimulatedLoop,
        connection: RecordedConnection,
        config: AllocationConfig,
        window: float = REQUEST_ID_WINDOW,
    ) -> None:
        self.name = f"node {number}"
        self.loop = loop
        self.clock = MachineClock(loop.time, booted=1000.0 * number)
        self.connection = connection
        self.process = FakeProcess(number)
        random = Random(number).randbytes
        store = proxied(connection, Store, config.store_timeout)
        self.allocator = Allocator(store, self.clock, config, random, self.process)
        self.service = SequenceService(store, self.clock, self.allocator, random=random)
        self.request_ids = IdempotentAllocator(self.allocator, store, self.clock, node=self.name, window=window)
        self.start_timestamps = StartTimestamps(store, self.clock, prefix=prefix, holder=self.name, max_clock_skew=60.0)
        self.doc_ids: DocIdGenerator | None = None  # None until the node has started
        self.callers: list[asyncio.Task[Any]] = []  # tasks of pending calls
        self.issued_count = 0  # the number of ids issued
        self.took_requests = False  # whether any call had a request id
        self.closing = False  # whether the node is stopping
        # It keeps its prefix, drops idle sequences, and removes old request ids.
        self._jobs: list[asyncio.Task[Any]] = []
        self._idle_checks: list[asyncio.Task[Any]] = []

    async def claim_start(self) -> None:
        """Claim a start timestamp."""
        start = await self.start_timestamps.start()
        self.doc_ids = DocIdGenerator(self.start_timestamps, start, process=self.process)

    async def start(self) -> None:
        """Claim a start timestamp, and start the background tasks."""
        await self.claim_start()
        for job in (
            self.start_timestamps.keep_prefix(),
            self.allocator.close_idle_sequences(),
            self.request_ids.prune_answers(),
        ):
            self._jobs.append(self.loop.create_task(job))

    def drop_idle_sequences(self) -> None:
        """Start a task that drops idle sequences, as the background task does periodically."""
        job = self.loop.create_task(self.allocator.check_idle_sequences())
        self._idle_checks.append(job)
        job.add_done_callback(self._idle_checks.remove)

    async def close(self) -> None:
        """Stop as the server does: cancel calls, then return tails."""
        assert self.doc_ids
        self.closing = True
        for task in (*self.callers, *self._jobs, *self._idle_checks):
            task.cancel()
        await asyncio.sleep(TURN)
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                try:
                    await asyncio.gather(
                        self.service.finish_changes(),
                        self.request_ids.finish_recording(),
                        self.allocator.return_leases(),
                        self.doc_ids.cancel_claims(),
                    )
                finally:
                    self.request_ids.abandon()
                    self.allocator.abandon()
        await self.start_timestamps.release()

    @property
    def is_quiet(self) -> bool:
        """Whether no call is pending."""
        return not self.callers and not self.connection.pending and len(self.loop.tasks) == len(self._jobs)
