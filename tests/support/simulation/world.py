"""Several nodes on one store in simulated time, with faults of their connections, for ``test_state_machine``.

Each node has an event loop of its own, so that it can be paused while time passes. So has the store: it applies a call
in time, also if the node has given up, is paused, or was killed.
"""

import asyncio
import copy
import sqlite3
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.idempotency.allocator import IdempotentAllocator
from idalloc_server.domain.store.protocol import Store
from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.fake_process import FakeProcess
from tests.support.fake_store import MemoryStore
from tests.support.simulation.loop import SimulatedLoop, simulated_loop
from tests.support.simulation.store_connection import LATENCY, StoreConnection, StoreFault

_T = TypeVar("_T")

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
REQUEST_ID_WINDOW = 600.0
EPOCH_WALL = 1_700_000_000.0
# Background tasks of a node: it keeps its prefix, drops idle sequences, and removes old request ids.
JOBS = 3
# How long a server waits for the store when it stops, in seconds.
RELEASE_SECONDS = 5.0


class MachineClock:
    """The clocks of one machine; only the wall clock can be set."""

    def __init__(self, time: Callable[[], float], booted: float = 0.0) -> None:
        self._time = time
        self._booted = booted
        self.offset = 0.0

    def boot(self) -> float:
        return self._time() + self._booted

    def wall(self) -> float:
        return EPOCH_WALL + self._time() + self.offset


