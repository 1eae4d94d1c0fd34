"""What `make floods` measures with: percentiles, the limit of CPU time, goals and the page."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.floods import page
from tests.floods.callers import Observed, pace
from tests.floods.cpu_share import CpuShare
from tests.floods.measure import Result
from tests.floods.targets import FLOODS, KINDS, floods_of


class FakeTimes:
    """CPU time and time of a process, which the test moves."""

    def __init__(self) -> None:
        self.used = self.time = 0.0

    def share(self, share: float) -> CpuShare:
        """Return a limit that reads them."""
        return CpuShare(share, cpu=lambda: self.used, now=lambda: self.time)


def result(latency: float = 0.01, probe_errors: int = 0, errors: int = 0) -> Result:
    """Return the result of a flood."""
    callers = {"grpc": Observed([latency] * 100, Counter({"UNAVAILABLE": errors} if errors else {}))}
    probes = Observed([0.01] * 20, Counter({"TimeoutError": probe_errors} if probe_errors else {}))
    return Result("silent", callers, probes, 100, 90.5, 0.25, 0.5, Counter({"connections": 2300}))


def test_the_share_of_a_core_is_kept() -> None:
    """However long a piece of work is, CPU time stays below its share of the time passed."""
    times = FakeTimes()
    share = times.share(0.25)
    for work in [0.01, 0.2, 0.001, 0.05] * 10:
        times.used += work
        times.time += work
        times.time += share.seconds_to_wait()
        assert times.used <= 0.25 * (times.time + 0.1) + 1e-9


def test_unused_time_is_not_saved_up() -> None:
    """A process that did nothing for an hour may not use a core for long."""
    times = FakeTimes()
    share = times.share(0.25)
    times.time = 3600
    times.used = 1
    assert share.seconds_to_wait() == pytest.approx(4 - 0.1)


async def test_latencies_count_from_when_a_call_was_due() -> None:
    """A call's delay includes its wait for the one before; failures are counted by reason."""
    turns, busy, later = 0, asyncio.Lock(), asyncio.Event()

    async def call(is_new: bool) -> None:
        nonlocal turns
        turns += 1
        turn = turns
        assert is_new == (turn == 1)
        if turn == 3:
            later.set()
        async with busy:
            await later.wait()
        if turn == 4:
            raise ConnectionError

    seen = await pace(call, 10, 0.4, 60)
    assert len(seen.latencies) == 4
    assert seen.latencies[0] >= 0.19  # it waited until the third was due
    assert seen.errors == {"ConnectionError": 1}


@pytest.mark.parametrize(
    ("found", "misses"),
    [
        (result(), []),
        (result(latency=0.25), ["grpc: p99 250 ms"]),
        (result(errors=2), ["grpc: {'UNAVAILABLE': 2}"]),
        (result(probe_errors=1), ["probes: {'TimeoutError': 1}"]),
        (result()._replace(has_ended=True), ["the server ended"]),
    ],
    ids=["none", "p99", "errors", "probes", "ended"],
)
def test_each_goal_can_be_missed(found: Result, misses: list[str]) -> None:
    """p99, errors, failed probes and an ended server each miss the goal, with the figure."""
    assert found.misses() == misses


def test_p99_is_the_second_highest_of_two_hundred() -> None:
    """One slow call in a hundred does not count, a second one does."""
    assert Observed([0.001] * 198 + [1.0] * 2).p99_ms == pytest.approx(1.0)
    assert Observed([0.001] * 197 + [1.0] * 3).p99_ms == pytest.approx(1000)


def test_sections_that_were_not_measured_stay(tmp_path: Path) -> None:
    """A page that is written again keeps the figures of other servers, and marks missed goals."""
    document = tmp_path / "floods.md"
    page.write(document, {"http": [result(errors=7)], "grpcio": [result(errors=8)]}, 20, "one")
    page.write(document, {"x": [result()]}, 5, "two")
    text = document.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## gRPC, `grpcio`",
        "## HTTP port",
        "## X Protocol port",
        "## How to repeat it",
    ]
    assert text.count("Measured on one.") == 2
    assert "| **silent** | 10 | 7 | 0 of 20 | 100 | 90.5 | 25% | 0.5 | 2,300 | 0 |" in text
    assert "| silent | 10 | 8 |" in text  # grpcio has no goal


def test_every_flood_is_explained() -> None:
    """The page says of each flood what it does, and native has none that needs TLS."""
    explained = page._HEAD
    assert [name for floods in FLOODS.values() for name in floods if name not in explained] == []
    assert "half-open TLS" not in floods_of("native")
    assert all(floods_of(name) for name in KINDS)
