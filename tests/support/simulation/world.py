"""Nodes on one store in simulated time, with faults of connections, for ``test_state_machine``.

Each node has an event loop of its own, so that it can be paused while time passes. So has the
store: it applies a call in time, also if the node has given up, is paused, or was killed.
"""

import asyncio
import sqlite3
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from idalloc_server.domain.store.protocol import Store
from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.fake_store import MemoryStore
from tests.support.promises.checker import counters, moved_back
from tests.support.simulation.loop import ImmediateJobs, SimulatedLoop, simulated_loop
from tests.support.simulation.node import CONFIG, MachineClock, Node
from tests.support.simulation.store_connection import StoreConnection, StoreFault


class World:
    """The simulated time, the store, and all nodes.

    Args:
        path: The file of a SQLite store; None for a store in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.now = 0.0  # the simulated time, in seconds
        self.down = False  # whether the store is unreachable
        self.problems: list[str] = []  # broken promises that were found outside of a call
        self.faults: dict[str, deque[StoreFault]] = defaultdict(deque)  # of the next calls, by method
        self.nodes: list[Node] = []  # running nodes
        self.gone: list[Node] = []  # nodes that were stopped or killed
        self.store_loop = simulated_loop(lambda: self.now)
        self.clock = MachineClock(lambda: self.now)
        self._one_at_a_time = asyncio.Lock()
        self._path = path
        self._stores: list[Store] = []
        self._backups = ExitStack()
        self._started = 0
        self.memory = MemoryStore(self.clock) if path is None else None
        if path is not None:
            self.direct = self.connect()

    @property
    def loops(self) -> list[SimulatedLoop]:
        return [self.store_loop, *(node.loop for node in self.nodes)]

    def connect(self) -> Store:
        """Return the store, or an open connection to it."""
        if self.memory is not None:
            return self.memory
        assert self._path
        store = SqliteStore(self._path, self.clock)
        store._database._thread = ImmediateJobs("sqlite")
        self._stores.append(store)
        self.finish(self.store_loop, store.open())
        return store

    def start_node(self, prefix: int) -> Node | None:
        """Start a node; return None if it refuses to start."""
        self._started += 1
        loop = simulated_loop(lambda: self.now)
        node = Node(self._started, prefix, loop, StoreConnection(self, self.connect(), loop), CONFIG)
        self.nodes.append(node)
        if self.finish(node.loop, node.start()) is None and node.doc_ids:
            return node
        self.kill(node)
        return None

    def kill(self, node: Node) -> None:
        """Kill a node as SIGKILL does; calls that it has sent are still applied."""
        node.connection.cut = True
        node.loop.paused = True
        self.nodes.remove(node)
        self.gone.append(node)

    def settle(self) -> None:
        """Run all callbacks that are ready, and assert that no promise was broken."""
        while sum(loop.run_ready() for loop in self.loops):
            pass
        self.problems += [str(error) for loop in self.loops for error in loop.errors]
        assert not self.problems, self.problems

    def pass_time(self, seconds: float) -> None:
        """Advance the simulated time, and run the timers that become due."""
        end = self.now + seconds
        self.settle()
        while due := [when for loop in self.loops if (when := loop.next_timer) is not None and when <= end]:
            self.now = max(self.now, min(due))
            self.settle()
        self.now = end

    def finish(self, loop: SimulatedLoop, work: Coroutine[Any, Any, Any]) -> BaseException | None:
        """Let time pass until the work is done, and return its exception, or None."""
        task = loop.create_task(work)
        self.settle()
        while not task.done():
            due = [when for each in self.loops if (when := each.next_timer) is not None]
            assert due, "the work waits forever"
            self.pass_time(max(0.0, min(due) - self.now))
        return task.exception()

    def clear_faults(self) -> None:
        """Remove all pending faults."""
        self.down = False
        self.faults.clear()

    async def checked(self, method: str, apply: Callable[[], Awaitable[Any]]) -> Any:
        """Apply a call to the store; check that only a returned tail moves a counter back (P2)."""
        if self.memory is None:
            return await apply()
        async with self._one_at_a_time:
            return await self._checked(self.memory, method, apply)

    async def _checked(self, memory: MemoryStore, method: str, apply: Callable[[], Awaitable[Any]]) -> Any:
        before, rows = counters(memory.rows), memory.rows
        try:
            return await apply()
        finally:
            if memory.rows is rows:  # else the store was restored meanwhile
                self.problems += moved_back(before, rows, method)

    def copy_store(self) -> Any:
        """Return a backup of the store."""
        if self.memory is not None:
            return self.memory.back_up()
        assert self._path
        backup = self._backups.enter_context(closing(sqlite3.connect(":memory:")))
        with closing(sqlite3.connect(self._path)) as live:
            live.backup(backup)
        return backup

    def restore(self, backup: Any) -> None:
        """Restore a backup under the running nodes."""
        if self.memory is not None:
            self.memory.restore(backup)
            return
        assert self._path
        with closing(sqlite3.connect(self._path)) as live:
            backup.backup(live)

    def end(self) -> None:
        """End the loops of all nodes, also of killed ones."""
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
        self._backups.close()
