"""Contenders that take turns, and what came of it: medians, and ratios of what two of them did in the same round."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_MOST_FAILURES = 2


class Turn(NamedTuple):
    """What one turn came to.

    Attributes:
        calls: Calls that were answered; 0 where single calls are not seen, since a client makes them ahead.
        ids: How many ids came.
        seconds: How long it took.
        p50: Half of the calls took at most so many seconds; None where single calls are not seen.
        p99: 99 of a hundred.
        client_cpu: Seconds of CPU of what made the calls.
        server_cpu: Seconds of CPU of the server; None where it is not ours to look at.
    """

    calls: int
    ids: int
    seconds: float
    p50: float | None
    p99: float | None
    client_cpu: float
    server_cpu: float | None = None

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
        """Seconds of the server's CPU for each call; for each id, where calls are not seen."""
        return None if self.server_cpu is None else self.server_cpu / (self.calls or self.ids)

    @property
    def client_cost(self) -> float:
        """The same of the client's CPU."""
        return self.client_cpu / (self.calls or self.ids)


@dataclass
class Contender:
    """One way to get ids, which takes turns with others.

    Attributes:
        name: What it is.
        drive: Takes ids for so many seconds.
        in_flight: How many calls are under way at a time.
        driver: What makes the calls.
        cpu_seconds: Tells the server's CPU time so far, where that can be seen.
        turns: What it did in each round.
        failures: Why it came to nothing in a turn, each time.
    """

    name: str
    drive: Callable[[float], Turn]
    in_flight: int
    driver: str
    cpu_seconds: Callable[[], float] | None = None
    turns: dict[int, Turn] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def take_turn(self, number: int, seconds: float) -> None:
        """Takes its turn in a round. One that failed twice is left out from then on."""
        if len(self.failures) >= _MOST_FAILURES:
            return
        before = self.cpu_seconds() if self.cpu_seconds else 0.0
        try:
            turn = self.drive(seconds)
        except Exception as error:  # whatever it is, the others go on
            self.failures.append(f"{type(error).__name__}: {error}")
            return
        if not turn.ids:
            self.failures.append("no id came")
            return
        self.turns[number] = turn._replace(server_cpu=self.cpu_seconds() - before if self.cpu_seconds else None)


def take_turns(contenders: Sequence[Contender], rounds: int, seconds: float, until: float) -> int:
    """Has all take a turn in each round.

    The first one, which is short, does not count: leases grow in it, and caches fill. No round but the first that
    counts begins after ``until``.

    Args:
        contenders: Who takes turns.
        rounds: How many rounds count.
        seconds: How long a turn is.
        until: A point in time, by ``time.monotonic``.

    Returns:
        How many rounds there were.
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
    """The median of a figure over the rounds; None where it is not known of all."""
    values = [getattr(turn, figure) for turn in turns]
    return None if not values or None in values else statistics.median(values)


def ratio(above: Contender | None, below: Contender | None, figure: str, below_figure: str = "") -> float | None:
    """The median of the rounds' ratios; None where there is no round in which both have the figure."""
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
    """The least value that so many of a hundred do not exceed; None where there are none."""
    return sorted(values)[max(1, math.ceil(len(values) * percentage / 100)) - 1] if values else None


def to_json(contender: Contender) -> dict[str, Any]:
    """What the document shows of a contender: medians."""
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
