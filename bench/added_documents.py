"""The section of docs/operations/benchmarks.md on adds of documents beside MySQL."""

import statistics
from collections.abc import Iterable
from typing import Any

from bench.markdown import number, ratio, table, verdict

_ABOUT = """\
Clients add documents without an `_id` to idalloc's [port for the X Protocol](../guides/mysql-xdevapi.md) and to a
MySQL 8.0.31 on the same disk. They take turns: {rounds} rounds, {seconds:g} s of each kind of add. idalloc stores the
documents in SQLite with `synchronous = FULL`, MySQL in InnoDB with its defaults, without a binary log. Both write each
add to the disk before the answer. Compression and TLS are off. A figure is the median of the rounds, a ratio the
median of the rounds' ratios.

Single documents, over several sessions at once, each with one add after the other. The client sends the same frame and
counts replies:
"""
_MANY = """\
1,000 documents in one message, one message after the other, by MySQL's Python client:
"""
_CALLERS = """\
One gRPC caller of idalloc, with 2 ms between its calls, beside the same adds:
"""
_UNFAIR = """\
What was not fair: the clients are Python, and their time is in both figures. They share the cores with the servers,
so gRPC calls wait for them, too, also where they add to MySQL.
"""
# The goals, as multiples of MySQL's: of the single adds a second and their p99, of the time of a
# large add.
_RATE_GOAL, _P99_GOAL, _MANY_GOAL = 1.0, 1.0, 1.2

_Rounds = list[dict[str, float]]


def section(result: dict[str, Any]) -> str:
    """Return the results of `make bench-xproto` as Markdown."""
    rows = []
    for count, both in result["sessions"].items():
        rate, p99 = _ratio(both, "adds_per_s"), _ratio(both, "p99")
        named = f"{count} session" if count == "1" else f"{count} sessions"
        rows += [
            _row(f"{named}: adds/s", both, "adds_per_s", 1, rate, f">= {number(_RATE_GOAL)}", rate >= _RATE_GOAL),
            _row(f"{named}: p99, ms", both, "p99", 1e3, p99, f"<= {number(_P99_GOAL)}", p99 <= _P99_GOAL),
        ]
    adds = {name: [{"s": 1 / one["documents_per_s"]} for one in each] for name, each in result["adds"].items()}
    slower = _ratio(adds, "s")
    many = _row("1,000 documents: ms", adds, "s", 1e6, slower, f"<= {number(_MANY_GOAL)}", slower <= _MANY_GOAL)
    callers = (
        (
            beside,
            *(number(_median(each, name), 1e3) for name in ("p50", "p99")),
            f"{sum(one['calls'] for one in each):,}",
        )
        for beside, each in result["callers"].items()
    )
    heads = ("An add", "idalloc", "MySQL", "Ratio", "Target", "Result")
    parts = [
        _ABOUT.format(**result),
        table(heads, "lrrrrl", rows),
        _MANY,
        table(heads, "lrrrrl", [many]),
        _CALLERS,
        table(("Beside", "p50, ms", "p99, ms", "Calls"), "lrrr", callers),
        _UNFAIR,
    ]
    return "\n".join(parts)


def _row(
    what: str, both: dict[str, _Rounds], name: str, scale: float, found: float, target: str, is_met: bool
) -> tuple[str, ...]:
    medians = (number(_median(both[contender], name), scale) for contender in ("idalloc", "MySQL"))
    return (what, *medians, ratio(found), target, verdict(is_met))


def _ratio(both: dict[str, _Rounds], name: str) -> float:
    """Return the median of the rounds' ratios, idalloc to MySQL."""
    pairs = zip(both["idalloc"], both["MySQL"], strict=True)
    return statistics.median(one[name] / other[name] for one, other in pairs)


def _median(rounds: Iterable[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in rounds)
