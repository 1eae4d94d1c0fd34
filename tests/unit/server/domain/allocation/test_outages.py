"""P10 in virtual time: the rows of its table in docs/explanation/guarantees.md."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, product
from random import Random

import pytest

from idalloc_server.domain.allocation.config import AllocationConfig
from tests.support.outages import SIZES, Outage, count_noticed
from tests.support.virtual_nodes import CONFIG, Call, VirtualNodes, run_virtually, steady

LATENCIES = (0.005, 0.5)
RESTARTS = ("restart", "rolling")
# The longest pause between two calls of a slow caller that notices no outage, in seconds.
SLOW_PAUSE = CONFIG.lease_ttl * 2 / 3 - CONFIG.outage_reserve
# Calls a second that are just two within ``outage_reserve``.
RARE = 1 / 88
# Each pair of two options, for ``make test``.
STEADY = [
    Outage("steady", 0.2, "1", 1, 0.005),
    Outage("steady", 0.2, "1-100", 3, 0.5),
    Outage("steady", 1, "1", 3, 0.5),
    Outage("steady", 1, "10", 1, 0.005),
    Outage("steady", 10, "1", 1, 0.5),
    Outage("steady", 10, "1-100", 3, 0.005),
    Outage("steady", 1, "10", 10, 0.5),
    Outage("steady", 100, "1", 1, 0.005),
]
OTHERS = [
    Outage("poisson", 0.2, "1", 3, 0.5),
    Outage("poisson", 1, "1-100", 1, 0.005),
    Outage("poisson", 10, "1", 1, 0.5),
    Outage("large", 10, "1-100", 1, 0.5),
    Outage("bursts", 5, "20", 1, 0.5),
    Outage("bursts", 5, "20", 3, 0.005),
    Outage("steady", 1, "1", 3, 0.5, "restart"),
    Outage("poisson", 10, "1-100", 1, 0.005, "takeover", 16),
    Outage("steady", 1, "10", 3, 0.005, "rolling", 16),
    Outage("steady", 1, "1", 1, 0.5, "period"),
    Outage("steady", RARE, "1", 3, 0.005, "period"),
    Outage("steady", 1, "1", 3, 0.5, "early period"),
]
ALL_STEADY = [
    *(Outage("steady", *row) for row in product((0.2, 1, 10, 100), SIZES, (1, 3), LATENCIES)),
    *(Outage("steady", *row) for row in product((0.2, 1, 10), SIZES, (10,), LATENCIES)),
    Outage("steady", 10, "1", 1, 2.0, used=12),
    *(Outage("irregular", 1 / SLOW_PAUSE, *row) for row in product(("1", "1-100"), (1, 3), LATENCIES)),
]
FAST = [Outage("steady", 1_000, sizes, 1, latency) for sizes, latency in product(SIZES, LATENCIES)]
FAST += [Outage("poisson", 1_000, "1", 1, 0.5), Outage("poisson", 1_000, "1-100", 1, 0.005)]
ALL_OTHERS = [
    *(
        Outage(callers, rate, sizes, nodes, latency)
        for callers, rate, sizes, (nodes, latency) in product(
            ("poisson", "large"), (0.2, 1, 10), ("1", "1-100"), ((1, 0.5), (3, 0.005))
        )
    ),
    *(Outage("poisson", 100, sizes, *row) for sizes, row in product(("1", "1-100"), ((1, 0.5), (3, 0.005)))),
    *(Outage("irregular", 1 / 60, *row) for row in product(("1", "1-100"), (1, 3), LATENCIES)),
    *(Outage("bursts", 5, "20", nodes, latency) for nodes, latency in product((1, 3), LATENCIES)),
    *(
        Outage("steady", rate, "1", nodes, latency, event, used)
        for event, used, rate, nodes, latency in product(RESTARTS, (5, 16, 60, 200), (1, 10), (1, 3), LATENCIES)
    ),
    *(
        Outage(callers, rate, sizes, nodes, latency, "takeover", used)
        for callers, rate, sizes, (nodes, latency), used in product(
            ("steady", "poisson"), (0.2, 1, 10), ("1", "1-100"), ((1, 0.5), (3, 0.005)), (5, 60)
        )
    ),
    *(Outage("steady", *row) for row in product((0.65, 1.5), ("1-100",), (1,), LATENCIES, ("restart", "takeover"))),
    *(
        Outage("steady", rate, "1", nodes, latency, event)
        for event, rate, nodes, latency in product(
            ("period", "early period"), (RARE, 0.03, 0.2, 1, 10), (1, 3), LATENCIES
        )
    ),
]


@pytest.mark.parametrize("outage", [*STEADY, *OTHERS], ids=str)
def test_nobody_notices_an_outage(outage: Outage) -> None:
    """P10: no call notices that the store stalls for ``outage_reserve``."""
    assert count_noticed(outage, seed=0) == 0


@pytest.mark.test_long
@pytest.mark.parametrize(
    ("outage", "runs"), [*((each, 6) for each in ALL_STEADY), *((each, 3) for each in FAST)], ids=str
)
def test_nobody_notices_an_outage_at_a_steady_rate(outage: Outage, runs: int) -> None:
    """P10: at a steady rate no call notices, whenever the store stalls."""
    assert [count_noticed(outage, seed) for seed in range(runs)] == [0] * runs


@pytest.mark.test_long
@pytest.mark.parametrize("outage", ALL_OTHERS, ids=str)
def test_a_run_in_fifty_may_notice_an_outage(outage: Outage) -> None:
    """P10: with irregular callers, after restarts and over periods, at most 2 % of runs notice."""
    assert sum(count_noticed(outage, seed) > 0 for seed in range(50)) <= 1


def run_calls(
    calls: list[Iterator[Call]], seconds: float, latency: float = 0.005, config: AllocationConfig = CONFIG
) -> tuple[int, list[float]]:
    """Return the most ids that a node held, and when calls were made that waited."""

    async def run() -> tuple[int, list[float]]:
        nodes = VirtualNodes(calls, latency, config=config)
        most = 0
        for _ in range(int(seconds)):
            await nodes.run(1.0)
            most = max(most, *nodes.held_ids)
        await nodes.close()
        return most, nodes.noticed

    return run_virtually(run)


def highest_rate(calls: list[tuple[float, int]]) -> float:
    """Return R of the page, from the moments of calls and their ids."""
    times = [at for at, _ in calls]
    totals = [0, *accumulate(count for _, count in calls)]

    def most(at: float, seconds: float) -> int:
        return totals[bisect_right(times, at)] - totals[bisect_left(times, at - seconds - 1e-6)]

    second = max(most(at, 1.0) for at in times)
    return max((most(at, 5.0) + second) / min(5.0, max(2.0, at - times[0])) for at in times)


@pytest.mark.parametrize("how_many", [1, 3])
@pytest.mark.parametrize("sizes", ["1", "1-100"])
@pytest.mark.parametrize(
    ("callers", "rate"), [*product(("steady", "poisson"), (0.2, 1, 10)), ("steady", 100), ("steady", 1_000)]
)
def test_a_kill_burns_at_most_four_reserves(callers: str, rate: float, sizes: str, how_many: int) -> None:
    """P10: a node holds at most R in four ``outage_reserve``, and four of the largest calls."""
    made: list[list[tuple[float, int]]] = [[] for _ in range(how_many)]

    def recorded(node: int) -> Iterator[Call]:
        at = 0.0
        for call in Outage(callers, rate, sizes).calls(Random(node)):
            at += call.after
            made[node].append((at, call.id_count))
            yield call

    most, _ = run_calls([recorded(node) for node in range(how_many)], max(6, min(300, 1_000 / rate)))
    highest = max(map(highest_rate, made))
    assert 0 < most <= 4 * CONFIG.outage_reserve * highest + 4 * SIZES[sizes][1]


def test_ids_of_calls_that_waited_count_once() -> None:
    """P10: a first call that waited for the store does not count as one of the last 5 s."""
    most, _ = run_calls([iter([Call(0.0, 90), Call(30.0, 10), Call(1e6, 1), Call(1e6, 1)])], 50)
    assert 0 < most <= 3 * CONFIG.outage_reserve * 100 / 30 + 3 * 90


@pytest.mark.parametrize("rate", [1, 10, 100])
def test_without_a_reserve_no_call_waits_for_a_refill(rate: float) -> None:
    """P10: with ``outage_reserve = 0s`` a node holds ids for about three seconds of its use."""
    calls = steady(rate, (1, 1), Random(1))
    most, waited = run_calls([calls], 200, latency=0.5, config=replace(CONFIG, outage_reserve=0.0))
    assert most <= 4 * rate + 4
    assert all(at < 3 for at in waited)


def test_the_counts_of_a_busy_counter_are_few() -> None:
    """A counter that is called all the time keeps at most 60 counts of the ids that it issued."""

    async def most_samples() -> int:
        nodes = VirtualNodes([steady(20, (1, 1), Random(1))], latency=0.005)
        [node] = nodes.nodes
        most = 0
        for _ in range(300):
            await nodes.run(1.0)
            [counter] = node.allocator._sequence_allocators["s"].counters
            most = max(most, len(counter._reserve._samples))
        await nodes.close()
        return most

    assert 10 < run_virtually(most_samples) <= 60
