"""Contenders that take turns, and their results: medians, and ratios of turns in the same round."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_MAX_FAILURES = 2


class Turn(NamedTuple):
    """The result of one turn."""

    calls: int  # answered calls; 0 for a client that prefetches ids
    ids: int  # received ids
    seconds: float
    p50: float | None  # median latency in seconds; None without single calls
    p99: float | None  # 99th percentile of the latency
    client_cpu: float  # CPU seconds of the driver
    server_cpu: float | None = None  # CPU seconds of the server; None if it cannot be measured
    longest: float | None = None  # the longest call in seconds, if it was measured

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds

    @property
    def ids_rate(self) -> float:
        """Ids a second."""
        return self.ids / self.seconds

    @property
    def server_cost(self) -> float | None:
        """Server CPU seconds per call, or per id without single calls."""
        return None if self.server_cpu is None else self.server_cpu / (self.calls or self.ids)

    @property
    def client_cost(self) -> float:
        """Client CPU seconds per call, or per id without single calls."""
        return self.client_cpu / (self.calls or self.ids)


@dataclass
class Contender:
    """One way to get ids."""

    name: str  # the name in the document
    drive: Callable[[float], Turn]  # takes ids for a number of seconds
    in_flight: int  # the number of concurrent calls
    driver: str  # the program that makes the calls
    # Returns the server's total CPU time, if it can be measured.
    cpu_seconds: Callable[[], float] | None = None
    turns: dict[int, Turn] = field(default_factory=dict)  # the result of each round
    failures: list[str] = field(default_factory=list)  # the errors of failed turns

    def take_turn(self, number: int, seconds: float) -> None:
        """Take the turn of a round; a contender that failed twice is skipped."""
        if len(self.failures) >= _MAX_FAILURES:
            return
        before = self.cpu_seconds() if self.cpu_seconds else 0.0
        try:
            turn = self.drive(seconds)
        except Exception as error:  # the other contenders go on
            self.failures.append(f"{type(error).__name__}: {error}")
            return
        if not turn.ids:
            self.failures.append("no id was received")
            return
        self.turns[number] = turn._replace(server_cpu=self.cpu_seconds() - before if self.cpu_seconds else None)


def take_turns(contenders: Sequence[Contender], rounds: int, seconds: float, until: float) -> int:
    """Let all contenders take a turn in each round.

    A short first round does not count: leases grow in it, and caches fill. Only the first counted
    round may begin after ``until``.

    Args:
        contenders: The contenders.
        rounds: How many rounds count.
        seconds: The duration of a turn.
        until: The end, by ``time.monotonic``.

    Returns:
        How many rounds counted.
    """
    for contender in contenders:
        contender.take_turn(0, min(seconds, 0.5))
        contender.turns.clear()
    done = 0
    while done < rounds and (done == 0 or time.monotonic() < until):
        done += 1
        for contender in contenders:
            contender.take_turn(done, seconds)
    return done


def median(turns: Iterable[Turn], figure: str) -> float | None:
    """Return the median of a figure over the rounds; None if a round lacks it."""
    values = [getattr(turn, figure) for turn in turns]
    return None if not values or None in values else statistics.median(values)


def ratio(above: Contender | None, below: Contender | None, figure: str, below_figure: str = "") -> float | None:
    """Return the median of the rounds' ratios; None if no round has the figure of both."""
    if above is None or below is None:
        return None
    ratios = []
    for number, turn in above.turns.items():
        if number in below.turns:
            one, other = getattr(turn, figure), getattr(below.turns[number], below_figure or figure)
            if one is not None and other:
                ratios.append(one / other)
    return statistics.median(ratios) if ratios else None


def percentile(values: Sequence[float], percentage: float) -> float | None:
    """Return the smallest value that is at least ``percentage`` % of the values; None if empty."""
    return sorted(values)[max(1, math.ceil(len(values) * percentage / 100)) - 1] if values else None


def to_json(contender: Contender) -> dict[str, Any]:
    """Return the medians that the document shows."""
    turns = contender.turns.values()
    figures = ("rate", "ids_rate", "p50", "p99", "server_cost", "client_cost")
    return {
        "name": contender.name,
        "in_flight": contender.in_flight,
        "driver": contender.driver,
        "failures": contender.failures,
        "rounds": len(turns),
        "sees_calls": any(turn.calls for turn in turns),
        **{figure: median(turns, figure) for figure in figures},
    }
