"""A server of two workers in an exploration: the real supervisor and workers, on one thread.

The search chooses when a worker gets what the supervisor has sent, when the store answers a claim,
when the write of a file ends, and when the supervisor notices that a worker was killed. To keep it
small, lines to the supervisor arrive at once, and so does what a worker learns of the others only.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from idalloc_server.settings.model import Settings
from idalloc_server.settings.persisted import SETTINGS, NodeSettingsFile
from idalloc_server.workers import messages
from idalloc_server.workers.pipe import Pipe
from idalloc_server.workers.supervisor import Supervisor
from idalloc_server.workers.worker import Worker
from idalloc_server.workers.worker_process import WorkerProcess
from tests.support.exploration.node import ExploredNode
from tests.support.exploration.scenario import Step
from tests.support.exploration.world import World
from tests.support.simulation.node import EPOCH_WALL


@dataclass(eq=False)
class Channel:
    """Lines to another process: the writer of one's pipe, and the reader of the other's."""

    sender: ExploredNode
    receiver: ExploredNode
    _sent: deque[bytes] = field(default_factory=deque)
    _arrived: deque[bytes] = field(default_factory=deque)
    _has_ended: bool = False
    _revision: int = -1  # the newest one that was sent
    _waiting: "asyncio.Future[None] | None" = None

    @property
    def can_deliver(self) -> bool:
        """Whether a line, or the end of the sender, can arrive."""
        return not self._has_ended and not self.receiver.is_gone and bool(self._sent or self.sender.is_gone)

    @property
    def words(self) -> str:
        """What arrives, for people."""
        lines = ", ".join(line[:120].decode().strip() for line in self._sent) or "the end"
        return f"{self.sender.name} to {self.receiver.name}: {lines}"

    def deliver(self) -> None:
        """Let all lines arrive, or the end after the last one."""
        self._has_ended = not self._sent
        lines = self._sent or [b""]
        self.receiver.see("lines", self.sender.number, *lines)
        self._arrived += lines
        self._sent.clear()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # The parts of ``asyncio.StreamReader`` and ``StreamWriter`` that a ``Pipe`` uses.

    async def readline(self) -> bytes:
        while not self._arrived:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._arrived.popleft()

    def write(self, line: bytes) -> None:
        self._sent.append(line)
        match messages.decode(line):
            case messages.NodeState(revision):
                is_chosen = revision > self._revision or len(self._sent) > 1
                self._revision = revision
            case _:
                is_chosen = isinstance(self.sender, SupervisorNode)
        if not is_chosen:
            self.deliver()

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


class SlowFile(NodeSettingsFile):
    """A file of persisted settings; a write takes until the search ends it."""

    def __init__(self, disk: Channel) -> None:
        super().__init__(None, "127.0.0.1:0")
        self.saved: dict[str, int] = {}
        self.written: list[dict[str, int]] = []  # what it had after each write
        self._disk = disk

    async def update(self, settings: Mapping[str, int]) -> None:
        before = self.saved
        self._disk.write(messages.encode(messages.Closed()))
        await self._disk.readline()
        self.saved = {**before, **{SETTINGS[name]: value for name, value in settings.items()}}
        self.written.append(self.saved)


class SupervisorNode(ExploredNode):
    """The process of the supervisor, which uses no store."""

    supervisor: Supervisor

    @property
    def is_quiet(self) -> bool:
        return not self.supervisor._answering


class Server:
    """A server with two workers, nodes 2 and 3. The replacement of a killed one is node 4."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._node = world.add_node(kind=SupervisorNode)
        assert isinstance(self._node, SupervisorNode)
        self._file = SlowFile(self._channel(self._node, self._node))
        self._supervisor = Supervisor(Settings(workers=2), self._file)
        self._node.supervisor = self._supervisor
        self._workers: dict[int, Worker] = {}  # by the number of the node
        world.patches.enter_context(patch.object(WorkerProcess, "start", self._start_process))
        world.final_checks.append(self._check_settings)
        world.run(self._node, self._start())
        for number in (1, 2):
            self._node.loop.create_task(self._supervisor._supervise(number))

    def change(self, number: int, **given: int) -> Step:
        """An operator changes the node, and persists that."""

        async def call(world: World, at: ExploredNode) -> None:
            asked = {SETTINGS[name]: value for name, value in given.items()}
            begun = len(self._file.written)
            await self._workers[at.number].change(given, True, None)
            since = self._file.written[begun:]
            while not asked.items() <= since[0].items():
                del since[0]
            for node in self._live:
                assert node.doc_ids
                used = {SETTINGS[name]: value for name, value in node.doc_ids.settings.items()}
                if not any(each.items() <= used.items() for each in since):
                    world.problems.append(f"{node.name} uses {used} after the change of n{number} (P6)")
            await world.calls.make_doc_ids(at, 1)

        return Step(f"an operator asks n{number} for {given}", number, call)

    @property
    def _live(self) -> list[ExploredNode]:
        return [node for node in self._world.nodes if node.doc_ids and not node.is_gone]

    async def _start(self) -> None:
        for step in (self._supervisor._start_worker, self._supervisor._make_serving):
            await asyncio.gather(step(1), step(2))

    def _channel(self, sender: ExploredNode, receiver: ExploredNode) -> Channel:
        self._world.channels.append(Channel(sender, receiver))
        return self._world.channels[-1]

    async def _start_process(self, number: int) -> WorkerProcess:
        node = self._world.add_node()
        to_worker: Any = self._channel(self._node, node)
        to_supervisor: Any = self._channel(node, self._node)
        node._jobs.append(node.loop.create_task(self._run_worker(node, Pipe(to_worker, to_supervisor))))
        process: Any = SimpleNamespace(pid=node.number, wait=_exit_code)
        return WorkerProcess(number, process, Pipe(to_supervisor, to_worker))

    async def _run_worker(self, node: ExploredNode, pipe: Pipe) -> None:
        """Do what ``run_worker`` and the application do."""
        start = await pipe.receive()
        assert isinstance(start, messages.Start)
        worker = self._workers[node.number] = Worker(pipe, start)
        for job in (worker.receive_until_orphaned(node._jobs[0]), worker.apply_changes()):
            node._jobs.append(node.loop.create_task(job))
        node.is_worker = True
        node.start_timestamps.holder = "the server"
        node.start_timestamps.is_shared = True
        node.start_timestamps.prefix = worker.settings.node_prefix
        node.start_timestamps._checked_wall_clock = _wall_clock  # type: ignore[method-assign] # no clock is wrong here
        await node.claim_start()
        self._world.promises.record_start(node)
        assert node.doc_ids
        node.doc_ids.offset = worker.settings.auto_increment_offset
        node.doc_ids.increment = worker.settings.auto_increment_increment
        access_control: Any = SimpleNamespace(requires_authentication=False)
        await worker.wait_all_ready(node.doc_ids, access_control, {})
        worker.report_serving("", "", 0, {})
        await worker.control.stop_requested.wait()

    def _check_settings(self) -> None:
        """Check that all workers use the settings that a restart reads."""
        assert len(self._live) == 2, f"{len(self._live)} of 2 workers live"
        last = {name: getattr(self._supervisor._settings, name) for name in SETTINGS.values()}
        saved = {name: getattr(Settings(), name) for name in SETTINGS.values()} | self._file.saved
        assert saved == last, f"a restart reads {saved}, not {last}"
        for node in self._live:
            assert node.doc_ids
            used = {SETTINGS[name]: value for name, value in node.doc_ids.settings.items()}
            assert used == last, f"{node.name} uses {used}, not {last}"
            self._world.promises.record_start(node)
            self._world.promises.record_doc_ids(node, node.doc_ids.issue_now(1) or [], 1, (-1, None))


async def _exit_code() -> int:
    return -9


async def _wall_clock() -> float:
    return EPOCH_WALL
