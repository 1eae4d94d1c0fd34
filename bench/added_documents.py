"""The section of docs/operations/benchmarks.md on adds of documents beside MySQL."""

import statistics
from collections.abc import Iterable
from typing import Any

from bench.markdown import number, table, verdict

_ABOUT = """\
MySQL's Python client adds documents without an `_id`, in one connection, to idalloc's
[port for the X Protocol](../guides/mysql-xdevapi.md) and to a MySQL 8.0.31 on the same disk. They take turns:
{rounds} rounds, {seconds:g} s of each kind of add. idalloc stores the documents in SQLite with `synchronous = FULL`,
MySQL in InnoDB with its defaults, without a binary log. Both write each add to the disk before the answer.
Compression and TLS are off. A figure is the median of the rounds.
"""
_CALLERS = """\
One gRPC caller of idalloc, with 2 ms between its calls, beside the same adds:
"""
_UNFAIR = """\
What was not fair: the client is Python, and its time is in both figures. It shares the cores with the servers, so gRPC
calls wait for it, too, also where it adds to MySQL.
"""
# The goals of one add's duration and of the documents a second of large adds, as multiples of
# MySQL's.
_ADD_GOAL, _RATE_GOAL = 2.0, 0.3


def section(result: dict[str, Any]) -> str:
    """Return the results of `make bench-xproto` as Markdown."""
    ours, theirs = result["adds"]["idalloc"], result["adds"]["MySQL"]
    slower, rate = (
        statistics.median(one[name] / other[name] for one, other in zip(ours, theirs, strict=True))
        for name in ("p50", "documents_per_s")
    )
    add = [number(_median(each, "p50"), 1e3) for each in (ours, theirs)]
    many = [number(_median(each, "documents_per_s")) for each in (ours, theirs)]
    rows = [
        ("one document: p50, ms", *add, number(slower), f"<= {number(_ADD_GOAL)}", verdict(slower <= _ADD_GOAL)),
        (
            "1,000 in one message: documents/s",
            *many,
            number(rate),
            f">= {number(_RATE_GOAL)}",
            verdict(rate >= _RATE_GOAL),
        ),
    ]
    callers = (
        (
            beside,
            *(number(_median(each, name), 1e3) for name in ("p50", "p99")),
            f"{sum(one['calls'] for one in each):,}",
        )
        for beside, each in result["callers"].items()
    )
    parts = [
        _ABOUT.format(**result),
        table(("An add of", "idalloc", "MySQL", "Ratio", "Target", "Result"), "lrrrrl", rows),
        _CALLERS,
        table(("Beside", "p50, ms", "p99, ms", "Calls"), "lrrr", callers),
        _UNFAIR,
    ]
    return "\n".join(parts)


def _median(rounds: Iterable[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in rounds)
