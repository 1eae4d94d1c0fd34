"""The section of docs/operations/benchmarks-growth.md on faults of the store."""

from collections.abc import Sequence
from typing import Any

from bench.markdown import number, table

# The goals: the longest call in seconds, and p99.9 against the window before the fault.
LONGEST_CALL, P999_TIMES = 0.25, 2.0
_ABOUT = """\
Steady callers use one sequence while its store fails. Each node has three: one of 1 id a call, one of 10 and one of 1
to 100; each pauses 20 ms after an answer. In each of {rounds} rounds, each fault has a window of {seconds:g} s before
it, one during it and one after it; the figures are of the calls in all rounds. A paused node gets SIGSTOP, then
SIGCONT; a killed one `kill -9`, then a new start. CrateDB has three real nodes behind the tests' proxy. The nodes of
idalloc hold ids for 20 s, less than the default of 90 s, so that they call the store every few seconds. The goals,
during the fault: no call takes longer than 250 ms, and p99.9 is at most twice that before it.

Three callers of a no-op server have the same windows. They do not use the store: their longest call is what the
machine's other load costs. Of fewer than 1,000 calls p99.9 is the longest call.
"""
_COLUMNS = (
    "Store",
    "Nodes",
    "Fault",
    "Store calls",
    "Calls",
    "Longest call, ms",
    "p99.9, ms",
    "No-op server: longest call, ms",
)
_WINDOWS = ("before", "during", "after")


def section(result: dict[str, Any]) -> str:
    """Return the results of `make bench-faults` as Markdown."""
    parts, rows = result["parts"], [row for part in result["parts"] for row in part["rows"]]
    ids, findings = (sum(part[each] for part in parts) for each in ("ids", "findings"))
    return "\n".join(
        [
            _ABOUT.format(**result),
            table(_COLUMNS, "lrlrrrrr", [_row(part, row) for part in parts for row in part["rows"]]),
            "Durations are those before / during / after the fault. Calls are those during it and after it. Store calls"
            "\nare those of the nodes that ended during it; one that hangs ends later.\n",
            f"- No call took longer than {number(LONGEST_CALL, 1e3)} ms during the fault:"
            f" {sum(_longest(row, 'during') <= LONGEST_CALL for row in rows)} of {len(rows)} rows; during it and after"
            f" it: {sum(_longest(row, 'during', 'after') <= LONGEST_CALL for row in rows)} of {len(rows)}.",
            f"- The same of the no-op server, which has no store:"
            f" {sum(_longest(row, 'during', of='noop_longest') <= LONGEST_CALL for row in rows)} of {len(rows)} rows;"
            f" {sum(_longest(row, 'during', 'after', of='noop_longest') <= LONGEST_CALL for row in rows)} of"
            f" {len(rows)}.",
            f"- p99.9 during is at most {P999_TIMES:g} times that before:"
            f" {sum(_times(row, 'p999') <= P999_TIMES for row in rows)} of {len(rows)} rows; of the no-op server,"
            f" {sum(_times(row, 'noop_p999') <= P999_TIMES for row in rows)} of {len(rows)}.",
            f"- `idalloc verify` on the logs of all callers: {number(ids)} ids, {findings} findings.",
            *(_failed(part) for part in parts if part["errors"]),
            *(_restarted(part, row) for part in parts for row in part["rows"] if "recovering" in row),
            *(f"- Not run: {each}" for each in result["skipped"]),
            "",
        ]
    )


def _row(part: dict[str, Any], row: dict[str, Any]) -> Sequence[str]:
    durations = (
        " / ".join(number(row[window][figure], 1e3) for window in _WINDOWS)
        for figure in ("longest", "p999", "noop_longest")
    )
    calls = row["during"]["calls"] + row["after"]["calls"]
    return part["store"], f"{part['nodes']}", row["fault"], f"{row['store_calls']}", number(calls), *durations


def _longest(row: dict[str, Any], *windows: str, of: str = "longest") -> float:
    """Return the longest call in some windows; infinity for a window without calls."""
    return max(row[window][of] or float("inf") for window in windows)


def _times(row: dict[str, Any], figure: str) -> float:
    before, during = row["before"][figure], row["during"][figure]
    return during / before if before and during else float("inf")


def _failed(part: dict[str, Any]) -> str:
    errors = ", ".join(f"{count} {reason}" for reason, count in part["errors"].items())
    return f"- {part['store']}, nodes: {part['nodes']}; failed calls: {errors}."


def _restarted(part: dict[str, Any], row: dict[str, Any]) -> str:
    found = row["recovering"]
    return (
        f"- {part['store']}, nodes: {part['nodes']}; while the killed node started ({number(found['seconds'])} s, not"
        f" in the table), the longest of {number(found['calls'])} calls took {number(found['longest'], 1e3)} ms, of the"
        f" no-op server {number(found['noop_longest'], 1e3)} ms."
    )