class Node:
    """A server process without its network.

    Attributes:
        doc_ids: The document id generator; None until the node has started.
        callers: Tasks of pending calls.
        issued_count: Number of ids issued.
        took_requests: Whether any call had a request id.
        closing: Whether the node is stopping.
    """

    def __init__(self, world: "World", number: int, prefix: int) -> None:
        self.name = f"node {number}"
        self.loop = simulated_loop(lambda: world.now)
        self.clock = MachineClock(lambda: world.now, booted=1000.0 * number)
        self.connection = StoreConnection(world, world.connect(), self.loop)
        self.process = FakeProcess(number)
        random = Random(number).randbytes
        self.allocator = Allocator(self.connection, self.clock, CONFIG, random, self.process)
        self.service = SequenceService(
            self.connection, self.clock, self.allocator, store_timeout=CONFIG.store_timeout, random=random
        )
        self.request_ids = IdempotentAllocator(
            self.allocator,
            self.connection,
            self.clock,
            node=self.name,
            window=REQUEST_ID_WINDOW,
            store_timeout=CONFIG.store_timeout,
        )
        self.start_timestamps = StartTimestamps(
            self.connection, self.clock, prefix=prefix, holder=self.name, max_clock_skew=60.0
        )
        self.doc_ids: DocIdGenerator | None = None
        self.callers: list[asyncio.Task[Any]] = []
        self.issued_count = 0
        self.took_requests = False
        self.closing = False
        self._jobs: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Claims a start timestamp, and starts the background tasks."""
        start = await self.start_timestamps.start()
        self.doc_ids = DocIdGenerator(self.start_timestamps, start, process=self.process)
        for job in (
            self.start_timestamps.keep_prefix(),
            self.allocator.close_idle_sequences(),
            self.request_ids.prune_answers(),
        ):
            self._jobs.append(self.loop.create_task(job))

    def drop_idle_sequences(self) -> None:
        """Starts a task that drops idle sequences, as the background task does periodically."""
        job = self.loop.create_task(self.allocator.check_idle_sequences())
        self._jobs.append(job)
        job.add_done_callback(self._jobs.remove)

    async def close(self) -> None:
        """Stops as the server does: cancels calls, then returns tails."""
        assert self.doc_ids
        self.closing = True
        for task in (*self.callers, *self._jobs):
            task.cancel()
        await asyncio.sleep(LATENCY)
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
        return not self.callers and not self.connection.pending and len(self.loop.tasks) == len(self._jobs) == JOBS


class World:
    """The simulated time, the store, and all nodes.

    Args:
        path: The file of a SQLite store; None for a store in memory.

    Attributes:
        now: The simulated time, in seconds.
        down: Whether the store is unreachable.
        faults: Faults of the next calls, by method.
        nodes: Running nodes.
        gone: Nodes that were stopped or killed.
        problems: Broken promises that were found outside of a call.
    """

    def __init__(self, path: Path | None) -> None:
        self.now = 0.0
        self.down = False
        self.problems: list[str] = []
        self.faults: dict[str, deque[StoreFault]] = defaultdict(deque)
        self.nodes: list[Node] = []
        self.gone: list[Node] = []
        self.store_loop = simulated_loop(lambda: self.now)
        self.clock = MachineClock(lambda: self.now)
        self._one_at_a_time = asyncio.Lock()
        self._path = path
        self._stores: list[Store] = []
        self._started = 0
        self._restores = 0
        self.memory = MemoryStore(self.clock) if path is None else None
        if path is not None:
            self.direct = self.connect()

    @property
    def loops(self) -> list[SimulatedLoop]:
        return [self.store_loop, *(node.loop for node in self.nodes)]

    def connect(self) -> Store:
        """Returns the store, or an open connection to it."""
        if self.memory is not None:
            return self.memory
        assert self._path
        store = SqliteStore(self._path, self.clock)
        self._stores.append(store)
        self.finish(self.store_loop, store.open())
        return store

    def start_node(self, prefix: int) -> Node | None:
        """Starts a node; returns None if it refuses to start."""
        self._started += 1
        node = Node(self, self._started, prefix)
        self.nodes.append(node)
        if self.finish(node.loop, node.start()) is None and node.doc_ids:
            return node
        self.kill(node)
        return None

    def kill(self, node: Node) -> None:
        """Kills a node as SIGKILL does; calls that it has sent are still applied."""
        node.connection.cut = True
        node.loop.paused = True
        self.nodes.remove(node)
        self.gone.append(node)

    def settle(self) -> None:
        """Runs all callbacks that are ready, and asserts that no promise was broken."""
        while sum(loop.run_ready() for loop in self.loops):
            pass
        self.problems += [str(error) for loop in self.loops for error in loop.errors]
        assert not self.problems, self.problems

    def pass_time(self, seconds: float) -> None:
        """Advances the simulated time, and runs the timers that become due."""
        end = self.now + seconds
        self.settle()
        while due := [when for loop in self.loops if (when := loop.next_timer) is not None and when <= end]:
            self.now = max(self.now, min(due))
            self.settle()
        self.now = end

    def finish(self, loop: SimulatedLoop, work: Coroutine[Any, Any, Any]) -> BaseException | None:
        """Lets time pass until the work is done, and returns its exception, or None."""
        task = loop.create_task(work)
        self.settle()
        while not task.done():
            due = [when for each in self.loops if (when := each.next_timer) is not None]
            assert due, "the work waits forever"
            self.pass_time(max(0.0, min(due) - self.now))
        return task.exception()

    def clear_faults(self) -> None:
        """Removes all pending faults."""
        self.down = False
        self.faults.clear()

    async def checked(self, method: str, apply: Callable[[], Awaitable[Any]]) -> Any:
        """Applies a call to the store, and checks that counters move back only by a returned tail (P2)."""
        if self.memory is None:
            return await apply()
        async with self._one_at_a_time:
            return await self._checked(self.memory, method, apply)

    async def _checked(self, memory: MemoryStore, method: str, apply: Callable[[], Awaitable[Any]]) -> Any:
        before = {name: (row.last_value or 0, row.sequence.step) for name, row in memory.rows.items()}
        try:
            return await apply()
        finally:
            for name, (value, step) in before.items():
                row = memory.rows.get(name)
                if row is None:
                    continue  # the store was restored meanwhile
                if method != "give_back" and ((row.last_value or 0) - value) * step < 0:
                    self.problems.append(f"the counter {name!r} moved back from {value} to {row.last_value} (P2)")

    def copy_store(self) -> Any:
        """Returns a backup of the store."""
        if self.memory is not None:
            return _copied(self.memory.rows), _copied(self.memory.prefixes), dict(self.memory.allocations)
        assert self._path
        backup = sqlite3.connect(":memory:")
        with sqlite3.connect(self._path) as live:
            live.backup(backup)
        live.close()
        return backup

    def restore(self, backup: Any) -> None:
        """Restores a backup under the running nodes."""
        if self.memory is not None:
            rows, prefixes, allocations = backup
            self.memory.rows, self.memory.allocations = _copied(rows), dict(allocations)
            self._restores += 1
            for row in self.memory.rows.values():
                row.version += 10**6 * self._restores  # as a restored CrateDB table is in a newer primary term
            self.memory.prefixes.clear()
            self.memory.prefixes.update(_copied(prefixes))
            return
        assert self._path
        with sqlite3.connect(self._path) as live:
            backup.backup(live)
        live.close()

    def end(self) -> None:
        """Ends the loops of all nodes, also of killed ones."""
        for node in [*self.nodes, *self.gone]:
            node.connection.cut = True
            node.loop.paused = False
        loops = [node.loop for node in [*self.nodes, *self.gone]]
        for loop in [*loops, self.store_loop]:
            for _ in range(20):
                for task in list(loop.tasks):
                    task.cancel()
                while loop.run_ready():
                    pass
        for store in self._stores:
            self.finish(self.store_loop, store.close())


def _copied(rows: dict[Any, _T]) -> dict[Any, _T]:
    return {key: copy.copy(row) for key, row in rows.items()}


def counter_name(sequence: str, period: str) -> str:
    """Returns the name of the row that has the counter of a sequence, or of its period."""
    return f"{sequence}\x1f{period}" if period else sequence
