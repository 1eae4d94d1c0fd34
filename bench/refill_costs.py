"""The CPU time of calls that wait for the store, without gRPC: part of `make load`.

A process has an allocator on a SQLite store, and makes calls when its input has a line: calls that
a lease serves, calls with a refill, first uses of sequences that exist, and first uses that create
one. With another checkout of the repository, whose process takes turns with this one's, the costs
are compared.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import Row
from idalloc_server.store.sqlite.store import SqliteStore

ROOT = Path(__file__).parents[1]
CALLS = 200
# The maximum of the cost here to that of the other checkout.
TARGETS = {"refill": 0.7, "first use, existing": 0.75, "first use": 0.75}
_numbers = itertools.count()


class Calls:
    """The calls of one process, on one store."""

    def __init__(self, store: SqliteStore, clock: SystemClock) -> None:
        self._store = store
        config = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
        self._allocator = Allocator(store, clock, config)

    async def prepare(self) -> None:
        """Create the sequences; each call of more ids than its lease may have needs a refill."""
        await self._store.create(Row("refilled", 0, Sequence(max_lease_size=1)))
        await self._store.create(Row("leased", 0, Sequence(min_lease_size=10**9)))
        for _ in range(2):  # the first lease of a sequence has only what is asked for
            await self._allocator.issue("leased", 1)

    async def costs(self) -> dict[str, float]:
        """Return the CPU seconds of a call of each kind."""
        existing = [f"existing-{next(_numbers)}" for _ in range(CALLS)]
        for name in existing:
            await self._store.create(Row(name, 0, Sequence()))
        return {
            "lease": self._lease_cost(),
            "refill": await self._cost(lambda _: self._allocator.issue("refilled", 100)),
            "first use, existing": await self._cost(lambda number: self._allocator.issue(existing[number], 1)),
            "first use": await self._cost(lambda _: self._allocator.issue(f"new-{next(_numbers)}", 1)),
        }

    def _lease_cost(self) -> float:
        calls = 20 * CALLS
        issue_now = self._allocator.issue_now
        before = time.process_time()
        for _ in range(calls):
            assert issue_now("leased", 1)
        return (time.process_time() - before) / calls

    async def _cost(self, call: Callable[[int], Awaitable[object]]) -> float:
        before = time.process_time()
        for number in range(CALLS):
            await call(number)
        return (time.process_time() - before) / CALLS


class Contender:
    """A process that makes the calls, with the code of one checkout."""

    def __init__(self, checkout: Path, file: Path) -> None:
        path = os.pathsep.join(str(folder) for folder in (checkout / "server", checkout / "client", ROOT))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.refill_costs", str(file)],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take_turn(self) -> dict[str, float]:
        """Make some calls of each kind, and return the CPU seconds of each."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        costs: dict[str, float] = json.loads(self.process.stdout.readline())
        return costs


def measure_refills(rounds: int, against: Path | None) -> None:
    """Print the CPU time of each kind of call, and its ratio to another checkout's, if any."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        checkouts = [ROOT, *([against] if against else [])]
        contenders = [Contender(each, Path(folder) / f"{number}.db") for number, each in enumerate(checkouts)]
        for each in contenders:
            stack.enter_context(each.process)
        turns = [[each.take_turn() for each in contenders] for _ in range(rounds + 1)][1:]  # caches fill in the first
        for each in contenders:
            assert each.process.stdin
            each.process.stdin.close()
    print("CPU of a call in the allocator and a SQLite store, without gRPC:")
    for name in turns[0][0]:
        line = f"  {name:20} {median(turn[0][name] for turn in turns) * 1e6:7.1f} us"
        if against:
            share = median(turn[0][name] / turn[1][name] for turn in turns)
            target = TARGETS.get(name, 1.0)
            line += f"  {share:5.2f} of the other's   target <= {target:g}  {'met' if share <= target else 'MISSED'}"
        print(line)
    print("Calls of Python functions in a request:")
    traced = subprocess.run([sys.executable, ROOT / "scripts" / "trace_calls.py"], capture_output=True, text=True)
    print(*traced.stdout.split("\n\n")[0].splitlines(), sep="\n  ")


async def serve(file: Path) -> None:
    """Make the calls when the input has a line, until it ends."""
    clock = SystemClock()
    store = SqliteStore(file, clock)
    await store.open()
    calls = Calls(store, clock)
    await calls.prepare()
    while sys.stdin.readline():
        print(json.dumps(await calls.costs()), flush=True)
    await store.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(Path(sys.argv[1])))
