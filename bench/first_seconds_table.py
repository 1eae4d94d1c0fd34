"""The section of docs/operations/benchmarks-growth.md on outages soon after the first call."""

from collections.abc import Sequence
from typing import Any

from bench.faults_table import LONGEST_CALL
from bench.markdown import number, table

_ABOUT = """\
After some seconds of use the store is away for {reserve:g} s, which is the nodes' `outage_reserve`: another
process holds SQLite's write lock, or CrateDB refuses connections. Each node has a caller of each
kind: 1 id a call, 10 ids, 1 to 100 ids, batches of three requests for 26 ids, and 3 formatted ids.
Each pauses 100 ms after an answer, and all nodes share the sequence of a kind. The use begins once
each caller had an answer. In the rows "restarted" one node is killed with `kill -9` and started
again, and the outage begins a second after the first answers of each kind. Each row has new nodes and a new
store. The goals: no errors, and no call longer than 250 ms.

A caller of a no-op server has the same time. It does not use the store: its longest call is what
the machine's other load costs.
"""


def section(result: dict[str, Any]) -> str:
    """Return the results of `python -m bench.first_seconds` as Markdown."""
    rows = result["rows"]
    kinds = [*rows[0]["kinds"]]
    columns = ("Store", "Nodes", "Used, s", "Calls", "Errors", *kinds, "No-op server")
    longest = [found["longest"] for row in rows for found in row["kinds"].values()]
    return "\n".join(
        [
            _ABOUT.format(**result),
            table(columns, "lrlrr" + "r" * len(kinds) + "r", map(_row, rows)),
            "The columns of the kinds and of the no-op server have the longest call, in ms. All figures are of"
            "\ncalls that began while the store was away.\n",
            f"- Without errors: {sum(not _errors(row) for row in rows)} of {len(rows)} rows.",
            f"- No call took longer than {number(LONGEST_CALL, 1e3)} ms:"
            f" {sum(each is not None and each <= LONGEST_CALL for each in longest)} of {len(longest)} kinds of calls.",
            f"- `idalloc verify` on the logs of all callers: {number(sum(row['ids'] for row in rows))} ids,"
            f" {sum(row['findings'] for row in rows)} findings.",
            *(f"- Not run: {each}" for each in result["skipped"]),
            "",
        ]
    )


def _row(row: dict[str, Any]) -> Sequence[str]:
    found = row["kinds"].values()
    return (
        row["store"],
        f"{row['nodes']}",
        f"{row['used']:g}{', restarted' * row['restarted']}",
        number(sum(each["calls"] for each in found)),
        f"{_errors(row)}",
        *(number(each["longest"], 1e3) for each in found),
        number(row["noop_longest"], 1e3),
    )


def _errors(row: dict[str, Any]) -> int:
    return sum(each["errors"] for each in row["kinds"].values())
