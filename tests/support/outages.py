"""Outages of the store in virtual time, for the table of P10 in docs/explanation/guarantees.md."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from idalloc_server.domain.sequences.sequence import Reset, Sequence
from tests.support.virtual_nodes import (
    CONFIG,
    Call,
    VirtualNode,
    VirtualNodes,
    bursts,
    irregular,
    poisson,
    run_virtually,
    steady,
    with_large_calls,
)

OUTAGE = CONFIG.outage_reserve
# How long nobody serves the callers of a node that is gone, before another one takes over.
PAUSES = (1.0, 20.0, 60.0)
DAY = 86_400.0
SIZES = {"1": (1, 1), "10": (10, 10), "1-100": (1, 100)}
# The promise begins with this many answers, and this long after a node's first call.
FROM_ANSWERS, FROM_SECONDS = 2, 5.0


class Outage(NamedTuple):
    """One row of the table: who calls, and what happens before the store stalls."""

    callers: str = "steady"  # or poisson, irregular, bursts, large
    rate: float = (
        1.0  # the calls a second of each node; of irregular ones, the fewest; of bursts, the seconds between two
    )
    sizes: str = "1"  # of ``SIZES``; of bursts, how many calls each has
    nodes: int = 1
    latency: float = 0.005  # of the store, in seconds
    event: str = ""  # or restart, takeover, rolling, period, early period
    used: float = FROM_SECONDS  # how long the sequence is used before the event or the outage, in seconds

    def __str__(self) -> str:
        rows = [self.event, self.callers, f"{self.rate:g}", self.sizes, f"x{self.nodes}", f"{self.latency * 1e3:g}ms"]
        return " ".join([*filter(None, rows), f"{self.used:g}s"])

    @property
    def from_answers(self) -> int:
        """After how many answers of a node the promise begins."""
        if self.callers == "bursts":
            return 2 * int(self.sizes)
        return {"poisson": 10, "large": 10}.get(self.callers, 3 if self.rate < 1 else FROM_ANSWERS)

    def calls(self, random: Random) -> Iterator[Call]:
        """Return the calls of one node."""
        if self.callers == "bursts":
            return bursts(int(self.sizes), self.rate, random)
        kinds = {"steady": steady, "poisson": poisson, "irregular": irregular, "large": with_large_calls}
        return kinds[self.callers](self.rate, SIZES[self.sizes], random)

    def is_promised(self, node: VirtualNode, now: float) -> bool:
        """Return whether the promise has begun for the callers of a node."""
        has_seen_large = self.callers != "large" or node.large_calls >= 2
        return node.answers >= self.from_answers and has_seen_large and now >= node.first_call_at + FROM_SECONDS


def count_noticed(outage: Outage, seed: int) -> int:
    """Return how many calls notice one outage; the seed gives the moment and the callers."""
    return run_virtually(lambda: _run(outage, Random(f"{outage} {seed}")))


async def _run(outage: Outage, random: Random) -> int:
    is_period = "period" in outage.event
    calls = [outage.calls(Random(random.random())) for _ in range(outage.nodes)]
    nodes = VirtualNodes(calls, outage.latency, Sequence(reset=Reset.DAILY) if is_period else Sequence())
    nodes.clock.wall_offset -= nodes.clock.wall_offset % DAY
    if is_period:
        await nodes.run(_seconds_before_outage(nodes, outage, random))
    else:
        await nodes.run(outage.used)
        await nodes.run(until=lambda: all(outage.is_promised(node, nodes.now) for node in nodes.nodes))
        await _restart(nodes, outage, random)
    noticed = len(await nodes.stall(OUTAGE))
    await nodes.close()
    return noticed


async def _restart(nodes: VirtualNodes, outage: Outage, random: Random) -> None:
    """Replace no node, the first, or all in turn; return after the second answer of the last."""
    killed = {"": 0, "restart": 1, "takeover": 1, "rolling": outage.nodes}[outage.event]
    for number in range(killed):
        if outage.event != "takeover":
            nodes.restart(number)
        elif random.random() < 0.5:
            nodes.take_over(number)
        else:
            nodes.restart(number, after=random.choice(PAUSES))
        node = nodes.nodes[number]
        await nodes.run(until=lambda node=node: node.answers >= FROM_ANSWERS)  # type: ignore[misc]
        if number + 1 < killed:
            await nodes.run(random.choice([1.0, 5.0, 20.0]))
    await nodes.run(random.choice([0.0, 0.2, 1.0, 5.0] if killed else [0.0, random.random(), 10 * random.random()]))


def _seconds_before_outage(nodes: VirtualNodes, outage: Outage, random: Random) -> float:
    """Set the clock so that a period begins within the outage, or right before it."""
    pause = 1 / outage.rate
    if outage.event == "early period":  # 5 s after the latest moment of a second call
        begins_at = 2 * pause + FROM_SECONDS
        lead = random.random() * min(pause, FROM_SECONDS - 1)
    else:
        begins_at = max(outage.used, 3 * pause) + OUTAGE * (1 + random.random())
        lead = random.random() * OUTAGE
    nodes.clock.wall_offset += DAY - begins_at
    return begins_at - lead
