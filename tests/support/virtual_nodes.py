"""Nodes with callers of one sequence in virtual time, on a store that can stall (P10).

A call that a lease serves takes a few microseconds, so an hour of ten calls a second takes 0.2 s.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, NamedTuple, TypeVar

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import Refusal
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.store_calls import proxied
from tests.support.fake_store import MemoryStore
from tests.support.sequence_allocators import make
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import hold_for_async

T = TypeVar("T")

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
# An answer that takes longer is noticed, in seconds.
NOTICED_SECONDS = 0.05
NAME = "s"
_EPOCH = 1_700_000_000.0


class Call(NamedTuple):
    """One call: the seconds since the call before, and its size in ids."""

    after: float
    id_count: int
    is_large: bool = False  # whether it is much larger than others


class _Loop(VirtualTimeLoop):
    """Its time passes only in waits, so each run with the same seed is equal."""

    def time(self) -> float:
        """See ``AbstractEventLoop.time``."""
        return self.skipped

    def boot(self) -> float:
        """See ``Clock.boot``."""
        return self.skipped

    wall_offset = _EPOCH

    def wall(self) -> float:
        """See ``Clock.wall``."""
        return self.skipped + self.wall_offset

    async def skip_to(self, at: float) -> None:
        """Let time pass until ``at``, and run what is due by then."""
        timers = self._scheduled  # type: ignore[attr-defined]
        if self._ready or (timers and timers[0].when() <= at):  # type: ignore[attr-defined]
            await hold_for_async(at - self.skipped, "the time until the next call")
        self.skipped = max(self.skipped, at)


class VirtualNode:
    """A node and its callers."""

    def __init__(self, calls: Iterator[Call]) -> None:
        self.calls = calls
        self.allocator: Allocator
        self.idle_checks: asyncio.Task[None]
        self.first_call_at = math.inf
        self.answers = 0  # of the present process
        self.large_calls = 0  # answers to large calls, of the present process
        self.issued = 0  # the ids of all calls
        self.waiting: dict[asyncio.Task[None], float] = {}  # when each call that waits was made


class VirtualNodes:
    """Nodes that share one sequence and one store; each has callers of its own.

    Args:
        calls: The calls of each node.
        latency: How long the store takes, in seconds.
        sequence: The settings of the sequence.
        config: The settings of the allocators.
    """

    def __init__(
        self,
        calls: list[Iterator[Call]],
        latency: float,
        sequence: Sequence = Sequence(),  # noqa: B008 - never changed
        config: AllocationConfig = CONFIG,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _Loop)
        self.clock = loop
        self.store = MemoryStore(self.clock, latency=latency)
        make(self.store, NAME, sequence)
        self._config = config
        self.nodes = [VirtualNode(each) for each in calls]
        self.noticed: list[float] = []  # when calls were made that noticed something
        self._due: list[tuple[float, int, Call]] = []  # the next call of each node
        for number, node in enumerate(self.nodes):
            self._start(node)
            self._plan(number)

    @property
    def now(self) -> float:
        """The time since the start, in seconds."""
        return self.clock.boot()

    @property
    def held_ids(self) -> list[int]:
        """The ids that each node holds."""
        return [node.allocator.held_ids for node in self.nodes]

    async def run(self, seconds: float = math.inf, until: Callable[[], bool] = lambda: False) -> None:
        """Make calls for a time, or until a condition holds."""
        end = self.now + seconds
        while not until():
            at, number, call = self._due[0]
            await self.clock.skip_to(min(at, end))
            if at > end:
                return
            self._call(self.nodes[number], call)
            heapq.heappop(self._due)
            self._plan(number)

    async def stall(self, seconds: float) -> list[float]:
        """Let the store stall; return when the calls were made, of this time, that noticed it."""
        began = self.now
        self.store.gate = asyncio.Event()
        await self.run(seconds)
        for node in self.nodes:
            self.noticed += [at for at in node.waiting.values() if self.now - at > NOTICED_SECONDS]
        self.store.gate.set()
        self.store.gate = None
        return [at for at in self.noticed if at >= began]

    def restart(self, number: int, after: float = 0.0) -> None:
        """Kill a node; a new one serves its callers, who pause for ``after`` seconds."""
        node = self.nodes[number]
        node.idle_checks.cancel()
        node.allocator.abandon()
        self.take_over(number)
        self._due = [(at + after * (each == number), each, call) for at, each, call in self._due]
        heapq.heapify(self._due)

    def take_over(self, number: int) -> None:
        """Let a new node serve the callers of a node, which continues without calls."""
        self._start(self.nodes[number])

    async def close(self) -> None:
        """End all tasks, without a stop of the nodes."""
        for node in self.nodes:
            node.allocator.abandon()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _start(self, node: VirtualNode) -> None:
        store = proxied(self.store, Store, self._config.store_timeout)
        node.allocator = Allocator(store, self.clock, self._config)
        node.idle_checks = asyncio.create_task(node.allocator.close_idle_sequences())
        node.answers = node.large_calls = 0
        node.first_call_at = math.inf

    def _plan(self, number: int) -> None:
        call = next(self.nodes[number].calls)
        heapq.heappush(self._due, (self.now + call.after, number, call))

    def _call(self, node: VirtualNode, call: Call) -> None:
        node.first_call_at = min(node.first_call_at, self.now)
        node.issued += call.id_count
        if node.allocator.issue_now(NAME, call.id_count) is None:
            task = asyncio.create_task(self._wait(node, call))
            node.waiting[task] = self.now
            task.add_done_callback(node.waiting.pop)
        else:
            self._count(node, call)

    async def _wait(self, node: VirtualNode, call: Call) -> None:
        began = self.now
        allocator = node.allocator
        try:
            await allocator.issue(NAME, call.id_count)
        except Refusal:
            if allocator is node.allocator:
                self.noticed.append(began)
            return
        if self.now - began > NOTICED_SECONDS:
            self.noticed.append(began)
        if allocator is node.allocator:
            self._count(node, call)

    def _count(self, node: VirtualNode, call: Call) -> None:
        node.answers += 1
        node.large_calls += call.is_large


def run_virtually(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a scenario in virtual time, and return its result."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(scenario())


def steady(rate: float, sizes: tuple[int, int], random: Random) -> Iterator[Call]:
    """Yield calls at a steady rate; the first one at a moment of its own."""
    yield Call(random.random() / rate, random.randint(*sizes))
    while True:
        yield Call(1 / rate, random.randint(*sizes))


def poisson(rate: float, sizes: tuple[int, int], random: Random) -> Iterator[Call]:
    """Yield calls of many callers that know nothing of each other."""
    while True:
        yield Call(random.expovariate(rate), random.randint(*sizes))


def irregular(rate: float, sizes: tuple[int, int], random: Random) -> Iterator[Call]:
    """Yield calls of a slow caller, at most ``1 / rate`` apart."""
    while True:
        yield Call(random.random() / rate, random.randint(*sizes))


def with_large_calls(rate: float, sizes: tuple[int, int], random: Random) -> Iterator[Call]:
    """Yield such calls of which one in a hundred is a hundred times larger."""
    for call in poisson(rate, sizes, random):
        yield call._replace(id_count=call.id_count * 100, is_large=True) if random.random() < 0.01 else call


def bursts(how_many: int, seconds: float, random: Random) -> Iterator[Call]:
    """Yield bursts of calls of one id, every so many seconds."""
    yield Call(random.random() * seconds, 1)
    for number in itertools.count(1):
        yield Call(0.0 if number % how_many else seconds, 1)
