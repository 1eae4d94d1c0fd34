"""Store writes of many nodes and sequences, in simulated time, with real allocators."""

import asyncio
import heapq
import random
from collections.abc import Iterator, Sequence

from bench.markdown import number
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from tests.support.fake_store import Call, MemoryStore
from tests.support.virtual_time import VirtualTimeLoop

NODES = (1, 10, 100, 1_000)
# How many sequences of a node, and how often each is used, in seconds.
SEQUENCES = ((100, 1.0), (1_000, 10.0), (10_000, 60.0), (10_000, 600.0), (10_000, 3_600.0))
# Writes are counted in these windows, in seconds; a slowly used sequence needs several uses.
_FIRST, _LATER, _LEAST_USES = (0.0, 300.0), (1_800.0, 2_400.0), 3


class _LoopClock:
    """Clocks that follow the event loop."""

    def boot(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return 1.7e9 + self.boot()


class _CountedCalls(list[Call]):
    """Counts the calls of a store in place of keeping them."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def append(self, call: Call) -> None:
        self.number += 1


async def writes_a_second(nodes: int, sequences: int, interval: float) -> tuple[float, float]:
    """Run nodes that share sequences; return the store's writes a second at first, and later.

    Args:
        nodes: How many nodes use each sequence.
        sequences: How many sequences there are.
        interval: How often each node uses each sequence, in seconds, at a random first time.
    """
    clock, calls = _LoopClock(), _CountedCalls()
    store = MemoryStore(clock=clock, calls=calls)
    config = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
    allocators = [Allocator(store, clock, config) for _ in range(nodes)]
    idle_checks = [asyncio.create_task(each.close_idle_sequences()) for each in allocators]
    began, chance = clock.boot(), random.Random(0)
    uses = [
        (began + chance.random() * interval, each, f"orders-{name}")
        for each in range(nodes)
        for name in range(sequences)
    ]
    heapq.heapify(uses)
    waiting: set[asyncio.Task[object]] = set()
    found, before = [], 0
    for start, length in (_FIRST, (_LATER[0], max(_LATER[1] - _LATER[0], _LEAST_USES * interval))):
        for end in (start, start + length):
            while uses[0][0] < began + end:
                due, node, name = uses[0]
                if due > clock.boot():
                    await asyncio.sleep(due - clock.boot())
                if allocators[node].issue_now(name, 1) is None:
                    task = asyncio.create_task(allocators[node].issue(name, 1))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                heapq.heapreplace(uses, (due + interval, node, name))
            if end == start:
                before = calls.number
        found.append((calls.number - before) / length)
    for check in idle_checks:
        check.cancel()
    await asyncio.gather(*idle_checks, *waiting, return_exceptions=True)
    await asyncio.gather(*(each.return_leases() for each in allocators))
    return found[0], found[1]


def simulate() -> Iterator[Sequence[str]]:
    """Yield writes a second, by number of nodes on one sequence, and by use of many sequences."""
    for nodes, sequences, interval in [(nodes, 1, 1.0) for nodes in NODES] + [(1, *each) for each in SEQUENCES]:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            first, later = runner.run(writes_a_second(nodes, sequences, interval))
        used = nodes * sequences
        yield (
            f"{nodes:,}",
            f"{sequences:,}",
            f"{interval:,.0f} s",
            number(first),
            number(later),
            number(later / used * 60),
        )
