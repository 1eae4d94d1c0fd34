"""What the reserve costs: ids burned by a kill -9 and by a clean stop, and writes an hour (P10).

python -m bench.reserve_price    prints a table for docs/operations/capacity.md

It runs the server's own allocator in virtual time, with the default settings, and callers that know
nothing of each other.
"""

from itertools import repeat
from random import Random
from typing import NamedTuple

from bench.markdown import number, table
from tests.support.virtual_nodes import VirtualNodes, poisson, run_virtually

# Ids a second of each node, by calls of one id, and how long they are run, in seconds.
RATES = {0.2: 3600.0, 1: 3600.0, 10: 3600.0, 100: 1800.0, 1_000: 360.0}
# A node is not measured before.
_WARM_SECONDS = 200.0
_SAMPLES = 20
_HEAD = (
    "Ids a second",
    "`kill -9`, on average",
    "at most",
    "clean stop",
    "of one of three",
    "writes an hour",
)


class Price(NamedTuple):
    """What a sequence costs on one node, in ids, and its writes an hour."""

    mean_held: float
    most_held: int
    burned_by_stop: int
    writes: float


def measure(rate: float, how_many: int) -> Price:
    """Return what the first one of some nodes costs."""
    return run_virtually(lambda: _measure(rate, how_many))


async def _measure(rate: float, how_many: int) -> Price:
    calls = [poisson(rate, (1, 1), Random(node)) for node in range(how_many)]
    nodes = VirtualNodes(calls, latency=0.005)
    await nodes.run(_WARM_SECONDS)
    before = len(nodes.store.calls)
    seconds = RATES[rate]
    held = []
    for pause in repeat(seconds / _SAMPLES, _SAMPLES):
        await nodes.run(pause)
        held.append(nodes.held_ids[0])
    writes = (len(nodes.store.calls) - before) / how_many
    allocator = nodes.nodes[0].allocator
    await allocator.return_leases()
    burned = sum(allocator.burned.by_cause.values())
    await nodes.close()
    return Price(sum(held) / len(held), max(held), burned, writes * 3600 / seconds)


def main() -> None:
    """Print the table."""
    rows = []
    for rate in RATES:
        alone = measure(rate, 1)
        shared = measure(rate, 3)
        figures = (alone.mean_held, alone.most_held, alone.burned_by_stop, shared.burned_by_stop, alone.writes)
        rows.append([f"{rate:,g}", *map(number, figures)])
    print(table(_HEAD, "rrrrrr", rows))


if __name__ == "__main__":
    main()
